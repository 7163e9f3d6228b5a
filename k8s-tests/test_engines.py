"""Engines and the nodes that they are on come and go, and no client sees a failed request.

One well engine with room for the work is always left: that is what is promised.
"""

import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import pytest

from installation import ENGINES, GATEWAYS, NAMESPACE, RELEASE
from kubernetes import Kubernetes, eventually
from node.cluster import Cluster
from steady_traffic import AT_ENGINES, Way, await_answers, end, prove, steady_traffic
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Fault
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report

STATEFUL_SET = f"statefulset/{RELEASE}-engine"
GATEWAY_DEPLOYMENT = f"deployment/{RELEASE}-gateway"
# Of the 26 that there are: some end just now.
IN_FLIGHT = 20
# Of the five to nine at each engine; where a kubectl does it, some end while that starts.
LEAST_IN_FLIGHT = 1
# Over which a new engine's share of the requests grows (balancing.slow_start_s).
SLOW_START_S = 5
# Longer than a gateway takes to give up a connection that is silent: keepalive and its timeout.
DEAD_S = 35
# From when a new engine is seen ready until a request is due that it answers: 2 s are promised, and
# one more since the report knows whole seconds.
FIRST_REQUEST_S = 3.0


@pytest.mark.parametrize("by_force", [False, True], ids=["with grace", "by force"])
def test_each_engine_can_be_deleted(release: Kubernetes, kube: Kubernetes, by_force: bool) -> None:
    engines = kube.ready_pods(NAMESPACE, ENGINES)
    faults = []
    with steady_traffic(kube, AT_ENGINES) as control, kube.proxied() as api:
        await_answers(control, "engine", engines)
        for engine, container in engines.items():
            control.wait_in_flight(IN_FLIGHT)
            with control.fault(engine):
                api.delete_pod(NAMESPACE, engine, by_force=by_force)
            faults += await_replacements(kube, control, engine, {engine: container})
        report = end(control)
    prove(report, engines=engines, gateways=gateways(kube), faults=faults)


def test_a_rollout_of_the_engines_is_not_noticed(release: Kubernetes, kube: Kubernetes) -> None:
    engines = kube.ready_pods(NAMESPACE, ENGINES)
    with steady_traffic(kube, AT_ENGINES) as control:
        await_answers(control, "engine", engines)
        control.wait_in_flight(IN_FLIGHT)
        with control.fault("restart"):
            kube.kubectl("rollout", "restart", STATEFUL_SET, f"--namespace={NAMESPACE}")
        faults = await_replacements(kube, control, "restart", engines)
        report = end(control)
    prove(report, engines=engines, gateways=gateways(kube), faults=faults)


def test_engines_are_added_and_taken_away(release: Kubernetes, kube: Kubernetes) -> None:
    with (
        scaled_back(kube),
        steady_traffic(kube, [*AT_ENGINES, "many"]) as control,
        kube.proxied() as api,
    ):
        three = kube.ready_pods(NAMESPACE, ENGINES)
        kube.kubectl("scale", STATEFUL_SET, "--replicas=5", f"--namespace={NAMESPACE}")
        came_at_s = await_more(kube, control, three, 2)
        five = sorted([*three, *came_at_s])
        await_answers(control, "engine", five, control.in_flight().now_s + SLOW_START_S)
        control.wait_in_flight(2 * IN_FLIGHT)
        with control.fault("to two"):
            api.scale(NAMESPACE, f"{RELEASE}-engine", 2)
        left, gone = five[:2], five[2:]
        eventually(lambda: kube.names("pods", NAMESPACE, ENGINES) == left, "two are left")
        gone_at_s = control.in_flight().now_s
        await_answers(control, "engine", left, gone_at_s)
        report = end(control)
    faults = [
        Fault("to two", "engine", victim, left[0], gone_at_s, LEAST_IN_FLIGHT) for victim in gone
    ]
    prove(report, engines=five, gateways=gateways(kube), faults=faults)
    for engine, since_s in came_at_s.items():
        first = first_answered(report, engine)
        assert first <= since_s + FIRST_REQUEST_S, f"{engine} was seen ready at {since_s:g} s"


def test_a_node_is_drained(release: Kubernetes, kube: Kubernetes) -> None:
    engines = kube.ready_pods(NAMESPACE, ENGINES)
    old = gateways(kube)
    node, other = two_nodes(kube)
    victims = {name: engines[name] for name in on_node(kube, ENGINES, node)}
    with in_use_again(kube, node), steady_traffic(kube, AT_ENGINES, Way(node=other)) as control:
        await_answers(control, "engine", engines)
        control.wait_in_flight(IN_FLIGHT)
        with control.fault("drain"):
            drain = begin_drain(kube, node)
        with drain:
            assert drain.wait(180) == 0
        assert on_node(kube, ENGINES, node) == on_node(kube, GATEWAYS, node) == []
        faults = await_replacements(kube, control, "drain", victims)
        new = gateways(kube)
        await_answers(control, "gateway", new)
        report = end(control)
    prove(report, engines=engines, gateways=[*old, *new], faults=faults)


def test_a_node_dies(release: Kubernetes, kube: Kubernetes, cluster: Cluster) -> None:
    """A gateway dies with it, so the traffic comes in through the other one."""
    engines = kube.ready_pods(NAMESPACE, ENGINES)
    node, other = two_nodes(kube)
    victims = {name: engines[name] for name in on_node(kube, ENGINES, node)}
    (gateway,) = on_node(kube, GATEWAYS, other)
    address = kube.get("pod", gateway, f"--namespace={NAMESPACE}")["status"]["podIP"]
    with steady_traffic(kube, AT_ENGINES, Way(address, other)) as control:
        await_answers(control, "engine", engines)
        control.wait_in_flight(IN_FLIGHT)
        try:
            with control.fault("death"):
                cluster.kill(node)
            died_at_s = control.in_flight().now_s
            control.wait_for(lambda report: report.elapsed_s > died_at_s + DEAD_S, "it is dead")
        finally:
            cluster.start(node)
        faults = await_replacements(kube, control, "death", victims)
        report = end(control)
    prove(report, engines=engines, gateways=[gateway], faults=faults)
    eventually(lambda: len(kube.ready_pods(NAMESPACE, GATEWAYS)) == 2, "the gateway is back")


def gateways(kube: Kubernetes) -> list[str]:
    """The names of all gateways."""
    return kube.names("pods", NAMESPACE, GATEWAYS)


def on_node(kube: Kubernetes, selector: str, node: str) -> list[str]:
    """The names of the pods on a node."""
    pods = kube.get("pods", f"--namespace={NAMESPACE}", f"--selector={selector}")["items"]
    return sorted(p["metadata"]["name"] for p in pods if p["spec"].get("nodeName") == node)


def two_nodes(kube: Kubernetes) -> tuple[str, str]:
    """A node with engines and a gateway that the cluster can do without, and one with the other
    gateway."""
    # The first one of the test cluster is its control plane.
    other, *_, node = sorted(item["metadata"]["name"] for item in kube.get("nodes")["items"])
    assert on_node(kube, ENGINES, node)
    assert on_node(kube, GATEWAYS, node)
    return node, other


def await_replacements(
    kube: Kubernetes, control: Control, fault: str, victims: Mapping[str, str]
) -> list[Fault]:
    """Wait until the engines of these names run in other containers, and have answered."""

    def are_replaced() -> bool:
        now = kube.ready_pods(NAMESPACE, ENGINES)
        return all(now.get(name, old) != old for name, old in victims.items())

    eventually(are_replaced, f"{', '.join(victims)} run again", timeout_s=240)
    replaced_at_s = control.in_flight().now_s
    await_answers(control, "engine", victims, replaced_at_s)
    return [Fault(fault, "engine", name, name, replaced_at_s, LEAST_IN_FLIGHT) for name in victims]


def await_more(
    kube: Kubernetes, control: Control, known: Collection[str], count: int
) -> dict[str, float]:
    """Wait until `count` more engines are ready.

    Returns:
        The name of each → the second of the run at which it was seen ready.
    """
    came_at_s: dict[str, float] = {}

    def are_ready() -> bool:
        new = set(kube.ready_pods(NAMESPACE, ENGINES)).difference(known, came_at_s)
        if new:
            came_at_s.update(dict.fromkeys(new, control.in_flight().now_s))
        return len(came_at_s) >= count

    eventually(are_ready, f"{count} more engines are ready")
    return came_at_s


def first_answered(report: Report, engine: str) -> int:
    """The second of the run in which the first request was due that an engine answered well."""
    return min(c.second for c in report.cells if c.outcome is Outcome.OK and c.engine == engine)


def scale(kube: Kubernetes, engines: int) -> None:
    """So many engines, all of them ready."""
    kube.kubectl("scale", STATEFUL_SET, f"--replicas={engines}", f"--namespace={NAMESPACE}")
    eventually(lambda: len(kube.ready_pods(NAMESPACE, ENGINES)) == engines, "all are ready")


@contextmanager
def scaled_back(kube: Kubernetes) -> Iterator[None]:
    """Three engines in the end."""
    try:
        yield
    finally:
        scale(kube, 3)


def begin_drain(kube: Kubernetes, node: str) -> subprocess.Popen[str]:
    """`kubectl drain`, whose first eviction is on its way."""
    words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    drain = subprocess.Popen(kube.kubectl_command(*words), stdout=subprocess.PIPE, text=True)
    assert drain.stdout is not None
    for line in drain.stdout:
        if line.startswith("evicting pod"):
            break
    return drain


@contextmanager
def in_use_again(kube: Kubernetes, node: str) -> Iterator[None]:
    """In the end the node is used again, and has an engine and a gateway on it."""
    try:
        yield
    finally:
        kube.kubectl("uncordon", node)
        kube.kubectl("rollout", "restart", GATEWAY_DEPLOYMENT, f"--namespace={NAMESPACE}")
        last = kube.names("pods", NAMESPACE, ENGINES)[-1]
        kube.kubectl("delete", "pod", last, f"--namespace={NAMESPACE}")
        kube.kubectl("rollout", "status", GATEWAY_DEPLOYMENT, f"--namespace={NAMESPACE}")
        eventually(
            lambda: (
                len(kube.ready_pods(NAMESPACE, ENGINES)) == 3
                and last in on_node(kube, ENGINES, node)
                and len(gateways(kube)) == 2
            ),
            f"engines and gateways are on {node} again",
        )
