"""`make demo` as a newcomer runs it, and what is left of it however it ends."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("engine")

ROOT = Path(__file__).parents[2]
LABELS = {
    "chelsea.png": ("tabby", "tiger cat", "Egyptian cat"),
    "coffee.png": ("espresso",),
    "camera.png": ("tripod",),
}
# Seconds: a whole demo, with the environments set up before; and what is left has to be gone.
PATIENCE_S = 120
GONE_S = 20


def free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [probe.getsockname()[1] for probe in probes]


@dataclass
class Demo:
    """One run of `make demo`; every process of it carries `mark` in its environment."""

    process: subprocess.Popen[str]
    mark: str
    said: str = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.said:
            line = self.process.stdout.readline()
            assert line, f"it ended before {text!r}:\n{self.said}"
            self.said += line

    def left_processes(self) -> list[str]:
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    left.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return left

    def wait_until_gone(self) -> None:
        deadline = time.monotonic() + GONE_S
        while left := self.left_processes():
            assert time.monotonic() < deadline, f"left after {GONE_S} s: {left}"
            time.sleep(0.05)


@contextlib.contextmanager
def demo(*arguments: str, ports: list[int] | None = None) -> Iterator[Demo]:
    http, grpc, admin = ports or free_ports()
    mark = f"demo-{uuid.uuid4().hex}"
    variables = [f"HTTP_PORT={http}", f"GRPC_PORT={grpc}", f"ADMIN_PORT={admin}"]
    process = subprocess.Popen(
        ["make", "--no-print-directory", "demo", *variables, *arguments],
        cwd=ROOT,
        env={**os.environ, "TIDEGATE_TEST_MARK": mark, "MAKEFLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    run = Demo(process, mark)
    try:
        yield run
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_once_classifies_the_photos_and_leaves_nothing() -> None:
    with demo("ONCE=1") as run:
        said, _ = run.process.communicate(timeout=PATIENCE_S)
        assert run.process.returncode == 0, said
        for photo, labels in LABELS.items():
            line = rf"^  {re.escape(photo)} +({'|'.join(labels)}) +\d+\.\d% +\d+\.\d ms$"
            assert re.search(line, said, re.MULTILINE), f"{photo}:\n{said}"
        run.wait_until_gone()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str
)
def test_nothing_is_left_however_it_ends(number: signal.Signals) -> None:
    with demo() as run:
        run.read_until("Ctrl-C stops everything.")
        # make, the demo, the gateway, the engine's guard, Triton and its backend process.
        assert len(run.left_processes()) >= 6
        os.killpg(run.process.pid, number)
        run.process.wait(GONE_S)
        run.wait_until_gone()


@pytest.mark.needs("curl")
def test_the_curl_lines_run_as_they_are_printed() -> None:
    with demo() as run:
        run.read_until("Ctrl-C stops everything.")
        lines = [line.strip() for line in run.said.splitlines() if line.startswith("  curl ")]
        assert len(lines) == 2
        answers = [
            subprocess.run(
                [*shlex.split(line), "--silent", "--fail"],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for line in lines
        ]
        assert '"top":[{"index":28' in answers[0]
        assert '"name":"image_classifier"' in answers[1]


@pytest.mark.parametrize(("place", "name"), [(0, "HTTP"), (1, "GRPC"), (2, "ADMIN")])
def test_an_occupied_port_is_one_sentence(place: int, name: str) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports[place])), demo("ONCE=1", ports=ports) as run:
        said, _ = run.process.communicate(timeout=PATIENCE_S)
        assert run.process.returncode != 0
        assert said.splitlines()[0] == (
            f"demo: port {ports[place]} is taken: stop what listens there, or choose another "
            f"with `make demo {name}_PORT=…`."
        )
        assert "Traceback" not in said
