"""KServe v2's messages: typed contents and raw bytes, and messages that contradict themselves."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate_gateway import kserve_v2
from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.inference import Parameter, Request, Response
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype, Tensor
from tidegate_proto import kserve_v2_pb2 as pb

ONE = Tensor("a", Datatype.FP32, (1, 2), struct.pack("<2f", 1, 2.5))
TWO = Tensor("b", Datatype.BYTES, (1,), b"\x02\x00\x00\x00hi")
EMPTY = Tensor("c", Datatype.INT8, (0,), b"")

PARAMETERS: Mapping[str, Parameter] = {
    "yes": True,
    "no": False,
    "small": -1,
    "least": -(2**63),
    "large": 2**63 - 1,
    "unsigned": 2**64 - 1,
    "share": 0.25,
    "name": "",
}


def message(datatype: str = "INT32", *, name: str = "x", **contents: Any) -> pb.ModelInferRequest:
    """A request with one input in typed contents."""
    return pb.ModelInferRequest(
        model_name="m",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=name,
                datatype=datatype,
                shape=[2],
                contents=pb.InferTensorContents(**contents),
            )
        ],
    )


def refusal(request: pb.ModelInferRequest) -> str:
    with pytest.raises(InvalidInput) as refused:
        kserve_v2.read_request(request)
    return refused.value.message


# Both ways


@pytest.mark.parametrize("tensors", [[], [ONE], [ONE, TWO, EMPTY]])
def test_a_request_survives_its_message(tensors: Sequence[Tensor]) -> None:
    request = Request(
        model="m",
        version="3",
        id="42",
        inputs=list(tensors),
        outputs=["y", "z"],
        parameters=PARAMETERS,
    )

    wire = kserve_v2.write_request(request).SerializeToString()

    read = kserve_v2.read_request(pb.ModelInferRequest.FromString(wire))
    assert read == request
    # True == 1, and to an engine they are not the same.
    assert {key: type(value) for key, value in read.parameters.items()} == {
        key: type(value) for key, value in PARAMETERS.items()
    }


@pytest.mark.parametrize("tensors", [[], [ONE], [ONE, TWO, EMPTY]])
def test_a_response_survives_its_message(tensors: Sequence[Tensor]) -> None:
    response = Response(
        model="m", version="3", id="42", outputs=list(tensors), parameters=PARAMETERS
    )

    wire = kserve_v2.write_response(response).SerializeToString()

    assert kserve_v2.read_response(pb.ModelInferResponse.FromString(wire)) == response


def test_a_view_of_bytes_can_be_sent() -> None:
    view = Tensor("a", Datatype.UINT8, (2,), memoryview(b"abcd")[1:3])

    sent = kserve_v2.write_request(Request(model="m", inputs=[view]))

    assert sent.raw_input_contents == [b"bc"]


# Typed contents


@pytest.mark.parametrize(
    ("datatype", "contents", "raw"),
    [
        ("BOOL", {"bool_contents": [True, False]}, b"\x01\x00"),
        ("INT8", {"int_contents": [-128, 127]}, b"\x80\x7f"),
        ("INT16", {"int_contents": [-2, 1]}, b"\xfe\xff\x01\x00"),
        ("INT32", {"int_contents": [-2, 1]}, struct.pack("<2i", -2, 1)),
        ("INT64", {"int64_contents": [-(2**63), 1]}, struct.pack("<2q", -(2**63), 1)),
        ("UINT8", {"uint_contents": [0, 255]}, b"\x00\xff"),
        ("UINT16", {"uint_contents": [1, 65535]}, b"\x01\x00\xff\xff"),
        ("UINT32", {"uint_contents": [1, 2**32 - 1]}, struct.pack("<2I", 1, 2**32 - 1)),
        ("UINT64", {"uint64_contents": [1, 2**64 - 1]}, struct.pack("<2Q", 1, 2**64 - 1)),
        ("FP32", {"fp32_contents": [1.5, float("inf")]}, struct.pack("<2f", 1.5, float("inf"))),
        ("FP64", {"fp64_contents": [1.5, 1e300]}, struct.pack("<2d", 1.5, 1e300)),
        (
            "BYTES",
            {"bytes_contents": [b"\xff\x00", b""]},
            b"\x02\x00\x00\x00\xff\x00\x00\x00\x00\x00",
        ),
    ],
)
def test_typed_contents_become_raw_bytes(datatype: str, contents: Any, raw: bytes) -> None:
    request = kserve_v2.read_request(message(datatype, **contents))

    assert request.inputs == [Tensor("x", Datatype[datatype], (2,), raw)]


def test_no_contents_are_an_empty_tensor() -> None:
    empty = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=[0])

    request = kserve_v2.read_request(pb.ModelInferRequest(inputs=[empty]))

    assert request.inputs == [Tensor("x", Datatype.INT32, (0,), b"")]


# Messages that do not fit


@pytest.mark.parametrize(
    ("request_message", "sentence"),
    [
        (
            message("INT8", int_contents=[1, 128]),
            "input 'x': expected -128 to 127 for INT8 at element 1, got 128",
        ),
        (
            message("UINT16", uint_contents=[65536, 0]),
            "input 'x': expected 0 to 65535 for UINT16 at element 0, got 65536",
        ),
        (
            message("INT64", int_contents=[1, 2]),
            "input 'x': expected int64_contents for INT64, got int_contents",
        ),
        (
            message("FP32", fp32_contents=[1], fp64_contents=[1]),
            "input 'x': expected fp32_contents for FP32, got fp32_contents, fp64_contents",
        ),
        (message("FP16"), "input 'x': expected FP16 in raw_input_contents, got none"),
        (
            message("BF16", fp32_contents=[1, 2]),
            "input 'x': expected BF16 in raw_input_contents, got none",
        ),
    ],
)
def test_contents_of_another_datatype_are_refused(
    request_message: pb.ModelInferRequest, sentence: str
) -> None:
    assert refusal(request_message) == sentence


@pytest.mark.parametrize("datatype", ["", "fp32", "FLOAT", "TYPE_FP32"])
def test_an_unknown_datatype_is_refused(datatype: str) -> None:
    assert refusal(message(datatype)).endswith(f"BF16, BYTES, got {datatype!r}")


@pytest.mark.parametrize("count", [1, 3])
def test_raw_contents_are_for_all_inputs_or_none(count: int) -> None:
    request = kserve_v2.write_request(Request(model="m", inputs=[ONE, TWO]))
    del request.raw_input_contents[:]
    request.raw_input_contents.extend([b""] * count)

    assert refusal(request) == (
        f"expected raw_input_contents for all 2 inputs or for none, got {count}"
    )


def test_raw_contents_without_inputs_are_refused() -> None:
    assert refusal(pb.ModelInferRequest(raw_input_contents=[b"x"])) == (
        "expected raw_input_contents for all 0 inputs or for none, got 1"
    )


def test_an_input_is_not_sent_in_two_ways() -> None:
    request = message(int_contents=[1, 2])
    request.raw_input_contents.append(bytes(8))

    assert refusal(request) == (
        "input 'x': expected no contents beside raw_input_contents, got int_contents"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shared_memory_region", pb.InferParameter(string_param="region")),
        ("classification", pb.InferParameter(int64_param=3)),
        ("binary_data", pb.InferParameter(bool_param=True)),
        ("unheard_of", pb.InferParameter(bool_param=False)),
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_parameters_of_a_single_tensor_are_refused(
    key: str, value: pb.InferParameter, raw: bool
) -> None:
    request = message(int_contents=[1, 2])
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(bytes(8))
    request.inputs[0].parameters[key].CopyFrom(value)
    assert refusal(request) == f"input 'x': parameter {key!r} is not offered"

    request.inputs[0].parameters.clear()
    request.outputs.add(name="y").parameters[key].CopyFrom(value)
    assert refusal(request) == f"output 'y': parameter {key!r} is not offered"


def test_no_binary_data_is_what_is_sent_anyway() -> None:
    request = message(int_contents=[1, 2])
    request.inputs[0].parameters["binary_data"].bool_param = False
    request.outputs.add(name="y").parameters["binary_data"].bool_param = False

    assert kserve_v2.read_request(request).outputs == ["y"]


# Answers of an engine


def test_an_answer_without_its_raw_contents_is_a_failure() -> None:
    answer = kserve_v2.write_response(Response("m", "1", [ONE, TWO]))
    del answer.raw_output_contents[1:]

    with pytest.raises(EngineFailed) as failed:
        kserve_v2.read_response(answer)

    assert failed.value.message == "the engine's answer has 2 outputs but 1 raw contents"


def test_an_answer_of_an_unknown_datatype_is_a_failure() -> None:
    answer = kserve_v2.write_response(Response("m", "1", [ONE]))
    answer.outputs[0].datatype = "FP8"

    with pytest.raises(EngineFailed) as failed:
        kserve_v2.read_response(answer)

    assert failed.value.message.startswith(
        "the engine's answer cannot be read: output 'a': expected a datatype of BOOL, "
    )
    assert failed.value.message.endswith("got 'FP8'")


def test_a_parameter_without_a_value_is_left_out() -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.parameters["unset"].SetInParent()
    request.parameters["zero"].int64_param = 0

    assert kserve_v2.read_request(request).parameters == {"zero": 0}


def test_metadata() -> None:
    model = Model(
        name="m",
        version="",
        versions=("1", "3"),
        platform="python",
        max_batch_size=0,
        inputs=(TensorSpec("x", Datatype.FP16, (ANY, 3)),),
        outputs=(TensorSpec("y", Datatype.BYTES, ()),),
    )

    assert kserve_v2.write_metadata(model) == pb.ModelMetadataResponse(
        name="m",
        versions=["1", "3"],
        platform="python",
        inputs=[pb.ModelMetadataResponse.TensorMetadata(name="x", datatype="FP16", shape=[-1, 3])],
        outputs=[pb.ModelMetadataResponse.TensorMetadata(name="y", datatype="BYTES", shape=[])],
    )
