"""The test cluster from the command line: `python -m node --help`, in the folder k8s-tests."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from . import build, machine
from .cluster import Cluster, say
from .commands import replace_process
from .config import Options
from .errors import ClusterError
from .parts import cache_folder

Arguments = argparse.Namespace


def up(cluster: Cluster, arguments: Arguments) -> None:
    """Bring the cluster up; one that is up already stays as it is."""
    try:
        options = Options(arguments.nodes, arguments.node_monitor_grace_period, arguments.gpus)
    except ValueError as error:
        raise ClusterError(f"This cannot be: {error}.") from None
    cluster.up(options)
    say(f"  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.layout.tools}:$PATH")


def down(cluster: Cluster, arguments: Arguments) -> None:
    """Take away everything of the cluster, also what an interrupted run left."""
    cluster.down(arguments.keep_logs)


def deps(_cluster: Cluster, _arguments: Arguments) -> None:
    """Install the Debian packages that the cluster and the images need."""
    machine.install_packages()
    say("All packages are installed.")


def build_parts(_cluster: Cluster, _arguments: Arguments) -> None:
    """Compile and download what the cluster is made of, into the user's cache."""
    parts = build.provide(cache_folder(os.environ), say)
    for name, folder in parts.folders.items():
        say(f"{name}: {folder}")


def status(cluster: Cluster, _arguments: Arguments) -> None:
    """Show the nodes and what runs on them."""
    for handle in cluster.nodes:
        if not handle.runs():
            say(f"{handle.name}: down")
            continue
        for name in handle.component_names():
            state = "stopped" if handle.is_stopped(name) else "runs"
            say(f"{handle.name}: {name} {state}")


def load(cluster: Cluster, arguments: Arguments) -> None:
    """Import image archives into every node that has not got them."""
    cluster.load(arguments.archive)


def kill(cluster: Cluster, arguments: Arguments) -> None:
    """Kill a node, as if its power failed."""
    cluster.kill(arguments.node)


def start(cluster: Cluster, arguments: Arguments) -> None:
    """Start a killed node again."""
    cluster.start(arguments.node)


def cut(cluster: Cluster, arguments: Arguments) -> None:
    """Cut a node's link to all others."""
    cluster.node(arguments.node).cut()


def heal(cluster: Cluster, arguments: Arguments) -> None:
    """Connect a node's link again."""
    cluster.node(arguments.node).heal()


def stop(cluster: Cluster, arguments: Arguments) -> None:
    """End a component of a node and keep it ended: nothing listens any more."""
    cluster.node(arguments.node).stop(arguments.component)


def restart(cluster: Cluster, arguments: Arguments) -> None:
    """Run a stopped component again; one that runs is killed first."""
    cluster.node(arguments.node).restart(arguments.component)


def suspend(cluster: Cluster, arguments: Arguments) -> None:
    """Stop a program's clock (SIGSTOP): its connections stay, nothing answers."""
    cluster.node(arguments.node).suspend(arguments.component)


def resume(cluster: Cluster, arguments: Arguments) -> None:
    """Let a suspended program go on."""
    cluster.node(arguments.node).resume(arguments.component)


def execute(cluster: Cluster, arguments: Arguments) -> None:
    """Run a command inside a node, with this terminal."""
    if not arguments.command:
        raise ClusterError("Which command? For example: exec node1 -- ip route")
    replace_process(cluster.node(arguments.node).enter(arguments.command))


def dns(cluster: Cluster, arguments: Arguments) -> None:
    """Run that many CoreDNS pods: 0 takes DNS away, 1 brings it back."""
    cluster.scale_dns(arguments.replicas)


def gpus(cluster: Cluster, arguments: Arguments) -> None:
    """Give a node that many fake nvidia.com/gpu devices."""
    cluster.set_gpus(arguments.node, arguments.count)


def break_gpus(cluster: Cluster, arguments: Arguments) -> None:
    """Report these of a node's fake devices as unhealthy, all others as healthy."""
    cluster.break_gpus(arguments.node, arguments.index)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser(
        prog="python -m node", description="A real Kubernetes for tests, on this machine."
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, act: Callable[[Cluster, Arguments], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=act.__doc__, description=act.__doc__)
        added.set_defaults(act=act)
        return added

    def on_node(name: str, act: Callable[[Cluster, Arguments], None]) -> argparse.ArgumentParser:
        added = command(name, act)
        added.add_argument("node", help="node1, node2, …")
        return added

    _options(command("up", up))
    command("down", down).add_argument(
        "--keep-logs", action="store_true", help="leave .run/cluster/logs"
    )
    command("deps", deps)
    command("build", build_parts)
    command("status", status)
    command("load", load).add_argument(
        "archive", nargs="+", type=Path, help="docker-archive or OCI archive"
    )
    for name, act in (("kill", kill), ("start", start), ("cut", cut), ("heal", heal)):
        on_node(name, act)
    for name, act in (
        ("stop", stop),
        ("restart", restart),
        ("suspend", suspend),
        ("resume", resume),
    ):
        on_node(name, act).add_argument("component", help="kubelet, kube-apiserver, coredns, …")
    on_node("exec", execute).add_argument("command", nargs="*", help="after --")
    command("dns", dns).add_argument("replicas", type=int)
    on_node("gpus", gpus).add_argument("count", type=int)
    on_node("break-gpus", break_gpus).add_argument("index", type=int, nargs="*", help="from 0")
    return whole


def _options(command: argparse.ArgumentParser) -> None:
    default = Options()
    command.add_argument("--nodes", type=int, default=default.nodes, help="1 to 9 (%(default)s)")
    command.add_argument(
        "--gpus", type=int, default=default.gpus, help="fake GPUs a node (%(default)s)"
    )
    command.add_argument(
        "--node-monitor-grace-period",
        type=int,
        default=default.node_monitor_grace_period_s,
        metavar="SECONDS",
        help="silence after which a node counts as lost (%(default)s)",
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Do what the command line says; errors are sentences on stderr."""
    # However `up` is told to end, it tidies up first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    arguments = parser().parse_args()
    try:
        arguments.act(Cluster(), arguments)
    except ClusterError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
