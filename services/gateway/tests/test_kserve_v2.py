"""KServe v2's messages: typed contents and raw bytes, and messages that contradict themselves."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate_gateway import kserve_v2
from tidegate_gateway.errors import EngineFailed, InvalidInput, NotOffered
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import Parameter, Request, Response, Wanted
from tidegate_gateway.tensors import Datatype, Tensor
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelParameter

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
        outputs=[Wanted("y"), Wanted("z", classes=3)],
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


@pytest.mark.parametrize("raw", [True, False])
def test_shared_memory_is_not_offered(raw: bool) -> None:
    request = message(int_contents=[1, 2])
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(bytes(8))
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    with pytest.raises(NotOffered) as refused:
        kserve_v2.read_request(request)
    assert refused.value.message == (
        "input 'x': shared memory is not offered; send the tensor itself"
    )

    request.inputs[0].parameters.clear()
    request.outputs.add(name="y").parameters["shared_memory_offset"].int64_param = 8
    with pytest.raises(NotOffered) as refused:
        kserve_v2.read_request(request)
    assert refused.value.message == (
        "output 'y': shared memory is not offered; send the tensor itself"
    )


def test_what_clients_note_for_themselves_on_a_tensor_is_passed_over() -> None:
    request = message(int_contents=[1, 2])
    request.inputs[0].parameters["binary_data"].bool_param = False
    request.outputs.add(name="y").parameters["unheard_of"].double_param = 1.5
    request.outputs.add(name="z").parameters["classification"].int64_param = 3

    read = kserve_v2.read_request(request)

    assert read.outputs == [Wanted("y"), Wanted("z", classes=3)]


def test_several_faulty_tensors_are_told_together() -> None:
    request = message("FP8", name="x")
    request.inputs.append(message("INT32", name="y", fp32_contents=[1]).inputs[0])

    assert refusal(request) == (
        "input 'x': expected a datatype of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, "
        "INT32, INT64, FP16, FP32, FP64, BF16, BYTES, got 'FP8'; "
        "input 'y': expected int_contents for INT32, got fp32_contents"
    )


# Statistics and configurations


def statistics(**changes: Any) -> pb.ModelStatistics:
    took = pb.StatisticDuration(count=2, ns=10)
    members: dict[str, Any] = {
        "name": "m",
        "version": "1",
        "last_inference": 5,
        "inference_count": 4,
        "execution_count": 2,
        "inference_stats": pb.InferStatistics(success=took, queue=took),
        "batch_stats": [pb.InferBatchStatistics(batch_size=2, compute_infer=took)],
        "memory_usage": [pb.MemoryUsage(type="GPU", id=0, byte_size=7)],
        "response_stats": {"0": pb.InferResponseStatistics(success=took)},
    }
    return pb.ModelStatistics(**(members | changes))


def merged(*each: Sequence[pb.ModelStatistics]) -> list[pb.ModelStatistics]:
    parts = [pb.ModelStatisticsResponse(model_stats=told).SerializeToString() for told in each]
    return list(kserve_v2.merged_statistics(parts).model_stats)


def test_what_engines_have_counted_is_added_up() -> None:
    took, twice = pb.StatisticDuration(count=2, ns=10), pb.StatisticDuration(count=4, ns=20)
    other = statistics(
        last_inference=3,
        batch_stats=[
            pb.InferBatchStatistics(batch_size=1, compute_infer=took),
            pb.InferBatchStatistics(batch_size=2, compute_infer=took),
        ],
        response_stats={
            "0": pb.InferResponseStatistics(success=took),
            "1": pb.InferResponseStatistics(fail=took),
        },
    )

    assert merged([statistics()], [other]) == [
        statistics(
            inference_count=8,
            execution_count=4,
            inference_stats=pb.InferStatistics(success=twice, queue=twice),
            batch_stats=[
                pb.InferBatchStatistics(batch_size=2, compute_infer=twice),
                pb.InferBatchStatistics(batch_size=1, compute_infer=took),
            ],
            memory_usage=[pb.MemoryUsage(type="GPU", id=0, byte_size=7)] * 2,
            response_stats={
                "0": pb.InferResponseStatistics(success=twice),
                "1": pb.InferResponseStatistics(fail=took),
            },
        )
    ]


def test_models_and_versions_are_told_apart() -> None:
    told = merged([statistics(version="2")], [statistics(), statistics(name="a")])

    assert [(each.name, each.version) for each in told] == [("a", "1"), ("m", "1"), ("m", "2")]
    assert {each.inference_count for each in told} == {4}
    assert merged() == []


def test_a_message_as_triton_has_it_in_json() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        parameters={"a": ModelParameter(string_value="b")},
        input=[ModelInput(name="x", data_type=DataType.TYPE_FP32, dims=[-1, 2**40])],
    )

    document = kserve_v2.as_document(config)

    assert document["parameters"] == {"a": {"string_value": "b"}}
    assert document["input"] == [
        {
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 2**40],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert (document["platform"], document["output"], document["metric_tags"]) == ("", [], {})
    assert "dynamic_batching" not in document


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
