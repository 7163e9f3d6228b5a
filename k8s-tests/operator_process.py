"""The operator as a process of this machine, which may do what its Role allows and no more."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from installation import CHART, RELEASE
from kubernetes import Kubernetes

ACCOUNT = "operator"


def account(kube: Kubernetes, namespace: str) -> Mapping[str, Any]:
    """Make the operator's service account in a namespace, with the Role that the chart gives it;
    returns a kubeconfig for it."""
    file = "templates/operator/rbac.yaml"
    rendered = kube.helm("template", RELEASE, str(CHART), f"--show-only={file}")
    (role,) = (each for each in yaml.safe_load_all(rendered) if each["kind"] == "Role")
    meta = {"name": ACCOUNT, "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    kube.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": role["rules"]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
    )
    token = kube.kubectl("create", "token", ACCOUNT, f"--namespace={namespace}").strip()
    said = kube.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json")
    (cluster,) = json.loads(said)["clusters"]
    return kubeconfig(cluster["cluster"], {"token": token}, namespace)


def kubeconfig(
    cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str
) -> Mapping[str, Any]:
    """A kubeconfig with one context."""
    context = {"cluster": "tests", "user": "tests", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": user}],
        "contexts": [{"name": "tests", "context": context}],
        "current-context": "tests",
    }


class Operator:
    """An operator, which can be started again and again under one name.

    Args:
        kubeconfig: who it is to the API server.
        folder: for its kubeconfig and its log.
        arguments: its settings.
    """

    def __init__(
        self, kubeconfig: Mapping[str, Any], folder: Path, arguments: Sequence[str]
    ) -> None:
        self._file = folder / "kubeconfig"
        self._file.write_text(json.dumps(kubeconfig))
        self._log = folder / "operator.log"
        self._log.touch()
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "KUBECONFIG": str(self._file)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "tidegate_operator", *self._arguments],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it at once (SIGKILL), if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Have it leave in order (SIGTERM); returns its exit status."""
        assert self._process is not None  # noqa: S101 - a test's mistake
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=30)

    def is_running(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    def logged(self) -> list[dict[str, Any]]:
        """What it has logged since its first start."""
        # The last line may be half written.
        whole = self._log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def failures(self) -> list[str]:
        """Why rounds have failed since its first start."""
        return [line["reason"] for line in self.logged() if line["message"] == "a round failed"]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have it run; afterwards it is gone, and what it said is printed if the test fails."""
        self.start()
        try:
            yield
        except BaseException:
            print(self._log.read_text())
            raise
        finally:
            self.kill()
