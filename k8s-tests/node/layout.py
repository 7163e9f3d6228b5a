"""The names, addresses and folders of one clone's test cluster.

Pure: nothing here touches the machine. Everything that the cluster makes on the machine carries a
name with the digest of its state folder's path, so that what belongs to it can be told from what
does not, even when no record of it was left.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

CONTEXT = "tidegate-test"
DOMAIN = "cluster.local"
MAX_NODES = 9
API_PORT = 6443

# Private ranges (RFC 1918) that home and office networks seldom use; the Service and pod ranges
# are kubeadm's customary ones.
NODE_RANGE = IPv4Network("172.30.77.0/24")
POD_RANGE = IPv4Network("10.244.0.0/16")
SERVICE_RANGE = IPv4Network("10.96.0.0/16")

# The environment variables by which the cluster's processes are known (see processes.py).
STATE_VARIABLE = "TIDEGATE_TEST_CLUSTER"
ROLE_VARIABLE = "TIDEGATE_TEST_CLUSTER_ROLE"
COMPONENT_VARIABLE = "TIDEGATE_TEST_CLUSTER_COMPONENT"
SWITCH = "switch"


@dataclass(frozen=True)
class Node:
    """One node: `index` counts from 1, and node 1 is the control plane."""

    index: int

    @property
    def name(self) -> str:
        """Its name in Kubernetes, its host name, and its port on the switch: `node1`."""
        return f"node{self.index}"

    @property
    def address(self) -> IPv4Address:
        """Its address among the nodes."""
        return NODE_RANGE[self.index + 1]

    @property
    def pods(self) -> IPv4Network:
        """The range of its pods' addresses, a /24 of `POD_RANGE`."""
        return list(POD_RANGE.subnets(new_prefix=24))[self.index - 1]

    @property
    def control_plane(self) -> bool:
        """Whether etcd, the API server, the controllers and the scheduler run here."""
        return self.index == 1


def nodes(count: int) -> tuple[Node, ...]:
    """The nodes of a cluster of that size."""
    return tuple(Node(index) for index in range(1, count + 1))


CONTROL_PLANE = Node(1)
MACHINE_ADDRESS = NODE_RANGE[1]
API_ADDRESS = CONTROL_PLANE.address
API_SERVICE_ADDRESS = SERVICE_RANGE[1]
DNS_ADDRESS = SERVICE_RANGE[10]


@dataclass(frozen=True)
class Layout:
    """Where one clone's cluster keeps its files, and what it calls what it makes.

    Args:
        state: the folder of all its files, absolute; it is removed with the cluster.
    """

    state: Path

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that stand for this cluster in names."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def link(self) -> str:
        """The machine's own end of the link to the switch (15 characters at most)."""
        return f"tg-{self.digest}"

    @property
    def cgroup(self) -> str:
        """The cgroup above all nodes' cgroups, from the root of each hierarchy."""
        return f"/tidegate-{self.digest}"

    def node_cgroup(self, node: Node) -> str:
        """The cgroup above all pods of a node."""
        return f"{self.cgroup}/{node.name}"

    @property
    def kubeconfig(self) -> Path:
        """For people and tests: the administrator's, with the context `CONTEXT`."""
        return self.state / "kubeconfig"

    @property
    def tools(self) -> Path:
        """Links to kubectl and helm."""
        return self.state / "tools"

    @property
    def record(self) -> Path:
        """What was asked for and how far it came (see cluster.py)."""
        return self.state / "cluster.json"

    @property
    def made_folders(self) -> Path:
        """The folders outside the state folder that the cluster makes, one a line."""
        return self.state / "made-folders"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """The logs of all nodes; the one thing that can outlive the cluster."""
        return self.state / "logs"

    def node_logs(self, node: Node) -> Path:
        """The logs of a node's components, one file each."""
        return self.logs / node.name

    def home(self, node: Node) -> Path:
        """All other files of a node."""
        return self.state / node.name

    def configuration(self, node: Node) -> Path:
        """The configuration files of a node's components."""
        return self.home(node) / "configuration"

    def components(self, node: Node) -> Path:
        """What runs on a node, one file a component (see supervisor.py)."""
        return self.home(node) / "components"

    def data(self, node: Node, folder: str) -> Path:
        """What a node has in the place of one of the machine's folders."""
        return self.home(node) / "root" / folder.lstrip("/")

    def gpus(self, node: Node) -> Path:
        """Where the fake device plugin reads which devices are broken."""
        return self.home(node) / "gpus"
