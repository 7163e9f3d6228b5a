"""What a client sees when its engine is killed, stalled, raising or back again."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

pytestmark = pytest.mark.needs("engine")

# Seconds of slack for the deadline of a stalled engine.
SLACK_S = 1
# Paths, files, addresses, and Python's way to tell of an exception.
INTERNALS = re.compile(r"/\w+/|\.py\b|Traceback|\d+\.\d+\.\d+\.\d+")

Eventually = Callable[[Callable[[], bool], str], None]
ONE = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}


@pytest.fixture
def own_engine() -> Iterator[LocalEngine]:
    """A Triton that the test may break."""
    with LocalEngine(["slow", "fragile"]) as engine:
        yield engine


@pytest.fixture
def own_gateway(own_engine: LocalEngine, new_gateway: Callable[..., LocalGateway]) -> LocalGateway:
    gateway = new_gateway(own_engine.grpc_address)
    assert predict(gateway).status_code == 200
    return gateway


def predict(gateway: LocalGateway, model: str = "slow", **headers: str) -> httpx.Response:
    document: dict[str, Any] = {"model_name": model, "inputs": [ONE]}
    url = f"{gateway.http_url}/predict/v2"
    return httpx.post(url, json=document, headers=headers, timeout=30)


def infer_code(gateway: LocalGateway, seconds: float) -> grpc.StatusCode:
    message = pb.ModelInferRequest(
        model_name="slow", raw_input_contents=[np.array([1], np.float32).tobytes()]
    )
    message.inputs.add(name="input", datatype="FP32", shape=[1])
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        try:
            stub.ModelInfer(message, metadata=(("tidegate-timeout", str(seconds)),), timeout=30)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_killed_engine_is_503_and_its_return_is_noticed(
    own_engine: LocalEngine, own_gateway: LocalGateway, eventually: Eventually
) -> None:
    pid = own_gateway.pid
    own_engine.kill()
    away = predict(own_gateway)
    assert (away.status_code, away.json()) == (503, {"detail": "Inference server offline"})
    assert away.headers["retry-after"] == "1"
    v2 = httpx.post(f"{own_gateway.http_url}/v2/models/slow/infer", json={"inputs": [ONE]})
    assert (v2.status_code, v2.json()) == (
        503,
        {"error": "no engine can be reached; try again later"},
    )
    assert infer_code(own_gateway, 5) is grpc.StatusCode.UNAVAILABLE
    assert httpx.get(f"{own_gateway.http_url}/v2/health/ready").status_code == 503
    assert httpx.get(f"{own_gateway.admin_url}/readyz").status_code == 200

    own_engine.start()
    eventually(lambda: predict(own_gateway).status_code == 200, "answers again")
    assert infer_code(own_gateway, 5) is grpc.StatusCode.OK
    assert own_gateway.pid == pid
    assert own_gateway.poll() is None


def test_a_stalled_engine_is_504_at_the_deadline(
    own_engine: LocalEngine, own_gateway: LocalGateway, eventually: Eventually
) -> None:
    own_engine.pause()
    for seconds, headers in ((3.0, {}), (0.5, {"tidegate-timeout": "0.5"})):
        began = time.monotonic()
        stalled = predict(own_gateway, **headers)
        took = time.monotonic() - began
        assert (stalled.status_code, stalled.json()) == (
            504,
            {"detail": "Inference server timeout"},
        )
        assert seconds <= took < seconds + SLACK_S
    assert infer_code(own_gateway, 0.5) is grpc.StatusCode.DEADLINE_EXCEEDED

    own_engine.resume()
    eventually(lambda: predict(own_gateway).status_code == 200, "answers again")


def test_an_engine_that_stalls_before_it_described_a_model_is_504(
    own_engine: LocalEngine, new_gateway: Callable[..., LocalGateway]
) -> None:
    gateway = new_gateway(own_engine.grpc_address)
    own_engine.pause()
    began = time.monotonic()
    stalled = predict(gateway, **{"tidegate-timeout": "0.5"})
    assert stalled.status_code == 504
    assert 0.5 <= time.monotonic() - began < 0.5 + SLACK_S


def test_an_engine_that_was_never_there_is_503(
    new_gateway: Callable[..., LocalGateway],
) -> None:
    gateway = new_gateway("127.0.0.1:1")
    assert httpx.get(f"{gateway.admin_url}/readyz").status_code == 200
    away = predict(gateway)
    assert (away.status_code, away.json()) == (503, {"detail": "Inference server offline"})


def test_a_raising_model_is_500_and_tells_nothing_of_the_engine(
    gateway: LocalGateway,
) -> None:
    raised = predict(gateway, "raising", **{"x-request-id": "raising-1"})
    assert (raised.status_code, raised.json()) == (500, {"detail": "Internal inference error"})
    v2 = httpx.post(f"{gateway.http_url}/v2/models/raising/infer", json={"inputs": [ONE]})
    assert (v2.status_code, v2.json()) == (500, {"error": "model 'raising' failed in the engine"})
    for answer in (raised, v2):
        assert not INTERNALS.search(answer.text)
    # What the client is not told is in the log, under the id that the client has.
    (record,) = [
        r
        for r in gateway.log_records()
        if r.get("request_id") == "raising-1" and r["message"] == "refused"
    ]
    assert "Traceback" in record["detail"] or ".py" in record["detail"]
    assert (record["model"], record["status"]) == ("raising", "500")


def test_a_dead_backend_process_is_500(own_engine: LocalEngine, own_gateway: LocalGateway) -> None:
    die = {"name": "die", "datatype": "BOOL", "shape": [1], "data": [True]}
    url = f"{own_gateway.http_url}/v2/models/fragile/infer"
    assert httpx.post(url, json={"inputs": [ONE]}).status_code == 200
    assert httpx.post(url, json={"inputs": [ONE, die]}, timeout=30).status_code == 500
    dead = httpx.post(url, json={"inputs": [ONE]}, timeout=30)
    assert dead.status_code == 500
    assert not INTERNALS.search(dead.text)
    assert predict(own_gateway).status_code == 200
