"""gRPC on a real Triton: KServe v2 and the original design's InferenceService."""

from collections.abc import Iterator

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tidegate_gateway.local import LocalGateway
from tidegate_proto import inference_pb2 as original
from tidegate_proto import inference_pb2_grpc as original_rpc
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

pytestmark = pytest.mark.needs("engine")


@pytest.fixture(scope="module")
def channel(gateway: LocalGateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(
        gateway.grpc_address, [("grpc.max_send_message_length", -1)]
    ) as channel:
        yield channel


@pytest.fixture(scope="module")
def kserve(channel: grpc.Channel) -> rpc.GRPCInferenceServiceStub:
    return rpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(scope="module")
def service(channel: grpc.Channel) -> original_rpc.InferenceServiceStub:
    return original_rpc.InferenceServiceStub(channel)


def refused(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call: grpc.Call = error  # type: ignore[assignment]  # what a stub raises is both
    assert "x-request-id" in dict(call.trailing_metadata() or ())
    return call.code(), call.details() or ""


def request(
    model: str, raw: bytes | None = None, shape: tuple[int, ...] = (1,), **fields: object
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, **fields)  # type: ignore[arg-type]
    message.inputs.add(name="input", datatype="FP32", shape=shape)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


PhotoTensor = tuple[npt.NDArray[np.float32], set[int]]


def test_a_photo_over_kserve_v2(
    kserve: rpc.GRPCInferenceServiceStub, photo_tensor: PhotoTensor
) -> None:
    values, shown = photo_tensor
    message = request("image_classifier", values.tobytes(), values.shape, id="7")
    answer = kserve.ModelInfer(message)
    assert (answer.model_name, answer.model_version, answer.id) == ("image_classifier", "1", "7")
    assert list(answer.outputs[0].shape) == [1, 1000]
    assert int(np.frombuffer(answer.raw_output_contents[0], np.float32).argmax()) in shown


def test_a_photo_over_the_inference_service(
    service: original_rpc.InferenceServiceStub, photo_tensor: PhotoTensor
) -> None:
    values, shown = photo_tensor
    tensor = original.InferRequest.Tensor(
        name="input", shape=values.shape, tensor_content=values.tobytes()
    )
    answer = service.ModelInfer(
        original.InferRequest(model_name="image_classifier", inputs=[tensor])
    )
    assert answer.model_name == "image_classifier"
    (output,) = answer.outputs
    assert (output.name, list(output.shape)) == ("logits", [1, 1000])
    assert int(np.frombuffer(output.tensor_content, np.float32).argmax()) in shown


def test_typed_contents_and_raw_contents_are_the_same(
    kserve: rpc.GRPCInferenceServiceStub,
) -> None:
    raw = kserve.ModelInfer(request("slow", np.array([1.5, -2], np.float32).tobytes(), (2,)))
    message = request("slow", shape=(2,))
    message.inputs[0].contents.fp32_contents.extend([1.5, -2])
    typed = kserve.ModelInfer(message)
    assert raw == typed
    assert np.frombuffer(raw.raw_output_contents[0], np.float32).tolist() == [1.5, -2]


def test_health_and_metadata(kserve: rpc.GRPCInferenceServiceStub) -> None:
    assert kserve.ServerLive(pb.ServerLiveRequest()).live
    assert kserve.ServerReady(pb.ServerReadyRequest()).ready
    assert kserve.ModelReady(pb.ModelReadyRequest(name="slow")).ready
    assert not kserve.ModelReady(pb.ModelReadyRequest(name="nobody")).ready
    assert kserve.ServerMetadata(pb.ServerMetadataRequest()).name == "tidegate"
    metadata = kserve.ModelMetadata(pb.ModelMetadataRequest(name="batching"))
    assert (metadata.name, list(metadata.versions)) == ("batching", ["1"])
    assert (metadata.inputs[0].datatype, list(metadata.inputs[0].shape)) == ("FP32", [-1, 1])


@pytest.mark.parametrize(
    ("message", "code", "details"),
    [
        (
            request("nobody", bytes(4)),
            grpc.StatusCode.NOT_FOUND,
            "no engine has model 'nobody'",
        ),
        (
            request("slow", bytes(4), model_version="9"),
            grpc.StatusCode.NOT_FOUND,
            "no engine has model 'slow' in version 9",
        ),
        (
            request("slow", bytes(4), model_version="01"),
            grpc.StatusCode.NOT_FOUND,
            "no engine has model 'slow' in version '01'",
        ),
        (
            request(
                "slow",
                bytes(4),
                outputs=[
                    pb.ModelInferRequest.InferRequestedOutputTensor(
                        name="output",
                        parameters={"classification": pb.InferParameter(int64_param=-1)},
                    )
                ],
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "output 'output': expected parameter 'classification' as a whole number of 1 to "
            "2147483647, got -1",
        ),
        (
            request("slow", bytes(7)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "model 'slow': input 'input': expected 4 bytes for FP32 [1], got 7",
        ),
        (
            request("slow", bytes(4), (1, 1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "model 'slow': input 'input': expected shape [-1], got [1, 1]",
        ),
        (
            request("slow", bytes(4), (-1,)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "model 'slow': input 'input': expected sizes of 0 or more in its shape, got [-1]",
        ),
        (
            pb.ModelInferRequest(model_name="slow", raw_input_contents=[b"1234"]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "expected raw_input_contents for all 0 inputs or for none, got 1",
        ),
    ],
)
def test_bad_requests_are_refused_exactly(
    kserve: rpc.GRPCInferenceServiceStub,
    message: pb.ModelInferRequest,
    code: grpc.StatusCode,
    details: str,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        kserve.ModelInfer(message)
    assert refused(caught.value) == (code, details)


def test_the_inference_service_refuses_exactly(
    service: original_rpc.InferenceServiceStub,
) -> None:
    tensor = original.InferRequest.Tensor(name="output", shape=[1], tensor_content=bytes(4))
    with pytest.raises(grpc.RpcError) as caught:
        service.ModelInfer(original.InferRequest(model_name="slow", inputs=[tensor]))
    assert refused(caught.value) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "model 'slow': expected inputs of ['input', 'delay_ms'], got 'output'",
    )


def test_a_message_over_the_limit_is_refused(kserve: rpc.GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        kserve.ModelInfer(request("slow", bytes(64 * 2**20), (2**24,)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_clients_deadline_is_kept(kserve: rpc.GRPCInferenceServiceStub) -> None:
    message = request("slow", bytes(4))
    message.inputs.add(name="delay_ms", datatype="INT32", shape=[1])
    message.raw_input_contents.append(np.array([2000], np.int32).tobytes())
    with pytest.raises(grpc.RpcError) as caught:
        kserve.ModelInfer(message, metadata=(("tidegate-timeout", "0.3"),))
    assert refused(caught.value) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "no answer within the deadline of 0.3 s",
    )
    with pytest.raises(grpc.RpcError) as caught:
        kserve.ModelInfer(message, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_what_is_not_offered_says_so(kserve: rpc.GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        kserve.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="slow"))
    assert refused(caught.value) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "Tidegate does not offer RepositoryModelUnload: models are loaded and unloaded by the "
        "operator, or by the engines' own configuration",
    )
