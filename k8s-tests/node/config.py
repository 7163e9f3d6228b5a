"""The configuration and command lines of the components. Pure: values in, text and words out.

Numbers that are not explained here are Kubernetes' defaults or those of kubeadm.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .layout import (
    API_ADDRESS,
    API_PORT,
    CONTEXT,
    DNS_ADDRESS,
    DOMAIN,
    MAX_NODES,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    Node,
)

PAUSE_IMAGE = "localhost/tidegate/pause:1"
DNS_IMAGE = "localhost/tidegate/coredns:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# Containers of this handler run in runc like all others: the RuntimeClass that GPU pods name is
# there, the NVIDIA runtime behind it is not.
NVIDIA_HANDLER = "nvidia"

# What a node has of its own in the place of the machine's: these programs have no other way to be
# told where to keep it.
OWN_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
)

# The kubelet sets these for the whole machine. Each node gets files of its own in their place, with
# the values that it wants, so that the machine keeps what it has.
KERNEL_SETTINGS: Mapping[str, str] = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/kernel/keys/root_maxkeys": "1000000",
    "/proc/sys/kernel/keys/root_maxbytes": "25000000",
}

Words = tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """What may differ between two test clusters.

    Args:
        nodes: how many, 1 to `MAX_NODES`.
        node_monitor_grace_period_s: seconds without news of a node after which it counts as lost
            and its pods as unready. Kubernetes' default is 50; tests cut nodes off and need to see
            what happens before the cluster itself steps in, hence 180.
        gpus: fake `nvidia.com/gpu` devices a node has from the start.
    """

    nodes: int = 2
    node_monitor_grace_period_s: int = 180
    gpus: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"a cluster has 1 to {MAX_NODES} nodes, not {self.nodes}")
        if self.node_monitor_grace_period_s < 1:
            raise ValueError(
                "the node monitor's grace period is 1 s or more, not "
                f"{self.node_monitor_grace_period_s} s"
            )
        if self.gpus < 0:
            raise ValueError(f"a node has 0 fake GPUs or more, not {self.gpus}")


@dataclass(frozen=True)
class Programs:
    """Where the programs are.

    Args:
        etcd: etcd itself.
        kubernetes: the folder with kube-apiserver, kubelet and the others by their names.
        cni: the folder of the CNI plugins.
    """

    etcd: Path
    kubernetes: Path
    cni: Path


def kubeconfig(user: str, server: str, ca: bytes, certificate: bytes, key: bytes) -> str:
    """A kubeconfig that holds its certificates, so that it works wherever it is copied to."""

    def data(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    cluster = {
        "server": f"https://{server}:{API_PORT}",
        "certificate-authority-data": data(ca),
    }
    credentials = {
        "client-certificate-data": data(certificate),
        "client-key-data": data(key),
    }
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
            "current-context": CONTEXT,
        }
    )


def kubelet(layout: Layout, node: Node) -> str:
    """The kubelet's configuration."""
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(layout.pki / f"kubelet-server-{node.name}.crt"),
            "tlsPrivateKeyFile": str(layout.pki / f"kubelet-server-{node.name}.key"),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDomain": DOMAIN,
            "clusterDNS": [str(DNS_ADDRESS)],
            "resolvConf": str(layout.configuration(node) / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": layout.node_cgroup(node),
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,
            "failSwapOn": False,
            # Negative scores need CAP_SYS_RESOURCE, which root in a container has not.
            "oomScoreAdj": 0,
            # More than the hard limit of such a machine would stop the kubelet.
            "maxOpenFiles": 20000,
            # A nearly full laptop is no reason to evict tests, and images must never be collected.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            # So that a device that fails is seen within seconds (default: 10 s).
            "nodeStatusUpdateFrequency": "2s",
            "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        }
    )


def kube_proxy(layout: Layout, node: Node) -> str:
    """kube-proxy's configuration: nftables, which needs no kernel modules of its own."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {
                "kubeconfig": str(layout.configuration(node) / "kube-proxy.kubeconfig")
            },
            "clusterCIDR": str(POD_RANGE),
            "hostnameOverride": node.name,
            "oomScoreAdj": 0,
            # The table of connections belongs to the machine; 0 leaves its size alone.
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
    )


def cni(node: Node) -> str:
    """The pod network of a node: a bridge in it; routes between the nodes do the rest."""
    return _json(
        {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "isDefaultGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-addresses",
                        "ranges": [[{"subnet": str(node.pods)}]],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def containerd(layout: Layout, node: Node, cni_programs: Path) -> str:
    """containerd's configuration (version 2, which containerd 1.6 and later read)."""
    plugin = 'plugins."io.containerd.grpc.v1.cri"'
    runtimes = "".join(
        f"[{plugin}.containerd.runtimes.{name}]\n"
        'runtime_type = "io.containerd.runc.v2"\n'
        f"[{plugin}.containerd.runtimes.{name}.options]\n"
        "SystemdCgroup = false\n"
        for name in ("runc", NVIDIA_HANDLER)
    )
    return (
        "version = 2\n"
        'root = "/var/lib/containerd"\n'
        'state = "/run/containerd"\n'
        "oom_score = 0\n"
        "[grpc]\n"
        f"address = {json.dumps(CONTAINERD_SOCKET)}\n"
        '[plugins."io.containerd.internal.v1.opt"]\n'
        'path = "/var/lib/containerd/opt"\n'
        f"[{plugin}]\n"
        f"sandbox_image = {json.dumps(PAUSE_IMAGE)}\n"
        # As for the kubelet's oomScoreAdj.
        "restrict_oom_score_adj = true\n"
        f"[{plugin}.cni]\n"
        f"bin_dir = {json.dumps(str(cni_programs))}\n"
        f"conf_dir = {json.dumps(str(layout.configuration(node) / 'cni'))}\n"
        f"[{plugin}.containerd]\n"
        'snapshotter = "overlayfs"\n'
        'default_runtime_name = "runc"\n' + runtimes
    )


def files(layout: Layout, node: Node, programs: Programs) -> dict[str, str]:
    """A node's configuration files without the kubeconfigs: name below its folder → content."""
    return {
        "resolv.conf": "# No upstream: names outside the cluster do not resolve.\n",
        "kubelet.json": kubelet(layout, node),
        "kube-proxy.json": kube_proxy(layout, node),
        "cni/10-pods.conflist": cni(node),
        "containerd.toml": containerd(layout, node, programs.cni),
    }


def kubeconfigs(node: Node) -> dict[str, tuple[str, str]]:
    """The kubeconfigs of a node's components: component → (certificate, API server's address)."""
    api = str(API_ADDRESS)
    own = {"kubelet": (f"kubelet-{node.name}", api), "kube-proxy": ("kube-proxy", api)}
    if node.control_plane:
        for name in ("kube-controller-manager", "kube-scheduler"):
            own[name] = (name, "127.0.0.1")
    return own


def runtime(layout: Layout, node: Node) -> dict[str, Words]:
    """What has to run on a node before anything else: name → command line."""
    return {"containerd": ("containerd", "-c", str(layout.configuration(node) / "containerd.toml"))}


def api(layout: Layout, node: Node, programs: Programs) -> dict[str, Words]:
    """The API server and its store: name → command line."""
    return {
        "etcd": _etcd(layout, node, programs),
        "kube-apiserver": (
            str(programs.kubernetes / "kube-apiserver"),
            *_flags(_api_server_flags(layout, node)),
        ),
    }


def controllers(
    layout: Layout, node: Node, programs: Programs, options: Options
) -> dict[str, Words]:
    """The controller manager and the scheduler: name → command line."""
    return {
        "kube-controller-manager": (
            str(programs.kubernetes / "kube-controller-manager"),
            *_flags(_controller_manager_flags(layout, node, options)),
        ),
        "kube-scheduler": (
            str(programs.kubernetes / "kube-scheduler"),
            *_flags(_client_flags(layout, node, "kube-scheduler")),
        ),
    }


def agents(layout: Layout, node: Node, programs: Programs) -> dict[str, Words]:
    """The kubelet and kube-proxy: name → command line."""
    configuration = layout.configuration(node)
    return {
        "kubelet": (
            str(programs.kubernetes / "kubelet"),
            f"--config={configuration / 'kubelet.json'}",
            f"--kubeconfig={configuration / 'kubelet.kubeconfig'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
        ),
        "kube-proxy": (
            str(programs.kubernetes / "kube-proxy"),
            f"--config={configuration / 'kube-proxy.json'}",
        ),
    }


def device_plugin(layout: Layout, node: Node, python: str, program: Path, gpus: int) -> Words:
    """The command line of the fake device plugin with that many devices."""
    return (
        *(python, "-I", str(program)),
        f"--unhealthy={layout.gpus(node) / 'unhealthy'}",
        *(gpu(node, index) for index in range(gpus)),
    )


def gpu(node: Node, index: int) -> str:
    """The id of a node's fake device, from 0."""
    return f"fake-{node.name}-{index}"


def _etcd(layout: Layout, node: Node, programs: Programs) -> Words:
    clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return (
        str(programs.etcd),
        *_flags(
            {
                "name": node.name,
                "data-dir": str(layout.home(node) / "etcd"),
                # A test cluster does not outlive the machine's power.
                "unsafe-no-fsync": "true",
                "log-level": "warn",
                "listen-client-urls": clients,
                "advertise-client-urls": clients,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": peers,
                "initial-cluster": f"{node.name}={peers}",
            }
        ),
    )


def _api_server_flags(layout: Layout, node: Node) -> dict[str, str]:
    pki = layout.pki
    return {
        "etcd-servers": "http://127.0.0.1:2379",
        "advertise-address": str(node.address),
        "secure-port": str(API_PORT),
        "service-cluster-ip-range": str(SERVICE_RANGE),
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "client-ca-file": str(pki / "ca.crt"),
        "tls-cert-file": str(pki / "apiserver.crt"),
        "tls-private-key-file": str(pki / "apiserver.key"),
        "kubelet-certificate-authority": str(pki / "ca.crt"),
        "kubelet-client-certificate": str(pki / "apiserver-kubelet-client.crt"),
        "kubelet-client-key": str(pki / "apiserver-kubelet-client.key"),
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "service-account-issuer": f"https://kubernetes.default.svc.{DOMAIN}",
        "service-account-key-file": str(pki / "service-accounts.pub"),
        "service-account-signing-key-file": str(pki / "service-accounts.key"),
        "requestheader-client-ca-file": str(pki / "front-proxy-ca.crt"),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": str(pki / "front-proxy-client.crt"),
        "proxy-client-key-file": str(pki / "front-proxy-client.key"),
    }


def _client_flags(layout: Layout, node: Node, name: str) -> dict[str, str]:
    own = str(layout.configuration(node) / f"{name}.kubeconfig")
    return {
        "kubeconfig": own,
        "authentication-kubeconfig": own,
        "authorization-kubeconfig": own,
        "bind-address": "127.0.0.1",
        # There is only one of each.
        "leader-elect": "false",
    }


def _controller_manager_flags(layout: Layout, node: Node, options: Options) -> dict[str, str]:
    pki = layout.pki
    return {
        **_client_flags(layout, node, "kube-controller-manager"),
        "use-service-account-credentials": "true",
        # Its own default of 20 requests a second holds the start up by 4 s.
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        # The nodes' ranges are given with the Node objects, so that they are known beforehand.
        "allocate-node-cidrs": "true",
        "cluster-cidr": str(POD_RANGE),
        "service-cluster-ip-range": str(SERVICE_RANGE),
        "root-ca-file": str(pki / "ca.crt"),
        "service-account-private-key-file": str(pki / "service-accounts.key"),
        "cluster-signing-cert-file": str(pki / "ca.crt"),
        "cluster-signing-key-file": str(pki / "ca.key"),
        "requestheader-client-ca-file": str(pki / "front-proxy-ca.crt"),
        "flex-volume-plugin-dir": "/var/lib/kubelet/volumeplugins",
        "node-monitor-grace-period": f"{options.node_monitor_grace_period_s}s",
    }


def _flags(values: Mapping[str, str]) -> Sequence[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _json(content: object) -> str:
    # JSON is YAML, and cannot be indented wrongly.
    return json.dumps(content, indent=2) + "\n"
