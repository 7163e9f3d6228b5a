"""One node: started as a set of fresh namespaces, killed, cut off, and made to run components."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import cgroups, network, processes
from .archive import images
from .commands import last_words, run
from .config import CONTAINERD_SOCKET, KERNEL_SETTINGS, OWN_FOLDERS, Words
from .errors import ClusterError
from .files import write
from .layout import COMPONENT_VARIABLE, SWITCH, Layout, Node, nodes
from .processes import Process
from .waiting import until

SUPERVISOR = Path(__file__).resolve().parent / "supervisor.py"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
# A process, mount, network, IPC and host-name namespace for each node. The kernel kills all that
# runs in it when its first process dies, and `unshare` takes that one with it when it dies itself.
UNSHARE = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--mount", "--net", "--uts", "--ipc"),
)
CTR = ("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")


def plan(layout: Layout, node: Node) -> dict[str, object]:
    """What the supervisor of a node is told (see supervisor.py)."""
    mounts: list[Words] = [
        # Containers' mounts have to reach each other, but never the machine.
        ("mount", "--make-rshared", "/"),
        # Sockets, network namespaces and addresses of this node alone.
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"),
    ]
    mounts += [("mount", "--bind", str(layout.data(node, path)), path) for path in OWN_FOLDERS]
    mounts += [("mount", "--bind", str(layout.data(node, path)), path) for path in KERNEL_SETTINGS]
    settings = [
        ("sh", "-c", f"echo 1 >/proc/sys/net/{name}")
        for name in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables")
    ]
    return {
        "hostname": node.name,
        "commands": mounts + settings,
        "ready": str(layout.home(node) / "ready"),
        "components": str(layout.components(node)),
    }


class NodeHandle:
    """A node of a cluster on this machine.

    Args:
        layout: the cluster's names and folders.
        node: which one.
        count: how many nodes the cluster has.
    """

    def __init__(self, layout: Layout, node: Node, count: int) -> None:
        self.node = node
        self._layout = layout
        self._nodes = nodes(count)

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    def first_process(self) -> Process | None:
        """Its first process, or None when it does not run."""
        return processes.first_of(self._layout, self.name)

    def runs(self) -> bool:
        """Whether it runs."""
        return self.first_process() is not None

    def pid(self) -> int:
        """The id of its first process on the machine.

        Raises:
            ClusterError: it does not run.
        """
        first = self.first_process()
        if first is None:
            raise ClusterError(self._not_running())
        return first.pid

    def start(self) -> None:
        """Start its namespaces and connect them; its components follow with `add`.

        Raises:
            ClusterError: something of it fails; the message says where to read more.
        """
        self._prepare_folders()
        # Over a dead node's cgroups the kubelet would take more than a minute to get ready.
        cgroups.remove(self._layout.node_cgroup(self.node))
        cgroups.make(self._layout.node_cgroup(self.node))
        (self._home / "ready").unlink(missing_ok=True)
        words = (*UNSHARE, sys.executable, "-I", "-S", str(SUPERVISOR), str(self._home / "plan"))
        processes.start(self._layout, self.name, words, self._log("supervisor"))
        until(self._is_ready, START_SECONDS, self._not_running)
        self._connect()

    def kill(self) -> None:
        """End it at once, as if its power failed: nothing in it gets a signal it could handle.

        Its disk stays, and the cluster is not told.

        Raises:
            ClusterError: it does not run, or does not end.
        """
        pid = self.pid()
        # First, so that no connection is closed in an orderly way: the peers hear nothing.
        network.unplug(self._switch(), self.node)
        for process in processes.with_role(self._layout, self.name):
            processes.send(process.pid, signal.SIGKILL)
        cgroups.remove(self._layout.node_cgroup(self.node))
        until(
            lambda: not processes.with_role(self._layout, self.name),
            STOP_SECONDS,
            lambda: f"{self.name} (process {pid}) does not end although it was killed.",
        )

    def cut(self) -> None:
        """Cut its link at the switch: packets are lost both ways, as if the cable were pulled."""
        run(network.link_state(self._switch(), self.node, up=False))

    def heal(self) -> None:
        """Connect its link again."""
        run(network.link_state(self._switch(), self.node, up=True))

    def enter(self, command: Sequence[str]) -> Words:
        """The command line that runs a command inside it."""
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return ("nsenter", f"--target={self.pid()}", *namespaces, "--", *command)

    def run(self, command: Sequence[str]) -> bytes:
        """Run a command inside it and return what it printed.

        Raises:
            ClusterError: the node does not run, or the command fails.
        """
        return run(self.enter(command))

    def add(self, components: Mapping[str, Words]) -> None:
        """Make it run components, from now on and after every start."""
        for name, command in components.items():
            description = {
                "command": command,
                "environment": {COMPONENT_VARIABLE: name},
                "log": str(self._log(name)),
            }
            write(self._components / f"{name}.json", json.dumps(description))

    def remove(self, name: str) -> None:
        """Make it run a component no longer.

        Raises:
            ClusterError: the component does not end.
        """
        before = {process.pid for process in self.running(name)}
        (self._components / f"{name}.json").unlink(missing_ok=True)
        until(
            lambda: not before & {process.pid for process in processes.every()},
            STOP_SECONDS,
            lambda: f"{name} on {self.name} does not end although it was killed.",
        )

    def component_names(self) -> list[str]:
        """The components it is made to run, stopped ones too."""
        return sorted(path.stem for path in self._components.glob("*.json"))

    def is_stopped(self, name: str) -> bool:
        """Whether a component is kept ended."""
        return (self._components / f"{name}.stopped").exists()

    def forget_components(self) -> None:
        """Make a node that is about to start run nothing yet."""
        for path in self._components.glob("*"):
            path.unlink()

    def stop(self, name: str) -> None:
        """End a component and keep it ended, until `restart`.

        Raises:
            ClusterError: there is no such component, or it does not end.
        """
        self._expect(name)
        (self._components / f"{name}.stopped").touch()
        until(
            lambda: not self.running(name),
            STOP_SECONDS,
            lambda: f"{name} on {self.name} does not end although it was killed.",
        )

    def restart(self, name: str) -> None:
        """Run a stopped component again; one that runs is killed first, and comes back in 1 s.

        Raises:
            ClusterError: there is no such component, or it does not come back.
        """
        self._expect(name)
        before = {process.pid for process in self.running(name)}
        if self.is_stopped(name):
            (self._components / f"{name}.stopped").unlink()
        else:
            for pid in before:
                processes.send(pid, signal.SIGKILL)
        until(
            lambda: {process.pid for process in self.running(name)} - before,
            STOP_SECONDS,
            lambda: f"{name} does not come back; see {self._log(name)}.",
        )

    def suspend(self, name: str) -> None:
        """Stop a program's clock (SIGSTOP): it keeps its connections and answers nothing.

        Args:
            name: of a component, or of a program in a pod ("coredns").

        Raises:
            ClusterError: no such program runs on this node.
        """
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a suspended program go on (SIGCONT).

        Raises:
            ClusterError: no such program runs on this node.
        """
        self._signal(name, signal.SIGCONT)

    def running(self, name: str) -> list[Process]:
        """The processes of a component, or else of a program in pods, by the name it has there."""
        program, component = name, ""
        description = self._components / f"{name}.json"
        if description.exists():
            command = json.loads(description.read_bytes())["command"]
            program, component = Path(command[0]).name, name
        return [
            process
            for process in processes.below(self.pid(), processes.every())
            if process.name == program
            and process.environment.get(COMPONENT_VARIABLE, "") == component
        ]

    def has_containerd(self) -> bool:
        """Whether its containerd answers."""
        try:
            self.run((*CTR, "version"))
        except ClusterError:
            return False
        return True

    def load(self, archive: Path) -> list[str]:
        """Import an archive's images into its containerd, unless it has them all.

        Args:
            archive: a docker-archive or an OCI archive.

        Returns:
            The names of the images, if they were imported; none if they were there.

        Raises:
            ClusterError: the archive cannot be read, or containerd refuses it.
        """
        wanted = images(archive)
        if all(self._config_of(image.name) == image.config for image in wanted):
            return []
        # By stdin: the node need not see the folder that the archive lies in.
        with archive.open("rb") as content:
            run(self.enter((*CTR, "images", "import", "-")), stdin=content)
        return [image.name for image in wanted]

    @property
    def _home(self) -> Path:
        return self._layout.home(self.node)

    @property
    def _components(self) -> Path:
        return self._layout.components(self.node)

    def _log(self, name: str) -> Path:
        return self._layout.node_logs(self.node) / f"{name}.log"

    def _prepare_folders(self) -> None:
        for folder in (self._components, self._layout.node_logs(self.node)):
            folder.mkdir(parents=True, exist_ok=True)
        for path in OWN_FOLDERS:
            self._layout.data(self.node, path).mkdir(parents=True, exist_ok=True)
        for path, value in KERNEL_SETTINGS.items():
            file = self._layout.data(self.node, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n", encoding="ascii")
        write(self._home / "plan", json.dumps(plan(self._layout, self.node)))

    def _is_ready(self) -> bool:
        return (self._home / "ready").exists() and self.runs()

    def _connect(self) -> None:
        switch = self._switch()
        network.unplug(switch, self.node)
        network.build(network.node(switch, self.pid(), self.node, self._nodes))

    def _switch(self) -> int:
        pid = switch_pid(self._layout)
        if pid is None:
            raise ClusterError("The test cluster is not up: `make cluster` brings it up.")
        return pid

    def _not_running(self) -> str:
        log = self._log("supervisor")
        said = last_words(log.read_bytes()) if log.exists() else "it has no log"
        return f"{self.name} does not run; the last line of {log}: {said}"

    def _expect(self, name: str) -> None:
        names = self.component_names()
        if name not in names:
            raise ClusterError(
                f"{self.name} has no component {name!r}; it has {', '.join(names) or 'none'}."
            )

    def _signal(self, name: str, number: signal.Signals) -> None:
        found = self.running(name)
        if not found:
            raise ClusterError(f"No program {name!r} runs on {self.name}.")
        for process in found:
            processes.send(process.pid, number)

    def _config_of(self, image: str) -> str | None:
        """The digest of the configuration of an image that its containerd has, or None."""
        try:
            listed = self.run((*CTR, "images", "list", f"name=={image}")).decode().splitlines()
            if len(listed) < 2:
                return None
            digest = next(word for word in listed[1].split() if word.startswith("sha256:"))
            manifest = json.loads(self.run((*CTR, "content", "get", digest)))
            return str(manifest["config"]["digest"])
        except (ClusterError, StopIteration, KeyError, ValueError):
            return None


def switch_pid(layout: Layout) -> int | None:
    """The process that holds the switch, or None where none does."""
    for process in processes.with_role(layout, SWITCH):
        if process.name == "sleep":
            return process.pid
    return None
