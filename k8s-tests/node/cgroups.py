"""The cgroups above the nodes' pods, in version 1's many hierarchies or version 2's one.

The kubelet does not start unless its cgroup root is there in every hierarchy; so each node's is
made before, and all of them are removed with whatever pods left in them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from .errors import ClusterError
from .processes import send

ROOT = Path("/sys/fs/cgroup")
# What the kubelet asks of a hierarchy, by version.
NEEDED_V1 = ("cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio")
NEEDED_V2 = ("cpu", "cpuset", "memory", "pids")
REMOVE_SECONDS = 20.0


def hierarchies(mountinfo: str) -> list[Path]:
    """Where cgroup hierarchies are mounted, of both versions, from /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split(" ")[4]))
    return found


def missing(mountinfo: str, unified: Sequence[str] | None) -> list[str]:
    """The controllers that the kubelet needs and the machine does not give.

    Args:
        mountinfo: /proc/self/mountinfo.
        unified: version 2's controllers, or None where version 1 is in use.
    """
    if unified is not None:
        return [name for name in NEEDED_V2 if name not in unified]
    mounted = {
        name
        for line in mountinfo.splitlines()
        if " - cgroup " in line
        for name in line.rsplit(" ", 1)[1].split(",")
    }
    return [name for name in NEEDED_V1 if name not in mounted]


def unified_controllers() -> list[str] | None:
    """Version 2's controllers on this machine, or None where version 1 is in use."""
    try:
        return (ROOT / "cgroup.controllers").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return None


def make(cgroup: str) -> None:
    """Make a cgroup in every hierarchy.

    Raises:
        ClusterError: the machine does not let us.
    """
    try:
        for hierarchy in _mounted():
            path = hierarchy
            for name in cgroup.strip("/").split("/"):
                parent, path = path, path / name
                _delegate(parent)
                path.mkdir(exist_ok=True)
                _fill_cpuset(parent, path)
    except OSError as error:
        raise ClusterError(
            f"The cgroup {cgroup} cannot be made ({error}): the cluster needs the machine's "
            "cgroups writable, in a container that is `--privileged`."
        ) from None


def remove(cgroup: str) -> None:
    """Remove a cgroup from every hierarchy, with all below it; what runs in it is killed.

    Raises:
        ClusterError: something in it does not end.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    for hierarchy in _mounted():
        top = hierarchy / cgroup.lstrip("/")
        while top.exists():
            if time.monotonic() > deadline:
                raise ClusterError(f"The cgroup {top} is still in use, although all was killed.")
            for folder, _, _ in os.walk(top, topdown=False):
                _remove_one(Path(folder))


def left(cgroup: str) -> bool:
    """Whether any hierarchy still has it."""
    return any((hierarchy / cgroup.lstrip("/")).exists() for hierarchy in _mounted())


def _mounted() -> list[Path]:
    return hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def _delegate(parent: Path) -> None:
    # Version 2 only: a cgroup has the controllers that its parent hands down.
    control = parent / "cgroup.subtree_control"
    if unified_controllers() is None or not control.exists():
        return
    given = control.read_text(encoding="ascii").split()
    offered = (parent / "cgroup.controllers").read_text(encoding="ascii").split()
    add = [f"+{name}" for name in offered if name not in given]
    if add:
        control.write_text(" ".join(add), encoding="ascii")


def _fill_cpuset(parent: Path, path: Path) -> None:
    # Version 1 only: a new cpuset is empty, and nothing can run in an empty one.
    for name in ("cpuset.cpus", "cpuset.mems"):
        source = parent / name
        if source.exists() and not (path / name).read_text(encoding="ascii").strip():
            (path / name).write_text(source.read_text(encoding="ascii"), encoding="ascii")


def _remove_one(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError:  # a process has not ended yet
        for pid in _members(folder):
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def _members(folder: Path) -> list[int]:
    try:
        words = (folder / "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(word) for word in words if word != "0"]
