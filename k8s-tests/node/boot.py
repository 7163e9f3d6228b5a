"""Starting a cluster, and a dead node of it, in the order that each part can bear.

The controllers and the kubelets start once the API server is ready: earlier they would be refused,
and wait longer than it takes. The Node objects are made before the kubelets register themselves.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import config, manifests, network, pki, processes
from .api import Api, resolves
from .config import OWN_FOLDERS, Options, Programs, Words
from .errors import ClusterError
from .files import write
from .layout import API_ADDRESS, CONTROL_PLANE, DOMAIN, SWITCH, Layout, Node, nodes
from .nodes import NodeHandle, switch_pid
from .parts import Parts
from .waiting import READY_SECONDS, ready, until

PLUGIN = Path(__file__).resolve().parent / "device_plugin" / "plugin.py"
DEVICE_PLUGIN = "device-plugin"
GPU = "nvidia.com/gpu"


class Boot:
    """The start of one cluster's nodes.

    Args:
        layout: the cluster's names and folders.
        options: what it is to be.
        parts: what it is made of.
        cni: the folder of the CNI plugins.
    """

    def __init__(self, layout: Layout, options: Options, parts: Parts, cni: Path) -> None:
        self._layout = layout
        self._options = options
        self._parts = parts
        self._programs = Programs(parts.etcd, parts.kubernetes, cni)
        self._nodes = nodes(options.nodes)
        self._handles = handles(layout, options)

    def all(self, tell: Callable[[str], None]) -> None:
        """Start everything and wait until nodes are Ready and DNS answers.

        Args:
            tell: told how long each phase took.

        Raises:
            ClusterError: something does not start.
        """
        phases = _Phases(tell)
        self._write_files()
        phases.done("certificates and configuration")
        self._start_switch()
        in_parallel(NodeHandle.start, self._handles)
        phases.done("nodes and their network")
        self._start_api()
        phases.done("API server ready, own images loaded")
        self._start_rest()
        api = Api(self._layout.pki)
        for handle in self._handles:
            _await_ready(api, handle.name)
        phases.done("nodes Ready")
        ready(dns_answers, "DNS does not answer")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        ready(lambda: api.has(account), "the default ServiceAccount does not appear")
        phases.done("DNS answers")
        if self._options.gpus:
            for handle in self._handles:
                await_gpus(self._layout, handle.node)
            phases.done("fake GPUs offered")

    def again(self, handle: NodeHandle) -> None:
        """Start one dead node, in the same order, and wait until it is Ready.

        Raises:
            ClusterError: it does not get Ready.
        """
        try:
            handle.forget_components()
            handle.start()
            self._start_components_again(handle)
        except BaseException:
            # Down rather than half up: the next attempt finds what this one found.
            if handle.runs():
                handle.kill()
            raise

    def _start_components_again(self, handle: NodeHandle) -> None:
        layout, node, api = self._layout, handle.node, Api(self._layout.pki)
        handle.add(config.runtime(layout, node))
        if node.control_plane:
            handle.add(config.api(layout, node, self._programs))
            ready(api.is_ready, "the API server does not get ready")
            handle.add(config.controllers(layout, node, self._programs, self._options))
        before = api.last_heard_of(node.name)
        self._start_agents(handle)
        # Until its silence is noticed the cluster still calls it Ready: await a new word from it.
        ready(
            lambda: api.last_heard_of(node.name) not in (None, before),
            f"the kubelet of {node.name} does not report",
        )
        _await_ready(api, node.name)
        await_gpus(layout, node)

    def _write_files(self) -> None:
        layout = self._layout
        layout.logs.mkdir(parents=True, exist_ok=True)
        pki.issue(layout.pki, self._nodes)
        for node in self._nodes:
            folder = layout.configuration(node)
            for name, content in config.files(layout, node, self._programs).items():
                write(folder / name, content)
            for component, (user, server) in config.kubeconfigs(node).items():
                write(folder / f"{component}.kubeconfig", self._kubeconfig(user, server))
            write(layout.gpus(node) / "count", str(self._options.gpus))
        write(layout.kubeconfig, self._kubeconfig("admin", str(API_ADDRESS)))
        layout.kubeconfig.chmod(0o600)
        layout.tools.mkdir()
        for name, program in self._parts.tools.items():
            (layout.tools / name).symlink_to(program)

    def _kubeconfig(self, user: str, server: str) -> str:
        folder = self._layout.pki
        ca, certificate, key = (
            (folder / name).read_bytes() for name in ("ca.crt", f"{user}.crt", f"{user}.key")
        )
        return config.kubeconfig(user, server, ca, certificate, key)

    def _start_switch(self) -> None:
        layout, log = self._layout, self._layout.logs / "switch.log"
        _make_folders(layout)
        processes.start(layout, SWITCH, network.HOLD, log)
        pid = until(
            lambda: switch_pid(layout),
            READY_SECONDS,
            lambda: f"The switch between the nodes does not start; see {log}.",
        )
        network.build(network.switch(layout, pid, self._nodes))

    def _start_api(self) -> None:
        control_plane = self._handles[0]
        for handle in self._handles:
            handle.add(config.runtime(self._layout, handle.node))
        control_plane.add(config.api(self._layout, CONTROL_PLANE, self._programs))
        # The images are loaded while the API server starts.
        with ThreadPoolExecutor() as pool:
            loading = [pool.submit(self._load_own_images, handle) for handle in self._handles]
            ready(Api(self._layout.pki).is_ready, "the API server does not get ready")
            for future in loading:
                future.result()

    def _load_own_images(self, handle: NodeHandle) -> None:
        ready(handle.has_containerd, f"containerd does not answer on {handle.name}")
        for archive in self._parts.images:
            handle.load(archive)

    def _start_rest(self) -> None:
        api, layout = Api(self._layout.pki), self._layout
        controllers = config.controllers(layout, CONTROL_PLANE, self._programs, self._options)
        self._handles[0].add(controllers)
        for path, content in manifests.node_objects(self._nodes):
            api.create(path, content)
        for handle in self._handles:
            self._start_agents(handle)
        # The API server makes this namespace itself, a moment after it gets ready.
        ready(lambda: api.has(manifests.SYSTEM), "the namespace kube-system does not appear")
        for path, content in manifests.system_objects():
            api.create(path, content)

    def _start_agents(self, handle: NodeHandle) -> None:
        handle.add(config.agents(self._layout, handle.node, self._programs))
        handle.add(device_plugin(self._layout, handle.node))


class _Phases:
    """Says how long each phase took."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._begin = self._last = time.monotonic()

    def done(self, what: str) -> None:
        now = time.monotonic()
        self._tell(f"  {now - self._begin:5.1f} s  {what} ({now - self._last:.1f} s)")
        self._last = now


def handles(layout: Layout, options: Options) -> list[NodeHandle]:
    """The nodes of a cluster."""
    return [NodeHandle(layout, node, options.nodes) for node in nodes(options.nodes)]


def in_parallel(act: Callable[[NodeHandle], None], nodes: Sequence[NodeHandle]) -> None:
    """Do something to several nodes at once.

    Raises:
        ClusterError: it fails on one; all have ended by then.
    """
    with ThreadPoolExecutor() as pool:
        list(pool.map(act, nodes))


def dns_answers() -> bool:
    """Whether the cluster's DNS knows the name that every cluster has."""
    return resolves(f"kubernetes.default.svc.{DOMAIN}")


def gpu_count(layout: Layout, node: Node) -> int:
    """How many fake GPUs a node has."""
    return int((layout.gpus(node) / "count").read_text(encoding="ascii"))


def device_plugin(layout: Layout, node: Node) -> dict[str, Words]:
    """The component that offers a node's fake GPUs; none where it has none.

    Raises:
        ClusterError: this Python lacks what the plugin imports.
    """
    count = gpu_count(layout, node)
    if not count:
        return {}
    if importlib.util.find_spec("grpc_tools") is None:
        raise ClusterError(
            "The fake device plugin needs grpcio-tools, which this Python has not: run `make "
            "setup` and use .venv/bin/python."
        )
    return {DEVICE_PLUGIN: config.device_plugin(layout, node, sys.executable, PLUGIN, count)}


def await_gpus(layout: Layout, node: Node) -> None:
    """Wait until a node has as many GPUs for pods as are not broken.

    Raises:
        ClusterError: it does not come to that in time.
    """
    api = Api(layout.pki)
    broken = layout.gpus(node) / "unhealthy"
    count = gpu_count(layout, node)
    if broken.exists():
        count -= len(broken.read_text(encoding="utf-8").split())
    log = layout.node_logs(node) / f"{DEVICE_PLUGIN}.log"
    ready(
        lambda: api.allocatable(node.name, GPU) == count,
        f"{node.name} does not offer {count} fake GPUs; see {log}",
    )


def _await_ready(api: Api, name: str) -> None:
    ready(lambda: api.is_node_ready(name), f"{name} is not Ready")


def _make_folders(layout: Layout) -> None:
    """Make the folders that the nodes mount over, on record first."""
    wanted = {parent for path in OWN_FOLDERS for parent in (Path(path), *Path(path).parents)}
    made = sorted((path for path in wanted if not path.exists()), key=lambda path: path.parts)
    write(layout.made_folders, "".join(f"{path}\n" for path in made))
    for path in made:
        path.mkdir()
