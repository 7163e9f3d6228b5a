"""The process between a `LocalEngine` and its Triton, which outlives the one to end the other.

A Python process that is killed cannot take its children with it, and Triton's backend processes
("stubs") outlive a killed Triton. So Triton is the child of this small guard, which

- runs in a session of its own: Ctrl-C, a closing terminal and a kill of the owner's process group
  do not reach it;
- holds one end of a pipe whose other end only the owner has: end of file means that the owner is
  gone, however it went;
- is the subreaper of all that descends from it: stubs whose Triton died become its children, and
  it ends them;
- is followed into death by Triton (PR_SET_PDEATHSIG) should it be killed itself. That signal is
  sent when the *thread* that forked ends; this process has one thread only.

It is run by path, with `python -I -S`, and imports nothing of this package: it starts in
milliseconds from any environment.

    guard.py OWNER PREFIX RECORD COMMAND…

OWNER is the process id of the one who started it, PREFIX that of the names of Triton's shared
memory regions, RECORD the file to remove once nothing is left (see `leftovers`).
Orders come on standard input, a line each: `stop SECONDS`, `kill`, `pause`, `resume`.
On standard output it says `started PID`, and `ended STATUS` (as `subprocess` counts: −9 for
SIGKILL) when Triton, its stubs and its regions are gone. Triton's output goes to standard error.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where the kernel keeps POSIX shared memory
# From <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Longest wait for killed processes to be gone: only one stuck inside the kernel needs longer.
KILL_SECONDS = 10.0


def remove_regions(prefix: str) -> None:
    """Remove the shared memory regions whose names begin with `prefix`."""
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def _prctl() -> Callable[[int, int], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, value: int) -> None:
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")

    return prctl


def _children() -> list[int]:
    """Process ids of this process's children, adopted ones included."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name, second field, may hold anything; the parent is the second one after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def _kill_children() -> None:
    """Kill and reap until no child is left; killed ones hand their own children to us."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if reaped == 0:
            time.sleep(0.005)


def _wake_on_child_or_term() -> int:
    """A file descriptor that becomes readable on SIGCHLD and on SIGTERM."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return reader


class _Watch:
    """Triton's life: orders in, signals out, until it has ended."""

    def __init__(self, triton: "subprocess.Popen[bytes]", owner: int, wake: int) -> None:
        self._triton = triton
        self._owner = owner
        self._wake = wake
        self._pending = b""
        self._patience_ends = float("inf")

    def until_ended(self) -> int:
        while self._triton.poll() is None:
            # The pipe tells at once that the owner is gone, unless the owner has forked and its
            # child holds the other end too; the change of parent, seen each second, always does.
            left = self._patience_ends - time.monotonic()
            readable, _, _ = select.select([0, self._wake], [], [], max(0.0, min(1.0, left)))
            if self._wake in readable and bytes([signal.SIGTERM]) in os.read(self._wake, 512):
                self._triton.kill()
            if 0 in readable:
                self._read_orders()
            if os.getppid() != self._owner or time.monotonic() >= self._patience_ends:
                self._triton.kill()
        return self._triton.returncode

    def _read_orders(self) -> None:
        received = os.read(0, 4096)
        if not received:
            # The owner is gone: nobody is left for whom to end gracefully.
            self._triton.kill()
            self._triton.wait()
            return
        *orders, self._pending = (self._pending + received).split(b"\n")
        for order in orders:
            self._obey(order.decode())

    def _obey(self, order: str) -> None:
        name, _, argument = order.partition(" ")
        if name == "stop":
            self._triton.terminate()
            # A paused process takes the signal only once it runs again.
            self._triton.send_signal(signal.SIGCONT)
            self._patience_ends = time.monotonic() + float(argument)
        elif name == "kill":
            self._triton.kill()
        elif name == "pause":
            self._triton.send_signal(signal.SIGSTOP)
        elif name == "resume":
            self._triton.send_signal(signal.SIGCONT)
        else:
            raise ValueError(f"unknown order: {order!r}")


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the owner may be gone: nobody listens
        os.write(1, line.encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Run the command until it ends or has to, then remove all that it left."""
    owner, prefix, record, *command = arguments
    guard = os.getpid()
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    wake = _wake_on_child_or_term()

    def die_with_guard() -> None:
        # What is ignored stays ignored across exec; Triton gets the defaults.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above
            os._exit(1)

    try:
        triton = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            preexec_fn=die_with_guard,  # noqa: PLW1509  safe: there is one thread
        )
        _say(f"started {triton.pid}")
        status = _Watch(triton, int(owner), wake).until_ended()
    finally:
        _kill_children()
        remove_regions(prefix)
        Path(record).unlink(missing_ok=True)
    _say(f"ended {status}")


if __name__ == "__main__":
    main(sys.argv[1:])
