"""The network between the machine and the nodes: pure plans of commands, and how they are run.

    machine  tg-<digest> ── switch: bridge `nodes` ── node1 eth0, node2 eth0, …

The bridge lies in a network namespace of its own, the switch, which one sleeping process holds.
The machine sees a single link with the routes over it: its firewall meets no traffic between
nodes, its forwarding stays as it is, and when the switch ends, all that was in it ends too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network

from .commands import run, succeeds
from .layout import (
    API_ADDRESS,
    MACHINE_ADDRESS,
    NODE_RANGE,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    Node,
)

Command = tuple[str, ...]
BRIDGE = "nodes"
RANGES = (NODE_RANGE, POD_RANGE, SERVICE_RANGE)
# Holds the switch's namespace; `unshare` becomes it.
HOLD = ("unshare", "--net", "sleep", "infinity")


def inside(pid: int, *command: str) -> Command:
    """A command in the network namespace of a process."""
    return ("nsenter", f"--target={pid}", "--net", *command)


def switch(layout: Layout, pid: int, nodes: Sequence[Node]) -> list[Command]:
    """What makes the switch's bridge, and the machine's link to it.

    Args:
        layout: the cluster's names.
        pid: the process that holds the switch's namespace.
        nodes: all of them, for the routes to their pods.
    """
    link = layout.link
    routes = [(str(SERVICE_RANGE), API_ADDRESS)] + [(str(n.pods), n.address) for n in nodes]
    return [
        inside(pid, "ip", "link", "add", BRIDGE, "type", "bridge"),
        inside(pid, "ip", "link", "set", BRIDGE, "up"),
        _pair(link, "machine", pid),
        inside(pid, "ip", "link", "set", "machine", "master", BRIDGE, "up"),
        ("ip", "link", "set", link, "alias", str(layout.state)[-250:]),
        ("ip", "address", "add", f"{MACHINE_ADDRESS}/{NODE_RANGE.prefixlen}", "dev", link),
        ("ip", "link", "set", link, "up"),
        *(("ip", "route", "add", to, "via", str(via), "dev", link) for to, via in routes),
    ]


def node(switch_pid: int, pid: int, this: Node, nodes: Sequence[Node]) -> list[Command]:
    """What connects a node to the switch, and gives it its address and routes.

    Args:
        switch_pid: the process that holds the switch's namespace.
        pid: the node's first process.
        this: the node.
        nodes: all of them.
    """
    address, length = str(this.address), NODE_RANGE.prefixlen
    return [
        inside(switch_pid, *_pair(this.name, "eth0", pid)),
        inside(switch_pid, "ip", "link", "set", this.name, "master", BRIDGE, "up"),
        inside(pid, "ip", "link", "set", "lo", "up"),
        inside(pid, "ip", "address", "add", f"{address}/{length}", "dev", "eth0"),
        inside(pid, "ip", "link", "set", "eth0", "address", _hardware_address(this), "up"),
        # There is no default route: without this one the node itself would not reach Services.
        inside(pid, "ip", "route", "add", str(SERVICE_RANGE), "dev", "eth0", "src", address),
        *(
            inside(pid, "ip", "route", "add", str(other.pods), "via", str(other.address))
            for other in nodes
            if other != this
        ),
    ]


def _hardware_address(node: Node) -> str:
    """That of a node, locally administered. A node has it again after its death: with another one,
    the machine and the other nodes would go on sending to the one of before for ten seconds."""
    return ":".join(f"{octet:02x}" for octet in (2, 0, *node.address.packed))


def link_state(switch_pid: int, node: Node, up: bool) -> Command:
    """What cuts a node off at the switch, or connects it again."""
    return inside(switch_pid, "ip", "link", "set", node.name, "up" if up else "down")


def unplug(switch_pid: int, node: Node) -> None:
    """Take a node's port away, if it is there: not a packet leaves the node any more."""
    if succeeds(inside(switch_pid, "ip", "link", "show", node.name)):
        # It may go by itself at this moment, with the node.
        succeeds(inside(switch_pid, "ip", "link", "delete", node.name))


def overlapping(routes: Iterable[tuple[str, str]], own_link: str) -> list[str]:
    """What in the machine's routes stands in the way of the cluster's ranges, a sentence a device.

    Args:
        routes: destination ("default" or an address with or without a length) and device.
        own_link: the name of the cluster's own link, which does not.
    """
    sentences: dict[str, str] = {}
    for destination, device in routes:
        if destination == "default" or device == own_link or device in sentences:
            continue
        network = IPv4Network(destination, strict=False)
        wanted = next((each for each in RANGES if network.overlaps(each)), None)
        if wanted is not None:
            sentences[device] = (
                f"The machine's route {destination} (device {device}) overlaps the test cluster's "
                f"{wanted}: {_way_out(device)}."
            )
    return list(sentences.values())


def build(commands: Iterable[Command]) -> None:
    """Run commands of a plan, one after the other.

    Raises:
        ClusterError: one fails.
    """
    for command in commands:
        run(command)


def remove(layout: Layout) -> None:
    """Take the machine's link away, and with it its routes; the switch goes with its process."""
    if succeeds(("ip", "link", "show", layout.link)):
        # It may go by itself at this moment, with the switch.
        succeeds(("ip", "link", "delete", layout.link))


def _pair(link: str, peer: str, pid: int) -> Command:
    return ("ip", "link", "add", link, "type", "veth", "peer", "name", peer, "netns", str(pid))


def _way_out(device: str) -> str:
    if device.startswith("tg-"):
        return (
            "another clone's test cluster is up, take it down there with `make cluster-down` "
            f"(`ip link show {device}` tells where)"
        )
    return "remove it, or use another machine"
