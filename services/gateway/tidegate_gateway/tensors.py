"""Datatypes and tensors, and their two forms: raw bytes and JSON.

Inside the gateway a tensor is always its raw bytes as KServe v2 defines them: row-major and
little-endian, one byte a BOOL, and for BYTES each element behind its length as a 4-byte unsigned
integer. JSON is turned into that form on the way in and back on the way out, so that nothing
between the two has to know it.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate_gateway.errors import EngineFailed, InvalidInput

MAX_RANK = 64
"""The most dimensions that a tensor may have: numpy's own limit. Without one, a hostile shape has a
number of elements with so many digits that multiplying it out takes minutes."""

_LENGTH = struct.Struct("<I")


class Datatype(Enum):
    """KServe v2's datatypes, each with the numpy form of its raw bytes.

    BF16 has no numpy type; its raw bytes are held as the upper half of FP32. BYTES has none either.
    """

    BOOL = np.dtype("?")
    UINT8 = np.dtype("<u1")
    UINT16 = np.dtype("<u2")
    UINT32 = np.dtype("<u4")
    UINT64 = np.dtype("<u8")
    INT8 = np.dtype("<i1")
    INT16 = np.dtype("<i2")
    INT32 = np.dtype("<i4")
    INT64 = np.dtype("<i8")
    FP16 = np.dtype("<f2")
    FP32 = np.dtype("<f4")
    FP64 = np.dtype("<f8")
    BF16 = "BF16"
    BYTES = "BYTES"

    @classmethod
    def of(cls, name: str, *, tensor: str) -> "Datatype":
        """The datatype called `name`.

        Raises:
            InvalidInput: there is none; the message names `tensor` and the ones there are.
        """
        try:
            return cls[name]
        except KeyError:
            raise InvalidInput(
                f"{tensor}: expected a datatype of {', '.join(cls.__members__)}, got {name!r}"
            ) from None

    @property
    def itemsize(self) -> int | None:
        """Bytes an element takes, or None where they differ in length (BYTES)."""
        if isinstance(self.value, np.dtype):
            return self.value.itemsize
        return 2 if self is Datatype.BF16 else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor.

    Attributes:
        shape: every dimension, the batch's included.
        data: the raw bytes, as the head of this module says.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: bytes | memoryview


def check_length(tensor: Tensor) -> None:
    """Check that the raw bytes of `tensor` are those of its shape.

    Raises:
        InvalidInput: they are not.
    """
    count = prod(tensor.shape)
    size = tensor.datatype.itemsize
    if size is None:
        found = sum(1 for _ in _split_bytes(tensor))
        if found != count:
            raise InvalidInput(
                f"input {tensor.name!r}: expected {count} BYTES elements for shape "
                f"{list(tensor.shape)}, got {found}"
            )
    elif len(tensor.data) != count * size:
        raise InvalidInput(
            f"input {tensor.name!r}: expected {count * size} bytes for {tensor.datatype.name} "
            f"{list(tensor.shape)}, got {len(tensor.data)}"
        )


def to_array(tensor: Tensor) -> npt.NDArray[Any]:
    """The elements of `tensor` in its shape; BF16 as float32, BYTES as an array of `bytes`.

    Raises:
        EngineFailed: the bytes are not those of the shape. (Input is checked by `check_length`
            before it gets here, so only an engine's answer can be at fault.)
    """
    try:
        if tensor.datatype is Datatype.BYTES:
            elements = np.array([*_split_bytes(tensor), None], dtype=object)[:-1]
            return elements.reshape(tensor.shape)
        if tensor.datatype is Datatype.BF16:
            upper = np.frombuffer(tensor.data, "<u2").astype("<u4")
            return (upper << 16).view("<f4").reshape(tensor.shape)
        return np.frombuffer(tensor.data, tensor.datatype.value).reshape(tensor.shape)
    except (ValueError, InvalidInput) as error:
        raise EngineFailed(
            f"the engine's output {tensor.name!r} has {len(tensor.data)} bytes, which are not "
            f"those of {tensor.datatype.name} {list(tensor.shape)}",
            detail=str(error),
        ) from None


def from_array(name: str, datatype: Datatype, array: npt.NDArray[Any]) -> Tensor:
    """A tensor of the elements of `array`, which has the numpy type of `datatype`, BF16 as float32
    and BYTES as an array of `bytes`."""
    shape = tuple(array.shape)
    if datatype is Datatype.BYTES:
        return Tensor(name, datatype, shape, _join_bytes(array.reshape(-1)))
    # Beyond the range of a datatype numbers become infinite, as in `pack`.
    with np.errstate(over="ignore"):
        if datatype is Datatype.BF16:
            return Tensor(name, datatype, shape, _bfloat16(array.astype("<f4")).tobytes())
        return Tensor(name, datatype, shape, array.astype(datatype.value, copy=False).tobytes())


def from_json(name: str, datatype: Datatype, shape: Sequence[int], data: object) -> Tensor:
    """A tensor from its JSON form.

    Args:
        name: its name, also for messages.
        datatype: what its elements are.
        shape: every dimension; all at least 0.
        data: a list of the elements in row-major order, flat or nested as `shape` says.

    Raises:
        InvalidInput: `data` does not have that shape, or an element is not of `datatype`.
    """
    if not isinstance(data, list):
        raise InvalidInput(f"input {name!r}: expected 'data' to be a list, got {json_kind(data)}")
    flat = _flatten(name, shape, data)
    expected = prod(shape)
    if len(flat) != expected:
        raise InvalidInput(
            f"input {name!r}: expected {expected} elements for shape {list(shape)}, got {len(flat)}"
        )
    return Tensor(name, datatype, tuple(shape), pack(name, datatype, flat))


def to_json(tensor: Tensor) -> list[Any] | npt.NDArray[Any]:
    """The elements of `tensor` in row-major order, in a form that orjson can write.

    Raises:
        EngineFailed: its bytes are not those of its shape, or BYTES are not UTF-8, which JSON
            cannot carry.
    """
    flat = to_array(tensor).reshape(-1)
    if tensor.datatype is Datatype.BYTES:
        try:
            return [element.decode() for element in flat]
        except UnicodeDecodeError:
            raise EngineFailed(
                f"the engine's output {tensor.name!r} is not UTF-8, which JSON cannot carry; "
                "ask for it as binary data"
            ) from None
    return flat


def pack(name: str, datatype: Datatype, elements: Sequence[object]) -> bytes:
    """The raw bytes of `elements`, given as numbers, booleans, strings or bytes.

    Raises:
        InvalidInput: an element is not of `datatype`; the first such is named with its index.
    """
    allowed, word = _ELEMENTS[datatype]
    for index, element in enumerate(elements):
        # type() and not isinstance(): a bool is an int to Python, but not to a tensor.
        if type(element) not in allowed:
            raise InvalidInput(
                f"input {name!r}: expected {word} for {datatype.name} at element {index}, "
                f"got {json_kind(element)}"
            )
    if datatype is Datatype.BYTES:
        return _join_bytes(
            element.encode() if isinstance(element, str) else element  # type: ignore[misc]
            for element in elements
        )
    # Beyond the range of FP16, BF16 and FP32 numbers become infinite, as in Triton.
    with np.errstate(over="ignore"):
        if datatype is Datatype.BF16:
            return _bfloat16(np.array(elements, "<f4")).tobytes()
        if datatype.value.kind in "iu":
            return _integers(name, datatype, elements)
        return np.array(elements, datatype.value).tobytes()


_NUMBER = (frozenset({int, float}), "a number")
_ELEMENTS: dict[Datatype, tuple[frozenset[type], str]] = {
    Datatype.BOOL: (frozenset({bool}), "true or false"),
    Datatype.BYTES: (frozenset({str, bytes}), "a string"),
    Datatype.FP16: _NUMBER,
    Datatype.BF16: _NUMBER,
    Datatype.FP32: _NUMBER,
    Datatype.FP64: _NUMBER,
    # With the range, since JSON integers of more than 64 bits come as floats.
    **{
        d: (frozenset({int}), f"a whole number of {limits.min} to {limits.max}")
        for d in Datatype
        if isinstance(d.value, np.dtype) and d.value.kind in "iu"
        for limits in [np.iinfo(d.value)]
    },
}


def _integers(name: str, datatype: Datatype, elements: Sequence[object]) -> bytes:
    try:
        # From a list: of protobuf's own containers numpy would take an array, and cast that to the
        # datatype with what is out of range wrapped around.
        return np.array(list(elements), datatype.value).tobytes()
    except OverflowError:
        limits = np.iinfo(datatype.value)
        index, element = next(
            (i, e)
            for i, e in enumerate(elements)
            if isinstance(e, int) and not limits.min <= e <= limits.max
        )
        raise InvalidInput(
            f"input {name!r}: expected {limits.min} to {limits.max} for {datatype.name} at "
            f"element {index}, got {element}"
        ) from None


def _flatten(name: str, shape: Sequence[int], data: list[Any]) -> list[Any]:
    """The elements of `data`, which is flat, or nested exactly as `shape`."""
    if not any(isinstance(element, list) for element in data):
        return data
    for depth, size in enumerate(shape[:-1]):
        if len(data) != prod(shape[: depth + 1]) or not all(isinstance(e, list) for e in data):
            raise InvalidInput(
                f"input {name!r}: expected 'data' flat or nested as shape {list(shape)}, got "
                f"another nesting in dimension {depth} (of size {size})"
            )
        if any(len(element) != shape[depth + 1] for element in data):
            lengths = sorted({len(element) for element in data})
            raise InvalidInput(
                f"input {name!r}: expected lists of {shape[depth + 1]} in dimension {depth + 1} "
                f"for shape {list(shape)}, got lengths {lengths}"
            )
        data = [element for inner in data for element in inner]
    return data


def _split_bytes(tensor: Tensor) -> Iterator[bytes]:
    view, at = memoryview(tensor.data), 0
    while at < len(view):
        end = at + _LENGTH.size
        if end > len(view):
            raise InvalidInput(
                f"input {tensor.name!r}: expected a 4-byte length at byte {at} of BYTES, got "
                f"{len(view) - at} bytes"
            )
        (length,) = _LENGTH.unpack_from(view, at)
        at = end + length
        if at > len(view):
            raise InvalidInput(
                f"input {tensor.name!r}: expected {length} bytes after the length at byte "
                f"{end - _LENGTH.size} of BYTES, got {len(view) - end}"
            )
        yield bytes(view[end:at])


def _join_bytes(elements: Iterable[bytes]) -> bytes:
    return b"".join(part for e in elements for part in (_LENGTH.pack(len(e)), e))


def _bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of `array`, rounded to nearest, ties to even; NaN stays NaN."""
    bits = array.view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype("<u2")


def json_kind(value: object) -> str:
    """What `value` is called in JSON, with the value itself where that is short; for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str() | bytes():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
