"""Taking a cluster away, however much of it is there and whatever interrupted what made it.

Nothing is looked up in a record but the folders that were made outside the state folder: processes
carry the cluster's mark, and the link and the cgroups its digest. Each step may be done already, so
that this can itself be interrupted anywhere and run again; the state folder goes last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from . import cgroups, network, processes
from .commands import succeeds
from .errors import ClusterError
from .layout import Layout


def anything_left(layout: Layout) -> bool:
    """Whether anything of the cluster is on this machine, kept logs apart."""
    state = layout.state
    return (
        (state.exists() and [path.name for path in state.iterdir()] != [layout.logs.name])
        or any(process.marked(layout) for process in processes.every())
        or succeeds(("ip", "link", "show", layout.link))
        or cgroups.left(layout.cgroup)
    )


def take_down(layout: Layout, keep_logs: bool, tell: Callable[[str], None]) -> None:
    """Take everything away.

    Args:
        layout: of the cluster.
        keep_logs: leave the folder of the logs.
        tell: told what is left on purpose.

    Raises:
        ClusterError: something resists; the message says what.
    """
    processes.end_all(layout)
    network.remove(layout)
    cgroups.remove(layout.cgroup)
    _remove_made_folders(layout, tell)
    _refuse_mounts(layout.state)
    if not layout.state.exists():
        return
    for entry in layout.state.iterdir():
        if not (keep_logs and entry == layout.logs):
            _remove(entry)
    if not keep_logs:
        layout.state.rmdir()


def _remove_made_folders(layout: Layout, tell: Callable[[str], None]) -> None:
    try:
        made = layout.made_folders.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for path in reversed(made):
        try:
            Path(path).rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # someone else has put something there since
            tell(f"Leaving {path}, which is not empty any more.")


def _refuse_mounts(state: Path) -> None:
    """Never delete through a mount: the cluster makes none here, so it is someone else's."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mounted = Path(line.split(" ")[4].encode().decode("unicode_escape"))
        if mounted.is_relative_to(state):
            raise ClusterError(
                f"Something is mounted on {mounted}, and not by the test cluster: unmount it, then "
                "run this again."
            )


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
