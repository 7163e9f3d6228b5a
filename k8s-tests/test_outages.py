"""The API server and the DNS are away for a minute, and no client sees a failed request.

Gateways learn from one of the two which engines there are. Meanwhile they go on with those that
they know, and afterwards they hear of changes again.
"""

import math
from collections.abc import Callable, Iterator

import pytest

from installation import ENGINES, GATEWAYS, NAMESPACE, RELEASE, install_words
from kubernetes import CommandFailed, Kubernetes, eventually
from node.cluster import Cluster
from steady_traffic import AT_ENGINES, Way, await_answers, end, prove, steady_traffic
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Fault
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report

OUTAGE_S = 60

# Seconds for an engine to be replaced: a kubelet may take more than a minute until it asks an API
# server again that has been away.
_BACK_S = 300
ENGINE = f"{RELEASE}-engine-0"


@pytest.fixture
def asking_dns(release: Kubernetes, kube: Kubernetes) -> Iterator[None]:
    """Gateways that ask the DNS which engines there are."""
    kube.helm(*install_words(), "--set=gateway.settings.discovery.source=address")
    yield
    kube.helm(*install_words())


def test_a_minute_without_the_api_server_is_not_noticed(
    release: Kubernetes, kube: Kubernetes, cluster: Cluster
) -> None:
    engines = kube.names("pods", NAMESPACE, ENGINES)
    gateways = kube.ready_pods(NAMESPACE, GATEWAYS)
    control_plane = cluster.node("node1")
    with steady_traffic(kube, AT_ENGINES, Way(asked_directly=True)) as control:
        await_answers(control, "engine", engines)
        try:
            with control.fault("outage"):
                control_plane.stop("kube-apiserver")
                await_end_of_outage(control)
        finally:
            control_plane.restart("kube-apiserver")
            eventually(lambda: is_there(kube), "the API server is back")
        fault = replace(kube, control, called=lambda: ENGINE)
        report = end(control, OUTAGE_S)
    prove(report, engines=engines, gateways=gateways, faults=[fault], least_seconds=OUTAGE_S)
    assert seconds_without_answers(report, "outage") == set()


def test_a_minute_without_dns_is_not_noticed(
    asking_dns: None, kube: Kubernetes, cluster: Cluster
) -> None:
    """The traffic needs no name itself: the Service has an address."""
    gateways = kube.ready_pods(NAMESPACE, GATEWAYS)
    engines = [address(kube, name) for name in kube.names("pods", NAMESPACE, ENGINES)]
    service = kube.get("service", f"{RELEASE}-gateway", f"--namespace={NAMESPACE}")
    with steady_traffic(kube, AT_ENGINES, Way(service["spec"]["clusterIP"])) as control:
        await_answers(control, "engine", engines)
        try:
            cluster.scale_dns(0)
            with control.fault("outage"):
                await_end_of_outage(control)
        finally:
            cluster.scale_dns(1)
        fault = replace(kube, control, called=lambda: address(kube, ENGINE))
        report = end(control, OUTAGE_S)
    prove(report, engines=engines, gateways=gateways, faults=[fault], least_seconds=OUTAGE_S)
    assert seconds_without_answers(report, "outage") == set()


def await_end_of_outage(control: Control) -> None:
    begin_s = control.in_flight().now_s
    control.wait_for(
        lambda report: report.elapsed_s > begin_s + OUTAGE_S, "it is over", OUTAGE_S + 30
    )


def is_there(kube: Kubernetes) -> bool:
    try:
        kube.kubectl("get", "--raw", "/readyz")
    except CommandFailed:
        return False
    return True


def address(kube: Kubernetes, engine: str) -> str:
    """What answers call an engine that was found by the DNS."""
    return f"{kube.get('pod', engine, f'--namespace={NAMESPACE}')['status']['podIP']}:8001"


def replace(kube: Kubernetes, control: Control, called: Callable[[], str]) -> Fault:
    """Delete an engine, and wait until the one in its place has answered.

    Args:
        called: what answers call it now.
    """
    victim, container = called(), kube.ready_pods(NAMESPACE, ENGINES)[ENGINE]
    control.wait_in_flight(20)
    with control.fault("delete"):
        kube.kubectl("delete", "pod", ENGINE, f"--namespace={NAMESPACE}", "--wait=false")
    eventually(
        lambda: kube.ready_pods(NAMESPACE, ENGINES).get(ENGINE, container) != container,
        f"{ENGINE} runs again",
        timeout_s=_BACK_S,
    )
    replaced_at_s = control.in_flight().now_s
    await_answers(control, "engine", [called()], replaced_at_s)
    return Fault("delete", "engine", victim, called(), replaced_at_s, least_in_flight=1)


def seconds_without_answers(report: Report, fault: str) -> set[int]:
    """The seconds of a fault in which no request was due that was answered well."""
    (found,) = [each for each in report.faults if each.name == fault]
    assert found.ended_s is not None
    answered = {cell.second for cell in report.cells if cell.outcome is Outcome.OK}
    return {*range(math.ceil(found.began_s), math.floor(found.ended_s))} - answered
