"""The operator as a process without an API server: it waits for one, and says so."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def operator(folder: Path, port: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """An operator whose API server does not listen."""
    named = {"name": "a"}
    (folder / "kubeconfig").write_text(
        json.dumps(
            {
                "current-context": "a",
                "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
                "users": [{**named, "user": {"token": "none"}}],
                "contexts": [{**named, "context": {"cluster": "a", "user": "a"}}],
            }
        )
    )
    command = [sys.executable, "-m", "tidegate_operator", "--liveness.host=127.0.0.1",
               f"--liveness.port={port}", "--pace.pause_first_s=0.1", *arguments]  # fmt: skip
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def logged(folder: Path) -> list[dict[str, Any]]:
    whole = (folder / "log").read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def livez(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


def test_it_lives_and_tries_again_and_leaves_in_order(tmp_path: Path) -> None:
    port = free_port()
    with operator(tmp_path, port) as process:
        until(lambda: livez(port) == 200, "it is alive")
        failed = "a round failed"
        until(lambda: [each["message"] for each in logged(tmp_path)].count(failed) >= 3, failed)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0

    (last,) = logged(tmp_path)[-1:]
    assert last["message"] == "gone"
    reasons = {each["reason"] for each in logged(tmp_path) if each["message"] == failed}
    assert all(reason.startswith("read the lease: ConnectError") for reason in reasons)


def test_one_whose_loop_is_stuck_fails_the_probe(tmp_path: Path) -> None:
    port = free_port()
    with operator(tmp_path, port, "--liveness.stuck_s=0.000001"):
        until(lambda: livez(port) == 500, "the probe fails")


def test_a_port_that_is_taken_ends_it(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        operator(tmp_path, taken.getsockname()[1]) as process,
    ):
        assert process.wait(WAIT_S) == 1
    assert any("address already in use" in each.get("exception", "") for each in logged(tmp_path))
