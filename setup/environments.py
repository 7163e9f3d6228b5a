"""Make the virtual environments of this clone from its lock file: `environments.py demo | test`.

Run by the Makefile with whatever `python3` there is (3.8 or newer), before anything is installed;
hence the standard library only. When all is current it says nothing and takes a moment. Nothing
outside the clone and the caches of uv and pip changes.

Each environment has a stamp, written last: the digest of what it was made from, and the files
outside it that it needs. An environment without a current stamp is made (anew).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import interpreters
import uv
from interpreters import Interpreter
from uv import SetupError

ROOT = Path(__file__).resolve().parent.parent
STAMP = "tidegate-stamp.json"
# The wheel nvidia-pytriton is built for manylinux_2_35.
GLIBC_MINIMUM = (2, 35)
# What uv downloads where no fitting Python is found; its builds carry their shared library.
DOWNLOADED_PYTHON = "3.11"


@dataclass(frozen=True)
class Environment:
    """One virtual environment.

    `python` says which kind of interpreter it takes: "engine" or "gateway".
    """

    path: str
    contents: tuple[str, ...]
    python: str
    holds: str


ENGINE = Environment(
    ".venvs/engine",
    ("--only-group", "engine"),
    "engine",
    "Triton, ONNX Runtime; 150 MB",
)
DEMO = Environment(".venvs/demo", ("--only-group", "demo"), "gateway", "the gateway")
TEST = Environment(
    ".venv", ("--all-packages", "--group", "dev"), "gateway", "the tests and their tools"
)
# What clients pin has no wheels for the newest Pythons; the engine's is never new.
TRITONCLIENT = Environment(
    ".venvs/tritonclient", ("--only-group", "tritonclient"), "engine", "Triton's own client"
)
KSERVE = Environment(
    ".venvs/kserve", ("--only-group", "kserve"), "engine", "KServe's client; 80 MB"
)
PERF_ANALYZER = Environment(
    ".venvs/perf-analyzer", ("--only-group", "perf-analyzer"), "engine", "Triton's load generator"
)
PURPOSES = {"demo": (DEMO, ENGINE), "test": (TEST, ENGINE, TRITONCLIENT, KSERVE, PERF_ANALYZER)}


def unfit_machine(system: str, machine: str, libc: str | None) -> str | None:
    """Why the engine cannot run on a machine, as a sentence, or None.

    Args:
        system: as `uname -s` has it.
        machine: as `uname -m` has it.
        libc: "glibc 2.36", or None for another C library.
    """
    if (system, machine) != ("Linux", "x86_64"):
        return f"Triton's wheel runs on Linux x86_64; this machine is {system} {machine}."
    wanted = ".".join(map(str, GLIBC_MINIMUM))
    if not libc or not libc.startswith("glibc"):
        return f"Triton's wheel needs glibc {wanted} or newer; this machine has another C library."
    if uv.version(libc) < GLIBC_MINIMUM:
        return f"Triton's wheel needs glibc {wanted} or newer; this machine has {libc}."
    return None


def c_library() -> str | None:
    """The C library and its version, "glibc 2.36", or None where it does not say."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def digest(root: Path, environment: Environment) -> str:
    """The digest of what an environment is made from: the lock file and the packages' metadata."""
    lock = (root / "uv.lock").read_bytes()
    members = re.findall(r'editable = "([^"]+)"', lock.decode())
    parts = [lock, (root / "pyproject.toml").read_bytes()]
    parts += [(root / member / "pyproject.toml").read_bytes() for member in sorted(set(members))]
    # The packages are installed by their absolute paths: a clone that moves is another one.
    parts += [str(root).encode(), *(word.encode() for word in environment.contents)]
    sha = hashlib.sha256()
    for part in parts:
        sha.update(hashlib.sha256(part).digest())
    return sha.hexdigest()


def is_current(root: Path, environment: Environment) -> bool:
    """Whether an environment is made from what the clone holds now, and its Python runs."""
    home = root / environment.path
    try:
        stamp = json.loads((home / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if stamp["digest"] != digest(root, environment):
        return False
    if not all(Path(path).exists() for path in stamp["needs"]):
        return False
    try:
        command = [str(home / "bin" / "python"), "-I", "-S", "-c", ""]
        return subprocess.run(command, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def write_stamp(root: Path, environment: Environment, python: Interpreter) -> None:
    """Note that an environment is made; the last step of it."""
    needs = [path for path in (python.path, python.libpython) if path]
    stamp = {"digest": digest(root, environment), "needs": needs}
    target = root / environment.path / STAMP
    unfinished = target.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp), encoding="utf-8")
    unfinished.replace(target)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep other runs in this clone waiting."""
    folder = root / ".venvs"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            uv.say("Waiting for another run that sets up the environments of this clone ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Pythons:
    """The interpreters for the environments; downloaded into the clone where none is found."""

    def __init__(self, root: Path) -> None:
        self._downloads = root / ".venvs" / "python"
        self.found = interpreters.probe([*interpreters.candidates(os.environ), *self._downloaded()])

    def for_environment(self, environment: Environment, tool: uv.Uv) -> Interpreter:
        """The interpreter for an environment.

        Raises:
            SetupError: there is none, and none can be downloaded.
        """
        python = self._choose(environment)
        if python is None:
            failure = self._download(tool)
            python = self._choose(environment)
            if python is None:
                raise SetupError(
                    interpreters.none_fits(environment.python, self.found, failure)
                ) from None
        return python

    def _choose(self, environment: Environment) -> Interpreter | None:
        if environment.python == "engine":
            return interpreters.for_engine(self.found)
        return interpreters.for_gateway(self.found)

    def _download(self, tool: uv.Uv) -> str:
        """Download a Python; answer why that failed, or that it did not help."""
        # In the clone: uv's own place for it, and the links it makes, are no cache.
        where = ["--install-dir", str(self._downloads), "--no-bin"]
        try:
            tool.run(
                f"Downloading Python {DOWNLOADED_PYTHON}",
                ["python", "install", *where, DOWNLOADED_PYTHON],
            )
        except SetupError as error:
            return str(error)
        self.found += interpreters.probe(self._downloaded())
        return "what it downloaded does not run"

    def _downloaded(self) -> Sequence[str]:
        return sorted(map(str, self._downloads.glob("cpython-*/bin/python3.[0-9]*[0-9]")))


def make(root: Path, environment: Environment, python: Interpreter, tool: uv.Uv) -> None:
    """Make one environment.

    Raises:
        SetupError: uv fails, with what it said.
    """
    home = root / environment.path
    stamp = home / STAMP
    if stamp.exists():
        stamp.unlink()
    use = ("--python", python.path, "--no-python-downloads")
    tool.run(
        f"Setting up {environment.path} ({environment.holds})",
        ["sync", "--locked", *environment.contents, *use],
        home,
    )
    write_stamp(root, environment, python)


def set_up(root: Path, wanted: Sequence[Environment]) -> None:
    """Make those of the environments that are not current.

    Raises:
        SetupError: this machine cannot carry them, or a download fails.
    """
    if all(is_current(root, environment) for environment in wanted):
        return
    sentence = unfit_machine(platform.system(), platform.machine(), c_library())
    if sentence:
        raise SetupError(sentence)
    with alone(root):
        pythons = Pythons(root)
        tool = uv.provide(root, pythons.found)
        for environment in wanted:
            if not is_current(root, environment):
                make(root, environment, pythons.for_environment(environment, tool), tool)


def main() -> int:
    """Set up the environments for the purpose that the command line names."""
    if sys.argv[1:] not in [[purpose] for purpose in PURPOSES]:
        uv.say(f"usage: {sys.argv[0]} {' | '.join(PURPOSES)}")
        return 2
    try:
        set_up(ROOT, PURPOSES[sys.argv[1]])
    except SetupError as error:
        uv.say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
