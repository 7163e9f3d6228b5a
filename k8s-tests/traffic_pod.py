"""The traffic generator as a pod of the cluster, asked through `kubectl exec`."""

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kubernetes import Kubernetes, eventually
from tidegate_traffic.driver import Control

NAME = "traffic"
IMAGE = "localhost/tidegate/traffic:dev"
_PORT = 8090
_ASK = ("python3", "-m", "tidegate_traffic", "ask")


@contextmanager
def traffic(
    kube: Kubernetes,
    namespace: str,
    plan: Mapping[str, Any],
    files: Mapping[str, bytes],
    *,
    node: str = "",
    asked_directly: bool = False,
) -> Iterator[Control]:
    """Traffic by `plan`, which waits for `Control.start`; `files` are those that the plan names.

    It runs on `node`, or anywhere. Asked directly, it answers without the API server, to the
    machine that the test cluster is on.
    """
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    labels = {"app.kubernetes.io/name": NAME}
    # A kubelet may have kept what a plan of the same name said before.
    plan_name = f"{NAME}-{secrets.token_hex(4)}"
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": plan_name, "namespace": namespace, "labels": labels},
            "data": {"plan.json": json.dumps(plan)},
            "binaryData": encoded,
        },
        _pod(namespace, labels, node, plan_name),
    )
    try:
        kube.kubectl(
            "wait", "--for=condition=Ready", f"pod/{NAME}", f"--namespace={namespace}",
            "--timeout=90s",
        )  # fmt: skip
        if asked_directly:
            address = kube.get("pod", NAME, f"--namespace={namespace}")["status"]["podIP"]
            yield Control.at(f"http://{address}:{_PORT}")
        else:
            yield Control.through(
                kube.kubectl_command("exec", f"--namespace={namespace}", NAME, "--", *_ASK)
            )
    except BaseException:
        # For whoever reads why a test failed: the pod is gone by then.
        print(kube.kubectl("logs", f"--namespace={namespace}", NAME, "--tail=50"))
        raise
    finally:
        kube.kubectl("delete", f"pod/{NAME}", f"configmap/{plan_name}", f"--namespace={namespace}",
                     "--grace-period=0", "--force")  # fmt: skip
        eventually(lambda: not kube.names("pods", namespace, f"app.kubernetes.io/name={NAME}"),
                   "the traffic pod is gone")  # fmt: skip


def _pod(namespace: str, labels: Mapping[str, str], node: str, plan_name: str) -> dict[str, Any]:
    control = {"tcpSocket": {"port": "control"}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "containers": [
                {
                    "name": NAME,
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "args": ["run", "/plan/plan.json", "--control-host=0.0.0.0",
                             f"--control-port={_PORT}", "--wait-for-start", "--stay"],
                    "ports": [{"name": "control", "containerPort": _PORT}],
                    # As much of a busy machine as those get that it measures.
                    "resources": {"requests": {"cpu": "100m"}},
                    "readinessProbe": control,
                    "volumeMounts": [
                        {"name": "plan", "mountPath": "/plan"},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [
                {"name": "plan", "configMap": {"name": plan_name}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }  # fmt: skip
