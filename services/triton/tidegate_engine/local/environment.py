"""The engine environment: what Triton's Python models run in, and the server's own files.

The wheel `nvidia-pytriton` carries Triton 2.51.0 (24.10) with the Python backend. Its files cannot
serve where they lie: the backend expects the program that runs a model (the "stub", one build a
Python version) next to itself, and that program's RPATH, `../../../../nvidia_pytriton.libs` from
where it lies, must lead to the wheel's libraries and to the interpreter's `libpython3.x.so.1.0`,
which no wheel carries. `assemble` makes such a tree.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate_engine.local.errors import EngineError

ROOT = Path(__file__).resolve().parents[4]
VARIABLE = "TIDEGATE_ENGINE_ENVIRONMENT"
# numpy < 2 has no wheel for 3.13; the packages of the engine environment need 3.11.
PYTHONS = ((3, 11), (3, 12))
# Relative to the engine's directory, which is Triton's working directory: Triton starts stubs
# through an unquoted shell command, so a full path with a space in it would not work.
BACKENDS = Path("pytriton/tritonserver/backends")

_PROBE = """
import importlib.metadata, importlib.util, json, os, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
base, multiarch = sys.base_prefix, sysconfig.get_config_var("MULTIARCH") or ""
folders = [sysconfig.get_config_var("LIBDIR") or "", base + "/lib", base + "/lib64",
           base + "/lib/" + multiarch]
found = [path for path in (os.path.join(f, name) for f in folders) if os.path.exists(path)]
try:
    numpy = importlib.metadata.version("numpy")
except importlib.metadata.PackageNotFoundError:
    numpy = None
pytriton = importlib.util.find_spec("pytriton")
print(json.dumps({
    "version": sys.version_info[:2],
    "libpython": found[0] if found else None,
    "numpy": numpy,
    "pytriton": pytriton.submodule_search_locations[0] if pytriton else None,
}))
"""


@dataclass(frozen=True)
class Environment:
    """What an engine environment's interpreter says about it.

    `version` is Python's (major, minor); `libpython` its shared library; `numpy` the version
    installed; `pytriton` the folder of that package. None: not there.
    """

    path: Path
    version: tuple[int, int]
    libpython: Path | None
    numpy: str | None
    pytriton: Path | None

    @property
    def triton(self) -> Path:
        """The folder of the Triton server in the wheel."""
        return Path(self.pytriton or "") / "tritonserver"

    @property
    def libraries(self) -> Path:
        """The folder of the wheel's shared libraries."""
        return Path(self.pytriton or "").parent / "nvidia_pytriton.libs"


def location(given: Path | None) -> Path:
    """The engine environment to use: the one given, that of the variable, or the clone's own."""
    return (given or Path(os.environ.get(VARIABLE) or ROOT / ".venvs" / "engine")).absolute()


def probe(path: Path) -> Environment:
    """Ask the environment's own interpreter.

    Raises:
        EngineError: there is no environment at `path`, or its interpreter does not run.
    """
    python = path / "bin" / "python"
    remedy = f"run `make demo` or `make test` to make it, or set {VARIABLE} to another."
    try:
        answer = subprocess.run(  # noqa: S603
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except FileNotFoundError:
        raise EngineError(f"There is no engine environment at {path}: {remedy}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{python} of the engine environment fails ({error}): {remedy}") from None
    facts = json.loads(answer)
    return Environment(
        path=path,
        version=(facts["version"][0], facts["version"][1]),
        libpython=Path(facts["libpython"]) if facts["libpython"] else None,
        numpy=facts["numpy"],
        pytriton=Path(facts["pytriton"]) if facts["pytriton"] else None,
    )


def misfit(environment: Environment) -> str | None:
    """Why Triton would not serve Python models in this environment, as a sentence, or None."""
    at = f"The engine environment {environment.path}"
    version = ".".join(map(str, environment.version))
    if environment.version not in PYTHONS:
        return f"{at} has Python {version}; the engine needs 3.11 or 3.12."
    if environment.libpython is None:
        return (
            f"{at} has a Python {version} without its shared library libpython{version}.so.1.0, "
            f"which Triton's backend needs: install the library (Debian: libpython{version}) or "
            "make the environment with another Python."
        )
    if environment.pytriton is None:
        return f"{at} lacks the package nvidia-pytriton: run `make demo` or `make test`."
    if environment.numpy is None:
        return f"{at} lacks the package numpy: run `make demo` or `make test`."
    if int(environment.numpy.partition(".")[0]) >= 2:
        return (
            f"{at} has numpy {environment.numpy}; it needs numpy < 2, since with a newer one "
            "Triton 2.51 answers with empty outputs and status OK: run `make demo` or `make test`."
        )
    return None


def assemble(environment: Environment, directory: Path) -> None:
    """Make the tree of links below `directory` that Triton runs from.

    Args:
        environment: one for which `misfit` is None.
        directory: the engine's directory; what an earlier call made there is made anew.
    """
    backend = directory / BACKENDS / "python"
    libraries = directory / "nvidia_pytriton.libs"
    for folder in (libraries, directory / "pytriton"):
        shutil.rmtree(folder, ignore_errors=True)
    libraries.mkdir(parents=True)
    backend.mkdir(parents=True)
    for library in environment.libraries.iterdir():
        (libraries / library.name).symlink_to(library)
    if environment.libpython is not None:
        name = "libpython{}.{}.so.1.0".format(*environment.version)
        (libraries / name).symlink_to(environment.libpython.resolve())
    for file in (environment.triton / "backends" / "python").iterdir():
        (backend / file.name).symlink_to(file)
    # A copy: for a program, $ORIGIN is where its file really lies, not where a link to it does.
    version = ".".join(map(str, environment.version))
    stub = environment.triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, backend)


def variables(environment: Environment, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for Triton and its stubs.

    The stub's interpreter finds its packages through the first `python3` on PATH.
    """
    # PYTHONPATH, PYTHONHOME and the like belong to the caller's Python, not to the models'.
    chosen = {name: value for name, value in inherited.items() if not name.startswith("PYTHON")}
    chosen["PATH"] = f"{environment.path / 'bin'}:{inherited.get('PATH', os.defpath)}"
    chosen["PYTHONNOUSERSITE"] = "1"
    # Bytecode beside model.py would change its folder's time stamp: Triton would reload it.
    chosen["PYTHONDONTWRITEBYTECODE"] = "1"
    return chosen
