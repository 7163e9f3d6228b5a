"""The gateway as a process: its start, its ports, its log, its leaving."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import GatewayError, LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

NOBODY = "127.0.0.1:1"
Eventually = Callable[[Callable[[], bool], str], None]
ONE = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}
WAIT_S = 20


def slow_request(milliseconds: int) -> dict[str, object]:
    delay = {"name": "delay_ms", "datatype": "INT32", "shape": [1], "data": [milliseconds]}
    return {"inputs": [ONE, delay]}


@pytest.mark.parametrize("name", ["http", "grpc", "admin"])
def test_a_taken_port_stops_the_start_with_its_setting(name: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = LocalGateway(NOBODY, tmp_path / "log", arguments=[f"--{name}.port={port}"])
        with pytest.raises(GatewayError) as caught:
            gateway.start()
    message = str(caught.value)
    assert f"{name}.port: cannot listen on 127.0.0.1 port {port}: " in message
    assert "Traceback" not in message


def test_a_bad_setting_stops_the_start_with_its_name(tmp_path: Path) -> None:
    gateway = LocalGateway(NOBODY, tmp_path / "log", arguments=["--images.threads=0"])
    with pytest.raises(GatewayError) as caught:
        gateway.start()
    assert "images.threads: Input should be greater than or equal to 1, got '0'" in str(
        caught.value
    )


def test_the_admin_port_answers(new_gateway: Callable[..., LocalGateway]) -> None:
    gateway = new_gateway(NOBODY)
    assert httpx.get(f"{gateway.admin_url}/livez").text == "ok\n"
    assert httpx.get(f"{gateway.admin_url}/readyz").text == "ok\n"
    httpx.get(f"{gateway.http_url}/v2")
    httpx.get(f"{gateway.http_url}/invented/by/a/client")
    exposition = httpx.get(f"{gateway.admin_url}/metrics")
    assert exposition.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = (
        'tidegate_gateway_requests_total{model="_unknown",protocol="http",'
        'route="%s",status="%s"} 1.0'
    )
    assert sample % ("/v2", "200") in exposition.text
    assert sample % ("_unknown", "404") in exposition.text
    assert httpx.get(f"{gateway.http_url}/metrics").status_code == 404


def test_the_log_is_one_json_object_a_line(new_gateway: Callable[..., LocalGateway]) -> None:
    gateway = new_gateway(NOBODY)
    httpx.get(f"{gateway.http_url}/v2", headers={"x-request-id": "find-me"})
    assert gateway.stop() == 0
    lines = gateway.log_path.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    (found,) = [r for r in records if r.get("request_id") == "find-me"]
    assert (found["route"], found["status"], found["protocol"]) == ("/v2", "200", "http")
    life = [r["message"] for r in records if not r["message"].startswith("endpoint")]
    assert life == ["listening", "answered", "draining", "gone"]


@pytest.mark.needs("engine")
def test_sigterm_lets_requests_in_flight_finish(
    engine: LocalEngine, new_gateway: Callable[..., LocalGateway], eventually: Eventually
) -> None:
    gateway = new_gateway(engine.grpc_address, "--drain.delay_s=1")
    url, answers = f"{gateway.http_url}/v2/models/slow/infer", []
    request = threading.Thread(
        target=lambda: answers.append(httpx.post(url, json=slow_request(3000), timeout=30))
    )
    request.start()
    metrics = f"{gateway.admin_url}/metrics"
    in_flight = 'tidegate_gateway_requests_in_flight{protocol="http"} 1.0'
    eventually(lambda: in_flight in httpx.get(metrics).text, "the request is in flight")
    os.kill(gateway.pid, signal.SIGTERM)
    eventually(
        lambda: httpx.get(f"{gateway.admin_url}/readyz").text == "draining\n", "it is not ready"
    )
    # It takes requests still, since load balancers need a moment to notice, but keeps no client.
    late = httpx.get(f"{gateway.http_url}/v2")
    assert (late.status_code, late.headers["connection"]) == (200, "close")
    request.join(WAIT_S)
    assert [answer.status_code for answer in answers] == [200]
    eventually(lambda: gateway.poll() is not None, "it has left")
    assert gateway.poll() == 0


@pytest.mark.needs("engine")
def test_a_second_sigterm_ends_it_at_once(
    engine: LocalEngine, new_gateway: Callable[..., LocalGateway], eventually: Eventually
) -> None:
    gateway = new_gateway(engine.grpc_address, "--drain.delay_s=600")
    os.kill(gateway.pid, signal.SIGTERM)
    eventually(
        lambda: httpx.get(f"{gateway.admin_url}/readyz").text == "draining\n", "it is not ready"
    )
    os.kill(gateway.pid, signal.SIGTERM)
    eventually(lambda: gateway.poll() is not None, "it has left")
    assert gateway.poll() == 128 + signal.SIGTERM


def test_it_ends_with_the_process_that_made_it(tmp_path: Path, eventually: Eventually) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tidegate_gateway.local import *;"
        f"g = LocalGateway({NOBODY!r}, Path(sys.argv[1])); g.start();"
        "print(g.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()

    def gone() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        return True

    eventually(gone, "the gateway is gone")


def test_answers_tell_the_gateway_only_when_it_has_a_name(
    new_gateway: Callable[..., LocalGateway],
) -> None:
    named = new_gateway(NOBODY, "--answers.gateway_name=gateway-1")
    assert httpx.get(f"{named.http_url}/v2").headers["tidegate-gateway"] == "gateway-1"
    with grpc.insecure_channel(named.grpc_address) as channel:
        live = rpc.GRPCInferenceServiceStub(channel).ServerLive
        _, call = live.with_call(pb.ServerLiveRequest())
    assert dict(call.trailing_metadata() or ())["tidegate-gateway"] == "gateway-1"
    assert "tidegate-gateway" not in httpx.get(f"{new_gateway(NOBODY).http_url}/v2").headers
