"""What goes wrong in mid-roll. Each fault is done when its context is entered, and has been mended,
which is proven as well, when it is left."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

from installation import ENGINES, GATEWAYS
from kubernetes import eventually
from rolls.load import Watch, await_answers
from rolls.release import (
    GATEWAY_DEPLOYMENT,
    NAMESPACE,
    OPERATORS,
    Container,
    Rolls,
    is_there,
)
from tidegate_traffic.evidence import Fault

OUTAGE_S = 30
# Of the twelve and more that are in flight in all.
_LEAST_IN_FLIGHT = 1
_ALL_IN_FLIGHT = 9
# The kubelet waits the longer the more often a container has ended: 10 s, 20 s, 40 s and so on.
_BACK_S = 120

Doing = Callable[[Rolls, Watch, str], AbstractContextManager[None]]


def _await_restarted(rolls: Rolls, pod: str, name: str, before: Container) -> None:
    """Wait until a container runs again and is ready."""

    def is_back() -> bool:
        now = rolls.container(pod, name)
        return now.ready and now.id != before.id and now.restarts > before.restarts

    rolls.wait(is_back, f"{name} of {pod} is back", _BACK_S)


@contextmanager
def operator_killed(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """SIGKILL to the operator."""
    (pod,) = rolls.pods(OPERATORS)
    before = rolls.container(pod, "operator")
    with watch.control.fault(name):
        rolls.kill(before)
    yield
    _await_restarted(rolls, pod, "operator", before)


@contextmanager
def engine_deleted(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """An engine's pod is deleted."""
    victim = _seldom_restarted(rolls, "triton")
    uid = rolls.ready(ENGINES)[victim]
    watch.control.wait_in_flight(_ALL_IN_FLIGHT)
    with watch.control.fault(name):
        rolls.api.delete_pod(NAMESPACE, victim)
    yield
    rolls.wait(lambda: rolls.ready(ENGINES).get(victim, uid) != uid, f"{victim} is back", _BACK_S)
    _engine_is_back(watch, name, victim)


@contextmanager
def loader_killed(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """SIGKILL to the loader of an engine, whose Triton runs on."""
    victim = _seldom_restarted(rolls, "loader")
    before, triton = rolls.container(victim, "loader"), rolls.container(victim, "triton")
    with watch.control.fault(name):
        rolls.kill(before)
    yield
    _await_restarted(rolls, victim, "loader", before)
    assert rolls.container(victim, "triton").id == triton.id
    rolls.wait(lambda: victim in rolls.ready(ENGINES), f"{victim} is ready")


@contextmanager
def triton_killed(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """SIGKILL to the Triton of an engine, whose loader runs on."""
    victim = _seldom_restarted(rolls, "triton")
    before, loader = rolls.container(victim, "triton"), rolls.container(victim, "loader")
    watch.control.wait_in_flight(_ALL_IN_FLIGHT)
    with watch.control.fault(name):
        rolls.kill(before)
    yield
    _await_restarted(rolls, victim, "triton", before)
    assert rolls.container(victim, "loader").id == loader.id
    rolls.wait(lambda: victim in rolls.ready(ENGINES), f"{victim} is ready", _BACK_S)
    _engine_is_back(watch, name, victim)


@contextmanager
def gateways_rolled(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """All gateways are replaced, one after the other."""
    old = rolls.gateways()
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{GATEWAY_DEPLOYMENT}"
    # As `kubectl rollout restart` does it, which takes too long to start.
    annotation = {"kubectl.kubernetes.io/restartedAt": datetime.now(UTC).isoformat()}
    template = {"metadata": {"annotations": annotation}}
    watch.control.wait_in_flight(_ALL_IN_FLIGHT)
    with watch.control.fault(name):
        rolls.api.call("PATCH", path, {"spec": {"template": template}})
    yield

    def are_replaced() -> bool:
        now = rolls.gateways()
        return (
            len(now) == len(old)
            and not set(now) & set(old)
            and set(now) == {*rolls.ready(GATEWAYS)}
        )

    rolls.wait(are_replaced, "other gateways took their place", _BACK_S)
    now_s = watch.control.in_flight().now_s
    new = rolls.gateways()
    await_answers(watch.control, "gateway", new)
    for victim, replacement in zip(old, new, strict=True):
        watch.faults.append(Fault(name, "gateway", victim, replacement, now_s, _LEAST_IN_FLIGHT))


@contextmanager
def api_server_stopped(rolls: Rolls, watch: Watch, name: str) -> Iterator[None]:
    """The API server is away for 30 s; it is back when the context has been entered."""
    control_plane = rolls.cluster.node("node1")
    began_s = watch.control.in_flight().now_s
    try:
        with watch.control.fault(name):
            control_plane.stop("kube-apiserver")
        assert not is_there(rolls.kube)
        watch.control.wait_for(
            lambda report: report.elapsed_s > began_s + OUTAGE_S, "the outage is over", pause_s=1.0
        )
    finally:
        control_plane.restart("kube-apiserver")
        eventually(lambda: is_there(rolls.kube), "the API server is back")
    yield


FAULTS: Mapping[str, Doing] = {
    "operator killed": operator_killed,
    "engine deleted": engine_deleted,
    "loader killed": loader_killed,
    "Triton killed": triton_killed,
    "gateways rolled": gateways_rolled,
    "API server stopped": api_server_stopped,
}


def _seldom_restarted(rolls: Rolls, container: str) -> str:
    """The engine of which a container has been restarted least: it comes back soonest."""
    return min(rolls.ready(ENGINES), key=lambda name: rolls.container(name, container).restarts)


def _engine_is_back(watch: Watch, name: str, victim: str) -> None:
    now_s = watch.control.in_flight().now_s
    await_answers(watch.control, "engine", [victim])
    watch.faults.append(Fault(name, "engine", victim, victim, now_s, _LEAST_IN_FLIGHT))
