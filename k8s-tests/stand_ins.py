"""Pods that no node runs, and what would answer in them: for the operator's own tests.

The API server is real, and so is the operator. Its loaders and gateways are stand-ins here, since
no real one falls behind, lies or is silent on demand; with real ones it is tested in rolls/.
They follow the routing table as real ones do, by its revision, and report the revision that they
act on.
"""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kubernetes import Api, CommandFailed

TABLE = "tidegate-routing"
CONFIG = 'name: "m"\nbackend: "python"\n'
_POLL_S = 0.05
# Every stand-in has a loopback address of its own, so that all can have one port.
_addresses = (f"127.{os.getpid() % 200 + 10}.{n // 250}.{n % 250 + 1}" for n in itertools.count())

Json = Mapping[str, Any]


def digest_of(version: str) -> str:
    """What the files of a version add up to."""
    return f"sha256:{hashlib.sha256(version.encode()).hexdigest()}"


@dataclass
class Pod:
    """A pod, and what answers in it.

    Attributes:
        table: the one that it acts on.
        silent: whether it answers with an error.
        stays_behind: whether it takes no newer table.
        behind_phase: a phase of a roll whose tables it does not take, or "".
    """

    name: str
    address: str
    table: Json | None = None
    silent: bool = False
    stays_behind: bool = False
    behind_phase: str = ""

    @property
    def revision(self) -> int:
        """That of its table; 0 without one."""
        return self.table["revision"] if self.table is not None else 0

    def take(self, table: Json) -> None:
        """Act on a table, if it is newer."""
        if self.stays_behind or table["revision"] <= self.revision:
            return
        rolls = [loads["roll"] for loads in table["loads"].values() if loads["roll"] is not None]
        if self.behind_phase not in {roll["phase"] for roll in rolls}:
            self.table = table


@dataclass
class Gateway(Pod):
    """A gateway.

    Attributes:
        holds: the revision under which it has a request in flight, or 0.
    """

    holds: int = 0

    def answer(self) -> Json:
        """What it says at /routing."""
        models = self.table["models"] if self.table is not None else ()
        oldest = min(self.holds or self.revision, self.revision)
        return {
            "revision": self.revision,
            "table": self.table,
            "oldestInUse": dict.fromkeys(models, oldest),
        }


@dataclass
class Engine(Pod):
    """An engine, which has loaded and proven what is wanted at once.

    Attributes:
        broken: versions that fail → why.
        unproven: versions that it goes on loading.
        config: of every model in its repository.
    """

    broken: dict[str, str] = field(default_factory=dict)
    unproven: set[str] = field(default_factory=set)
    config: str = CONFIG

    def answer(self) -> Json:
        """What its loader says at /status."""
        loads = self.table["loads"] if self.table is not None else {}
        return {
            "schema": 1,
            "revision": self.revision,
            "table": self.table,
            "engine": {"running": True, "gpuMemory": None},
            "models": {
                model: {
                    "config": self.config,
                    "configError": "",
                    "versions": {version: self._version(version) for version in member["versions"]},
                }
                for model, member in loads.items()
            },
        }

    def _version(self, version: str) -> Json:
        error = self.broken.get(version, "")
        is_well = not error and version not in self.unproven
        return {
            "wanted": True,
            "fetched": True,
            "digest": digest_of(version),
            "bytes": 1,
            "loaded": is_well,
            "proven": is_well,
            "failed": bool(error),
            "error": error,
            "requests": 0,
        }


class StandIns:
    """The engines and gateways of a namespace.

    Attributes:
        engines, gateways: they.
        loader_port, admin_port: where they answer.
        seen: every table that there was, the oldest first.
    """

    def __init__(self, api: Api, namespace: str, *, engines: int = 2, gateways: int = 2) -> None:
        self.engines = [Engine(f"engine-{n}", next(_addresses)) for n in range(engines)]
        self.gateways = [Gateway(f"gateway-{n}", next(_addresses)) for n in range(gateways)]
        self.loader_port = self.admin_port = 0
        self.seen: list[Json] = []
        self._api = api
        self._namespace = namespace
        self._ended = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let there be pods, which answer, and have them follow the table."""
        with ExitStack() as stack:
            for component, pods in (("engine", self.engines), ("gateway", self.gateways)):
                port = 0
                for pod in pods:
                    server = stack.enter_context(_server(pod, port))
                    port = server.server_address[1]
                    self._make(pod, component)
                if component == "engine":
                    self.loader_port = port
                else:
                    self.admin_port = port
            follower = threading.Thread(target=self._follow)
            follower.start()
            try:
                yield
            finally:
                self._ended.set()
                follower.join()

    def table(self) -> Json | None:
        """The routing table in the ConfigMap; None where there is none."""
        try:
            found = self._api.call("GET", self._table_path(), {})
        except CommandFailed:
            return None
        document: Json = json.loads(found["data"]["table.json"])
        return document

    def delete_table(self) -> None:
        """Delete the ConfigMap."""
        self._api.call("DELETE", self._table_path(), {})

    def delete(self, pod: Pod) -> None:
        """Delete a pod; what answers in it goes on, as one does that has not heard of it."""
        self._api.delete_pod(self._namespace, pod.name, by_force=True)

    def _table_path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/configmaps/{TABLE}"

    def _follow(self) -> None:
        while not self._ended.wait(_POLL_S):
            with suppress(OSError, HTTPException):
                table = self.table()
                if table is not None:
                    self._apply(table)

    def _apply(self, table: Json) -> None:
        if not self.seen or table["revision"] > self.seen[-1]["revision"]:
            self.seen.append(table)
        for pod in (*self.engines, *self.gateways):
            pod.take(table)

    def _make(self, pod: Pod, component: str) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        self._api.call(
            "POST",
            path,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod.name,
                    "labels": {"app.kubernetes.io/component": component},
                },
                "spec": {
                    # So that it waits for a node for ever.
                    "schedulerName": "nobody",
                    "containers": [{"name": component, "image": "localhost/none"}],
                },
            },
        )
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        container = {"name": component, "image": "", "imageID": "", "ready": True,
                     "restartCount": 0, "state": running}  # fmt: skip
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "containerStatuses": [container],
        }
        self._api.call("PATCH", f"{path}/{pod.name}/status", {"status": status})


@contextmanager
def _server(pod: Engine | Gateway, port: int) -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer as the pod does."""
            content = json.dumps(pod.answer()).encode()
            self.send_response(503 if pod.silent else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((pod.address, port), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
