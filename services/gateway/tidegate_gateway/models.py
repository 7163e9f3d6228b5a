"""What the gateway knows of a model, whichever protocol told it, and checks requests by."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor, check_length

ANY = -1
"""A dimension of any size, in the shape of a TensorSpec."""

# Enough to put a request right at once; a hostile one can have a million.
_MOST_FAULTS = 8


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
        parameters: the model's own settings (config.pbtxt).
    """

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)


def check_inputs(model: Model, inputs: Sequence[Tensor]) -> None:
    """Check that `inputs` are what `model` takes.

    Raises:
        InvalidInput: they are not; each of the first eight faults is told, with its input,
            what was expected and what came.
    """
    faults = list(islice(_input_faults(model, inputs), _MOST_FAULTS))
    if faults:
        raise InvalidInput(f"model {model.name!r}: {'; '.join(faults)}")


def check_outputs(model: Model, names: Sequence[str]) -> None:
    """Check that `model` has the outputs asked for.

    Raises:
        InvalidInput: one of `names` is no output of it.
    """
    known = [spec.name for spec in model.outputs]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(
            f"model {model.name!r}: expected outputs of {known}, "
            f"got {', '.join(map(repr, unknown))}"
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
