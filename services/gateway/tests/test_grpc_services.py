"""Health, reflection and limits of the gRPC port."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

from .conftest import GatewayFactory

pytestmark = pytest.mark.needs("engine")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = ("", "inference.GRPCInferenceService", "inference.InferenceService")


@pytest.fixture
def channel(gateway: LocalGateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.grpc_address) as opened:
        yield opened


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_serves(channel: grpc.Channel, service: str) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING


def test_another_service_is_not_found(channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as failed:
        stub.Check(health_pb2.HealthCheckRequest(service="inference.Nobody"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_hears_that_the_gateway_leaves(
    new_gateway: GatewayFactory, engine: LocalEngine
) -> None:
    gateway = new_gateway(engine.grpc_address, "--drain.delay_s=2")
    heard = queue.SimpleQueue[int]()

    def watch() -> None:
        with grpc.insecure_channel(gateway.grpc_address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                for each in stub.Watch(health_pb2.HealthCheckRequest()):
                    heard.put(each.status)
            except grpc.RpcError:
                heard.put(-1)

    thread = threading.Thread(target=watch)
    thread.start()
    assert heard.get(timeout=20) == SERVING
    assert gateway.stop() == 0
    assert heard.get(timeout=20) == NOT_SERVING
    assert heard.get(timeout=20) == -1
    thread.join()


def test_reflection_tells_of_all_services(channel: grpc.Channel) -> None:
    told = ProtoReflectionDescriptorDatabase(channel)
    assert set(told.get_services()) == {
        "inference.GRPCInferenceService",
        "inference.InferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    described = told.FindFileContainingSymbol("inference.GRPCInferenceService")
    (service,) = [each for each in described.service if each.name == "GRPCInferenceService"]
    assert {"ModelInfer", "ModelStreamInfer", "ModelConfig"} <= {m.name for m in service.method}


@pytest.mark.parametrize("method", ["ModelInfer", "ModelConfig", "RepositoryIndex"])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x08" + b"\xff" * 11, bytes(1000)])
def test_bytes_that_are_no_message_are_refused(
    gateway: LocalGateway, channel: grpc.Channel, method: str, data: bytes
) -> None:
    call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    with pytest.raises(grpc.RpcError) as failed:
        call(data, timeout=20)
    error: grpc.Call = failed.value  # type: ignore[assignment]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").endswith(f"as protobuf, got {len(data)} bytes that are not")
    assert "x-request-id" in dict(error.trailing_metadata() or ())


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    error: grpc.Call = failed.value  # type: ignore[assignment]
    return error.code(), error.details() or ""


def test_messages_and_metadata_have_a_bound(
    new_gateway: GatewayFactory, engine: LocalEngine
) -> None:
    gateway = new_gateway(
        engine.grpc_address, "--grpc.max_message_bytes=1000", "--grpc.max_metadata_bytes=4096"
    )
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        large = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(2000)])
        code, details = refusal(lambda: stub.ModelInfer(large, timeout=20))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1000" in details
        metadata = (("a", "x" * 8000),)
        code, _ = refusal(lambda: stub.ServerLive(pb.ServerLiveRequest(), metadata=metadata))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.ServerLive(pb.ServerLiveRequest(), metadata=(("a", "x" * 1000),)).live


@pytest.mark.parametrize("compression", ["deflate", "gzip"])
def test_answers_are_compressed_where_the_setting_says_so(
    new_gateway: GatewayFactory, engine: LocalEngine, compression: str
) -> None:
    """Read by gRPC itself; that it shrinks is told by what comes over the socket in the clients'
    own tests."""
    gateway = new_gateway(engine.grpc_address, f"--grpc.compression={compression}")
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(
            pb.ModelInferRequest(
                model_name="identity",
                inputs=[
                    pb.ModelInferRequest.InferInputTensor(
                        name="INPUT_INT8", datatype="INT8", shape=[100_000]
                    )
                ],
                raw_input_contents=[bytes(100_000)],
            ),
            compression=grpc.Compression.Gzip,
            timeout=20,
        )
    assert answer.raw_output_contents[0] == bytes(100_000)
