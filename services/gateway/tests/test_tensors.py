"""Datatypes, JSON and raw bytes: every form survives the others, and every fault is named."""

import json
import math
import struct
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway import tensors
from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.tensors import Datatype, Tensor

NUMPY_TYPES = [datatype for datatype in Datatype if isinstance(datatype.value, np.dtype)]
INTEGERS = [datatype for datatype in NUMPY_TYPES if datatype.value.kind in "iu"]
FLOATS = [Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64]
# What JSON can carry: integers of 64 bits; orjson reads larger ones as floats.
JSON_INTEGERS = st.integers(-(2**63), 2**64 - 1)
SHAPES = st.lists(st.integers(0, 3), max_size=3)

# A loaded machine is no fault, and each datatype is a test of its own.
few = settings(max_examples=20, deadline=None, database=None)
many = settings(max_examples=200, deadline=None, database=None)


def elements_of(datatype: Datatype) -> st.SearchStrategy[Any]:
    """Values that JSON can carry and `datatype` can hold exactly."""
    if datatype is Datatype.BOOL:
        return st.booleans()
    if datatype is Datatype.BYTES:
        return st.text(st.characters(exclude_categories=["Cs"]))
    if datatype in INTEGERS:
        limits = np.iinfo(datatype.value)
        return st.integers(int(limits.min), int(limits.max))
    if datatype is Datatype.BF16:
        return st.integers(0, 2**16 - 1).map(float_of_upper_half).filter(math.isfinite)
    if datatype is Datatype.FP16:
        return st.floats(width=16, allow_nan=False, allow_infinity=False)
    if datatype is Datatype.FP32:
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.floats(allow_nan=False, allow_infinity=False)


def float_of_upper_half(upper: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", upper << 16))[0])


def nested(flat: list[Any], shape: list[int]) -> Any:
    """`flat` as lists in lists, the slow and obvious way."""
    if not shape:
        return flat[0]
    size = math.prod(shape[1:])
    return [nested(flat[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def refusal(name: str, shape: list[int], data: object, datatype: Datatype = Datatype.FP32) -> str:
    with pytest.raises(InvalidInput) as refused:
        tensors.from_json(name, datatype, shape, data)
    return refused.value.message


# JSON to raw bytes and back


@pytest.mark.parametrize("datatype", Datatype)
@few
@given(data=st.data())
def test_json_comes_back_as_it_was(datatype: Datatype, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    count = math.prod(shape)
    flat = data.draw(st.lists(elements_of(datatype), min_size=count, max_size=count))

    tensor = tensors.from_json("x", datatype, shape, flat)
    tensors.check_length(tensor)

    assert tensor.shape == tuple(shape)
    written = orjson.dumps(tensors.to_json(tensor), option=orjson.OPT_SERIALIZE_NUMPY)
    read = json.loads(written)
    # Digits enough for the datatype are written, not all of Python's.
    assert tensors.from_json("x", datatype, shape, read) == tensor
    assert datatype in FLOATS or read == flat


@pytest.mark.parametrize("datatype", Datatype)
@few
@given(data=st.data())
def test_nested_and_flat_lists_are_the_same_tensor(datatype: Datatype, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    count = math.prod(shape)
    flat = data.draw(st.lists(elements_of(datatype), min_size=count, max_size=count))

    assert tensors.from_json("x", datatype, shape, nested(flat, shape)) == tensors.from_json(
        "x", datatype, shape, flat
    )


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
@few
@given(data=st.data())
def test_raw_bytes_survive_the_array(datatype: Datatype, data: st.DataObject) -> None:
    shape = tuple(data.draw(SHAPES))
    array = data.draw(arrays.arrays(datatype.value, shape))
    raw = Tensor("x", datatype, shape, array.tobytes())

    assert tensors.from_array("x", datatype, tensors.to_array(raw)) == raw


@many
@given(st.lists(st.binary(max_size=20)))
def test_bytes_survive_the_array(elements: list[bytes]) -> None:
    raw = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    tensor = Tensor("x", Datatype.BYTES, (len(elements),), raw)

    array = tensors.to_array(tensor)

    assert list(array) == elements
    assert tensors.from_array("x", Datatype.BYTES, array) == tensor


@many
@given(st.integers(0, 2**16 - 1))
def test_bfloat16_survives_the_array(bits: int) -> None:
    tensor = Tensor("x", Datatype.BF16, (1,), struct.pack("<H", bits))

    value = tensors.to_array(tensor)

    if np.isnan(value[0]):
        assert np.isnan(tensors.to_array(tensors.from_array("x", Datatype.BF16, value))[0])
    else:
        assert tensors.from_array("x", Datatype.BF16, value) == tensor


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_a_scalar_has_no_dimensions(datatype: Datatype) -> None:
    one = True if datatype is Datatype.BOOL else 1

    tensor = tensors.from_json("x", datatype, [], [one])

    assert tensor.shape == ()
    assert len(tensor.data) == datatype.itemsize
    assert tensors.to_array(tensor).shape == ()
    assert list(tensors.to_json(tensor)) == [one]


@pytest.mark.parametrize("datatype", Datatype)
def test_a_tensor_may_be_empty(datatype: Datatype) -> None:
    tensor = tensors.from_json("x", datatype, [2, 0, 3], [[], []])

    tensors.check_length(tensor)
    assert tensor.data == b""
    assert tensors.to_array(tensor).shape == (2, 0, 3)
    assert list(tensors.to_json(tensor)) == []


def test_bytes_elements_may_be_empty_and_hold_any_character() -> None:
    texts = ["", "a", "é", "日本", "\x00", "\n"]
    tensor = tensors.from_json("x", Datatype.BYTES, [6], texts)

    assert tensors.to_json(tensor) == texts
    assert bytes(tensor.data).startswith(
        b"\x00\x00\x00\x00\x01\x00\x00\x00a\x02\x00\x00\x00\xc3\xa9"
    )


def test_arrays_of_any_memory_layout_become_row_major_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = struct.pack("<6f", 0, 3, 1, 4, 2, 5)

    assert tensors.from_array("x", Datatype.FP32, array.T).data == expected
    assert tensors.from_array("x", Datatype.FP32, array.T.astype(">f4")).data == expected


# JSON that does not fit


@pytest.mark.parametrize(
    ("shape", "data", "sentence"),
    [
        ([2], 5, "input 'x': expected 'data' to be a list, got 5"),
        ([2], None, "input 'x': expected 'data' to be a list, got null"),
        ([2], {"a": 1}, "input 'x': expected 'data' to be a list, got an object"),
        ([2], "12", "input 'x': expected 'data' to be a list, got a string"),
        ([2, 2], [1, 2, 3], "input 'x': expected 4 elements for shape [2, 2], got 3"),
        ([], [], "input 'x': expected 1 elements for shape [], got 0"),
        ([0], [1], "input 'x': expected 0 elements for shape [0], got 1"),
        ([], [[5]], "input 'x': expected a number for FP32 at element 0, got a list"),
        (
            [2, 2],
            [[1, 2], [3]],
            "input 'x': expected lists of 2 in dimension 1 for shape [2, 2], got lengths [1, 2]",
        ),
        (
            [2, 2],
            [[1, 2], 3],
            "input 'x': expected 'data' flat or nested as shape [2, 2], got another nesting in "
            "dimension 0 (of size 2)",
        ),
        (
            [2, 3],
            [[1, 2], [3, 4], [5, 6]],
            "input 'x': expected 'data' flat or nested as shape [2, 3], got another nesting in "
            "dimension 0 (of size 2)",
        ),
        (
            [2, 1, 2],
            [[1, 2], [3, 4]],
            "input 'x': expected lists of 1 in dimension 1 for shape [2, 1, 2], got lengths [2]",
        ),
        (
            [2, 2],
            [[[1], [2]], [[3], [4]]],
            "input 'x': expected a number for FP32 at element 0, got a list",
        ),
    ],
)
def test_data_of_another_shape_is_refused(shape: list[int], data: object, sentence: str) -> None:
    assert refusal("x", shape, data) == sentence


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("side", ["below", "above"])
def test_an_integer_out_of_range_is_named(datatype: Datatype, side: str) -> None:
    limits = np.iinfo(datatype.value)
    beyond = int(limits.min) - 1 if side == "below" else int(limits.max) + 1
    within = [int(limits.min), int(limits.max)]

    assert (
        tensors.from_json("x", datatype, [2], within).data
        == np.array(within, datatype.value).tobytes()
    )
    assert refusal("x", [4], [*within, beyond, beyond], datatype) == (
        f"input 'x': expected {limits.min} to {limits.max} for {datatype.name} at element 2, "
        f"got {beyond}"
    )


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize(
    ("element", "got"),
    [(True, "true"), (1.0, "1.0"), ("1", "a string"), (None, "null"), ([1], "a list")],
)
def test_only_a_whole_number_is_an_integer(datatype: Datatype, element: Any, got: str) -> None:
    # A list among numbers is a nesting; alone in a scalar it is an element.
    shape, data = ([], [element]) if isinstance(element, list) else ([2], [0, element])
    limits = np.iinfo(datatype.value)

    assert refusal("x", shape, data, datatype) == (
        f"input 'x': expected a whole number of {limits.min} to {limits.max} for {datatype.name} "
        f"at element {len(data) - 1}, got {got}"
    )


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize(
    ("element", "got"),
    [(False, "false"), ("nan", "a string"), (None, "null"), ({}, "an object")],
)
def test_only_a_number_is_a_float(datatype: Datatype, element: object, got: str) -> None:
    assert refusal("x", [2], [0.5, element], datatype) == (
        f"input 'x': expected a number for {datatype.name} at element 1, got {got}"
    )


@pytest.mark.parametrize(("element", "got"), [(0, "0"), (1, "1"), ("true", "a string")])
def test_only_true_and_false_are_booleans(element: object, got: str) -> None:
    assert refusal("x", [2], [True, element], Datatype.BOOL) == (
        f"input 'x': expected true or false for BOOL at element 1, got {got}"
    )


@pytest.mark.parametrize(("element", "got"), [(0, "0"), (True, "true"), (None, "null")])
def test_only_strings_are_bytes(element: object, got: str) -> None:
    assert refusal("x", [2], ["", element], Datatype.BYTES) == (
        f"input 'x': expected a string for BYTES at element 1, got {got}"
    )


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP32])
def test_numbers_beyond_a_float_become_infinite(datatype: Datatype) -> None:
    tensor = tensors.from_json("x", datatype, [2], [1e300, -1e300])

    assert list(tensors.to_array(tensor)) == [math.inf, -math.inf]


def test_an_array_beyond_a_float_becomes_infinite() -> None:
    assert tensors.from_array("x", Datatype.FP16, np.array([1e6], np.float32)).data == b"\x00\x7c"


def test_an_unknown_datatype_names_those_there_are() -> None:
    with pytest.raises(InvalidInput) as refused:
        Datatype.of("FLOAT32", tensor="input 'x'")

    assert refused.value.message == (
        "input 'x': expected a datatype of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, "
        "INT32, INT64, FP16, FP32, FP64, BF16, BYTES, got 'FLOAT32'"
    )


def test_deep_nesting_is_read_without_recursion() -> None:
    depth = tensors.MAX_RANK
    data: Any = 7
    for _ in range(depth):
        data = [data]

    tensor = tensors.from_json("x", Datatype.INT8, [1] * depth, data)

    assert tensor.data == b"\x07"
    assert tensors.to_array(tensor).ndim == depth


@settings(max_examples=70, deadline=None, database=None)
@given(
    st.recursive(
        st.none() | st.booleans() | JSON_INTEGERS | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(Datatype),
)
def test_any_json_is_a_tensor_or_refused(data: Any, shape: list[int], datatype: Datatype) -> None:
    try:
        tensor = tensors.from_json("x", datatype, shape, data)
    except InvalidInput as refused:
        assert refused.message.startswith("input 'x': expected ")
    else:
        tensors.check_length(tensor)


# Raw bytes that do not fit


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
@pytest.mark.parametrize("change", [-1, 1])
def test_another_byte_length_is_refused(datatype: Datatype, change: int) -> None:
    expected = 6 * (datatype.itemsize or 0)

    with pytest.raises(InvalidInput) as refused:
        tensors.check_length(Tensor("x", datatype, (2, 3), bytes(expected + change)))

    assert refused.value.message == (
        f"input 'x': expected {expected} bytes for {datatype.name} [2, 3], got {expected + change}"
    )


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (
            b"\x01\x00\x00\x00a\x05",
            "input 'x': expected a 4-byte length at byte 5 of BYTES, got 1 bytes",
        ),
        (
            b"\x01\x00\x00\x00a\x05\x00\x00\x00ab",
            "input 'x': expected 5 bytes after the length at byte 5 of BYTES, got 2",
        ),
        (
            b"\xff\xff\xff\xff",
            "input 'x': expected 4294967295 bytes after the length at byte 0 of BYTES, got 0",
        ),
        (b"", "input 'x': expected 2 BYTES elements for shape [2], got 0"),
        (bytes(4), "input 'x': expected 2 BYTES elements for shape [2], got 1"),
        (bytes(12), "input 'x': expected 2 BYTES elements for shape [2], got 3"),
    ],
)
def test_broken_framing_of_bytes_is_refused(raw: bytes, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tensors.check_length(Tensor("x", Datatype.BYTES, (2,), raw))

    assert refused.value.message == sentence


@many
@given(st.binary(max_size=64), st.lists(st.integers(0, 5), max_size=2))
def test_any_bytes_are_a_tensor_or_refused(raw: bytes, shape: list[int]) -> None:
    tensor = Tensor("x", Datatype.BYTES, tuple(shape), raw)
    try:
        tensors.check_length(tensor)
    except InvalidInput:
        with pytest.raises(EngineFailed, match="the engine's output 'x' has "):
            tensors.to_array(tensor)
    else:
        assert tensors.from_array("x", Datatype.BYTES, tensors.to_array(tensor)) == tensor


@pytest.mark.parametrize("data", [bytes(4), memoryview(bytes(4))])
def test_data_may_be_a_view(data: bytes | memoryview) -> None:
    tensor = Tensor("x", Datatype.FP32, (1,), data)

    tensors.check_length(tensor)
    assert tensors.to_array(tensor).tolist() == [0.0]


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2,), 4), ((2**62, 2**62), 4), ((1,) * 70, 4)],
    ids=["short", "too many elements for 64 bits", "too many dimensions"],
)
def test_an_engines_wrong_bytes_are_its_failure(shape: tuple[int, ...], size: int) -> None:
    with pytest.raises(EngineFailed) as failed:
        tensors.to_array(Tensor("y", Datatype.FP32, shape, bytes(size)))

    assert failed.value.message == (
        f"the engine's output 'y' has {size} bytes, which are not those of FP32 {list(shape)}"
    )


def test_an_engines_bytes_that_are_no_text_cannot_be_json() -> None:
    with pytest.raises(EngineFailed) as failed:
        tensors.to_json(Tensor("y", Datatype.BYTES, (1,), b"\x01\x00\x00\x00\xff"))

    assert failed.value.message == (
        "the engine's output 'y' is not UTF-8, which JSON cannot carry; ask for it as binary data"
    )


@pytest.mark.parametrize("datatype", FLOATS)
def test_what_is_no_number_is_null_in_json(datatype: Datatype) -> None:
    array = np.array([1.5, math.nan, math.inf, -math.inf], dtype=np.float32)
    flat = tensors.to_json(tensors.from_array("y", datatype, array))

    written = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)

    assert written == b"[1.5,null,null,null]"


# BF16


def nearest_bfloat16(value: float) -> int:
    """The BF16 nearest to `value`, a float32, ties to even: by comparing distances, slowly."""
    lower: int = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    candidates = [lower, lower + 1]

    def distance(upper: int) -> float:
        magnitude = upper & 0x7FFF
        # Where infinity lies for rounding: one step beyond the largest finite number.
        at = 2.0**128 if magnitude == 0x7F80 else abs(float_of_upper_half(upper))
        return abs(at - abs(value))

    return min(candidates, key=lambda upper: (distance(upper), upper % 2))


@many
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_rounded_to_nearest_even(value: float) -> None:
    packed = tensors.pack("x", Datatype.BF16, [value])

    assert struct.unpack("<H", packed)[0] == nearest_bfloat16(value)


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F80_0000, 0x3F80),
        (0x3F80_7FFF, 0x3F80),
        (0x3F80_8000, 0x3F80),  # a tie goes down to the even one
        (0x3F81_8000, 0x3F82),  # and up to it
        (0x3F80_8001, 0x3F81),
        (0x0000_0001, 0x0000),
        (0x8000_0000, 0x8000),
        (0x7F7F_FFFF, 0x7F80),  # the largest float32 is nearer to 2**128 than to the one below
        (0x7F80_0000, 0x7F80),
        (0xFF80_0000, 0xFF80),
        (0x7F80_0001, 0x7FC0),  # a NaN whose payload is in the lower half only stays one
        (0x7FFF_FFFF, 0x7FFF),
        (0xFFFF_FFFF, 0xFFFF),
    ],
)
def test_bfloat16_at_the_edges(bits: int, rounded: int) -> None:
    array = np.array([bits], dtype="<u4").view("<f4")

    assert tensors.from_array("x", Datatype.BF16, array).data == struct.pack("<H", rounded)


# Words for messages


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (-3, "-3"),
        (0.5, "0.5"),
        ("x" * 1000, "a string"),
        (b"x", "a string"),
        ([1] * 1000, "a list"),
        ({}, "an object"),
    ],
)
def test_json_kind(value: object, words: str) -> None:
    assert tensors.json_kind(value) == words
