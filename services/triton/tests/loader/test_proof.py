"""What is asked of a version to prove it, and which answers are right."""

import struct
from typing import Any

import pytest

from tidegate_engine.loader import proof
from tidegate_table.document import Proof

CONFIG = {
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["3", "-1"]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [2]},
        {"name": "seed", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
    ],
}
METADATA = {"outputs": [{"name": "y", "datatype": "FP32", "shape": ["-1", "2"]}]}
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}


def answer(
    raw: bytes, name: str = "y", datatype: str = "FP32", shape: tuple[int, ...] = (1, 2)
) -> tuple[dict[str, Any], bytes]:
    parameters = {"binary_data_size": len(raw)}
    output = {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}
    return {"outputs": [output]}, raw


def test_zeros_are_sent_in_the_smallest_shape_where_there_is_no_golden_request() -> None:
    asked = proof.golden(CONFIG, None)
    shapes = [(each["name"], each["datatype"], [*each["shape"]]) for each in asked.head["inputs"]]
    assert shapes == [("x", "FP32", [1, 3, 1]), ("text", "BYTES", [1, 2])]
    assert asked.tensors == bytes(3 * 4 + 2 * 4)
    assert asked.may_be_refused
    assert asked.head["parameters"] == {"binary_data_output": True}


def test_the_tables_request_comes_before_the_models_own() -> None:
    own = {**CONFIG, "parameters": {"golden_request": {"string_value": '{"inputs": []}'}}}
    asked = proof.golden(own, None)
    assert asked.head["inputs"] == []
    assert not asked.may_be_refused
    outputs = [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}]
    given = proof.golden(own, Proof({**REQUEST, "outputs": [{"name": "y"}]}, outputs, 0.5))
    assert given.head["inputs"] == REQUEST["inputs"]
    assert given.head["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert given.outputs == outputs


@pytest.mark.parametrize("text", ["{", "[]", '{"outputs": 3}', '{"parameters": "no"}'])
def test_a_golden_request_that_is_none_says_so(text: str) -> None:
    with pytest.raises(proof.InvalidGolden, match="is no infer request"):
        proof.golden({"parameters": {"golden_request": {"string_value": text}}}, None)


TWO = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (answer(TWO), ""),
        (({"outputs": []}, b""), "output 'y': expected one, got none"),
        (answer(TWO, name="z"), "output 'z': expected none of this name, got one"),
        (answer(TWO, shape=(1, 1)), "expected FP32 of shape [-1, 2], got FP32 of shape [1, 1]"),
        (answer(TWO, datatype="INT32"), "got INT32 of shape [1, 2]"),
        (({"outputs": [{"name": "y"}]}, b""), "expected outputs in binary form"),
    ],
)
def test_an_answer_without_expected_values_is_judged_by_names_datatypes_and_shapes(
    given: tuple[dict[str, Any], bytes], wrong: str
) -> None:
    fault = proof.fault(proof.Golden(REQUEST), *given, METADATA)
    assert wrong in fault
    assert bool(wrong) == bool(fault)


@pytest.mark.parametrize(
    ("datatype", "raw", "right", "near", "far"),
    [
        ("FP32", struct.pack("<2f", 1, 2), [1, 2], [[1.05], [2]], [1.2, 2]),
        ("FP16", struct.pack("<2e", 1, 2), [1, 2], [1.05, 2], [1, 3]),
        ("BF16", bytes.fromhex("803f0040"), [1, 2], [1, 2.05], [2, 2]),
        ("INT64", struct.pack("<2q", 1, -(2**62)), [1, -(2**62)], [1, -(2**62)], [1, 2]),
        ("BOOL", b"\1\0", [True, False], [1, 0], [True, True]),
        ("BYTES", b"\1\0\0\0a\2\0\0\0bc", ["a", "bc"], [["a", "bc"]], ["a", "b"]),
    ],
)
def test_values_are_compared_by_their_datatype(
    datatype: str, raw: bytes, right: list[Any], near: list[Any], far: list[Any]
) -> None:
    metadata = {"outputs": [{"name": "y", "datatype": datatype, "shape": [1, 2]}]}

    def fault(data: list[Any], tolerance: float) -> str:
        expected = [{"name": "y", "datatype": datatype, "shape": [1, 2], "data": data}]
        asked = proof.golden({}, Proof(REQUEST, expected, tolerance))
        return proof.fault(asked, *answer(raw, datatype=datatype), metadata)

    assert fault(right, 0.0) == ""
    assert fault(near, 0.1) == ""
    assert "value" in fault(far, 0.1)
    assert "expected 3 values, got 2" in fault([*right, right[0]], 0.1)


def test_two_versions_must_take_and_give_the_same() -> None:
    other = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]}
    assert proof.difference(METADATA, other) == ""
    other["outputs"][0]["shape"] = [-1, 3]
    assert proof.difference(METADATA, other) == (
        "output 'y': expected FP32 of shape [-1, 3] as in the version that serves, "
        "got FP32 of shape [-1, 2]"
    )
    assert "expected none" in proof.difference(METADATA, {"outputs": []})
