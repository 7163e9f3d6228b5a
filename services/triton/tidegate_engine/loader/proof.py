"""The golden request of a version, and whether its answer is right: pure.

Where the table has none for the version, the model may bring its own, as the parameter
`golden_request` of its config.pbtxt: the body of a KServe v2 infer request as JSON. Where it does
not either, zeros are sent in the smallest shape that the model takes. It may refuse those, which
shows as well that it is alive, unless the version that serves answers the same; only of an answer
of its own will more be asked. Gateways probe engines by the same rules, but compare no versions.

Tensors come back in binary form, since some datatypes have no other:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_table.document import Proof

PARAMETER = "golden_request"
"""The parameter of a model's configuration that has its own."""

DEAD_BACKEND = re.compile(r"stub process .*is not healthy", re.IGNORECASE)
"""What Triton says when the process that runs the model has ended: it is never started again."""

# By KServe v2's names: what `struct` calls an element, in little-endian order.
_FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
    "BF16": "H",
}
_FLOATS = {"FP16", "FP32", "FP64", "BF16"}
# BYTES: each element is its length, in 4 bytes, and as many bytes.
_LENGTH = struct.Struct("<I")

Json = Mapping[str, Any]


class InvalidGolden(Exception):
    """A golden request that is none; the message says why."""


@dataclass(frozen=True, slots=True)
class Golden:
    """What is sent, and how its answer is judged.

    Attributes:
        head: the JSON of the request.
        tensors: the binary part behind it.
        may_be_refused: whether an error of the model is an answer, too, where the version that
            serves answers with one as well.
        outputs: what is expected, as JSON has it; None: any values.
        tolerance: by how much floating point may differ from `outputs`.
        complete: whether every output that the model has must be there.
    """

    head: Json
    tensors: bytes = b""
    may_be_refused: bool = False
    outputs: Sequence[Json] | None = None
    tolerance: float = 0.0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output: `raw` are its elements as Triton sends them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


# The request


def golden(config: Json, proof: Proof | None) -> Golden:
    """The golden request of a version.

    Args:
        config: the model's configuration, as Triton tells it as JSON.
        proof: the table's.

    Raises:
        InvalidGolden: it cannot be used.
    """
    own = config.get("parameters", {}).get(PARAMETER)
    if proof is None and own is None:
        return _zeros(config)
    try:
        request = proof.request if proof is not None else json.loads(own["string_value"])
        head = _with_binary_outputs(request)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidGolden(f"the golden request is no infer request: {error}") from None
    return Golden(
        head,
        outputs=proof.outputs if proof is not None else None,
        tolerance=proof.tolerance if proof is not None else 0.0,
        complete="outputs" not in request,
    )


def _zeros(config: Json) -> Golden:
    batch = (1,) if config.get("max_batch_size", 0) > 0 else ()
    inputs, tensors = [], []
    for each in config.get("input", ()):
        if each.get("optional"):
            continue
        # JSON has numbers of 64 bits as text.
        shape = (*batch, *(max(1, int(size)) for size in each["dims"]))
        datatype = _datatype(each["data_type"])
        tensors.append(bytes(math.prod(shape) * _size(datatype)))
        inputs.append(
            {
                "name": each["name"],
                "datatype": datatype,
                "shape": shape,
                "parameters": {"binary_data_size": len(tensors[-1])},
            }
        )
    # What a model answers that needs no input is its own affair.
    request = _with_binary_outputs({"inputs": inputs})
    return Golden(request, b"".join(tensors), may_be_refused=True, complete=bool(inputs))


def _with_binary_outputs(request: Json) -> Json:
    if "outputs" not in request:
        parameters = {**request.get("parameters", {}), "binary_data_output": True}
        return {**request, "parameters": parameters}
    outputs = [
        {**each, "parameters": {**each.get("parameters", {}), "binary_data": True}}
        for each in request["outputs"]
    ]
    return {**request, "outputs": outputs}


def _datatype(configured: str) -> str:
    name = configured.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _size(datatype: str) -> int:
    return struct.calcsize(_FORMATS.get(datatype, "I"))


# The answer


def fault(request: Golden, head: Json, binary: bytes, metadata: Json) -> str:
    """What is wrong with an answer, or "".

    Args:
        head: the JSON of the answer.
        binary: the part behind it.
        metadata: the version's, as KServe v2 has it.
    """
    try:
        given = {each.name: each for each in _tensors(head, binary)}
    except ValueError as error:
        return str(error)
    declared = {each["name"]: each for each in metadata.get("outputs", ())}
    return next(_faults(request, given, declared), "")


def _tensors(head: Json, binary: bytes) -> list[Tensor]:
    found, at = [], 0
    try:
        for each in head.get("outputs", ()):
            size = each["parameters"]["binary_data_size"]
            shape = tuple(each["shape"])
            found.append(Tensor(each["name"], each["datatype"], shape, binary[at : at + size]))
            at += size
    except (LookupError, TypeError) as error:
        raise ValueError(f"expected outputs in binary form: {error!r}") from None
    return found


def difference(metadata: Json, reference: Json) -> str:
    """What a version takes or gives that another one does not, or "". Both are metadata."""
    for kind in ("inputs", "outputs"):
        own, other = (
            {each["name"]: (each["datatype"], _whole(each["shape"])) for each in of.get(kind, ())}
            for of in (metadata, reference)
        )
        for name in sorted(own.keys() | other.keys()):
            if own.get(name) != other.get(name):
                return (
                    f"{kind[:-1]} {name!r}: expected {_described(other.get(name))} as in the "
                    f"version that serves, got {_described(own.get(name))}"
                )
    return ""


def _faults(
    request: Golden, given: Mapping[str, Tensor], declared: Mapping[str, Json]
) -> Iterator[str]:
    for name, each in given.items():
        if name not in declared:
            yield f"output {name!r}: expected none of this name, got one"
            continue
        wanted = declared[name]["datatype"], _whole(declared[name]["shape"])
        if each.datatype != wanted[0] or not _fits(each.shape, wanted[1]):
            yield (
                f"output {name!r}: expected {_described(wanted)}, "
                f"got {_described((each.datatype, each.shape))}"
            )
    for name in declared:
        if request.complete and name not in given:
            yield f"output {name!r}: expected one, got none"
    for expected in request.outputs or ():
        yield from _value_faults(expected, given, request.tolerance)


def _value_faults(expected: Json, given: Mapping[str, Tensor], tolerance: float) -> Iterator[str]:
    name = expected.get("name")
    output = given.get(str(name))
    if output is None:
        yield f"output {name!r}: expected one, got none"
        return
    wanted = expected.get("datatype", output.datatype), _whole(expected.get("shape", output.shape))
    if (output.datatype, output.shape) != wanted:
        got = _described((output.datatype, output.shape))
        yield f"output {name!r}: expected {_described(wanted)}, got {got}"
        return
    if "data" not in expected:
        return
    values, right = _values(output), [*_flat(expected["data"])]
    if len(values) != len(right):
        yield f"output {name!r}: expected {len(right)} values, got {len(values)}"
        return
    allowed = tolerance if output.datatype in _FLOATS else 0.0
    for place, (value, wish) in enumerate(zip(values, right, strict=True)):
        if not _is_close(value, wish, allowed):
            yield f"output {name!r}: value {place}: expected {wish!r}, got {value!r}"
            return


def _values(tensor: Tensor) -> list[Any]:
    if tensor.datatype == "BYTES":
        return [*_texts(tensor.raw)]
    size = _size(tensor.datatype)
    count = len(tensor.raw) // size
    found = struct.unpack(f"<{count}{_FORMATS[tensor.datatype]}", tensor.raw[: count * size])
    if tensor.datatype == "BF16":
        # The upper half of a float of 32 bits.
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in found]
    return [*found]


def _texts(raw: bytes) -> Iterator[str]:
    at = 0
    while at + _LENGTH.size <= len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        yield raw[at : at + length].decode(errors="replace")
        at += length


def _flat(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for each in data:
            yield from _flat(each)
    else:
        yield data


def _is_close(value: Any, wish: Any, allowed: float) -> bool:
    if isinstance(value, float) and isinstance(wish, int | float):
        return abs(value - wish) <= allowed
    return bool(value == wish)


def _whole(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size in (-1, given) for given, size in zip(shape, wanted, strict=True)
    )


def _described(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "none" if tensor is None else f"{tensor[0]} of shape {[*tensor[1]]}"
