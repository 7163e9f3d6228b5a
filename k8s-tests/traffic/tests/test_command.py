"""The command line and the control port, on a real process; what it sends goes nowhere."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate_traffic import Control, LocalTraffic, Report
from tidegate_traffic.errors import ControlError, TrafficError

COMMAND = [sys.executable, "-m", "tidegate_traffic"]


def tidegate_traffic(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port where connections are taken and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        yield server.getsockname()[1]


def plan_to(port: int, **members: Any) -> dict[str, Any]:
    route = {
        "name": "tensors",
        "kind": "v2_json",
        "model": "identity",
        "rate": 50,
        "timeout_s": 1,
        "input": "INPUT",
        "output": "OUTPUT",
    }
    return {"http": f"http://127.0.0.1:{port}", "routes": [route], **members}


def test_a_run_from_the_command_line(nowhere: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_to(nowhere)))
    ended = subprocess.run(
        [*COMMAND, "run", str(path), "--duration-s=0.2"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1  # requests have failed
    report = Report.from_document(json.loads(ended.stdout))
    assert (report.state, report.ok, report.failed) == ("ended", 0, 10)
    assert "10 failed" in ended.stderr


def test_no_run_without_a_plan(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "run", str(tmp_path / "none.json")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"the plan {tmp_path / 'none.json'}: expected a JSON file, got")
    assert ended.stderr.count("\n") == 1


def test_it_waits_for_its_start_and_ends_at_sigterm(nowhere: int, tmp_path: Path) -> None:
    with LocalTraffic(plan_to(nowhere), tmp_path, ["--wait-for-start"]) as traffic:
        assert traffic.control.in_flight().state == "waiting"
        assert traffic.control.report().routes["tensors"].scheduled == 0
        traffic.control.start()
        traffic.control.wait_in_flight(5)
        os.kill(traffic.pid, signal.SIGTERM)
        traffic.wait()
    assert "ended" in traffic.log_path.read_text()


def test_a_fault_tells_what_was_in_flight(nowhere: int, tmp_path: Path) -> None:
    with LocalTraffic(plan_to(nowhere), tmp_path) as traffic:
        traffic.control.wait_in_flight(5)
        with traffic.control.fault("nothing / at all"):
            pass
        with (
            pytest.raises(ControlError, match="announced before"),
            traffic.control.fault("nothing / at all"),
        ):
            pytest.fail("the fault was announced twice")
        (fault,) = traffic.stop().faults
    assert fault.name == "nothing / at all"
    assert fault.in_flight >= 1
    assert fault.by_outcome == {"timeout": fault.in_flight}


def test_a_run_is_asked_through_a_command(nowhere: int, tmp_path: Path) -> None:
    """As through `kubectl exec`, which runs the same in the pod."""
    with LocalTraffic(plan_to(nowhere), tmp_path, ["--stay"]) as traffic:
        control = Control.through([*COMMAND, "ask", f"--url={traffic.url}"])
        control.wait_in_flight(5)
        refused = tidegate_traffic("ask", f"--url={traffic.url}", "end-fault", "kill")
        assert refused.returncode == 2
        assert "the fault 'kill' is not under way" in refused.stderr
        report = control.stop()
        assert control.report() == report  # it stays
        os.kill(traffic.pid, signal.SIGTERM)
        assert traffic.wait() == 1
    assert report.state == "ended"
    assert report.failed == report.routes["tensors"].scheduled > 0


def test_asking_nobody(nowhere: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ControlError, match=f"in-flight: no answer from http://127.0.0.1:{port}"):
        Control.at(f"http://127.0.0.1:{port}").in_flight()


def test_a_bad_plan_ends_the_start_with_its_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(TrafficError, match="unknown member 'retries'"),
        LocalTraffic({"routes": [], "retries": 3}, tmp_path),
    ):
        pytest.fail("it started")


def test_a_taken_control_port(nowhere: int, tmp_path: Path) -> None:
    with (
        pytest.raises(TrafficError, match=f"the control port 127.0.0.1:{nowhere} cannot be opened"),
        LocalTraffic(plan_to(nowhere), tmp_path, [f"--control-port={nowhere}"]),
    ):
        pytest.fail("it started")
