"""A gateway that leaves while something streams: it ends by itself in time, or is told why not."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

from .conftest import GatewayFactory
from .test_leaving_clients import in_flight, repeat_message

pytestmark = pytest.mark.needs("engine")

Eventually = Callable[[Callable[[], bool], str], None]

GRACE = ("--drain.grace_s=6", "--drain.stream_notice_s=3", "--grpc.max_connection_age_s=0")
LEAVING = "the gateway is leaving; ask again and another one answers"
OPEN_ANEW = "the gateway is leaving; open the stream anew"


@pytest.fixture
def gateway(new_gateway: GatewayFactory, eventually: Eventually) -> Iterator[LocalGateway]:
    # Two engines, so that a long request keeps no other one waiting.
    with LocalEngine(("repeat",)) as one, LocalEngine(("repeat",)) as other:
        made = new_gateway(f"{one.grpc_address},{other.grpc_address}", *GRACE)
        eventually(lambda: httpx.get(f"{made.admin_url}/readyz").status_code == 200, "it is ready")
        yield made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def events(gateway: LocalGateway, count: int) -> list[dict[str, Any]]:
    asked = {"count": count, "delay_ms": 100}
    url = f"{gateway.http_url}/v2/models/repeat/generate_stream"
    with httpx.stream("POST", url, json=asked, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def messages(
    gateway: LocalGateway, requests: Iterator[pb.ModelInferRequest]
) -> tuple[list[pb.ModelStreamInferResponse], grpc.StatusCode]:
    answers: list[pb.ModelStreamInferResponse] = []
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        call = rpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests)
        with contextlib.suppress(grpc.RpcError):
            answers.extend(call)
        return answers, call.code()


def test_what_ends_in_time_ends_by_itself(
    gateway: LocalGateway, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    over_http = threads.submit(events, gateway, 12)
    over_grpc = threads.submit(messages, gateway, iter([repeat_message(12, 100)]))
    eventually(lambda: in_flight(gateway) == 2, "both are under way")
    began = time.monotonic()
    assert gateway.stop() == 0
    assert time.monotonic() - began < 5

    assert [event.get("output") for event in over_http.result()] == [*range(12)]
    answers, status = over_grpc.result()
    outputs = [answer.infer_response.raw_output_contents[0] for answer in answers]
    assert [int.from_bytes(output, "little") for output in outputs] == [*range(12)]
    assert status is grpc.StatusCode.OK


def test_what_does_not_is_told_why(
    gateway: LocalGateway, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    over_http = threads.submit(events, gateway, 600)
    over_grpc = threads.submit(messages, gateway, iter([repeat_message(600, 100)]))
    eventually(lambda: in_flight(gateway) == 2, "both are under way")
    began = time.monotonic()
    assert gateway.stop() == 0
    assert 2 < time.monotonic() - began < 7

    *given, last = over_http.result()
    assert len(given) > 20
    assert all("output" in event for event in given)
    assert last == {"error": LEAVING}
    answers, _ = over_grpc.result()
    assert next(answer.error_message for answer in answers if answer.error_message) == LEAVING
    assert len(answers) > 20


def test_an_idle_stream_is_to_be_opened_anew(
    gateway: LocalGateway, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    ended = threading.Event()

    def one_and_then_nothing() -> Iterator[pb.ModelInferRequest]:
        yield repeat_message(2, 0)
        ended.wait(60)

    stream: Future[Any] = threads.submit(messages, gateway, one_and_then_nothing())
    eventually(lambda: _answered(gateway), "it has had its answers")
    began = time.monotonic()
    assert gateway.stop() == 0
    assert time.monotonic() - began < 5
    ended.set()

    answers, status = stream.result()
    assert [answer.error_message for answer in answers] == ["", "", OPEN_ANEW]
    assert status is grpc.StatusCode.UNAVAILABLE


def _answered(gateway: LocalGateway) -> bool:
    attempts = [
        line
        for line in httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
        if line.startswith("tidegate_gateway_attempts_total") and 'outcome="good"' in line
    ]
    return bool(attempts) and in_flight(gateway) == 0
