"""The generate extension: a JSON object with a member an input, and one back with one an output.

It is for models that take and give text, but knows nothing of text: what a member means is what the
model says of the input of that name.
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import orjson

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.faults import each_read
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import FINAL, Parameter, Request, Response
from tidegate_gateway.tensors import Tensor, json_kind, pack
from tidegate_gateway.v2_json import dump, elements

_PARAMETERS = "parameters"
_ID = "id"


def read_request(document: Mapping[str, Any], model: Model) -> Request:
    """The request in `document`.

    A member with the name of an input is that input: a single element, or a list of them, flat or
    nested as the shape that they get. Of the others, `id` is the request's, `parameters` an object
    with further members of both kinds, and the rest are parameters of the request.

    Raises:
        InvalidInput: a member is neither, or there twice; the first eight faults are told.
    """
    inputs = {spec.name: spec for spec in model.inputs}
    request_id, members = _members(document, inputs)

    def read(_: int, member: tuple[str, object]) -> Tensor | tuple[str, Parameter]:
        name, value = member
        if name in inputs:
            return _tensor(inputs[name], value)
        if isinstance(value, bool | int | str | float):
            return name, value
        raise InvalidInput(
            f"member {name!r}: expected an input of {list(inputs)}, or a parameter as a string, "
            f"number or boolean, got {json_kind(value)}"
        )

    found = each_read(members.items(), read)
    return Request(
        model=model.name,
        id=request_id,
        inputs=[each for each in found if isinstance(each, Tensor)],
        parameters=dict(each for each in found if not isinstance(each, Tensor)),
    )


def _members(document: Mapping[str, Any], inputs: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The request's id, and all members wherever they stand."""
    members = dict(document)
    ours = [name for name in (_ID, _PARAMETERS) if name in members and name not in inputs]
    taken = {name: members.pop(name) for name in ours}
    request_id, nested = taken.get(_ID, ""), taken.get(_PARAMETERS, {})
    if not isinstance(request_id, str):
        raise InvalidInput(f"member {_ID!r}: expected a string, got {json_kind(request_id)}")
    if not isinstance(nested, dict):
        raise InvalidInput(f"member {_PARAMETERS!r}: expected an object, got {json_kind(nested)}")
    twin = next((name for name in members if name in nested), None)
    if twin is not None:
        raise InvalidInput(f"member {twin!r}: expected once, got it in {_PARAMETERS!r} as well")
    return request_id, members | nested


def _tensor(spec: TensorSpec, value: object) -> Tensor:
    nesting, flat = _flattened(spec.name, value)
    shape = _shape(spec, len(flat))
    if len(_without_ones(nesting)) > 1 and _without_ones(nesting) != _without_ones(shape):
        raise InvalidInput(
            f"input {spec.name!r}: expected elements flat or nested as shape {list(shape)}, got "
            f"them nested as {nesting}"
        )
    return Tensor(spec.name, spec.datatype, shape, pack(spec.name, spec.datatype, flat))


def _flattened(name: str, value: object) -> tuple[list[int], list[Any]]:
    """The lengths of lists in lists, none for a single element, and the elements of the innermost
    ones."""
    nesting: list[int] = []
    level: list[Any] = [value]
    while any(isinstance(each, list) for each in level):
        lengths = {len(each) if isinstance(each, list) else -1 for each in level}
        if len(lengths) > 1:
            raise InvalidInput(
                f"input {name!r}: expected elements, or lists of the same length in each other, "
                f"got others in dimension {len(nesting)}"
            )
        nesting += lengths
        level = [element for each in level for element in each]
    return nesting, level


def _shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
    """The shape that so many elements get, as in Triton: the innermost dimension that may have any
    size gets what the fixed ones leave, and the others of that kind are 1. So they become the batch
    where only that may have any size."""
    left, rest = divmod(count, prod(size for size in spec.shape if size != ANY))
    shape: list[int] = []
    for size in reversed(spec.shape):
        shape.append(left if size == ANY else size)
        if size == ANY:
            left = 1
    if rest or left != 1:
        raise InvalidInput(
            f"input {spec.name!r}: expected elements for shape {list(spec.shape)}, got {count}"
        )
    return tuple(reversed(shape))


def _without_ones(sizes: list[int] | tuple[int, ...]) -> list[int]:
    return [size for size in sizes if size != 1]


def write_response(response: Response) -> dict[str, Any]:
    """The document that carries `response`; an output of one element is no list.

    Its parameters are members as well. Of two members with one name there is the one that Triton
    has: rather the name of the model than a parameter, and rather that than an output.

    Raises:
        EngineFailed: JSON cannot carry an output.
    """
    document: dict[str, Any] = {_ID: response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": response.version}
    parameters = {name: value for name, value in response.parameters.items() if name != FINAL}
    outputs = {tensor.name: _value(tensor) for tensor in response.outputs}
    # In front, and not overwritten by those that follow.
    return document | outputs | parameters | document


def _value(tensor: Tensor) -> Any:
    found = elements(tensor)
    if prod(tensor.shape) != 1:
        return found
    if isinstance(found, orjson.Fragment):
        # A number that is none, in a list of its own.
        return orjson.Fragment(dump(found)[1:-1])
    return found[0]
