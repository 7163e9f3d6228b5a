"""The cluster's processes, found by the mark in their environment, and their end.

Each carries the state folder's path in its environment (`STATE_VARIABLE`) from its first moment,
and so do its children. That needs no record which a crash could lose or a reused process id could
make wrong, and nothing without the mark is ever killed. What runs in pods has an environment of
its own; it ends with its node's first process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import run
from .errors import ClusterError
from .layout import COMPONENT_VARIABLE, ROLE_VARIABLE, STATE_VARIABLE, Layout

PROC = Path("/proc")
END_SECONDS = 20.0
# Locations of Debian's and others' system programs, the only thing a node inherits.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Process:
    """A process as the machine sees it.

    Args:
        pid: its id on the machine.
        parent: its parent's.
        first: whether it is the first process of a process namespace below the machine's.
        name: its program's name as it was called.
        environment: the cluster's variables in its environment.
    """

    pid: int
    parent: int
    first: bool
    name: str
    environment: Mapping[str, str]

    def marked(self, layout: Layout) -> bool:
        """Whether it belongs to that cluster."""
        return self.environment.get(STATE_VARIABLE) == str(layout.state)


def every() -> list[Process]:
    """All processes of this machine that can be looked at."""
    found = (_read(entry) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process]


def environment(layout: Layout, role: str) -> dict[str, str]:
    """The whole environment of a process of the cluster."""
    return {
        "PATH": PATH,
        "LC_ALL": "C.UTF-8",
        STATE_VARIABLE: str(layout.state),
        ROLE_VARIABLE: role,
    }


def start(layout: Layout, role: str, words: Sequence[str], log: Path) -> None:
    """Start a process that stays, with nothing of this one's: not its terminal, not its fate."""
    # `setsid --fork` ends at once, so that nobody here has to wait for the process's end.
    shell = 'exec >>"$1" 2>&1 </dev/null; shift; exec setsid --fork "$@"'
    run(("sh", "-c", shell, "sh", str(log), *words), environment=environment(layout, role))


def first_of(layout: Layout, role: str) -> Process | None:
    """The first process of a node, if it runs."""
    for process in every():
        if process.first and process.marked(layout) and process.environment[ROLE_VARIABLE] == role:
            return process
    return None


def with_role(layout: Layout, role: str) -> list[Process]:
    """The processes of a role."""
    return [
        process
        for process in every()
        if process.marked(layout) and process.environment.get(ROLE_VARIABLE) == role
    ]


def below(ancestor: int, processes: Sequence[Process]) -> list[Process]:
    """Those of the processes that descend from one, pods' included."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    open_ends = [ancestor]
    while open_ends:
        born = children.get(open_ends.pop(), [])
        found += born
        open_ends += [process.pid for process in born]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_all(layout: Layout) -> None:
    """Kill every process of the cluster, and wait until they are gone.

    Raises:
        ClusterError: some do not end.
    """
    deadline = time.monotonic() + END_SECONDS
    while True:
        left = [each for each in every() if each.marked(layout) and each.pid != os.getpid()]
        if not left:
            return
        if time.monotonic() > deadline:
            names = ", ".join(f"{each.name} ({each.pid})" for each in left)
            raise ClusterError(f"These processes do not end although they were killed: {names}.")
        for process in left:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def _read(entry: Path) -> Process | None:
    try:
        status = (entry / "status").read_text(encoding="utf-8", errors="replace")
        words = (entry / "cmdline").read_bytes().split(b"\0")
        variables = (entry / "environ").read_bytes()
    except OSError:  # it has ended, or the machine hides it
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    namespaces = fields.get("NSpid", "").split()
    return Process(
        pid=int(fields["Pid"]),
        parent=int(fields["PPid"]),
        first=len(namespaces) > 1 and namespaces[-1] == "1",
        name=os.path.basename(words[0].decode(errors="replace")),  # noqa: PTH119
        environment=_ours(variables),
    )


def _ours(variables: bytes) -> dict[str, str]:
    pairs = (pair.partition(b"=") for pair in variables.split(b"\0"))
    wanted = {name.encode() for name in (STATE_VARIABLE, ROLE_VARIABLE, COMPONENT_VARIABLE)}
    return {
        name.decode(): value.decode(sys.getfilesystemencoding(), "replace")
        for name, _, value in pairs
        if name in wanted
    }
