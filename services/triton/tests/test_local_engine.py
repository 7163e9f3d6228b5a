"""A local engine on a real Triton: it serves, it can be disturbed, and it leaves nothing behind."""

import http.client
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tidegate_engine.local import EngineError, LocalEngine, engine, leftovers, ports

pytestmark = pytest.mark.needs("engine")

VALUES = [1.5, -2.0, 3.25]
CONFIG = """
backend: "python"
input [{name: "x", data_type: TYPE_FP32, dims: [-1]}]
output [{name: "y", data_type: TYPE_FP32, dims: [-1]}]
"""
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]) for x in inputs]
"""


@pytest.fixture(scope="module")
def tiny_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Triton model repository with `echo` (y = x, FP32) and `broken`, which cannot load."""
    repository = tmp_path_factory.mktemp("it's a repository")
    for name, source in (("echo", MODEL), ("broken", "import no_such_module\n")):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(source)
    return repository


@pytest.fixture
def echo(tiny_repository: Path) -> Iterator[LocalEngine]:
    with LocalEngine(["echo"], repository=tiny_repository) as started:
        yield started


def infer(address: str, timeout: float = 20.0) -> bytes:
    """The bytes that `echo` answers to VALUES, as KServe v2's binary tensor extension has them."""
    tensor = struct.pack("<3f", *VALUES)
    x = {"name": "x", "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    y = {"name": "y", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [x], "outputs": [y]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    with closing(http.client.HTTPConnection(address, timeout=timeout)) as connection:
        connection.request("POST", "/v2/models/echo/infer", head + tensor, headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body[int(answer.headers["Inference-Header-Content-Length"]) :]


def eventually(holds: Callable[[], object], otherwise: str) -> None:
    """Wait, with an end, until something holds; fail with the sentence given when it never does."""
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(otherwise)
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def remains(prefix: str) -> list[str]:
    """Processes and shared memory regions of an engine."""
    regions = [str(path) for path in Path("/dev/shm").glob(f"{prefix}*")]
    return [*map(str, leftovers.processes(prefix)), *regions]


def test_it_serves_the_right_bytes_and_stops(echo: LocalEngine) -> None:
    assert infer(echo.http_address) == struct.pack("<3f", *VALUES)
    for address in (echo.grpc_address, echo.metrics_address):
        host, port = address.split(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=5).close()
    assert is_alive(echo.pid)
    assert len(echo.stub_pids()) == 1
    assert echo.stub_pids("echo") == echo.stub_pids()
    assert echo.stub_pids("other") == []
    assert remains(echo.shared_memory_prefix)
    echo.stop()
    assert not echo.running
    assert remains(echo.shared_memory_prefix) == []
    assert "successfully unloaded 'echo'" in echo.log_path.read_text()


def test_given_ports_are_used(tiny_repository: Path) -> None:
    given = ports.settle(ports.Ports(0, 0, 0))
    with LocalEngine(
        repository=tiny_repository,
        grpc_port=given.grpc,
        http_port=given.http,
        metrics_port=given.metrics,
    ) as started:
        addresses = (started.grpc_address, started.http_address, started.metrics_address)
        assert addresses == tuple(f"127.0.0.1:{port}" for port in given)
        other = LocalEngine(grpc_port=given.grpc)
        with pytest.raises(EngineError, match=f"grpc port {given.grpc} on 127.0.0.1 cannot be"):
            other.start()
        assert not other.log_path.exists(), "Triton was started although the port is taken"


@pytest.mark.parametrize("stolen", ["grpc", "http", "metrics"])
def test_a_chosen_port_that_is_lost_to_another_process_is_chosen_anew(
    stolen: str, tiny_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as thief:

        def settle_and_steal(wanted: ports.Ports) -> ports.Ports:
            # The moment between our look at a port and Triton's cannot be hit from outside.
            monkeypatch.undo()
            settled = ports.settle(wanted)
            listener = thief.enter_context(socket.socket())
            listener.bind((ports.HOST, getattr(settled, stolen)))
            listener.listen()
            return settled

        monkeypatch.setattr(ports, "settle", settle_and_steal)
        with LocalEngine(["echo"], repository=tiny_repository) as started:
            assert infer(started.http_address) == struct.pack("<3f", *VALUES)
            assert "already in use" in started.log_path.read_text()


def test_a_broken_model_fails_the_start_in_tritons_words(tiny_repository: Path) -> None:
    broken = LocalEngine(["broken"], repository=tiny_repository)
    with pytest.raises(EngineError, match="No module named 'no_such_module'") as raised:
        broken.start()
    assert str(broken.log_path) in str(raised.value)
    assert not broken.running
    assert remains(broken.shared_memory_prefix) == []


def test_a_missing_repository_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"There is no model repository at .*none"):
        LocalEngine(repository=tmp_path / "none").start()


def test_a_model_that_is_not_there_is_not_ready(echo: LocalEngine) -> None:
    echo.wait_ready("echo")
    echo.wait_ready("echo", "1")
    with pytest.raises(EngineError, match=r"Model .other. version 7 is not ready after 0\.1 s"):
        echo.wait_ready("other", "7", timeout=0.1)


def test_a_directory_with_spaces_and_quotes_is_no_trouble(
    tiny_repository: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "it's a directory"
    with LocalEngine(["echo"], repository=tiny_repository, directory=directory) as started:
        assert infer(started.http_address) == struct.pack("<3f", *VALUES)
        assert started.log_path == directory / "triton.log"


def test_a_second_start_is_refused(echo: LocalEngine) -> None:
    with pytest.raises(EngineError, match=f"runs already .process {echo.pid}"):
        echo.start()
    assert echo.running


def test_killed_it_is_gone_and_starts_again_on_the_same_ports(echo: LocalEngine) -> None:
    before = (echo.grpc_address, echo.http_address, echo.metrics_address)
    first, stubs = echo.pid, echo.stub_pids()
    echo.kill()
    assert not any(map(is_alive, [first, *stubs]))
    assert remains(echo.shared_memory_prefix) == []
    with pytest.raises(ConnectionRefusedError):
        infer(echo.http_address)
    echo.start()
    assert (echo.grpc_address, echo.http_address, echo.metrics_address) == before
    assert infer(echo.http_address) == struct.pack("<3f", *VALUES)
    second = echo.pid
    echo.restart()
    assert second not in (first, echo.pid)
    assert (echo.grpc_address, echo.http_address, echo.metrics_address) == before


def test_paused_it_is_silent_and_resumed_it_answers(echo: LocalEngine) -> None:
    echo.pause()
    assert echo.running
    with pytest.raises(TimeoutError):
        infer(echo.http_address, timeout=0.2)
    echo.resume()
    assert infer(echo.http_address) == struct.pack("<3f", *VALUES)


@pytest.mark.parametrize("end", [LocalEngine.stop, LocalEngine.kill])
def test_paused_it_can_be_ended(echo: LocalEngine, end: Callable[[LocalEngine], None]) -> None:
    echo.pause()
    end(echo)
    assert not echo.running
    assert remains(echo.shared_memory_prefix) == []


def test_a_stop_that_a_hanging_model_holds_up_ends_with_the_grace(echo: LocalEngine) -> None:
    (stub,) = echo.stub_pids()
    os.kill(stub, signal.SIGSTOP)
    echo.stop(grace=0.2)
    assert not is_alive(stub)
    assert remains(echo.shared_memory_prefix) == []


def test_when_triton_dies_its_stubs_go_too_and_the_engine_tells(echo: LocalEngine) -> None:
    (stub,) = echo.stub_pids()
    os.kill(stub, signal.SIGSTOP)  # one that hangs does not notice that Triton is gone
    os.kill(echo.pid, signal.SIGKILL)
    assert echo.wait().startswith("Triton ended with status -9: ")
    assert not is_alive(stub)
    assert remains(echo.shared_memory_prefix) == []
    assert not echo.running
    with pytest.raises(EngineError, match="Triton ended with status -9"):
        echo.wait_ready("echo")
    echo.start()
    assert infer(echo.http_address) == struct.pack("<3f", *VALUES)


def test_when_the_guard_is_killed_triton_dies_with_it_and_the_rest_is_removed(
    echo: LocalEngine, tiny_repository: Path
) -> None:
    (stub,) = echo.stub_pids()
    os.kill(stub, signal.SIGSTOP)
    triton = echo.pid
    os.kill(parent_of(triton), signal.SIGKILL)
    eventually(lambda: not is_alive(triton), "Triton outlived its guard")
    assert is_alive(stub), "a stopped stub cannot end by itself: this test proves nothing"
    # Another engine of this clone finds what was left.
    with LocalEngine(repository=tiny_repository):
        assert not is_alive(stub)
        assert remains(echo.shared_memory_prefix) == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# --- The owner dies -----------------------------------------------------------------------------

OWNER = """
import fcntl, json, os, sys, termios, threading, time
from pathlib import Path
from tidegate_engine.local import LocalEngine

if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # signals of the terminal are for this session
engine = LocalEngine(["echo"], repository=Path(sys.argv[1]))
# In a thread that ends: a parent-death signal bound to it would come now.
starter = threading.Thread(target=engine.start)
starter.start()
starter.join()
if "paused" in sys.argv:
    engine.pause()
child = 0
if "forked" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
print(json.dumps([engine.shared_memory_prefix, engine.pid, *engine.stub_pids()]), child, flush=True)
if "returning" not in sys.argv:
    time.sleep(600)
"""


class Owner:
    """A process that has started an engine, in a session and a terminal of its own."""

    def __init__(self, repository: Path, *words: str) -> None:
        self.terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, repository, *words],
            stdin=inside,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(inside)
        assert self.process.stdout is not None
        engine, _, child = self.process.stdout.readline().decode().rpartition(" ")
        self.prefix, *self.engine_pids = json.loads(engine)
        self.child = int(child)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        with suppress(OSError):  # hung up already
            os.close(self.terminal)
        if self.child:
            os.kill(self.child, signal.SIGKILL)


def kill(owner: Owner) -> None:
    owner.process.kill()


def kill_group(owner: Owner) -> None:
    os.killpg(owner.process.pid, signal.SIGKILL)


def press_ctrl_c(owner: Owner) -> None:
    os.write(owner.terminal, b"\x03")


def hang_up(owner: Owner) -> None:
    os.close(owner.terminal)


def let_return(owner: Owner) -> None:
    owner.process.wait(20)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ([], kill),
        ([], kill_group),
        ([], press_ctrl_c),
        ([], hang_up),
        (["returning"], let_return),
        (["paused"], kill),
        (["forked"], kill),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(value) or "plain",
)
def test_nothing_outlives_the_owner_however_it_ends(
    words: list[str],
    end: Callable[[Owner], None],
    tiny_repository: Path,
) -> None:
    with closing(Owner(tiny_repository, *words)) as owner:
        assert len(owner.engine_pids) == 2
        if end is not let_return:
            assert all(map(is_alive, owner.engine_pids))
        end(owner)
        owner.process.wait(20)
        eventually(
            lambda: not remains(owner.prefix) and not any(map(is_alive, owner.engine_pids)),
            f"left behind: {remains(owner.prefix)}",
        )
        assert not (engine.RUNS / f"{owner.prefix}.lock").exists()


# --- In the foreground --------------------------------------------------------------------------


def test_in_the_foreground_it_prints_its_addresses_and_ends_on_ctrl_c(
    tiny_repository: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tidegate_engine.local", "--model", "echo"]
    command += ["--repository", str(tiny_repository), "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        addresses = dict(line.split() for line in lines[:4])
        assert infer(addresses["HTTP"]) == struct.pack("<3f", *VALUES)
        assert Path(addresses["log"]) == tmp_path / "triton.log"
        assert lines[4] == "Ctrl-C stops it.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        infer(addresses["HTTP"])


def test_in_the_foreground_a_failure_is_a_message_and_status_1(tiny_repository: Path) -> None:
    command = [sys.executable, "-m", "tidegate_engine.local", "--model", "broken"]
    command += ["--repository", str(tiny_repository)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "No module named 'no_such_module'" in ended.stderr
    assert "Traceback" not in ended.stderr
