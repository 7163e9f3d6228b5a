"""A node's first process: `supervisor.py PLAN`, pid 1 of the node's own namespaces.

It carries out the plan's set-up commands, then keeps running what the plan's folder of components
holds. One file there is one component:

    <name>.json       {"command": [...], "environment": {...}, "log": path}: runs, and again 1 s
                      after it ends
    <name>.stopped    beside it: does not run (is killed) until this file goes

The folder is looked at five times a second, so that components can be added, stopped and started
by writing files, in the order that others decide. That is all it knows; it needs the standard
library alone, and takes orphans' exits as any first process must (containerd's shims are such).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LOOK_S = 0.2
RESTART_S = 1.0


class Component:
    """A program that runs as long as it should."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: str
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self._command = list(command)
        self._environment = os.environ | environment
        self._log = log
        self._not_before = 0.0

    def start(self) -> None:
        """Start it, unless it runs or has just ended."""
        if self.pid is not None or time.monotonic() < self._not_before:
            return
        program = shutil.which(self._command[0]) or self._command[0]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self.pid = os.posix_spawn(
                program,
                self._command,
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, self._log, append, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
            )
        except OSError as error:
            self.ended(f"did not start: {error}")

    def kill(self) -> None:
        """Kill it if it runs, as SIGSTOP too allows."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    def ended(self, how: str) -> None:
        """Note that it ended."""
        say(f"{self.name} {how}")
        self.pid = None
        self._not_before = time.monotonic() + RESTART_S


def say(text: str) -> None:
    """Log a line."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def prepare(hostname: str, commands: Sequence[Sequence[str]]) -> None:
    """Make the fresh namespaces this node's own."""
    socket.sethostname(hostname)
    for command in commands:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # noqa: S603


def look(folder: Path, components: dict[str, Component]) -> None:
    """Start and kill what the folder says."""
    wanted = {path.stem: path for path in folder.glob("*.json")}
    for name, path in wanted.items():
        if name not in components:
            components[name] = Component(name, **json.loads(path.read_bytes()))
    for name, component in list(components.items()):
        if name in wanted and not (folder / f"{name}.stopped").exists():
            component.start()
        else:
            component.kill()
            if name not in wanted and component.pid is None:
                del components[name]


def reap(components: dict[str, Component]) -> None:
    """Take the exits of all children, the orphans too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for component in components.values():
            if component.pid == pid:
                component.ended(f"ended with {os.waitstatus_to_exitcode(status)}")


def main() -> None:
    """Be the node that the plan describes, until killed."""
    plan = json.loads(Path(sys.argv[1]).read_bytes())
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    prepare(plan["hostname"], plan["commands"])
    Path(plan["ready"]).touch()
    say("ready")
    components: dict[str, Component] = {}
    while True:
        look(Path(plan["components"]), components)
        signal.sigtimedwait([signal.SIGCHLD], LOOK_S)
        reap(components)


if __name__ == "__main__":
    main()
