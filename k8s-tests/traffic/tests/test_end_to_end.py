"""A real engine, a real gateway, a real generator: no failure when all is well, and every fault is
seen."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_traffic import Expectation, Fault, LocalTraffic, Report, missing
from tidegate_traffic.errors import ControlError
from tidegate_traffic.evidence import summary
from tidegate_traffic.outcomes import Outcome

from .conftest import GATEWAY, GatewayFactory

pytestmark = pytest.mark.needs("engine")

Document = dict[str, Any]

# Seconds. Whatever else the machine has to do, a slow answer is no failure here.
PATIENCE_S = 60

JSON: Document = {
    "name": "json",
    "kind": "v2_json",
    "model": "identity",
    "rate": 28,
    "timeout_s": PATIENCE_S,
    "versions": ["1"],
    "input": "INPUT_INT64",
    "output": "OUTPUT_INT64",
    "datatype": "INT64",
    "requests_per_connection": 10,
}
GRPC: Document = {
    "name": "grpc",
    "kind": "v2_grpc",
    "model": "identity",
    "rate": 45,
    "timeout_s": PATIENCE_S,
    "versions": ["1"],
    "input": "INPUT_FP32",
    "output": "OUTPUT_FP32",
    "requests_per_connection": 20,
    "connections": 2,
}
SERVICE: Document = {
    "name": "service",
    "kind": "inference_service",
    "model": "slow",
    "rate": 25,
    "timeout_s": PATIENCE_S,
    "input": "input",
    "output": "output",
    "constants": [{"name": "delay_ms", "datatype": "INT32", "values": [5]}],
}
PHOTO: Document = {
    "name": "photos",
    "kind": "photo",
    "model": "image_classifier",
    "rate": 2,
    "versions": ["1"],
    "timeout_s": PATIENCE_S,
    "headers": {"tidegate-timeout": "50"},
    "photos": [
        {"file": "coffee.png", "label": "espresso"},
        {"file": "camera.png", "label": "tripod"},
    ],
}
# Eight at once in flight at the gateway, for certain and with hardly any work.
UPLOADS = PHOTO | {"name": "uploads", "rate": 4, "upload_s": 2}


def plan_for(gateway: LocalGateway, *routes: Document) -> Document:
    return {"http": gateway.http_url, "grpc": gateway.grpc_address, "routes": list(routes)}


def sorts(report: Report) -> set[tuple[Outcome, str]]:
    return {(cell.outcome, cell.detail) for cell in report.cells}


def test_all_is_well_at_100_a_second(
    traffic_engine: LocalEngine, new_gateway: GatewayFactory, directory: Path
) -> None:
    plan = plan_for(new_gateway(traffic_engine), JSON, GRPC, SERVICE, PHOTO)
    planned = {"json": 125, "grpc": 225, "service": 125, "photos": 10}
    with LocalTraffic(plan, directory) as traffic:
        traffic.control.wait_for(
            lambda report: all(report.routes[name].ok >= planned[name] for name in planned),
            "every route has its answers",
        )
        report = traffic.stop()
    print(summary(report))
    expected = Expectation(
        requests=planned,
        versions={"identity": ["1"], "image_classifier": ["1"]},
        gateways=[GATEWAY],
    )
    assert missing(report, expected) == []
    assert sorts(report) == {(Outcome.OK, "")}


def test_a_fault_finds_what_is_in_flight_at_the_gateway(
    traffic_engine: LocalEngine, new_gateway: GatewayFactory, directory: Path
) -> None:
    with LocalTraffic(plan_for(new_gateway(traffic_engine), UPLOADS), directory) as traffic:
        traffic.control.wait_in_flight(7)
        with traffic.control.fault("nothing is done"):
            replaced_at_s = traffic.control.in_flight().now_s
        traffic.control.wait_for(
            lambda report: any(cell.second > replaced_at_s for cell in report.cells),
            "answers to requests that were due after it",
        )
        report = traffic.stop()
    fault = Fault("nothing is done", "gateway", GATEWAY, GATEWAY, replaced_at_s)
    expected = Expectation(requests={"uploads": 7}, gateways=[GATEWAY], faults=[fault])
    assert missing(report, expected) == []
    assert report.faults[0].by_gateway == {GATEWAY: report.faults[0].in_flight}


def test_a_killed_gateway_is_seen(
    traffic_engine: LocalEngine, new_gateway: GatewayFactory, directory: Path
) -> None:
    gateway = new_gateway(traffic_engine)
    with LocalTraffic(plan_for(gateway, JSON, GRPC, UPLOADS), directory) as traffic:
        traffic.control.wait_for(
            lambda report: report.ok >= 100 and report.routes["uploads"].in_flight >= 7,
            "traffic flows",
        )
        with traffic.control.fault("kill"):
            gateway.kill()
        traffic.control.wait_for(
            lambda report: all(route.failed >= 10 for route in report.routes.values()),
            "every route fails",
        )
        report = traffic.stop()
    assert {outcome for outcome, _ in sorts(report)} == {Outcome.OK, Outcome.CONNECTION}
    assert (Outcome.CONNECTION, "refused") in sorts(report)
    (fault,) = report.faults
    assert fault.in_flight >= 5
    assert fault.by_outcome == {"connection": fault.in_flight}
    expected = Expectation(requests={"json": 1}, most_late_s=math.inf)
    (sentence,) = missing(report, expected)
    assert sentence.startswith("expected at most 0 failed requests, got ")


def test_a_stalled_engine_does_not_stall_the_traffic(
    traffic_engine: LocalEngine, new_gateway: GatewayFactory, directory: Path
) -> None:
    with LocalTraffic(plan_for(new_gateway(traffic_engine), GRPC), directory) as traffic:
        traffic.control.wait_for(lambda report: report.ok >= 20, "traffic flows")
        traffic_engine.pause()
        begun = time.monotonic()
        try:
            # A client that waits for answers would have no more than its two connections.
            traffic.control.wait_in_flight(60)
        finally:
            stalled_ms = (time.monotonic() - begun) * 1000
            traffic_engine.resume()
        report = traffic.stop()
    assert sorts(report) == {(Outcome.OK, "")}
    # All those, not one alone, have waited: as long as was left of the stall when they were due.
    assert report.routes["grpc"].latency.max_ms >= stalled_ms * 0.9
    waited = [cell for cell in report.cells if cell.max_latency_ms >= stalled_ms * 0.2]
    assert sum(cell.count for cell in waited) >= 30


def test_a_held_up_generator_shows_in_the_latency(
    traffic_engine: LocalEngine, new_gateway: GatewayFactory, directory: Path
) -> None:
    with LocalTraffic(plan_for(new_gateway(traffic_engine), GRPC), directory) as traffic:
        traffic.control.wait_for(lambda report: report.ok >= 20, "traffic flows")
        traffic.pause()
        with pytest.raises(ControlError, match="timed out"):
            traffic.control.report(timeout_s=1)
        traffic.resume()
        report = traffic.stop()
    assert report.failed == 0
    assert report.lateness.max_ms >= 900
    assert report.routes["grpc"].latency.max_ms >= 900
    # What was due meanwhile was sent afterwards, and none was left out.
    planned = report.sending_s * GRPC["rate"]
    assert report.routes["grpc"].scheduled == pytest.approx(planned, abs=1)
    expected = Expectation(requests={"grpc": 1}, most_late_s=0.5)
    assert "the generator itself was held up" in missing(report, expected)[0]


@pytest.mark.parametrize(
    ("route", "detail"),
    [
        (JSON | {"versions": ["2"]}, "version"),
        (GRPC | {"output": "OUTPUT_FP64"}, "content"),
        (PHOTO | {"photos": [{"file": "coffee.png", "label": "tripod"}]}, "label"),
    ],
)
def test_wrong_answers_are_seen(
    route: Document,
    detail: str,
    traffic_engine: LocalEngine,
    new_gateway: GatewayFactory,
    directory: Path,
) -> None:
    with LocalTraffic(plan_for(new_gateway(traffic_engine), route), directory) as traffic:
        traffic.control.wait_for(lambda report: report.failed >= 3, "answers are wrong")
        report = traffic.stop()
    assert sorts(report) == {(Outcome.WRONG, detail)}
