"""Which Python on this machine serves for which environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Those of the lock file: numpy < 2, without which Triton's Python backend gives empty outputs, has
# no wheel for 3.13.
VERSIONS = ((3, 11), (3, 12))
NAMES = ("python3.11", "python3.12")
PROBE_SECONDS = 20

# The candidate's own word: its path behind links, shims and virtual environments, and whether the
# library that Triton's backend loads is there (Debian has it in a package of its own).
_PROBE = """
import importlib.util, json, os, platform, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
base, multiarch = sys.base_prefix, sysconfig.get_config_var("MULTIARCH") or ""
folders = [sysconfig.get_config_var("LIBDIR") or "", base + "/lib", base + "/lib64",
           base + "/lib/" + multiarch]
found = [path for path in (os.path.join(f, name) for f in folders) if os.path.exists(path)]
print(json.dumps({
    "path": getattr(sys, "_base_executable", None) or sys.executable,
    "version": list(sys.version_info[:3]),
    "standard": sys.implementation.name == "cpython" and not sys.abiflags
                and sys.maxsize > 2**32,
    "libpython": found[0] if found else None,
    "venv": all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs, as it describes itself.

    `libpython`: its shared library, or None; `standard`: a 64-bit CPython of the usual build, for
    which wheels exist; `venv`: it can make virtual environments with pip in them.
    """

    path: str
    version: tuple[int, int, int]
    standard: bool = True
    libpython: str | None = None
    venv: bool = True

    def __str__(self) -> str:
        lacks = "" if self.libpython else ", without its shared library"
        return "{}.{}.{}{} ({})".format(*self.version, lacks, self.path)


def candidates(variables: Mapping[str, str]) -> list[str]:
    """Paths where a Python may be, the preferred first; not all of them need to run.

    Args:
        variables: the environment variables, which say where pyenv and uv keep theirs.
    """
    data = Path(variables.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    pyenv = Path(variables.get("PYENV_ROOT") or Path.home() / ".pyenv")
    managed = Path(variables.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    on_path = (shutil.which(name, path=variables.get("PATH")) for name in ("python3", *NAMES))
    found = [path for path in on_path if path]
    for root, pattern in (
        (pyenv / "versions", "*/bin"),
        (Path("/usr/bin"), "."),
        (Path("/usr/local/bin"), "."),
        (managed, "cpython-*/bin"),
    ):
        for name in NAMES:
            found += sorted(map(str, root.glob(f"{pattern}/{name}")), reverse=True)
    return found


def probe(paths: Iterable[str]) -> list[Interpreter]:
    """Ask each candidate what it is; those that do not run (shims of pyenv) are passed over."""
    found: list[Interpreter] = []
    seen = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        interpreter = _probe(path)
        if interpreter and interpreter not in found:
            found.append(interpreter)
    return found


def _probe(path: str) -> Interpreter | None:
    try:
        answer = subprocess.run(  # noqa: S603
            [path, "-I", "-c", _PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=PROBE_SECONDS,
        ).stdout
        facts = json.loads(answer)
        return Interpreter(**dict(facts, version=tuple(facts["version"])))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
        return None


def for_engine(found: Sequence[Interpreter]) -> Interpreter | None:
    """The first 3.11 or 3.12 that has its shared library, which Triton's backend loads."""
    for interpreter in found:
        fits = interpreter.version[:2] in VERSIONS
        if fits and interpreter.standard and interpreter.libpython:
            return interpreter
    return None


def for_gateway(found: Sequence[Interpreter]) -> Interpreter | None:
    """The first 3.11 or 3.12, with its shared library or without."""
    fit = (each for each in found if each.standard and each.version[:2] in VERSIONS)
    return next(fit, None)


def for_bootstrap(found: Sequence[Interpreter]) -> Interpreter | None:
    """The first that can make a virtual environment with pip in it, of whatever version."""
    return next((interpreter for interpreter in found if interpreter.venv), None)


def none_fits(purpose: str, found: Sequence[Interpreter], download: str) -> str:
    """The sentence for a machine without a fitting Python.

    Args:
        purpose: "engine" or "gateway".
        found: what there is.
        download: why uv could not download one.
    """
    wanted = {
        "engine": "Python 3.11 or 3.12 with its shared library (libpython3.x.so.1.0)",
        "gateway": "Python 3.11 or 3.12",
    }[purpose]
    there = "; ".join(map(str, found)) or "none"
    return (
        f"The {purpose} needs {wanted}, which is not on this machine (found: {there}) and which "
        f"uv could not download ({download}): install it, on Debian 12 with "
        "`apt install python3.11 libpython3.11`, on Ubuntu 24.04 with "
        "`apt install python3.12 libpython3.12`."
    )
