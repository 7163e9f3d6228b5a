"""The test cluster of a clone: up, down, and what tests do to it.

`up` can be killed at any moment, and so can `down`: whatever was made then is found by its name or
mark, and the next `down` (or `up`) takes it away (see teardown.py).

Nothing else on the machine changes: the kernel's settings, the firewall and the routes of others
stay as they are (see network.py, and KERNEL_SETTINGS in config.py).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from . import boot, build, config, machine, manifests
from .api import Api
from .boot import Boot
from .config import Options
from .errors import ClusterError
from .files import write
from .layout import CONTEXT, Layout, Node
from .nodes import NodeHandle, switch_pid
from .parts import cache_folder
from .teardown import anything_left, take_down
from .waiting import ready

ROOT = Path(__file__).resolve().parents[2]


def say(line: str) -> None:
    """Tell the user what goes on."""
    print(line, file=sys.stderr, flush=True)


class Cluster:
    """The test cluster of one clone.

    Args:
        root: the clone.
        tell: told what goes on, a line at a time.
    """

    def __init__(self, root: Path = ROOT, tell: Callable[[str], None] = say) -> None:
        self.layout = Layout(root.resolve() / ".run" / "cluster")
        self._say = tell

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with the context `tidegate-test`."""
        return self.layout.kubeconfig

    @property
    def options(self) -> Options:
        """What the cluster that is up was asked to be.

        Raises:
            ClusterError: none is up.
        """
        options, ready = self._record()
        if options is None or not ready:
            raise ClusterError("The test cluster is not up: `make cluster` brings it up.")
        return options

    @property
    def nodes(self) -> list[NodeHandle]:
        """Its nodes, dead ones too.

        Raises:
            ClusterError: none is up.
        """
        return boot.handles(self.layout, self.options)

    def node(self, name: str) -> NodeHandle:
        """The node of that name.

        Raises:
            ClusterError: there is none.
        """
        found = {handle.name: handle for handle in self.nodes}
        if name not in found:
            raise ClusterError(f"The cluster has no node {name!r}; it has {', '.join(found)}.")
        return found[name]

    def up(self, options: Options) -> None:
        """Bring the cluster up, or say that it is up; one that is damaged is made whole.

        Raises:
            ClusterError: the machine cannot carry it, something fails (then all is taken away again
                but the logs), or another kind of cluster is up.
        """
        machine.check_basics()
        with self._alone():
            if self._is_up(options):
                return
            begin = time.monotonic()
            self._take_down(keep_logs=False)
            start = self._prepare(options)
            try:
                self._write_record(options, is_ready=False)
                start.all(self._say)
                self._write_record(options, is_ready=True)
            except ClusterError as error:
                self._take_down(keep_logs=True)
                raise ClusterError(f"{error}\nThe logs are in {self.layout.logs}.") from None
            except BaseException:
                self._say("Interrupted: taking down what was started ...")
                self._take_down(keep_logs=False)
                raise
            self._say(f"The cluster is up after {time.monotonic() - begin:.1f} s.")

    def down(self, keep_logs: bool = False) -> None:
        """Take away everything of the cluster, however much of it is there.

        Args:
            keep_logs: leave `.run/cluster/logs`.

        Raises:
            ClusterError: something resists; the message says what.
        """
        machine.check_basics()
        with self._alone():
            if not anything_left(self.layout):
                self._take_down(keep_logs)  # the logs that an earlier time has kept
                self._say("The test cluster is not up.")
                return
            begin = time.monotonic()
            self._take_down(keep_logs)
            self._say(f"The cluster is gone after {time.monotonic() - begin:.1f} s.")

    def load(self, archives: Sequence[Path]) -> None:
        """Import images into every node that runs, except where they are already.

        Raises:
            ClusterError: an archive cannot be read, or a node refuses it.
        """
        running = [handle for handle in self.nodes if handle.runs()]

        def load(handle: NodeHandle) -> None:
            for archive in archives:
                begin = time.monotonic()
                names = handle.load(archive)
                took = f"loaded in {time.monotonic() - begin:.1f} s" if names else "there already"
                self._say(f"{handle.name}: {archive.name}: {took}")

        boot.in_parallel(load, running)

    def kill(self, name: str) -> None:
        """Kill a node, as if its power failed. The cluster learns it by silence.

        Raises:
            ClusterError: there is no such node, or it does not run.
        """
        self.node(name).kill()

    def start(self, name: str) -> None:
        """Start a killed node again and wait until it is Ready; its disk is as it was.

        Raises:
            ClusterError: there is no such node, it runs, or it does not get Ready.
        """
        with self._alone():
            handle = self.node(name)
            if handle.runs():
                raise ClusterError(f"{name} runs already.")
            self._boot(self.options).again(handle)

    def scale_dns(self, replicas: int) -> None:
        """Run that many CoreDNS pods (1 is normal; 0: no name resolves) and wait until it shows.

        Raises:
            ClusterError: it does not come to that in time.
        """
        api = Api(self.layout.pki)
        api.patch(f"{manifests.DEPLOYMENTS}/coredns", {"spec": {"replicas": replicas}})
        if replicas:
            ready(boot.dns_answers, "DNS does not answer")
        else:
            ready(lambda: not boot.dns_answers(), "DNS does not fall silent")

    def set_gpus(self, name: str, count: int) -> None:
        """Give a node that many fake `nvidia.com/gpu` devices, and wait until it offers them.

        Raises:
            ClusterError: there is no such node, grpcio is missing, or the kubelet does not take
                them.
        """
        handle = self.node(name)
        if boot.DEVICE_PLUGIN in handle.component_names():
            handle.remove(boot.DEVICE_PLUGIN)
        self._mark_broken(handle.node, ())
        write(self.layout.gpus(handle.node) / "count", str(count))
        handle.add(boot.device_plugin(self.layout, handle.node))
        boot.await_gpus(self.layout, handle.node)

    def break_gpus(self, name: str, indexes: Sequence[int]) -> None:
        """Report these of a node's devices, from 0, as unhealthy and all others as healthy.

        Waits until the node's allocatable devices are those that are left.

        Raises:
            ClusterError: there is no such node or device, or the kubelet does not see it in time.
        """
        handle = self.node(name)
        count = boot.gpu_count(self.layout, handle.node)
        wrong = [index for index in indexes if not 0 <= index < count]
        if wrong:
            raise ClusterError(f"{name} has {count} fake GPUs, numbered from 0; not {wrong[0]}.")
        self._mark_broken(handle.node, indexes)
        boot.await_gpus(self.layout, handle.node)

    def _is_up(self, options: Options) -> bool:
        """Whether such a cluster is up (dead nodes of it are started); False where it is not."""
        before, was_ready = self._record()
        if before is None or not was_ready or switch_pid(self.layout) is None:
            if anything_left(self.layout):
                self._say("Taking away what an earlier run left ...")
            return False
        if before != options:
            raise ClusterError(
                f"Another test cluster is up ({_words(before)}; asked for: {_words(options)}): "
                "take it down first with `make cluster-down`."
            )
        for handle in boot.handles(self.layout, before):
            if not handle.runs():
                self._say(f"{handle.name} is down: starting it ...")
                self._boot(before).again(handle)
        ready(Api(self.layout.pki).is_ready, "the API server is not ready")
        self._say(f"The cluster is up already ({_words(before)}).")
        return True

    def _prepare(self, options: Options) -> Boot:
        """Check the machine and get all parts, before anything of the cluster is made."""
        state = self.layout.state
        state.mkdir(parents=True, exist_ok=True)
        try:
            machine.check(self.layout)
            return self._boot(options)
        except BaseException:
            shutil.rmtree(state)
            raise

    def _boot(self, options: Options) -> Boot:
        cni = machine.cni_folder()
        if cni is None:
            raise ClusterError("The CNI plugins are missing: `make cluster-deps` installs them.")
        parts = build.provide(cache_folder(os.environ), self._say)
        return Boot(self.layout, options, parts, cni)

    def _take_down(self, keep_logs: bool) -> None:
        take_down(self.layout, keep_logs, self._say)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # This package's folder is locked: the state folder comes and goes.
        handle = os.open(Path(__file__).resolve().parent, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say("Waiting for another command on this clone's test cluster ...")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _record(self) -> tuple[Options | None, bool]:
        try:
            record = json.loads(self.layout.record.read_bytes())
        except FileNotFoundError:
            return None, False
        return Options(**record["options"]), record["ready"]

    def _write_record(self, options: Options, is_ready: bool) -> None:
        record = {"options": asdict(options), "ready": is_ready}
        write(self.layout.record, json.dumps(record))

    def _mark_broken(self, node: Node, indexes: Sequence[int]) -> None:
        ids = "".join(f"{config.gpu(node, index)}\n" for index in sorted(set(indexes)))
        write(self.layout.gpus(node) / "unhealthy", ids)


def _words(options: Options) -> str:
    return (
        f"nodes: {options.nodes}, fake GPUs on each: {options.gpus}, node monitor's grace period: "
        f"{options.node_monitor_grace_period_s} s, context {CONTEXT}"
    )
