"""KServe v2's JSON documents and the domain's own objects, in both directions."""

import contextlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tidegate_gateway.errors import InvalidInput, PayloadTooLarge
from tidegate_gateway.faults import each_read
from tidegate_gateway.models import Model, TensorSpec
from tidegate_gateway.requests import (
    Parameter,
    Request,
    Response,
    Wanted,
    classes_wanted,
    refuse_shared_memory,
)
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor, from_json, json_kind, to_json
from tidegate_gateway.v2_binary import SIZE, Tail

# The most that one dimension may be: more elements than any body holds, and well within the 64 bits
# that engines have for it. How many elements all of them make is checked against those sent.
_MAX_DIMENSION = 2**31 - 1


# Parameters that say in which form outputs are wanted: of an output, and of the request for all.
_BINARY = "binary_data"
_ALL_BINARY = "binary_data_output"

_NO_TAIL = Tail(memoryview(b""))

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Form:
    """Which outputs are to come as raw bytes behind the JSON of the answer.

    Attributes:
        all_binary: all of them; it counts, as it does for Triton, where no outputs are named.
        outputs: whether those that are named are.
    """

    all_binary: bool = False
    outputs: Mapping[str, bool] = field(default_factory=dict)

    def binary(self, response: Response) -> Sequence[str]:
        """The names of those in `response`."""
        names = (tensor.name for tensor in response.outputs)
        return [name for name in names if self.outputs.get(name, self.all_binary)]


def parse(body: bytes | memoryview, *, max_values: int | None = None) -> dict[str, Any]:
    """The JSON object in `body`. NaN, Infinity and -Infinity are numbers, as they are for Triton.

    Args:
        max_values: the setting limits.max_json_values, if it is to be kept.

    Raises:
        InvalidInput: it holds none, or a member twice.
        PayloadTooLarge: it has more values.
    """
    body = bytes(body)
    if max_values is not None and (values := body.count(b",") + 1) > max_values:
        raise PayloadTooLarge(
            f"the body: expected JSON of at most {max_values} values (limits.max_json_values), got "
            f"{values}; send tensors as binary data"
        )
    try:
        document = _loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body: expected a JSON object, got {json_kind(document)}")
    _check_members(body, document)
    return document


def _loads(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # The standard library's parser knows these numbers. What it lets pass besides is left out:
        # halves of characters, and numbers so large that they become infinite.
        is_special = b"NaN" in body or b"Infinity" in body
        if is_special and b"\\ud" not in body.lower():
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(body, parse_float=_finite)
        raise


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _check_members(body: bytes, document: dict[str, Any]) -> None:
    """Check that no member is there twice: of two, one reader takes the first and another the last,
    and what a proxy has checked is not what the model gets.

    Each member has a colon. Only where there are more of them than members, even without those in
    strings, the body is read once more.

    Raises:
        InvalidInput: there is one.
    """
    members = _count_members(document)
    if body.count(b":") == members or _STRING.sub(b"", body).count(b":") == members:
        return
    try:
        json.loads(body, object_pairs_hook=_without_twins)
    except RecursionError:
        raise InvalidInput("the body is not JSON: depth limit exceeded") from None


def _count_members(document: dict[str, Any]) -> int:
    """How many members the objects in `document` have. Not in lists that begin with something else
    than an object: those are the elements of tensors."""
    count, left = 0, [document]
    while left:
        members = left.pop()
        count += len(members)
        for value in members.values():
            if isinstance(value, dict):
                left.append(value)
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                left.extend(each for each in value if isinstance(each, dict))
    return count


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the body: expected each member once, got {twin!r} twice")
    return members


def dump(document: object) -> bytes:
    """`document` as JSON; numpy arrays become lists."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def read_request(
    document: Mapping[str, Any], model: str, version: str, tail: Tail = _NO_TAIL
) -> Request:
    """The request in `document` for that version of that model.

    Args:
        tail: what follows behind the JSON; all of it must belong to inputs.

    Raises:
        InvalidInput: a member is missing, of another type, or a tensor does not fit its own shape;
            of several faults in tensors the first eight are told.
        NotOffered: a tensor is to come from, or go to, shared memory.
    """
    inputs = _member(document, "inputs", list, "the request", required=True)
    outputs = _member(document, "outputs", list, "the request")
    parameters = _parameters(document)
    parameters.pop(_ALL_BINARY, None)
    request = Request(
        model=model,
        version=version,
        id=_member(document, "id", str, "the request") or "",
        inputs=each_read(inputs, lambda index, entry: _input(entry, index, tail)),
        outputs=each_read(outputs or [], lambda index, entry: _wanted(entry, index)),
        parameters=parameters,
    )
    tail.check_empty()
    return request


def read_form(document: Mapping[str, Any]) -> Form:
    """In which form `document`, in which a request has been found, wants its answer.

    Raises:
        InvalidInput: it says so with something else than true or false.
    """
    all_binary = _flag((document.get("parameters") or {}).get(_ALL_BINARY, False), _ALL_BINARY)
    outputs = {
        entry["name"]: _flag(
            (entry.get("parameters") or {}).get(_BINARY, False),
            _BINARY,
            f"output {entry['name']!r}: ",
        )
        for entry in document.get("outputs") or []
    }
    return Form(all_binary, outputs)


def _flag(value: object, name: str, where: str = "") -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(
            f"{where}parameter {name!r}: expected true or false, got {json_kind(value)}"
        )
    return value


def write_response(response: Response, *, binary: Collection[str] = ()) -> dict[str, Any]:
    """The document that carries `response`.

    Args:
        binary: names of the outputs whose elements follow behind it.

    Raises:
        EngineFailed: JSON cannot carry one of the others.
    """
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = [
        _output(tensor, is_binary=tensor.name in binary) for tensor in response.outputs
    ]
    return document


def write_metadata(model: Model) -> dict[str, Any]:
    """The document that describes `model`."""
    return {
        "name": model.name,
        "versions": list(model.versions),
        "platform": model.platform,
        "inputs": _metadata(model.inputs),
        "outputs": _metadata(model.outputs),
    }


def _metadata(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "datatype": spec.datatype.name, "shape": list(spec.shape)}
        for spec in specs
    ]


def _wanted(entry: object, index: int) -> Wanted:
    output, name = _named(entry, "output", index)
    where = f"output {name!r}"
    return Wanted(name, classes_wanted(name, _member(output, "parameters", dict, where) or {}))


def _input(entry: object, index: int, tail: Tail) -> Tensor:
    tensor, name = _named(entry, "input", index)
    where = f"input {name!r}"
    parameters = _member(tensor, "parameters", dict, where) or {}
    refuse_shared_memory(where, parameters)
    # First of all, so that those behind it find their own bytes whatever is wrong with this one.
    binary = tail.take(where, parameters[SIZE]) if SIZE in parameters else None
    datatype = Datatype.of(_member(tensor, "datatype", str, where, required=True), tensor=where)
    shape = _shape(tensor, where)
    if ("data" in tensor) == (binary is not None):
        got = "both" if "data" in tensor else "none"
        raise InvalidInput(f"{where}: expected member 'data' or parameter {SIZE!r}, got {got}")
    if binary is not None:
        return Tensor(name, datatype, tuple(shape), binary)
    return from_json(name, datatype, shape, tensor["data"])


def _shape(tensor: Mapping[str, Any], where: str) -> list[int]:
    shape: list[int] = _member(tensor, "shape", list, where, required=True)
    if len(shape) > MAX_RANK:
        raise InvalidInput(
            f"{where}: expected 'shape' with at most {MAX_RANK} dimensions, got {len(shape)}"
        )
    for size in shape:
        if type(size) is not int or not 0 <= size <= _MAX_DIMENSION:
            raise InvalidInput(
                f"{where}: expected 'shape' to hold whole numbers of 0 to {_MAX_DIMENSION}, "
                f"got {json_kind(size)}"
            )
    return shape


def _named(entry: object, kind: str, index: int) -> tuple[dict[str, Any], str]:
    """The object in `entry`, and its name."""
    where = f"{kind} {index}"
    tensor = _object(entry, where)
    return tensor, _member(tensor, "name", str, where, required=True)


def _output(tensor: Tensor, *, is_binary: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": list(tensor.shape),
    }
    if is_binary:
        document["parameters"] = {SIZE: len(tensor.data)}
    else:
        document["data"] = elements(tensor)
    return document


def name_of(value: float) -> bytes:
    """What JSON has for a number that is not finite, here and in Triton."""
    return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"


def elements(tensor: Tensor) -> list[Any] | npt.NDArray[Any] | orjson.Fragment:
    """The elements of `tensor` as `dump` writes them, row by row; NaN, Infinity and -Infinity by
    these names, as Triton writes them.

    Raises:
        EngineFailed: JSON cannot carry them.
    """
    found = to_json(tensor)
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        special = np.flatnonzero(~np.isfinite(found))
        if special.size:
            # orjson writes null in their places.
            texts = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
            for index in special:
                texts[index] = name_of(found[index])
            return orjson.Fragment(b"[" + b",".join(texts) + b"]")
    return found


def _parameters(document: Mapping[str, Any]) -> dict[str, Parameter]:
    parameters = dict(_member(document, "parameters", dict, "the request") or {})
    for key, value in parameters.items():
        if not isinstance(value, bool | int | str | float):
            raise InvalidInput(
                f"parameter {key!r}: expected a string, number or boolean, got {json_kind(value)}"
            )
    return parameters


def _object(entry: object, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where}: expected an object, got {json_kind(entry)}")
    return entry


def _member(
    document: Mapping[str, Any], name: str, kind: type, where: str, *, required: bool = False
) -> Any:
    """The member `name` of `document`, or None where it is absent and not required."""
    value = document.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, kind):
        got = json_kind(value) if name in document else "none"
        raise InvalidInput(f"{where}: expected member {name!r} as {_KINDS[kind]}, got {got}")
    return value


_KINDS: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
