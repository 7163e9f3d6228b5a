"""uv, which makes the environments from the lock file: found on this machine, or fetched by pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from interpreters import Interpreter, for_bootstrap

VERSION = "0.13.9"


class SetupError(Exception):
    """The environments cannot be made on this machine; the message says what to do."""


class Uv:
    """The program, and how it is called."""

    def __init__(self, path: str, root: Path) -> None:
        self.path = path
        self._root = root

    def run(self, title: str, arguments: Sequence[str], environment: Path | None = None) -> None:
        """Run it in the clone, with a line before and the time it took after.

        On a terminal uv draws its own progress; otherwise it is silent.

        Args:
            title: what is being done, for the line.
            arguments: uv's.
            environment: the virtual environment that `uv sync` makes.

        Raises:
            SetupError: it fails, with what it said.
        """
        say(f"{title} ...")
        begin = time.monotonic()
        shown = sys.stderr.isatty()
        ended = subprocess.run(  # noqa: S603
            [self.path, *arguments],
            cwd=str(self._root),
            env=_variables(environment),
            stdout=subprocess.DEVNULL,
            stderr=None if shown else subprocess.PIPE,
            check=False,
        )
        if ended.returncode != 0:
            said = "its message is above" if shown else quote(ended.stderr.decode(errors="replace"))
            raise SetupError(f"{title} failed: {said}")
        say(f"{title}: done in {time.monotonic() - begin:.1f} s")


def say(line: str) -> None:
    """Tell the user what goes on."""
    print(line, file=sys.stderr, flush=True)


def quote(output: str) -> str:
    """What a failed program said, on one line: its first error and, if another, its last cause."""
    lines = [line.strip(" ×╰─▶│├\t") for line in output.splitlines()]
    lines = [line for line in lines if line and not line.lower().startswith("hint")]
    if not lines:
        return "it said nothing"
    first = next((line for line in lines if line.lower().startswith("error")), lines[-1])
    last = re.sub(r"^(cause|caused by): ", "", lines[-1], flags=re.IGNORECASE)
    return first if first == lines[-1] else f"{first} ({last})"


def version(text: str) -> tuple[int, ...]:
    """The first dotted number in a text, to be compared: "uv 0.13.9 (…)" → (0, 13, 9)."""
    match = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def minimum(pyproject: str) -> tuple[int, ...]:
    """The version that a pyproject.toml asks for: required-version = ">=0.9" → (0, 9)."""
    match = re.search(r"^required-version\s*=(.*)$", pyproject, re.MULTILINE)
    return version(match[1]) if match else ()


def provide(root: Path, found: Sequence[Interpreter]) -> Uv:
    """The uv on PATH if it is new enough, else one of exactly `VERSION` in the clone.

    Raises:
        SetupError: it has to be fetched and cannot be.
    """
    wanted = minimum((root / "pyproject.toml").read_text(encoding="utf-8"))
    on_path = shutil.which("uv")
    if on_path and _version_of(on_path) >= wanted:
        return Uv(on_path, root)
    home = root / ".venvs" / "uv"
    own = home / "bin" / "uv"
    if _version_of(str(own)) != version(VERSION):
        _fetch(home, found)
    return Uv(str(own), root)


def _version_of(path: str) -> tuple[int, ...]:
    """The version of the uv at a path; empty when it does not run."""
    try:
        said = subprocess.run(  # noqa: S603
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return version(said.decode(errors="replace"))


def _fetch(home: Path, found: Sequence[Interpreter]) -> None:
    python = for_bootstrap(found)
    if python is None:
        there = "; ".join(each.path for each in found) or "none"
        raise SetupError(
            "uv has to be fetched into a virtual environment, and no Python here can make one with "
            f"pip in it (found: {there}): install the modules venv and ensurepip, on Debian or "
            "Ubuntu with `apt install python3-venv`."
        )
    title = f"Fetching uv {VERSION} into .venvs/uv"
    say(f"{title} ...")
    steps = (
        [python.path, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", f"uv=={VERSION}"],
    )
    for step in steps:
        ended = subprocess.run(  # noqa: S603
            step,
            env=_variables(None),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ended.returncode != 0:
            raise SetupError(f"{title} failed: {quote(ended.stdout.decode(errors='replace'))}")


def _variables(environment: Path | None) -> dict[str, str]:
    # What an activated environment or another project has set must not steer ours.
    foreign = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_PROJECT", "UV_FROZEN"}
    chosen = {name: value for name, value in os.environ.items() if name not in foreign}
    chosen["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if environment is not None:
        chosen["UV_PROJECT_ENVIRONMENT"] = str(environment)
    return chosen
