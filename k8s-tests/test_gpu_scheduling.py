"""Engines that ask for a GPU run where GPUs are, and nowhere else.

The devices are fake, the way to them is not: a device plugin registers them through the kubelet's
own API. What a GPU does for a model is not tested here.
"""

from collections.abc import Iterator

import pytest

from installation import CHART
from kubernetes import Kubernetes, eventually
from node.cluster import Cluster

NAMESPACE = "gpus"
NODE = "node2"
ENGINES = "app.kubernetes.io/component=engine"
RESOURCE = "nvidia.com/gpu"


@pytest.fixture
def two_gpus(cluster: Cluster, kube: Kubernetes) -> Iterator[None]:
    """Two devices on one node, and nothing of the test left after it."""
    cluster.set_gpus(NODE, 2)
    yield
    kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    cluster.break_gpus(NODE, [0, 1])


def install(kube: Kubernetes, replicas: int) -> None:
    kube.helm(
        "upgrade", "--install", "gpus", str(CHART), f"--namespace={NAMESPACE}",
        "--create-namespace", f"--values={CHART / 'values-local.yaml'}",
        f"--set=engine.replicas={replicas},engine.gpu.count=1,gateway.replicas=1",
    )  # fmt: skip


def phases(kube: Kubernetes) -> dict[str, str]:
    pods = kube.get("pods", f"--namespace={NAMESPACE}", f"--selector={ENGINES}")["items"]
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}


def reason_to_wait(kube: Kubernetes, pod: str) -> str:
    conditions = kube.get("pod", pod, f"--namespace={NAMESPACE}")["status"].get("conditions", [])
    found = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return str(found[0]["message"]) if found else ""


def test_gpus_are_given_out_once_and_only_while_they_are_well(
    cluster: Cluster, kube: Kubernetes, two_gpus: None
) -> None:
    install(kube, 3)
    eventually(
        lambda: sorted(phases(kube).values()) == ["Pending", "Running", "Running"],
        "two engines run, the one too many waits",
    )
    pods = kube.get("pods", f"--namespace={NAMESPACE}", f"--selector={ENGINES}")["items"]
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    assert {pod["spec"]["nodeName"] for pod in running} == {NODE}
    devices = {
        kube.kubectl(
            "exec", f"--namespace={NAMESPACE}", pod["metadata"]["name"], "--",
            "printenv", "NVIDIA_VISIBLE_DEVICES",
        ).strip()
        for pod in running
    }  # fmt: skip
    assert len(devices) == 2
    (waiting,) = [pod for pod, phase in phases(kube).items() if phase == "Pending"]
    eventually(
        lambda: f"Insufficient {RESOURCE}" in reason_to_wait(kube, waiting),
        "the reason is to be seen",
    )

    # A device that is not well is not given out, also when there is room for it.
    cluster.break_gpus(NODE, [0])
    install(kube, 0)
    eventually(lambda: not phases(kube), "all engines are gone")
    install(kube, 2)
    eventually(
        lambda: sorted(phases(kube).values()) == ["Pending", "Running"],
        "one engine runs on the device that is well",
    )
    cluster.break_gpus(NODE, [])
    eventually(
        lambda: sorted(phases(kube).values()) == ["Running", "Running"],
        "the other runs when its device is well again",
    )
