"""Gateways come and go under steady traffic, and no client sees a failed request."""

from installation import ENGINES, GATEWAYS, NAMESPACE, RELEASE
from kubernetes import Kubernetes, eventually
from steady_traffic import AT_GATEWAYS, await_answers, end, prove, steady_traffic
from tidegate_traffic.evidence import Fault


def test_a_deleted_gateway_is_not_noticed(release: Kubernetes, kube: Kubernetes) -> None:
    old = kube.names("pods", NAMESPACE, GATEWAYS)
    engines = kube.names("pods", NAMESPACE, ENGINES)
    with steady_traffic(kube, AT_GATEWAYS) as control:
        await_answers(control, "gateway", old)
        victim = old[0]
        control.wait_in_flight(35)
        with control.fault("delete"):
            kube.kubectl("delete", "pod", victim, f"--namespace={NAMESPACE}", "--wait=false")
        (replacement,) = new_gateways(kube, old, count=1)
        replaced_at_s = control.in_flight().now_s
        await_answers(control, "gateway", [replacement], replaced_at_s)
        eventually(lambda: victim not in kube.names("pods", NAMESPACE, GATEWAYS), "it is gone")
        await_answers(control, "engine", engines, replaced_at_s)
        report = end(control)
    fault = Fault("delete", "gateway", victim, replacement, replaced_at_s)
    prove(report, engines=engines, gateways=[*old, replacement], faults=[fault])


def test_a_rollout_of_the_gateway_is_not_noticed(release: Kubernetes, kube: Kubernetes) -> None:
    deployment = f"deployment/{RELEASE}-gateway"
    old = kube.names("pods", NAMESPACE, GATEWAYS)
    engines = kube.names("pods", NAMESPACE, ENGINES)
    with steady_traffic(kube, AT_GATEWAYS) as control:
        await_answers(control, "gateway", old)
        control.wait_in_flight(35)
        with control.fault("restart"):
            kube.kubectl("rollout", "restart", deployment, f"--namespace={NAMESPACE}")
        new = new_gateways(kube, old, count=2)
        replaced_at_s = control.in_flight().now_s
        eventually(
            lambda: not set(old) & set(kube.names("pods", NAMESPACE, GATEWAYS)),
            "the old gateways are gone",
        )
        await_answers(control, "gateway", new, replaced_at_s)
        await_answers(control, "engine", engines, replaced_at_s)
        report = end(control)
    assert len(new) == len(old) == 2
    faults = [
        Fault("restart", "gateway", victim, replacement, replaced_at_s)
        for victim, replacement in zip(old, new, strict=True)
    ]
    prove(report, engines=engines, gateways=[*old, *new], faults=faults)


def new_gateways(kube: Kubernetes, old: list[str], count: int) -> list[str]:
    """The names of the gateways that are not of the old ones, once so many of them are ready."""

    def found() -> list[str]:
        return sorted(set(kube.ready_pods(NAMESPACE, GATEWAYS)) - set(old))

    eventually(lambda: len(found()) == count, "others took their place")
    return found()
