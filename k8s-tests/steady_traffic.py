"""Steady traffic through the release; its report is the evidence that no request failed."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from installation import NAMESPACE, RELEASE
from kubernetes import Kubernetes
from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_traffic import evidence
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Expectation, Fault
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report
from traffic_pod import traffic

# Of traffic on each route, at least, unless a test says more.
LEAST_SECONDS = 15.0

_PHOTO = {"kind": "photo", "model": "image_classifier", "versions": ["1"],
          "headers": {"tidegate-timeout": "20"}, "timeout_s": 30, "requests_per_connection": 1,
          "photos": [{"file": "coffee.png", "label": "espresso"}]}  # fmt: skip
_TENSORS = {"model": "identity", "input": "INPUT_FP32", "output": "OUTPUT_FP32",
            "headers": {"tidegate-timeout": "3"}, "timeout_s": 6}  # fmt: skip
_VERSION_1 = {"versions": ["1"]}
_PACED = {"kind": "v2_grpc", "connections": 4, "model": "paced", "input": "input",
          "output": "output", "versions": ["1", "2"],
          "headers": {"tidegate-timeout": "9"}, "timeout_s": 12}  # fmt: skip


def _delay(milliseconds: int) -> list[dict[str, Any]]:
    return [{"name": "delay_ms", "datatype": "INT32", "values": [milliseconds]}]


# Every way in, over kept and over ever new connections.
_ROUTES: Mapping[str, Mapping[str, Any]] = {
    "photos": {**_PHOTO, "rate": 2.0},
    "json": {**_TENSORS, **_VERSION_1, "kind": "v2_json", "rate": 10.0, "connections": 4},
    "grpc": {**_TENSORS, **_VERSION_1, "kind": "v2_grpc", "rate": 10.0, "connections": 4},
    "service": {**_TENSORS, "kind": "inference_service", "rate": 5.0,
                "requests_per_connection": 10},
    # What keeps requests in flight at a gateway, without any work for an engine.
    "slow_photos": {**_PHOTO, "rate": 8.0, "upload_s": 5.0},
    # What keeps requests in flight at the engines, without any work for them either: 26 of them, of
    # which most are still there when a fault has been done. One engine has room for 32.
    "paced": {**_PACED, "rate": 12.0, "constants": _delay(1200)},
    "long": {**_PACED, "rate": 4.0, "constants": _delay(3000)},
    # 24 more, where two engines are left at least.
    "many": {**_PACED, "rate": 8.0, "constants": _delay(3000)},
}  # fmt: skip
AT_GATEWAYS = ("photos", "json", "grpc", "service", "slow_photos")
AT_ENGINES = ("photos", "json", "grpc", "service", "paced", "long")


@dataclass(frozen=True)
class Way:
    """How traffic gets to the gateways.

    Attributes:
        host: name or address of the Service, or of the pod of one gateway.
        node: where the generator runs; "": anywhere.
        asked_directly: whether it is asked how it goes at its own address, which needs no API
            server, but the machine that the test cluster is on.
    """

    host: str = f"{RELEASE}-gateway"
    node: str = ""
    asked_directly: bool = False


@contextmanager
def steady_traffic(
    kube: Kubernetes, routes: Collection[str], way: Way = Way()
) -> Iterator[Control]:
    """Traffic on these routes that has gone on for a few seconds."""
    plan = {
        "http": f"http://{way.host}:8080",
        "grpc": f"{way.host}:8081",
        "routes": [{"name": name, **_ROUTES[name]} for name in routes],
    }
    photo = artefact_path("coffee.png", default_cache()).read_bytes()
    with traffic(
        kube,
        NAMESPACE,
        plan,
        {"coffee.png": photo},
        node=way.node,
        asked_directly=way.asked_directly,
    ) as control:
        control.start()
        control.wait_for(lambda report: report.elapsed_s > 6, "it goes on")
        yield control


def await_answers(
    control: Control,
    part: Literal["engine", "gateway"],
    names: Collection[str],
    since_s: float = 0.0,
) -> None:
    """Wait until each of these engines or gateways has answered a request due after a second of
    the run."""

    def answered(report: Report) -> set[str]:
        good = (c for c in report.cells if c.outcome is Outcome.OK and c.second > since_s)
        return {cell.engine if part == "engine" else cell.gateway for cell in good}

    control.wait_for(lambda report: set(names) <= answered(report), f"{names} have answered")


def end(control: Control, least_seconds: float = LEAST_SECONDS) -> Report:
    """The report of traffic that has gone on for long enough."""
    control.wait_for(
        lambda report: report.elapsed_s > least_seconds + 1, f"{least_seconds:g} s of traffic"
    )
    return control.stop()


def prove(
    report: Report,
    *,
    engines: Collection[str],
    gateways: Collection[str],
    faults: Collection[Fault] = (),
    least_seconds: float = LEAST_SECONDS,
) -> None:
    """Print what came, and fail unless no request failed, all of these have answered, and the
    faults hit."""
    print(evidence.summary(report))
    expected = Expectation(
        requests={name: int(route.rate * least_seconds) for name, route in report.routes.items()},
        versions={
            _ROUTES[name]["model"]: _ROUTES[name]["versions"]
            for name in report.routes
            if "versions" in _ROUTES[name]
        },
        engines=engines,
        gateways=gateways,
        faults=faults,
    )
    if missing := evidence.missing(report, expected):
        pytest.fail("\n".join(missing), pytrace=False)
