"""What the machine must have: facts are gathered, and judged apart from that, a sentence each."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import cgroups
from .commands import run, succeeds
from .config import OWN_FOLDERS
from .errors import ClusterError
from .layout import Layout
from .network import overlapping
from .processes import PATH

# Program → the Debian package that has it. Of util-linux and coreutils, which every Debian has,
# nothing is listed.
PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",  # the CNI plugin for host ports calls it
    "conntrack": "conntrack",
    "socat": "socat",
    "openssl": "openssl",
}
CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
# What `make images` needs besides.
IMAGE_PACKAGES = ("buildah", "mmdebstrap")

# Seen: 0.7 GB for two nodes without pods; a CPU engine wants 0.5 GB more.
MEMORY_BYTES = 1_500_000_000
# Two copies of the images, unpacked, and logs.
DISK_BYTES = 3_000_000_000

# Each proves one thing that the kernel must do, and leaves nothing: it happens in a namespace of
# its own, which ends with the command.
_PROBES = (
    (
        "ip link add probe0 type bridge && ip link add probe1 type veth peer name probe2",
        "bridges and veth pairs (modules bridge and veth)",
    ),
    (
        "nft 'add table ip a; add chain ip a b { type nat hook postrouting priority 100; }; "
        "add rule ip a b ct state established accept; add rule ip a b masquerade'",
        "nftables with NAT (modules nf_tables, nft_chain_nat, nft_ct and nft_masq)",
    ),
)


@dataclass(frozen=True)
class Facts:
    """What was found.

    Args:
        system: as `uname -s` has it.
        architecture: as `uname -m` has it.
        root: whether this is root.
        missing_packages: Debian packages whose programs are not there.
        missing_features: what the kernel does not do, in words.
        missing_controllers: cgroup controllers that are not there.
        overlay: whether overlayfs works in the state folder.
        memory: bytes that are available.
        disk: bytes that are free for the state folder.
        route_sentences: what is wrong with the machine's routes.
        hidden: whether the state folder lies where a node has folders of its own.
    """

    system: str = "Linux"
    architecture: str = "x86_64"
    root: bool = True
    missing_packages: tuple[str, ...] = ()
    missing_features: tuple[str, ...] = ()
    missing_controllers: tuple[str, ...] = ()
    overlay: bool = True
    memory: int = 10**11
    disk: int = 10**12
    route_sentences: tuple[str, ...] = ()
    hidden: bool = False


def basic_sentences(system: str, architecture: str, root: bool) -> list[str]:
    """Why there is no use in looking further."""
    if (system, architecture) != ("Linux", "x86_64"):
        return [f"The test cluster runs on Linux x86_64; this machine is {system} {architecture}."]
    if not root:
        return [
            "The test cluster needs root, for its namespaces, mounts and cgroups: run this as root "
            "(with sudo, or in a container that is `--privileged`)."
        ]
    return []


def sentences(facts: Facts, state: Path) -> list[str]:
    """Why the cluster cannot run on a machine, and what to do about it; none when it can."""
    basic = basic_sentences(facts.system, facts.architecture, facts.root)
    if basic:
        return basic
    if facts.missing_packages:
        names = ", ".join(facts.missing_packages)
        return [f"Missing Debian packages: {names}; `make cluster-deps` installs them."]
    found = [
        f"This machine's kernel lacks {feature}: load or enable it."
        for feature in facts.missing_features
    ]
    if facts.missing_controllers:
        names = ", ".join(facts.missing_controllers)
        found.append(f"The cgroup controllers {names} are missing here: enable them at boot.")
    if not facts.overlay:
        found.append(
            f"overlayfs does not work in {state}: put the clone on a disk with ext4 or xfs (not on "
            "another overlay), on a kernel that has the module overlay."
        )
    if facts.hidden:
        found.append(
            f"The clone lies below a folder that each node has for itself ({state}): put it "
            "elsewhere."
        )
    found += _too_little(facts)
    return found + list(facts.route_sentences)


def _too_little(facts: Facts) -> list[str]:
    found = []
    for what, there, needed in (
        ("memory", facts.memory, MEMORY_BYTES),
        ("disk space for the clone", facts.disk, DISK_BYTES),
    ):
        if there < needed:
            found.append(
                f"The test cluster needs {needed / 1e9:.1f} GB of {what}, and {there / 1e9:.1f} GB "
                "are free: free some."
            )
    return found


def check(layout: Layout) -> None:
    """Refuse a machine that cannot carry the cluster.

    Raises:
        ClusterError: with all the reasons that can be seen at once.
    """
    check_basics()
    found = sentences(gather(layout), layout.state)
    if found:
        raise ClusterError("\n".join(found))


def check_basics() -> None:
    """Refuse another system, and whoever is not root.

    Raises:
        ClusterError: with the reason.
    """
    found = basic_sentences(platform.system(), platform.machine(), os.geteuid() == 0)
    if found:
        raise ClusterError("\n".join(found))


def gather(layout: Layout) -> Facts:
    """Look at this machine, which is a Linux where we are root; nothing on it changes."""
    packages = missing_packages(PACKAGES)
    if packages:
        return Facts(missing_packages=packages)
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    below = _existing(layout.state)
    return Facts(
        missing_features=tuple(_missing_features()),
        missing_controllers=tuple(cgroups.missing(mounts, cgroups.unified_controllers())),
        overlay=_overlay_works(below),
        memory=_available_memory(Path("/proc/meminfo").read_text(encoding="ascii")),
        disk=shutil.disk_usage(below).free,
        route_sentences=tuple(overlapping(_routes(), layout.link)),
        hidden=any(layout.state.is_relative_to(folder) for folder in ("/run", *OWN_FOLDERS)),
    )


def missing_packages(programs: Mapping[str, str]) -> tuple[str, ...]:
    """The Debian packages of the programs that are not there, and of the CNI plugins."""
    found = {package for name, package in programs.items() if not shutil.which(name, path=PATH)}
    if cni_folder() is None:
        found.add(CNI_PACKAGE)
    return tuple(sorted(found))


def cni_folder() -> Path | None:
    """Where the CNI plugins are, if they are."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def install_packages() -> None:
    """Install what the cluster and the images need, with apt.

    Raises:
        ClusterError: not root, no apt, or it fails.
    """
    check_basics()
    names = sorted({*PACKAGES.values(), CNI_PACKAGE, *IMAGE_PACKAGES})
    if shutil.which("apt-get") is None:
        raise ClusterError(
            "This is no Debian or Ubuntu (there is no apt-get): install by its own means "
            f"{', '.join(names)}."
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run(("apt-get", "update", "-qq"), environment=environment)
    install = ("apt-get", "install", "--yes", "-qq", "--no-install-recommends")
    run((*install, *names), environment=environment)


def _missing_features() -> Iterable[str]:
    for command, feature in _PROBES:
        if not succeeds(("unshare", "--net", "sh", "-c", command)):
            yield feature
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        yield "netfilter for bridges (module br_netfilter)"


def _overlay_works(folder: Path) -> bool:
    script = (
        'set -e; t=$(mktemp -d "$1/.overlay-XXXXXX"); trap \'rm -rf "$t"\' EXIT; '
        'mkdir "$t/l" "$t/u" "$t/w" "$t/m"; '
        'mount -t overlay overlay -o "lowerdir=$t/l,upperdir=$t/u,workdir=$t/w" "$t/m"; '
        'umount "$t/m"'
    )
    return succeeds(("unshare", "--mount", "sh", "-c", script, "sh", str(folder)))


def _available_memory(meminfo: str) -> int:
    (line,) = (line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _routes() -> list[tuple[str, str]]:
    routes = json.loads(run(("ip", "-4", "-json", "route", "show")))
    return [(route["dst"], route.get("dev", "?")) for route in routes]


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
