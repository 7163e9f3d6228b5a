"""What dead engines of this clone left, found and removed at the next start of one.

A guard that ends removes everything. When the guard itself is killed, Triton dies with it, but a
backend process that hangs may stay, and so do the shared memory regions. For that case each engine
has a record: a file named like its region prefix, locked for as long as its guard lives. A record
that can be locked is one whose guard is dead.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import time
from pathlib import Path

from tidegate_engine.local.errors import EngineError
from tidegate_engine.local.guard import KILL_SECONDS, remove_regions

# How many folders of ended engines are kept for their logs.
KEPT_FOLDERS = 20
# A prefix is matched against command lines of processes to kill: only ours, never a looser one.
PREFIX = re.compile(r"tidegate-[0-9a-f]{12}")


def register(folder: Path, prefix: str) -> tuple[Path, int]:
    """Make the record of a new engine, locked.

    Args:
        folder: the clone's folder of records; made if it is missing.
        prefix: the prefix of the engine's shared memory regions, matching `PREFIX`.

    Returns:
        The record and the open file descriptor that holds its lock, to hand to the guard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"{prefix}.lock"
    # Locked before it has the name under which `clear_dead` looks for it.
    unlocked = record.with_suffix(".new")
    descriptor = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unlocked.rename(record)
    return record, descriptor


def claim(directory: Path) -> None:
    """Note that this process may still start an engine in `directory`, so that it is kept."""
    (directory / "owner").write_text(str(os.getpid()))


def clear_dead(folder: Path) -> None:
    """Remove what the dead engines recorded in `folder` left, and their oldest folders."""
    for record in folder.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError), record.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            clear(record.stem)
            record.unlink(missing_ok=True)
    ended = [path for path in folder.glob("tidegate-*/") if not _owner_lives(path)]
    for path in sorted(ended, key=_changed, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(path, ignore_errors=True)


def clear(prefix: str) -> None:
    """Kill the processes of the engine with this region prefix and remove its regions.

    Raises:
        EngineError: a process does not die of SIGKILL.
    """
    if not PREFIX.fullmatch(prefix):
        raise ValueError(f"not the prefix of a local engine: {prefix!r}")
    deadline = time.monotonic() + KILL_SECONDS
    while remaining := processes(prefix):
        if time.monotonic() > deadline:
            raise EngineError(f"Processes {remaining} of a dead engine do not end after SIGKILL.")
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    remove_regions(prefix)


def processes(prefix: str) -> list[int]:
    """Process ids of the living Triton and stubs whose regions have this prefix.

    Both carry it in their command lines, where Triton gives it to the stub as an argument.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # Empty for a zombie, which holds nothing any more.
            if prefix.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _owner_lives(directory: Path) -> bool:
    try:
        return Path("/proc", (directory / "owner").read_text()).exists()
    except FileNotFoundError:
        return False


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another start removes folders at the same time
        return 0.0
