"""What the gateway knows of a model, whichever protocol told it, and checks requests by."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.faults import MOST_FAULTS
from tidegate_gateway.requests import Request, Wanted, parameter_faults
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor, check_length

ANY = -1
"""A dimension of any size, in the shape of a TensorSpec."""


# Triton finds no classes in them.
_UNCLASSED = (Datatype.BOOL, Datatype.BYTES, Datatype.FP16, Datatype.BF16)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        shape: every dimension, the batch's included; ANY where each size is right.
        channels_first: True for images as NCHW, False for NHWC, None where the model does not say.
        optional: whether an input may be left out.
        labelled: whether the engine has a label for each class of an output.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    channels_first: bool | None = None
    optional: bool = False
    labelled: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its engine describes it.

    Attributes:
        version: the version asked for, or "" for the engine's own choice.
        versions: the versions that are served.
        platform: what runs it, in the engine's words.
        max_batch_size: the largest batch; 0 where the model has no batch dimension.
        decoupled: whether it answers a request any number of times.
        parameters: the model's own settings (config.pbtxt).
        config: all of its configuration, as the engine's protocol has it; it goes to clients that
            ask for it, unread.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoupled: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    config: bytes = b""


def check_request(model: Model, request: Request) -> None:
    """Check that `request` is one that `model` takes.

    Raises:
        InvalidInput: it is not; each of the first eight faults is told, with its tensor, what was
            expected and what came.
    """
    found = chain(
        parameter_faults(request.parameters),
        _input_faults(model, request.inputs),
        _output_faults(model, request.outputs),
    )
    faults = list(islice(found, MOST_FAULTS))
    if faults:
        raise InvalidInput(f"model {model.name!r}: {'; '.join(faults)}")


def _output_faults(model: Model, outputs: Sequence[Wanted]) -> Iterator[str]:
    specs = {spec.name: spec for spec in model.outputs}
    for wanted in outputs:
        spec = specs.get(wanted.name)
        if spec is None:
            yield f"expected outputs of {list(specs)}, got {wanted.name!r}"
        elif wanted.classes and spec.datatype in _UNCLASSED:
            yield (
                f"output {spec.name!r}: expected numbers to find classes in, got a model that "
                f"gives {spec.datatype.name}"
            )


def _input_faults(model: Model, inputs: Sequence[Tensor]) -> Iterator[str]:
    specs = {spec.name: spec for spec in model.inputs}
    seen: set[str] = set()
    for tensor in inputs:
        spec = specs.get(tensor.name)
        if spec is None:
            yield f"expected inputs of {list(specs)}, got {tensor.name!r}"
        elif tensor.name in seen:
            yield f"input {tensor.name!r}: expected once, got it twice"
        else:
            yield from _tensor_faults(model, spec, tensor)
        seen.add(tensor.name)
    for spec in model.inputs:
        if spec.name not in seen and not spec.optional:
            yield f"input {spec.name!r} ({spec.datatype.name} {list(spec.shape)}) is missing"


def _tensor_faults(model: Model, spec: TensorSpec, tensor: Tensor) -> Iterator[str]:
    if tensor.datatype is not spec.datatype:
        yield (
            f"input {spec.name!r}: expected datatype {spec.datatype.name}, "
            f"got {tensor.datatype.name}"
        )
    rank = len(tensor.shape)
    if rank > MAX_RANK:
        yield f"input {spec.name!r}: expected shape {list(spec.shape)}, got {rank} dimensions"
        return
    if any(size < 0 for size in tensor.shape):
        yield (
            f"input {spec.name!r}: expected sizes of 0 or more in its shape, "
            f"got {list(tensor.shape)}"
        )
        return
    if not _fits(spec.shape, tensor.shape):
        yield f"input {spec.name!r}: expected shape {list(spec.shape)}, got {list(tensor.shape)}"
        return  # The length of a tensor that has another shape says nothing more.
    if model.max_batch_size and tensor.shape[0] > model.max_batch_size:
        yield (
            f"input {spec.name!r}: expected a batch of at most {model.max_batch_size}, "
            f"got {tensor.shape[0]}"
        )
    try:
        check_length(tensor)
    except InvalidInput as fault:
        yield fault.message


def _fits(expected: Sequence[int], actual: Sequence[int]) -> bool:
    return len(expected) == len(actual) and all(
        size in (ANY, found) for size, found in zip(expected, actual, strict=True)
    )
