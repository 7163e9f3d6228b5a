"""Gateways come and go under steady traffic, and no client sees a failed request."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from installation import NAMESPACE, RELEASE
from kubernetes import Kubernetes, eventually
from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_traffic import evidence
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Expectation, Fault
from tidegate_traffic.report import Report
from traffic_pod import traffic

GATEWAYS = "app.kubernetes.io/component=gateway"
ENGINES = "app.kubernetes.io/component=engine"
# Requests a second, by route; and the least that must have been sent by the end of each test.
RATES = {"photos": 2.0, "slow_photos": 8.0, "json": 15.0, "grpc": 15.0, "service": 5.0}
LEAST_SECONDS = 15


def plan() -> dict[str, Any]:
    """Every way in, over kept and over ever new connections."""
    photo = {"kind": "photo", "model": "image_classifier", "versions": ["1"],
             "headers": {"tidegate-timeout": "20"}, "timeout_s": 30,
             "photos": [{"file": "coffee.png", "label": "espresso"}]}  # fmt: skip
    echo = {"model": "identity", "input": "INPUT_FP32", "output": "OUTPUT_FP32", "timeout_s": 20}
    one = {"versions": ["1"]}
    routes: dict[str, Mapping[str, Any]] = {
        "photos": {**photo, "requests_per_connection": 1},
        # What keeps requests in flight at a gateway, without any work for an engine.
        "slow_photos": {**photo, "upload_s": 5.0, "requests_per_connection": 1},
        "json": {**echo, **one, "kind": "v2_json", "connections": 4},
        "grpc": {**echo, **one, "kind": "v2_grpc", "connections": 4},
        "service": {**echo, "kind": "inference_service", "requests_per_connection": 10},
    }
    return {
        "http": f"http://{RELEASE}-gateway:8080",
        "grpc": f"{RELEASE}-gateway:8081",
        "routes": [{"name": name, "rate": RATES[name], **route} for name, route in routes.items()],
    }


@contextmanager
def steady_traffic(kube: Kubernetes) -> Iterator[Control]:
    """Traffic that has been through every gateway."""
    photo = artefact_path("coffee.png", default_cache()).read_bytes()
    with traffic(kube, NAMESPACE, plan(), {"coffee.png": photo}) as control:
        control.start()
        wanted = set(kube.names("pods", NAMESPACE, GATEWAYS))
        control.wait_for(
            lambda report: (
                wanted <= {cell.gateway for cell in report.cells} and report.elapsed_s > 6
            ),
            "every gateway has answered",
        )
        yield control


def served_by_engine(kube: Kubernetes) -> dict[str, int]:
    """Inferences that each engine has served, as Triton itself counts them."""
    served = {}
    for pod in kube.names("pods", NAMESPACE, ENGINES):
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8002/proxy/metrics"
        lines = kube.kubectl("get", "--raw", path).splitlines()
        counts = [line for line in lines if line.startswith("nv_inference_request_success{")]
        served[pod] = sum(int(float(line.rpartition(" ")[2])) for line in counts)
    return served


def prove(report: Report, expected: Expectation) -> None:
    """Print what came, and fail with what is missing."""
    print(evidence.summary(report))
    assert evidence.missing(report, expected) == []


def least_requests() -> dict[str, int]:
    return {name: int(rate * LEAST_SECONDS) for name, rate in RATES.items()}


def test_a_deleted_gateway_is_not_noticed(release: Kubernetes, kube: Kubernetes) -> None:
    before = served_by_engine(kube)
    with steady_traffic(kube) as control:
        victim, *others = kube.names("pods", NAMESPACE, GATEWAYS)
        control.wait_in_flight(35)
        with control.fault("delete"):
            kube.kubectl("delete", "pod", victim, f"--namespace={NAMESPACE}", "--wait=false")
        replacement, replaced_at = wait_for_replacement(kube, control, {victim, *others})
        control.wait_for(
            lambda report: report.elapsed_s > max(LEAST_SECONDS + 5, replaced_at + 5),
            "the traffic has gone on for a while",
        )
        eventually(lambda: victim not in kube.names("pods", NAMESPACE, GATEWAYS), "it is gone")
        report = control.stop()
    fault = Fault(
        name="delete", part="gateway", victim=victim, replacement=replacement,
        replaced_at_s=replaced_at,
    )  # fmt: skip
    prove(
        report,
        Expectation(
            requests=least_requests(),
            versions={"image_classifier": ["1"], "identity": ["1"]},
            gateways=[victim, *others, replacement],
            faults=[fault],
        ),
    )
    expect_every_engine_served(before, served_by_engine(kube))


def test_a_rollout_of_the_gateway_is_not_noticed(release: Kubernetes, kube: Kubernetes) -> None:
    before = served_by_engine(kube)
    deployment = f"deployment/{RELEASE}-gateway"
    with steady_traffic(kube) as control:
        old = kube.names("pods", NAMESPACE, GATEWAYS)
        control.wait_in_flight(35)
        with control.fault("restart"):
            kube.kubectl("rollout", "restart", deployment, f"--namespace={NAMESPACE}")
        kube.kubectl("rollout", "status", deployment, f"--namespace={NAMESPACE}", "--timeout=180s")
        replaced_at = control.in_flight().now_s
        eventually(
            lambda: not set(old) & set(kube.names("pods", NAMESPACE, GATEWAYS)),
            "the old gateways are gone",
        )
        new = kube.names("pods", NAMESPACE, GATEWAYS)
        control.wait_for(
            lambda report: (
                report.elapsed_s > max(LEAST_SECONDS, replaced_at) + 5
                and set(new) <= {cell.gateway for cell in report.cells}
            ),
            "every new gateway has answered for a while",
        )
        report = control.stop()
    assert len(new) == len(old) == 2
    faults = [
        Fault("restart", "gateway", victim, replacement, replaced_at)
        for victim, replacement in zip(old, new, strict=True)
    ]
    prove(
        report,
        Expectation(
            requests=least_requests(),
            versions={"image_classifier": ["1"], "identity": ["1"]},
            gateways=[*old, *new],
            faults=faults,
        ),
    )
    expect_every_engine_served(before, served_by_engine(kube))


def wait_for_replacement(kube: Kubernetes, control: Control, old: set[str]) -> tuple[str, float]:
    """The name of the gateway that is not of the old ones, and when it was ready."""
    found: list[str] = []

    def is_ready() -> bool:
        pods = kube.get("pods", f"--namespace={NAMESPACE}", f"--selector={GATEWAYS}")["items"]
        found[:] = [
            pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"]["name"] not in old
            and any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in pod["status"].get("conditions", [])
            )
        ]
        return bool(found)

    began = time.monotonic()
    eventually(is_ready, "another gateway took its place")
    print(f"replaced by {found[0]} after {time.monotonic() - began:.1f} s")
    return found[0], control.in_flight().now_s


def expect_every_engine_served(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    served = {pod: after[pod] - before[pod] for pod in before}
    print(f"inferences by engine: {served}")
    assert len(served) == 3
    assert all(count > 0 for count in served.values()), served
