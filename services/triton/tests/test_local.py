"""The decisions of the local engine that need no Triton."""

import fcntl
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate_engine.local import EngineError, LocalEngine, environment, leftovers, log, ports

FIT = environment.Environment(
    path=Path("env"),
    version=(3, 11),
    libpython=Path("libpython3.11.so.1.0"),
    numpy="1.26.4",
    pytriton=Path("pytriton"),
)


@pytest.mark.parametrize(
    ("unfit", "sentence"),
    [
        ({"version": (3, 13)}, "has Python 3.13; the engine needs 3.11 or 3.12"),
        ({"libpython": None}, "without its shared library libpython3.11.so.1.0"),
        ({"pytriton": None}, "lacks the package nvidia-pytriton"),
        ({"numpy": None}, "lacks the package numpy"),
        ({"numpy": "2.3.1"}, "has numpy 2.3.1; it needs numpy < 2"),
    ],
)
def test_an_unfit_environment_is_told_in_a_sentence(
    unfit: dict[str, object], sentence: str
) -> None:
    said = environment.misfit(replace(FIT, **unfit))  # type: ignore[arg-type]
    assert said is not None
    assert said.startswith("The engine environment env ")
    assert sentence in said


def test_a_fit_environment_is_taken() -> None:
    assert environment.misfit(FIT) is None
    assert environment.misfit(replace(FIT, version=(3, 12))) is None


def test_a_missing_environment_is_told_with_what_makes_it(tmp_path: Path) -> None:
    engine = LocalEngine(environment=tmp_path / "none", directory=tmp_path / "engine")
    with pytest.raises(EngineError, match=r"There is no engine environment at .*none: run `make"):
        engine.start()
    assert not engine.running


def test_numpy_2_in_the_environment_stops_the_start(tmp_path: Path) -> None:
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python3.*/site-packages")
    (packages / "pytriton").mkdir()
    (packages / "pytriton" / "__init__.py").touch()
    (packages / "numpy-2.3.1.dist-info").mkdir()
    (packages / "numpy-2.3.1.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 2.3.1\n")
    probed = environment.probe(home)
    assert probed.numpy == "2.3.1"
    assert probed.pytriton == packages / "pytriton"
    # Whatever runs this test may be unfit for an engine in other ways, which are told first.
    fit_but_for_numpy = replace(probed, version=(3, 11), libpython=FIT.libpython)
    said = environment.misfit(fit_but_for_numpy)
    assert said is not None
    assert "it needs numpy < 2" in said


def test_the_environment_is_the_one_given_then_the_variable_then_the_clones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    assert environment.location(None) == environment.ROOT / ".venvs" / "engine"
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "variable"))
    assert environment.location(None) == tmp_path / "variable"
    assert environment.location(tmp_path / "given") == tmp_path / "given"


def test_the_callers_python_variables_do_not_reach_the_models() -> None:
    inherited = {"PATH": "/usr/bin", "PYTHONPATH": "elsewhere", "PYTHONHOME": "there", "LANG": "C"}
    assert environment.variables(FIT, inherited) == {
        "PATH": "env/bin:/usr/bin",
        "LANG": "C",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_a_failure_is_told_in_tritons_final_words() -> None:
    text = (
        "I1130 18:14:44.8 7218 server.cc:1] x\nerror: creating server: load failed\n\nAt:\n  m\n;\n"
    )
    assert log.reason(text) == "error: creating server: load failed\nAt:\n  m"


def test_without_final_words_the_last_error_line_tells() -> None:
    text = (
        'E1130 18:14:47.7 7316 main.cc:1] "first"\n'
        'E1130 18:14:47.7 7316 main.cc:2] "second"\n'
        "I1130 18:14:48.7 7326 pb_stub.cc:3]  Non-graceful termination detected.\n"
    )
    assert log.reason(text) == '"second"'


def test_without_any_error_the_last_lines_tell() -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    assert log.reason(text) == "\n".join(f"line {number}" for number in range(28, 40))
    assert log.reason("") == "its log is empty"


def test_ports_not_given_are_free_and_outside_the_range_of_clients() -> None:
    settled = ports.settle(ports.Ports(0, 0, 0))
    assert len(set(settled)) == 3
    assert all(port in ports.CHOICE for port in settled)


def test_a_given_port_that_is_taken_is_named() -> None:
    with socket.socket() as listener:
        listener.bind((ports.HOST, 0))
        listener.listen()
        taken = listener.getsockname()[1]
        expected = f"http port {taken} on 127.0.0.1 cannot be used .Address already in use."
        with pytest.raises(EngineError, match=expected):
            ports.settle(ports.Ports(grpc=0, http=taken, metrics=0))


def test_one_port_for_two_uses_is_refused() -> None:
    with pytest.raises(EngineError, match="Port 18001 is given for two uses"):
        ports.settle(ports.Ports(grpc=18001, http=18001, metrics=0))


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(EngineError, match="not between 1 and 65535"):
        ports.settle(ports.Ports(grpc=port, http=0, metrics=0))


def test_an_engine_that_was_never_started_says_so() -> None:
    engine = LocalEngine()
    assert not engine.running
    with pytest.raises(EngineError, match="no addresses before its first start"):
        _ = engine.grpc_address
    with pytest.raises(EngineError, match="does not run"):
        _ = engine.pid
    with pytest.raises(EngineError, match="does not run"):
        engine.pause()
    engine.stop()
    engine.kill()


class TestLeftovers:
    def test_only_what_a_dead_guard_left_is_removed(self, tmp_path: Path) -> None:
        dead, living = "tidegate-00000000dead", "tidegate-0000000a11fe"
        regions = [Path("/dev/shm") / f"{prefix}region" for prefix in (dead, living)]
        held = []
        for prefix in (dead, living):
            record, lock = leftovers.register(tmp_path, prefix)
            held.append(lock)
            assert record == tmp_path / f"{prefix}.lock"
        os.close(held[0])  # as the kernel does when the process that holds it dies
        try:
            for region in regions:
                region.touch()
            leftovers.clear_dead(tmp_path)
            assert [region.exists() for region in regions] == [False, True]
            assert [path.name for path in tmp_path.glob("*.lock")] == [f"{living}.lock"]
        finally:
            os.close(held[1])
            for region in regions:
                region.unlink(missing_ok=True)

    def test_a_record_is_locked_as_long_as_its_descriptor_is_open(self, tmp_path: Path) -> None:
        record, lock = leftovers.register(tmp_path, "tidegate-00000000aaaa")
        with record.open() as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(lock)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_no_process_is_looked_for_by_a_looser_name(self) -> None:
        for prefix in ("", "tidegate-", "tidegate-00000000000", "python"):
            with pytest.raises(ValueError, match="not the prefix of a local engine"):
                leftovers.clear(prefix)

    def test_the_folders_of_the_latest_engines_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leftovers, "KEPT_FOLDERS", 2)
        for age, name in enumerate(("newest", "newer", "old", "oldest-but-mine", "oldest")):
            folder = tmp_path / f"tidegate-{name}"
            folder.mkdir()
            if name == "oldest-but-mine":
                leftovers.claim(folder)
            os.utime(folder, (1e9 - age, 1e9 - age))
        leftovers.clear_dead(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {
            "tidegate-newest",
            "tidegate-newer",
            "tidegate-oldest-but-mine",
        }
