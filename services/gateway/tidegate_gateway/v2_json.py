"""KServe v2's JSON documents and the domain's own objects, in both directions."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.inference import Parameter, Request, Response, check_tensor_parameters
from tidegate_gateway.models import Model, TensorSpec
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor, from_json, json_kind, to_json

# The most that one dimension may be: more elements than any body holds, and well within the 64 bits
# that engines have for it. How many elements all of them make is checked against those sent.
_MAX_DIMENSION = 2**31 - 1


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        InvalidInput: it holds none.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body: expected a JSON object, got {json_kind(document)}")
    return document


def dump(document: Mapping[str, Any]) -> bytes:
    """`document` as JSON; numpy arrays become lists, NaN and infinities null."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def read_request(document: Mapping[str, Any], model: str, version: str) -> Request:
    """The request in `document` for that version of that model.

    Raises:
        InvalidInput: a member is missing, of another type, a tensor does not fit its own shape, or
            something is asked of a single tensor.
    """
    inputs = _member(document, "inputs", list, "the request", required=True)
    outputs = _member(document, "outputs", list, "the request")
    return Request(
        model=model,
        version=version,
        id=_member(document, "id", str, "the request") or "",
        inputs=[_input(entry, index) for index, entry in enumerate(inputs)],
        outputs=[_wanted(entry, index) for index, entry in enumerate(outputs or [])],
        parameters=_parameters(document),
    )


def write_response(response: Response) -> dict[str, Any]:
    """The document that carries `response`; raises EngineFailed for what JSON cannot carry."""
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = [_output(tensor) for tensor in response.outputs]
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


def _wanted(entry: object, index: int) -> str:
    output, name = _named(entry, "output", index)
    where = f"output {name!r}"
    check_tensor_parameters(where, _member(output, "parameters", dict, where) or {})
    return name


def _input(entry: object, index: int) -> Tensor:
    tensor, name = _named(entry, "input", index)
    where = f"input {name!r}"
    check_tensor_parameters(where, _member(tensor, "parameters", dict, where) or {})
    datatype = Datatype.of(_member(tensor, "datatype", str, where, required=True), tensor=where)
    shape = _member(tensor, "shape", list, where, required=True)
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
    if "data" not in tensor:
        raise InvalidInput(f"{where}: expected member 'data', got none")
    return from_json(name, datatype, shape, tensor["data"])


def _named(entry: object, kind: str, index: int) -> tuple[dict[str, Any], str]:
    """The object in `entry`, and its name."""
    where = f"{kind} {index}"
    tensor = _object(entry, where)
    return tensor, _member(tensor, "name", str, where, required=True)


def _output(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": list(tensor.shape),
        "data": to_json(tensor),
    }


def _parameters(document: Mapping[str, Any]) -> dict[str, Parameter]:
    parameters = _member(document, "parameters", dict, "the request") or {}
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
