"""The owner's side of a `guard`: start a Triton below one, order it about, see how it ended."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate_engine.local import guard, leftovers
from tidegate_engine.local.errors import EngineError
from tidegate_engine.local.log import Log


class GuardedTriton:
    """One run of Triton, from its start to the point where nothing of it is left.

    Args:
        command: Triton's program and arguments.
        prefix: prefix of the names of its shared memory regions, matching `leftovers.PREFIX`.
        records: the clone's folder of records of running engines.
        directory: its working directory.
        variables: its environment variables.
        log: where its output goes.

    Raises:
        EngineError: its program cannot be started.
    """

    def __init__(  # noqa: PLR0913  keywords
        self,
        command: Sequence[str],
        *,
        prefix: str,
        records: Path,
        directory: Path,
        variables: Mapping[str, str],
        log: Log,
    ) -> None:
        self._prefix = prefix
        self._log = log
        self._ending: str | None = None
        record, lock = leftovers.register(records, prefix)
        arguments = [guard.__file__, str(os.getpid()), prefix, str(record), *command]
        try:
            with log.open() as output:
                self._guard = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    cwd=directory,
                    env=variables,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        finally:
            os.close(lock)
        assert self._guard.stdin is not None  # noqa: S101  PIPE was asked for
        assert self._guard.stdout is not None  # noqa: S101
        self._orders = self._guard.stdin
        self._answers = self._guard.stdout
        word, _, pid = self._answers.readline().decode().partition(" ")
        if word != "started":
            self.order("kill")
            raise EngineError(self.ending())
        self.pid = int(pid)

    @property
    def running(self) -> bool:
        """Whether it has not ended; a paused one counts."""
        return self._guard.poll() is None

    def order(self, order: str) -> None:
        """Give the guard an order (see `guard`); one that has ended already takes none."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._orders.write(f"{order}\n".encode())
            self._orders.flush()

    def ending(self, timeout: float | None = None) -> str:
        """Wait until nothing is left of it, and tell how it ended, as a sentence.

        Args:
            timeout: longest wait in seconds, after which the guard is killed. None: no limit.
        """
        if self._ending is None:
            try:
                self._guard.wait(timeout)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
            with self._answers:
                status = self._answers.read().decode().strip().removeprefix("ended ")
            with contextlib.suppress(BrokenPipeError):
                self._orders.close()
            if not status:
                leftovers.clear(self._prefix)
            self._ending = _sentence(status, self._log.reason())
        return self._ending


def _sentence(status: str, reason: str) -> str:
    how = f"with status {status}" if status else "with its guard process"
    return f"Triton ended {how}: {reason}"
