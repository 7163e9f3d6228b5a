"""What the tests do with a cluster: kubectl, helm, and waiting. One context, named once."""

import http.client
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_S = 0.2
# Until a forwarded port listens.
_FORWARD_S = 20.0
# For one answer of the API server.
_CALL_S = 30.0


class CommandFailed(Exception):
    """kubectl or helm ended with an error; the message holds what it said."""


@dataclass(frozen=True)
class Kubernetes:
    """A cluster, reached through one context.

    Attributes:
        context: its name in the kubeconfig; every command names it.
        kubeconfig: the file, or None for kubectl's own choice.
        tools: folder with kubectl and helm, or None for those on PATH.
    """

    context: str
    kubeconfig: Path | None
    tools: Path | None

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 300) -> str:
        """What kubectl prints.

        Raises:
            CommandFailed: it ends with an error.
        """
        return _run(self.kubectl_command(*words), stdin, timeout_s)

    def kubectl_command(self, *words: str) -> list[str]:
        """The whole command line, for a process that goes on."""
        return [self._tool("kubectl"), *self._kubeconfig(), f"--context={self.context}", *words]

    def helm(self, *words: str, timeout_s: float = 600) -> str:
        """What helm prints.

        Raises:
            CommandFailed: it ends with an error.
        """
        context = f"--kube-context={self.context}"
        return _run([self._tool("helm"), *self._kubeconfig(), context, *words], "", timeout_s)

    def get(self, *words: str) -> Any:
        """An object, or a list of them, as JSON has it."""
        return json.loads(self.kubectl("get", *words, "--output=json"))

    def names(self, kind: str, namespace: str, selector: str) -> list[str]:
        """The names of all objects of a kind that a selector finds, those that go included."""
        items = self.get(kind, f"--namespace={namespace}", f"--selector={selector}")["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def ready_pods(self, namespace: str, selector: str) -> dict[str, str]:
        """Pods that are ready and do not go → the id of their first container, which changes with
        each start."""
        found = {}
        for pod in self.get("pods", f"--namespace={namespace}", f"--selector={selector}")["items"]:
            conditions = pod["status"].get("conditions", [])
            is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
            if is_ready and "deletionTimestamp" not in pod["metadata"]:
                container = pod["status"]["containerStatuses"][0]["containerID"]
                found[pod["metadata"]["name"]] = container
        return found

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Apply manifests by the server."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=document)

    @contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """host:port on this machine that `kubectl port-forward` leads to `port` of `target`."""
        words = ["port-forward", f"--namespace={namespace}", target, f":{port}"]
        with subprocess.Popen(
            self.kubectl_command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                select.select([process.stdout], [], [], _FORWARD_S)
                os.set_blocking(process.stdout.fileno(), False)
                said = process.stdout.readline()
                found = re.match(r"Forwarding from (127\.0\.0\.1:\d+) ", said)
                if found is None:
                    raise CommandFailed(f"port-forward of {target}: {said.strip() or 'silence'}")
                yield found[1]
            finally:
                process.kill()

    @contextmanager
    def proxied(self) -> Iterator["Api"]:
        """The API server through a `kubectl proxy`, for what must happen the moment that it is
        said: a kubectl takes half a second and more to start."""
        with subprocess.Popen(
            self.kubectl_command("proxy", "--port=0"), stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                found = re.search(r"127\.0\.0\.1:(\d+)", said)
                if found is None:
                    raise CommandFailed(f"proxy: {said.strip() or 'silence'}")
                yield Api(int(found[1]))
            finally:
                process.kill()

    def _tool(self, name: str) -> str:
        return str(self.tools / name) if self.tools else name

    def _kubeconfig(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []


@dataclass(frozen=True)
class Api:
    """The API server at a port of this machine that asks for no credentials."""

    port: int

    def delete_pod(self, namespace: str, name: str, *, by_force: bool = False) -> None:
        """Have a pod deleted; with its grace, or at once."""
        options = {"gracePeriodSeconds": 0} if by_force else {}
        self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)

    def scale(self, namespace: str, stateful_set: str, replicas: int) -> None:
        """Have another number of pods."""
        path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{stateful_set}/scale"
        self.call("PATCH", path, {"spec": {"replicas": replicas}})

    def call(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """What the API server answers; a PATCH is a merge.

        Raises:
            CommandFailed: it refuses.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_CALL_S)
        with closing(connection):
            content = json.dumps(body) if body else None
            connection.request(method, path, content, {"Content-Type": kind})
            answer = connection.getresponse()
            said = answer.read()
        if answer.status >= 300:
            raise CommandFailed(f"{method} {path}: {answer.status} {said.decode()}")
        return json.loads(said)


def eventually(check: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Wait until something is so; fails with `what` when it takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


def _run(command: Sequence[str], stdin: str, timeout_s: float) -> str:
    ended = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if ended.returncode != 0:
        raise CommandFailed(f"`{' '.join(command)}`: {ended.stderr.strip() or ended.stdout}")
    return ended.stdout
