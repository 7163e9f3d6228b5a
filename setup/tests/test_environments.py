"""Which Python, which uv, which sentence; and real runs on a clone that holds next to nothing."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

# Scripts beside this folder, not a package: they import each other from their own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import environments
import interpreters
import uv
from interpreters import Interpreter

OLD = Interpreter("/usr/bin/python3.10", (3, 10, 12), libpython="/lib/libpython3.10.so.1.0")
PY311 = Interpreter("/opt/python3.11", (3, 11, 7), libpython="/opt/libpython3.11.so.1.0")
PY312 = Interpreter("/opt/python3.12", (3, 12, 1), libpython="/opt/libpython3.12.so.1.0")
PY313 = Interpreter("/opt/python3.13", (3, 13, 0), libpython="/opt/libpython3.13.so.1.0")
DEBIAN = Interpreter("/usr/bin/python3.11", (3, 11, 2), libpython=None, venv=False)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], None),
        ([OLD, PY313], None),
        ([DEBIAN], None),
        ([DEBIAN, PY312, PY311], PY312),
        ([PY313, PY311], PY311),
        ([replace(PY311, standard=False), PY312], PY312),
    ],
)
def test_the_engine_gets_the_first_311_or_312_with_its_library(
    found: list[Interpreter], chosen: Interpreter | None
) -> None:
    assert interpreters.for_engine(found) == chosen


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], None),
        ([OLD], None),
        ([OLD, DEBIAN, PY311], DEBIAN),
        ([PY313, PY312], PY312),
        ([OLD, PY313], None),
        ([replace(PY311, standard=False)], None),
    ],
)
def test_the_gateway_gets_the_first_311_or_312(
    found: list[Interpreter], chosen: Interpreter | None
) -> None:
    assert interpreters.for_gateway(found) == chosen


def test_uv_is_fetched_with_the_first_that_has_venv_and_pip() -> None:
    assert interpreters.for_bootstrap([DEBIAN, OLD, PY311]) == OLD
    assert interpreters.for_bootstrap([DEBIAN]) is None


def test_where_none_fits_the_sentence_says_what_was_wanted_found_and_tried() -> None:
    assert interpreters.none_fits("engine", [DEBIAN, PY313], "no route to host") == (
        "The engine needs Python 3.11 or 3.12 with its shared library (libpython3.x.so.1.0), which "
        "is not on this machine (found: 3.11.2, without its shared library (/usr/bin/python3.11); "
        "3.13.0 (/opt/python3.13)) and which uv could not download (no route to host): install it, "
        "on Debian 12 with `apt install python3.11 libpython3.11`, on Ubuntu 24.04 with "
        "`apt install python3.12 libpython3.12`."
    )
    assert "(found: none)" in interpreters.none_fits("gateway", [], "no route to host")


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (("Linux", "x86_64", "glibc 2.35"), None),
        (("Linux", "x86_64", "glibc 2.100"), None),
        (("Linux", "x86_64", "glibc 2.31"), "needs glibc 2.35 or newer; this machine has glibc 2"),
        (("Linux", "x86_64", None), "needs glibc 2.35 or newer; this machine has another C lib"),
        (("Linux", "aarch64", "glibc 2.36"), "runs on Linux x86_64; this machine is Linux aarch64"),
        (("Darwin", "x86_64", None), "runs on Linux x86_64; this machine is Darwin x86_64"),
    ],
)
def test_a_machine_that_cannot_run_triton_is_told_so(
    machine: tuple[str, str, str | None], sentence: str | None
) -> None:
    said = environments.unfit_machine(*machine)
    assert (said is None) == (sentence is None)
    assert (sentence or "") in (said or "")


def test_versions_are_compared_as_numbers() -> None:
    assert uv.version("uv 0.13.9 (abc 2026-01-01)") == (0, 13, 9)
    assert uv.version("0.10.1") > uv.version("0.9.30")
    assert uv.version("garbage") == () < uv.version("0.1")
    assert uv.minimum('[tool.uv]\nrequired-version = ">=0.9"\n') == (0, 9)
    assert uv.minimum("[tool.uv]\n") == ()


def test_a_failure_is_quoted_with_its_first_error_and_its_last_cause() -> None:
    output = (
        "Resolved 71 packages\nerror: Failed to download `x==1`\n  cause: Failed to fetch\n"
        "  cause: Connection refused (os error 111)\n\nhint: `x` was included because\n"
    )
    assert uv.quote(output) == (
        "error: Failed to download `x==1` (Connection refused (os error 111))"
    )
    assert uv.quote("  × No solution found\n") == "No solution found"
    assert uv.quote("") == "it said nothing"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_pythons_are_looked_for_on_path_in_pyenv_and_among_uvs(tmp_path: Path) -> None:
    paths = [
        script(tmp_path / "bin" / "python3.12", ""),
        script(tmp_path / "pyenv" / "versions" / "3.11.9" / "bin" / "python3.11", ""),
        script(tmp_path / "pyenv" / "versions" / "3.11.7" / "bin" / "python3.11", ""),
        script(tmp_path / "uv" / "cpython-3.11.15-linux" / "bin" / "python3.11", ""),
    ]
    variables = {
        "PATH": str(tmp_path / "bin"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uv"),
    }
    found = interpreters.candidates(variables)
    assert [path for path in found if path.startswith(str(tmp_path))] == [*map(str, paths)]


def test_what_does_not_run_is_passed_over_and_what_is_found_twice_counts_once(
    tmp_path: Path,
) -> None:
    shim = script(tmp_path / "shim", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    chatty = script(tmp_path / "chatty", "echo hello")
    again = tmp_path / "again"
    again.symlink_to(sys.executable)
    paths = [str(shim), str(chatty), str(tmp_path / "none"), sys.executable, str(again)]
    (found,) = interpreters.probe(paths)
    assert found.version == sys.version_info[:3]
    # Behind the virtual environment that runs this test.
    assert Path(found.path).resolve() == Path(sys.executable).resolve()
    assert not found.path.startswith(sys.prefix + os.sep) or sys.prefix == sys.base_prefix


def test_a_virtual_environment_without_pip_is_no_way_to_uv(tmp_path: Path) -> None:
    with pytest.raises(uv.SetupError, match="apt install python3-venv"):
        uv.provide(bare_root(tmp_path, required="99"), [DEBIAN])


def test_a_uv_that_cannot_be_fetched_is_told_with_what_pip_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    found = interpreters.probe([sys.executable])
    with pytest.raises(uv.SetupError, match=r"Fetching uv .* failed: ERROR: .*uv=="):
        uv.provide(bare_root(tmp_path, required="99"), found)


def bare_root(folder: Path, *, required: str) -> Path:
    (folder / "pyproject.toml").write_text(f'[tool.uv]\nrequired-version = ">={required}"\n')
    return folder


def test_the_head_of_pyproject_names_each_environment() -> None:
    head, _, _ = (environments.ROOT / "pyproject.toml").read_text().partition("[project]")
    told = {tuple(line.strip("# ").split()) for line in head.splitlines() if "uv sync" in line}
    made = {each for purpose in environments.PURPOSES.values() for each in purpose}
    assert {(line[0], line[line.index("sync") + 1 :]) for line in told} == {
        (each.path, each.contents) for each in made
    }


# --- Real runs ----------------------------------------------------------------------------------

PYPROJECT = """
[project]
name = "tiny"
version = "0.1.0"
requires-python = ">=3.11"
[dependency-groups]
demo = []
engine = []
[tool.uv]
package = false
"""


class Clone:
    """A clone that holds the set-up and a lock file without any package: no downloads."""

    def __init__(self, root: Path, tool: str) -> None:
        self.root = root
        self.path = f"{Path(tool).parent}{os.pathsep}{os.environ['PATH']}"
        shutil.copytree(
            Path(environments.__file__).parent,
            root / "setup",
            ignore=shutil.ignore_patterns("__pycache__", "tests"),
        )
        (root / "pyproject.toml").write_text(PYPROJECT)
        subprocess.run([tool, "lock", "--offline", "--quiet"], cwd=root, check=True)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "setup/environments.py", *arguments],
            cwd=self.root,
            env=os.environ | {"PATH": self.path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=120)
            return process.returncode, output


@pytest.fixture(scope="module")
def tool() -> str:
    """The uv that this clone is set up with."""
    found = interpreters.probe(interpreters.candidates(os.environ))
    return uv.provide(environments.ROOT, found).path


@pytest.fixture
def clone(tmp_path: Path, tool: str) -> Clone:
    return Clone(tmp_path, tool)


def test_environments_are_made_once_and_again_when_what_they_come_from_changes(
    clone: Clone,
) -> None:
    status, output = clone.run("demo")
    assert status == 0, output
    assert "Setting up .venvs/demo (the gateway): done in" in output
    assert "Setting up .venvs/engine (Triton, ONNX Runtime; 150 MB): done in" in output
    assert clone.run("demo") == (0, "")

    (clone.root / ".venvs" / "engine" / "bin" / "python").unlink()
    status, output = clone.run("demo")
    assert status == 0, output
    assert ".venvs/engine" in output
    assert ".venvs/demo" not in output

    with (clone.root / "uv.lock").open("a") as lock:
        lock.write("\n# changed\n")
    status, output = clone.run("demo")
    assert status == 0, output
    assert ".venvs/demo" in output
    assert ".venvs/engine" in output
    assert clone.run("demo") == (0, "")


def test_the_engine_environments_library_is_part_of_its_being_current(clone: Clone) -> None:
    assert clone.run("demo")[0] == 0
    stamp = clone.root / ".venvs" / "engine" / environments.STAMP
    facts = json.loads(stamp.read_text())
    assert any("libpython" in path for path in facts["needs"])
    facts["needs"].append(str(clone.root / "libpython-that-was-removed"))
    stamp.write_text(json.dumps(facts))
    assert ".venvs/engine" in clone.run("demo")[1]


def test_concurrent_runs_make_each_environment_once(clone: Clone) -> None:
    runs = [clone.start("demo") for _ in range(3)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    assert "".join(outputs).count("Setting up .venvs/demo (the gateway): done") == 1
    assert clone.run("demo") == (0, "")


def test_a_failure_of_uv_is_one_sentence_and_status_1(clone: Clone) -> None:
    pyproject = clone.root / "pyproject.toml"
    pyproject.write_text(PYPROJECT.replace("demo = []", 'demo = ["unlocked"]'))
    status, output = clone.run("demo")
    assert status == 1
    assert "Setting up .venvs/demo (the gateway) failed: " in output
    assert "Traceback" not in output
    assert not (clone.root / ".venvs" / "demo" / environments.STAMP).exists()


@pytest.mark.parametrize("arguments", [[], ["prod"], ["demo", "test"]])
def test_an_unknown_purpose_is_answered_with_the_usage(clone: Clone, arguments: list[str]) -> None:
    status, output = clone.run(*arguments)
    assert (status, output) == (2, "usage: setup/environments.py demo | test\n")
