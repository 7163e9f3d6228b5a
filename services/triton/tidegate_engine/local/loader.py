"""A loader as a child process beside a local engine."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidegate_engine.local import ports
from tidegate_engine.local.engine import ASK_SECONDS, POLL_SECONDS, LocalEngine
from tidegate_engine.local.errors import EngineError

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)


class LocalLoader:
    """The loader of one engine, on 127.0.0.1; a context manager that starts it.

    The interpreter that runs it must have what the loader needs (`tidegate-engine[loader]`). It
    ends with the process, and the thread, that started it, even when that is killed. Not safe for
    use by several threads.

    Args:
        engine: started, with `repository_key` and a folder of its own as `repository`; that is the
            local repository, which nobody else may write to.
        source: the model repository that versions come from.
        log_path: where its log goes; appended to.
        port: 0 takes a free one, which is kept over restarts.
        arguments: further settings, such as `--table.file=…`, which is needed.
    """

    def __init__(
        self,
        engine: LocalEngine,
        source: Path,
        log_path: Path,
        *,
        port: int = 0,
        arguments: Sequence[str] = (),
    ) -> None:
        self.log_path = log_path
        self._engine = engine
        self._source = source.absolute()
        self._port = port
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    # --- Life ---------------------------------------------------------------------------------

    def start(self, timeout: float = 30.0) -> None:
        """Start it and wait, `timeout` seconds at most, until it listens.

        Raises:
            EngineError: it runs already, has ended instead, or does not listen in time.
        """
        if self.running:
            raise EngineError(f"The loader runs already (process {self.pid}).")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Not in the command line, which everybody can read.
                env=os.environ | {"TIDEGATE_LOADER_TRITON__KEY": self._engine.repository_key},
                # A Ctrl-C is for whoever made it, who then ends it in order.
                start_new_session=True,
                preexec_fn=lambda: _end_with(parent),  # noqa: PLW1509  calls prctl alone
            )
        deadline = time.monotonic() + timeout
        while not self._find_port():
            if self._process.poll() is not None:
                raise EngineError(f"The loader ended at its start: {self._said().strip()}")
            if time.monotonic() > deadline:
                self.kill()
                raise EngineError(f"The loader does not listen after {timeout:g} s: {self._said()}")
            time.sleep(POLL_SECONDS)

    def stop(self, timeout: float = 30.0) -> int:
        """Ask it to leave (SIGTERM), wait, and return its exit status.

        Raises:
            EngineError: it does not run, or is still there after `timeout` seconds.
        """
        process = self._running()
        process.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise EngineError(f"The loader did not leave in {timeout:g} s.") from None

    def kill(self) -> None:
        """Kill it (SIGKILL), if it runs; what the engine has loaded stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, timeout: float = 30.0) -> None:
        """Kill it if it runs, and start it again on the same port. Raises as `start` does."""
        self.kill()
        self.start(timeout)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): connections stay open, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused loader go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    # --- What it is ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended; a paused one counts."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id. Raises EngineError when it does not run."""
        return self._running().pid

    @property
    def address(self) -> str:
        """`host:port` of its HTTP. Raises EngineError before the first start."""
        if not self._port:
            raise EngineError("The loader has no address before its first start.")
        return f"{ports.HOST}:{self._port}"

    def status(self) -> dict[str, Any]:
        """What GET /status tells.

        Raises:
            EngineError: it does not answer.
        """
        code, body = self._ask("/status")
        if code != 200:
            raise EngineError(f"The loader does not tell its status. Log: {self.log_path}")
        told: dict[str, Any] = json.loads(body)
        return told

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until it says that its engine may get traffic.

        Raises:
            EngineError: it does not in time, or has ended; with what it said.
        """
        deadline = time.monotonic() + timeout
        while True:
            code, body = self._ask("/readyz")
            if code == 200:
                return
            if not self.running:
                raise EngineError(f"The loader has ended: {self._said().strip()}")
            if time.monotonic() > deadline:
                said = body.decode(errors="replace").strip() or "no answer"
                raise EngineError(
                    f"The loader is not ready after {timeout:g} s ({said}). Log: {self.log_path}"
                )
            time.sleep(POLL_SECONDS)

    # --- Inside -------------------------------------------------------------------------------

    def _command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tidegate_engine.loader",
            f"--repository.path={self._source}",
            f"--repository.local={self._engine.repository}",
            f"--triton.address={self._engine.http_address}",
            f"--triton.metrics={self._engine.metrics_address}",
            f"--http.host={ports.HOST}",
            f"--http.port={self._port}",
            *self._arguments,
        ]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or not self.running:
            raise EngineError("The loader does not run; start it first.")
        return self._process

    def _ask(self, path: str) -> tuple[int, bytes]:
        """The answer to a GET: status and body; status 0 when there is none."""
        try:
            with urllib.request.urlopen(
                f"http://{self.address}{path}", timeout=ASK_SECONDS
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()
        except OSError:
            return 0, b""

    def _said(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _find_port(self) -> bool:
        # The last line may be half written.
        for line in self._said().rpartition("\n")[0].splitlines():
            if '"message":"listening"' in line:
                self._port = json.loads(line)["http_port"]
                return True
        return False


def _end_with(parent: int) -> None:
    """In the child: be killed when the parent goes, also when it has gone already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
