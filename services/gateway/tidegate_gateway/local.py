"""A gateway as a child process on 127.0.0.1, for the demo, the tests and the benchmarks.

    with LocalGateway(engine_address="127.0.0.1:8001", log_path=Path("gateway.log")) as gateway:
        print(gateway.http_url)

It ends with the process that made it, even when that is killed. Standard library only.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_HOST = "127.0.0.1"
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class GatewayError(Exception):
    """The gateway did not start; the message holds what it said."""


class LocalGateway:
    """A gateway in front of the engine at `engine_address`; a context manager.

    Args:
        engine_address: host:port of the engine's gRPC service.
        log_path: where its log goes; appended to.
        http_port, grpc_port, admin_port: 0 takes a free one, anew at each start.
        arguments: further settings, such as `--deadline.predict_s=1`.
    """

    def __init__(  # noqa: PLR0913 - keywords with defaults
        self,
        engine_address: str,
        log_path: Path,
        *,
        http_port: int = 0,
        grpc_port: int = 0,
        admin_port: int = 0,
        arguments: Sequence[str] = (),
    ) -> None:
        self.log_path = log_path
        self._command = [
            sys.executable,
            "-m",
            "tidegate_gateway",
            f"--engine.address={engine_address}",
            f"--http.host={_HOST}",
            f"--http.port={http_port}",
            f"--grpc.host={_HOST}",
            f"--grpc.port={grpc_port}",
            f"--admin.host={_HOST}",
            f"--admin.port={admin_port}",
            # Nobody balances over a local gateway, so nobody has to notice that it leaves.
            "--drain.delay_s=0",
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._listening: dict[str, Any] = {}

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

    @property
    def http_url(self) -> str:
        """Where it takes HTTP."""
        return f"http://{_HOST}:{self._listening['http_port']}"

    @property
    def grpc_address(self) -> str:
        """Where it takes gRPC."""
        return f"{_HOST}:{self._listening['grpc_port']}"

    @property
    def admin_url(self) -> str:
        """Where it answers /livez, /readyz and /metrics."""
        return f"http://{_HOST}:{self._listening['admin_port']}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def start(self, timeout: float = 30.0) -> None:
        """Start it and wait, `timeout` seconds at most, until it listens.

        Must be called from a thread that lives as long as the gateway should: the kernel ends it
        with the thread that made it.

        Raises:
            GatewayError: it ended instead, or the time is up.
        """
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            parent = os.getpid()
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C is for whoever made it, who then ends it in order.
                start_new_session=True,
                preexec_fn=lambda: _end_with(parent),  # noqa: PLW1509 - calls prctl alone
            )
        deadline = time.monotonic() + timeout
        while not self._find_listening():
            if self._process.poll() is not None:
                raise GatewayError(f"the gateway ended at its start: {self._said().strip()}")
            if time.monotonic() > deadline:
                self.kill()
                raise GatewayError(
                    f"the gateway does not listen after {timeout:g} s: {self._said()}"
                )
            time.sleep(_POLL_S)

    def stop(self, timeout: float = 60.0) -> int:
        """Ask it to leave (SIGTERM), wait, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it is still there after `timeout` seconds.
        """
        process = self._running()
        process.terminate()
        return process.wait(timeout)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._running().poll()

    def log_records(self) -> list[dict[str, Any]]:
        """What it has logged since its last start."""
        return [json.loads(line) for line in self._said().splitlines() if line.startswith("{")]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise GatewayError("the gateway has not been started")
        return self._process

    def _said(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _find_listening(self) -> bool:
        # The last line may be half written.
        whole = self._said().rpartition("\n")[0]
        for line in whole.splitlines():
            if '"message":"listening"' in line:
                self._listening = json.loads(line)
                return True
        return False


def _end_with(parent: int) -> None:
    """In the child: be killed when the parent goes, also when it has gone already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
