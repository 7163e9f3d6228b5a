"""Clients that leave: what is done for them ends within a second, whichever way they came."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

from .conftest import GatewayFactory

pytestmark = pytest.mark.needs("engine")

# A second is promised; another one is what a slow machine may take to notice.
GONE_WITHIN_S = 2.0
# Milliseconds that each request takes: far longer than that.
LONG_MS = 8000

Eventually = Callable[[Callable[[], bool], str], None]


def in_flight(gateway: LocalGateway) -> int:
    endpoints = httpx.get(f"{gateway.admin_url}/endpoints").json()
    return sum(int(each["inFlight"]) for each in endpoints)


def tensor(name: str, datatype: str, value: float) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [1], "data": [value]}


SLOW = {"inputs": [tensor("input", "FP32", 1), tensor("delay_ms", "INT32", LONG_MS)]}
REPEATS = {"count": 100, "delay_ms": 100}


@contextmanager
def over_http(gateway: LocalGateway, path: str, document: object) -> Iterator[socket.socket]:
    host, _, port = gateway.http_url.removeprefix("http://").partition(":")
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def slow_message() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(
        model_name="slow",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1]),
            pb.ModelInferRequest.InferInputTensor(name="delay_ms", datatype="INT32", shape=[1]),
        ],
    )
    message.raw_input_contents.extend([struct.pack("<f", 1), struct.pack("<i", LONG_MS)])
    return message


def repeat_message(count: int, delay_ms: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(
        model_name="repeat",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="count", datatype="INT32", shape=[1]),
            pb.ModelInferRequest.InferInputTensor(name="delay_ms", datatype="INT32", shape=[1]),
        ],
    )
    message.raw_input_contents.extend([struct.pack("<i", count), struct.pack("<i", delay_ms)])
    return message


@contextmanager
def over_grpc(
    gateway: LocalGateway, message: pb.ModelInferRequest, *, stream: bool
) -> Iterator[None]:
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        call: Any = (
            stub.ModelStreamInfer(iter([message])) if stream else stub.ModelInfer.future(message)
        )
        yield
        call.cancel()


PATHS: dict[str, Callable[[LocalGateway], Any]] = {
    "infer": lambda g: over_http(g, "/v2/models/slow/infer", SLOW),
    "predict/v2": lambda g: over_http(g, "/predict/v2", SLOW | {"model_name": "slow"}),
    "generate": lambda g: over_http(
        g, "/v2/models/slow/generate", {"input": 1, "delay_ms": LONG_MS}
    ),
    "generate, decoupled": lambda g: over_http(
        g, "/v2/models/repeat/generate", {"count": 1, "delay_ms": LONG_MS}
    ),
    "generate_stream": lambda g: over_http(g, "/v2/models/repeat/generate_stream", REPEATS),
    "generate_stream, before the first answer": lambda g: over_http(
        g, "/v2/models/repeat/generate_stream", {"count": 1, "delay_ms": LONG_MS}
    ),
    "ModelInfer": lambda g: over_grpc(g, slow_message(), stream=False),
    "ModelStreamInfer": lambda g: over_grpc(g, slow_message(), stream=True),
    "ModelStreamInfer, decoupled": lambda g: over_grpc(g, repeat_message(100, 100), stream=True),
}


@pytest.fixture(scope="module")
def own_engine() -> Iterator[LocalEngine]:
    """An engine that may still be busy with what has been given up."""
    with LocalEngine(("slow", "repeat")) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
def test_who_leaves_ends_the_call_to_the_engine(
    own_engine: LocalEngine, new_gateway: GatewayFactory, eventually: Eventually, path: str
) -> None:
    gateway = new_gateway(own_engine.grpc_address)
    eventually(lambda: httpx.get(f"{gateway.admin_url}/readyz").status_code == 200, "it is ready")
    with PATHS[path](gateway):
        eventually(lambda: in_flight(gateway) == 1, "the engine has been asked")
        time.sleep(0.3)
        assert in_flight(gateway) == 1
        left = time.monotonic()
    while in_flight(gateway):
        assert time.monotonic() - left < GONE_WITHIN_S
        time.sleep(0.02)

    eventually(lambda: _how_it_ended(gateway) is not None, "it is in the log")
    assert _how_it_ended(gateway) in ("499", "CANCELLED")
    assert [record for record in gateway.log_records() if "exception" in record] == []
    assert gateway.stop() == 0


def _how_it_ended(gateway: LocalGateway) -> str | None:
    ends = [
        record["status"]
        for record in gateway.log_records()
        if record.get("message") in ("answered", "refused") and record.get("model")
    ]
    return ends[-1] if ends else None


def test_a_decoupled_model_hears_that_its_client_has_left(
    new_gateway: GatewayFactory, eventually: Eventually
) -> None:
    """It has one instance, which another request gets long before all answers would be given."""
    with LocalEngine(("repeat",)) as engine:
        gateway = new_gateway(engine.grpc_address)
        with over_http(
            gateway, "/v2/models/repeat/generate_stream", {"count": 300, "delay_ms": 100}
        ):
            eventually(lambda: in_flight(gateway) == 1, "the engine has been asked")
            time.sleep(1.0)
        answer = httpx.post(
            f"{gateway.http_url}/v2/models/repeat/generate", json={"count": 1}, timeout=20
        )
        assert answer.json()["output"] == 0
