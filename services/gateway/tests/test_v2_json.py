"""KServe v2's JSON documents: what is read, what is written, and what is said of the rest."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway import v2_json
from tidegate_gateway.errors import EngineFailed, InvalidInput, NotOffered, PayloadTooLarge
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import Response, Wanted
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor, from_array


def tensor(**changes: Any) -> dict[str, Any]:
    """A member of `inputs`; a change to None takes a member out."""
    members = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5], **changes}
    return {key: value for key, value in members.items() if value is not None}


def read(document: dict[str, Any]) -> Any:
    return v2_json.read_request(document, "m", "3")


# Reading


def test_a_request_is_read_whole() -> None:
    request = read(
        {
            "id": "42",
            "parameters": {"priority": 1, "name": "a", "on": True, "share": 0.5},
            "inputs": [tensor(), tensor(name="y", datatype="BYTES", shape=[1, 1], data=[["é"]])],
            "outputs": [{"name": "b"}, {"name": "a"}],
        }
    )

    assert (request.model, request.version, request.id) == ("m", "3", "42")
    assert request.parameters == {"priority": 1, "name": "a", "on": True, "share": 0.5}
    assert request.outputs == [Wanted("b"), Wanted("a")]
    assert request.inputs == [
        Tensor("x", Datatype.FP32, (2,), np.array([1, 2.5], "<f4").tobytes()),
        Tensor("y", Datatype.BYTES, (1, 1), b"\x02\x00\x00\x00\xc3\xa9"),
    ]


def test_what_a_request_need_not_say() -> None:
    request = read({"inputs": [], "outputs": None, "id": None, "parameters": None})

    assert (request.inputs, request.outputs, request.id, request.parameters) == ([], [], "", {})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is not JSON: Input is a zero-length, empty document: line 1 column 1 "
              "(char 0)"),
        (b"[]", "the body: expected a JSON object, got a list"),
        (b"null", "the body: expected a JSON object, got null"),
        (b"3", "the body: expected a JSON object, got 3"),
        (b'"x"', "the body: expected a JSON object, got a string"),
    ],
)  # fmt: skip
def test_a_body_without_an_object_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        v2_json.parse(body)

    assert refused.value.message == sentence


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a": nan}',
        b'{"a": Inf}',
        b'{"a": 1e999}',
        b'{"a": [NaN, 1e999]}',
        b'{"a": [NaN, "\\ud800"]}',
        b'{"a": NaN, "b": ' + b"[" * 100_000,
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b"{'a': 1}",
        b'{"a": 1} x',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        v2_json.parse(body)

    assert refused.value.message.startswith("the body is not JSON: ")
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": {"b:": 1, "b:": 2}}', "b:"),
        ('{"inputs": [{"name": "x", "name": "y"}]}', "name"),
        ('{"inputs": [{"data": [1, {"z": 1, "z": 1}]}]}', "z"),
        ('{"a": "x:y", "\\u0061": 2}', "a"),
        ('{"a": NaN, "a": 2}', "a"),
    ],
)
def test_a_member_is_there_once(text: str, twin: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        v2_json.parse(text.encode())

    assert refused.value.message == f"the body: expected each member once, got {twin!r} twice"


@pytest.mark.parametrize(
    "document",
    [
        {"a": 'x:"y":'},
        {"a:b": {":": ["::", [":"]]}},
        {"inputs": [{"data": [1, {"z": 1}]}, 3, {"data": [{"z": ":"}]}]},
    ],
)
def test_colons_are_no_members(document: dict[str, Any]) -> None:
    assert v2_json.parse(json.dumps(document).encode()) == document


def test_twins_in_the_depth_do_not_bring_the_reader_down() -> None:
    deep = b'{"a": ' * 1000 + b'{"b": 1, "b": 2}' + b"}" * 1000

    with pytest.raises(InvalidInput):
        v2_json.parse(deep)


def test_a_body_has_so_many_values_and_no_more() -> None:
    assert v2_json.parse(b'{"a": [1, 2, 3]}', max_values=3) == {"a": [1, 2, 3]}
    with pytest.raises(PayloadTooLarge) as refused:
        v2_json.parse(b'{"a": [1, 2, 3, 4]}', max_values=3)

    assert refused.value.message == (
        "the body: expected JSON of at most 3 values (limits.max_json_values), got 4; send tensors "
        "as binary data"
    )


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64])
def test_numbers_that_are_none_have_their_names_both_ways(datatype: Datatype) -> None:
    text = f"""{{"inputs": [{{"name": "x", "datatype": "{datatype.name}", "shape": [5],
        "data": [NaN, Infinity, -Infinity, 0.5, -0.0]}}]}}"""

    request = read(v2_json.parse(text.encode()))
    written = v2_json.dump(v2_json.write_response(Response("m", "", request.inputs)))

    assert b'"data":[NaN,Infinity,-Infinity,0.5,-0.0]' in written


@settings(max_examples=100, deadline=None, database=None)
@given(st.binary(max_size=100))
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    try:
        document = v2_json.parse(body)
    except InvalidInput as refused:
        assert refused.message.startswith("the body")
    else:
        assert isinstance(document, dict)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "the request: expected member 'inputs' as a list, got none"),
        ({"inputs": None}, "the request: expected member 'inputs' as a list, got null"),
        ({"inputs": {}}, "the request: expected member 'inputs' as a list, got an object"),
        ({"inputs": [], "id": 7}, "the request: expected member 'id' as a string, got 7"),
        (
            {"inputs": [], "outputs": "y"},
            "the request: expected member 'outputs' as a list, got a string",
        ),
        ({"inputs": [], "outputs": ["y"]}, "output 0: expected an object, got a string"),
        (
            {"inputs": [], "outputs": [{"name": "y"}, {}]},
            "output 1: expected member 'name' as a string, got none",
        ),
        (
            {"inputs": [], "parameters": []},
            "the request: expected member 'parameters' as an object, got a list",
        ),
        (
            {"inputs": [], "parameters": {"a": 1, "b": [2]}},
            "parameter 'b': expected a string, number or boolean, got a list",
        ),
        (
            {"inputs": [], "parameters": {"a": None}},
            "parameter 'a': expected a string, number or boolean, got null",
        ),
    ],
)
def test_an_unfit_request_is_refused(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(document)

    assert refused.value.message == sentence


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, "input 1: expected an object, got null"),
        ([], "input 1: expected an object, got a list"),
        (tensor(name=None), "input 1: expected member 'name' as a string, got none"),
        (tensor(name=5), "input 1: expected member 'name' as a string, got 5"),
        (tensor(datatype=None), "input 'x': expected member 'datatype' as a string, got none"),
        (tensor(datatype=["FP32"]), "input 'x': expected member 'datatype' as a string, got a "
                                    "list"),
        (tensor(shape=None), "input 'x': expected member 'shape' as a list, got none"),
        (tensor(shape=2), "input 'x': expected member 'shape' as a list, got 2"),
        (
            tensor(data=None),
            "input 'x': expected member 'data' or parameter 'binary_data_size', got none",
        ),
        (tensor(data=7), "input 'x': expected 'data' to be a list, got 7"),
        (tensor(data=[1]), "input 'x': expected 2 elements for shape [2], got 1"),
        (
            tensor(data=[1, "2"]),
            "input 'x': expected a number for FP32 at element 1, got a string",
        ),
        (
            tensor(datatype="UINT64", data=[1, 2**64]),
            "input 'x': expected a whole number of 0 to 18446744073709551615 for UINT64 at "
            "element 1, got 1.8446744073709552e+19",
        ),
    ],
)  # fmt: skip
def test_an_unfit_input_is_refused(entry: object, sentence: str) -> None:
    # As they come from JSON, where an integer of more than 64 bits is read as a float.
    document = v2_json.parse(json.dumps({"inputs": [tensor(name="first"), entry]}).encode())

    with pytest.raises(InvalidInput) as refused:
        read(document)

    assert refused.value.message == sentence


def test_shared_memory_is_not_offered() -> None:
    asked = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    with pytest.raises(NotOffered) as refused:
        # Where the bytes lie elsewhere there is no member data.
        read({"inputs": [tensor(data=None, parameters=asked)]})
    assert refused.value.message == (
        "input 'x': shared memory is not offered; send the tensor itself"
    )

    with pytest.raises(NotOffered) as refused:
        read({"inputs": [tensor()], "outputs": [{"name": "y", "parameters": asked}]})
    assert refused.value.message == (
        "output 'y': shared memory is not offered; send the tensor itself"
    )


def test_what_clients_note_for_themselves_on_a_tensor_is_passed_over() -> None:
    noted = {"content_type": "np", "unheard_of": [1, {}]}
    request = read(
        {
            "inputs": [tensor(parameters=noted)],
            "outputs": [{"name": "y", "parameters": noted | {"classification": 3}}],
        }
    )

    assert (len(request.inputs), request.outputs) == (1, [Wanted("y", classes=3)])


@pytest.mark.parametrize(
    ("classes", "got"),
    [(-1, "-1"), (2**31, "2147483648"), (True, "True"), (1.0, "1.0"), ("3", "'3'")],
)
def test_a_number_of_classes_is_one(classes: object, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read({"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": classes}}]})

    assert refused.value.message == (
        "output 'y': expected parameter 'classification' as a whole number of 1 to 2147483647, "
        f"got {got}"
    )


def test_parameters_of_a_single_tensor_are_an_object() -> None:
    with pytest.raises(InvalidInput) as refused:
        read({"inputs": [tensor(parameters=[])]})

    assert refused.value.message == (
        "input 'x': expected member 'parameters' as an object, got a list"
    )


@pytest.mark.parametrize("parameters", [None, {}, {"binary_data": False}])
def test_no_binary_data_is_what_is_sent_anyway(parameters: object) -> None:
    request = read(
        {
            "inputs": [{**tensor(), "parameters": parameters}],
            "outputs": [{"name": "y", "parameters": parameters}],
        }
    )

    assert (request.inputs[0].name, request.outputs) == ("x", [Wanted("y")])


@pytest.mark.parametrize(
    ("size", "got"), [(-1, "-1"), (2**31, "2147483648"), (1.0, "1.0"), (True, "true"), ("2", "a "
     "string"), (None, "null")]
)  # fmt: skip
def test_a_size_is_a_whole_number_in_range(size: object, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read({"inputs": [tensor(shape=[2, size])]})

    assert refused.value.message == (
        f"input 'x': expected 'shape' to hold whole numbers of 0 to 2147483647, got {got}"
    )


def test_a_hostile_shape_is_refused_before_it_is_multiplied_out() -> None:
    """The product of a million sizes took hours, and its digits more than Python writes."""
    with pytest.raises(InvalidInput) as refused:
        read({"inputs": [tensor(shape=[2**31 - 1] * 1_000_000)]})

    assert refused.value.message == (
        f"input 'x': expected 'shape' with at most {MAX_RANK} dimensions, got 1000000"
    )

    with pytest.raises(InvalidInput, match=r"expected \d+ elements for shape"):
        read({"inputs": [tensor(shape=[2**31 - 1] * MAX_RANK)]})


# Writing


def test_a_response_is_written_whole() -> None:
    response = Response(
        model="m",
        version="3",
        id="42",
        parameters={"sequence_end": True},
        outputs=[
            from_array("y", Datatype.FP16, np.array([[1.5, 2]], np.float16)),
            from_array("text", Datatype.BYTES, np.array(["é".encode(), b""], dtype=object)),
            from_array("none", Datatype.INT64, np.zeros((0, 3), np.int64)),
        ],
    )

    assert json.loads(v2_json.dump(v2_json.write_response(response))) == {
        "model_name": "m",
        "model_version": "3",
        "id": "42",
        "parameters": {"sequence_end": True},
        "outputs": [
            {"name": "y", "datatype": "FP16", "shape": [1, 2], "data": [1.5, 2]},
            {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["é", ""]},
            {"name": "none", "datatype": "INT64", "shape": [0, 3], "data": []},
        ],
    }


def test_a_response_says_nothing_that_it_does_not_know() -> None:
    assert v2_json.write_response(Response("m", "", [])) == {
        "model_name": "m",
        "model_version": "",
        "outputs": [],
    }


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_each_datatype_is_written(datatype: Datatype) -> None:
    array = np.array([0, 1], dtype=np.float32 if datatype is Datatype.BF16 else datatype.value)
    document = v2_json.write_response(Response("m", "", [from_array("y", datatype, array)]))

    data = orjson.loads(v2_json.dump(document))["outputs"][0]["data"]

    assert data == ([False, True] if datatype is Datatype.BOOL else [0, 1])


def test_an_answer_that_json_cannot_carry_is_the_engines_failure() -> None:
    with pytest.raises(EngineFailed):
        v2_json.write_response(
            Response("m", "", [Tensor("y", Datatype.BYTES, (1,), b"\x01\x00\x00\x00\xff")])
        )


@settings(max_examples=50, deadline=None, database=None)
@given(
    st.sampled_from([d for d in Datatype if d not in (Datatype.BYTES, Datatype.BOOL)]),
    st.lists(st.integers(0, 100), max_size=10),
)
def test_what_is_written_can_be_read(datatype: Datatype, values: list[int]) -> None:
    array = np.array(values, dtype=np.float32 if datatype is Datatype.BF16 else datatype.value)
    sent = from_array("y", datatype, array)

    written = v2_json.dump(v2_json.write_response(Response("m", "", [sent])))

    assert read({"inputs": v2_json.parse(written)["outputs"]}).inputs == [sent]


def test_metadata() -> None:
    model = Model(
        name="m",
        version="",
        versions=("1", "3"),
        platform="onnxruntime_onnx",
        max_batch_size=8,
        inputs=(TensorSpec("x", Datatype.BF16, (ANY, 3)),),
        outputs=(TensorSpec("y", Datatype.BYTES, ()),),
    )

    assert v2_json.write_metadata(model) == {
        "name": "m",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "BYTES", "shape": []}],
    }
