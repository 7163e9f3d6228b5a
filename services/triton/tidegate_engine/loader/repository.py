"""The local repository, from which Triton loads, and the repository that versions come from.

Triton and the loader share the local one, a folder in Triton's own form. The loader alone writes:

    <local>/<model>/config.pbtxt    the text in force with a policy that names the versions
    <local>/<model>/…               what else lies beside it in the source, such as labels
    <local>/<model>/<version>/      a copy, or a link to the folder in the source
    <local>/.loader/memory.json     see `memory`
    <local>/.loader/incoming/       what is not whole yet

A folder gets its place by a rename when it is whole, so there is never half of a version. Nothing
else is made or touched in a model's folder, not for a moment: Triton takes any file or folder there
that is no version for a part of all versions, and would load every one of them anew for it. For the
same reason what lies beside config.pbtxt is brought with the first version and then stays, and
Python is kept from writing its cache into what is copied (whatever its settings, the one in
Triton's backend would). Linked versions need a repository that Triton cannot write to.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import orjson

from tidegate_engine.loader import config_text, memory
from tidegate_engine.loader.errors import NotFetched
from tidegate_engine.loader.memory import Memory
from tidegate_engine.loader.plan import Copy, LocalModel
from tidegate_table.document import is_version

_log = logging.getLogger(__name__)

OWN = ".loader"
CONFIG = "config.pbtxt"
LEFT_OUT = "__pycache__"
"""Python's own cache: it comes and goes, and says nothing of a version."""

_CHUNK = 1 << 20


class Repository:
    """Both repositories. All methods block; none may run beside another one for the same model, but
    for a fetch of one version beside `write_config` and `discard` of another one.

    Args:
        source: the folder that versions come from.
        local: the folder that Triton loads from; made when it is missing.
        link: link to the source in place of copying.
    """

    def __init__(self, source: Path, local: Path, *, link: bool = False) -> None:
        self._source = source
        self._local = local
        self._link = link
        self._incoming = local / OWN / "incoming"
        self._memory_file = local / OWN / "memory.json"

    # --- The beginning --------------------------------------------------------------------------

    def clear_leftovers(self) -> None:
        """Remove what an earlier loader did not bring to an end."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)

    def recall(self) -> Memory:
        """What an earlier loader remembered; nothing where that cannot be read."""
        try:
            return memory.read(json.loads(self._memory_file.read_bytes()))
        except FileNotFoundError:
            return Memory()
        except (OSError, ValueError) as error:
            _log.warning("what an earlier loader remembered cannot be used: %s", error)
            return Memory()

    def remember(self, known: Memory) -> None:
        """Have `known` survive this process, and the machine."""
        written = self._incoming / self._memory_file.name
        with written.open("wb") as file:
            file.write(orjson.dumps(memory.write(known)))
            _sync(file)
        written.rename(self._memory_file)
        _sync_folder(self._memory_file.parent)

    def scan(self, recalled: Memory) -> dict[str, LocalModel]:
        """What lies in the local repository; what is not recalled is read to know its digest."""
        found = {}
        for folder in sorted(self._local.iterdir()):
            if folder.name == OWN or not folder.is_dir():
                continue
            known = recalled.copies.get(folder.name, {})
            copies = {}
            for version in folder.iterdir():
                if is_version(version.name) and version.is_dir():
                    copies[version.name] = known.get(version.name) or digest_of(version)
            found[folder.name] = LocalModel(self._local_config(folder), copies)
        return found

    # --- Changes --------------------------------------------------------------------------------

    def fetch(self, model: str, version: str, digest: str) -> tuple[Copy, str]:
        """Bring a version into the local repository, whole or not at all.

        Args:
            digest: the one that it must have; "" takes what there is.

        Returns:
            The copy, and the text of the source's config.pbtxt without its version policy.

        Raises:
            NotFetched: it is not there, has another digest, or cannot be read or written.
        """
        source, place = self._source / model / version, self._local / model / version
        try:
            config = self._source_config(model)
            if not source.is_dir():
                raise NotFetched(f"the repository has no version {version} of the model")
            copy = digest_of(place) if place.is_dir() else self._incoming_copy(source, place)
            if digest and copy.digest != digest:
                raise NotFetched(f"expected files with the digest {digest}, got {copy.digest}")
            if not place.is_dir():
                self._provide_folder(model)
                _remove(place)  # a link that leads nowhere any more
                self._incoming_path(place).rename(place)
                _sync_folder(place.parent)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise NotFetched(f"the version cannot be fetched: {reason}") from error
        finally:
            _remove(self._incoming_path(place))
        return copy, config

    def write_config(self, model: str, config: str, versions: tuple[str, ...]) -> None:
        """Have Triton load exactly `versions` with the text `config` when it is told to load."""
        place = self._local / model / CONFIG
        text = config_text.with_versions(config, versions)
        if _text(place) == text:
            return
        written = self._incoming / f"{model}.{CONFIG}"
        with written.open("w", encoding="utf-8") as file:
            file.write(text)
            _sync(file)
        written.rename(place)

    def discard(self, model: str, version: str) -> None:
        """Remove a version, which Triton must not have loaded; `version` "": the whole model."""
        place = self._local / model / version if version else self._local / model
        leaving = self._incoming / f"{self._incoming_path(place).name}.leaving"
        _remove(leaving)
        if place.is_symlink() or place.exists():
            place.rename(leaving)
            _remove(leaving)

    # --- Inside ---------------------------------------------------------------------------------

    def _incoming_path(self, place: Path) -> Path:
        return self._incoming / "~".join(place.relative_to(self._local).parts)

    def _incoming_copy(self, source: Path, place: Path) -> Copy:
        incoming = self._incoming_path(place)
        _remove(incoming)
        before = _look(source)
        if self._link:
            incoming.symlink_to(source.absolute())
            copy = digest_of(source)
        else:
            copy = _copy_folder(source, incoming)
        if _look(source) != before:
            raise NotFetched("the version's files changed while they were copied")
        return copy

    def _provide_folder(self, model: str) -> None:
        """The model's folder, with what lies beside its versions and its configuration."""
        place, source = self._local / model, self._source / model
        if place.is_dir():
            return
        incoming = self._incoming_path(place)
        _remove(incoming)
        incoming.mkdir()
        for each in source.iterdir():
            if is_version(each.name) or each.name in (CONFIG, LEFT_OUT) or each.name[0] == ".":
                continue
            if each.is_dir():
                _copy_folder(each, incoming / each.name)
            else:
                shutil.copyfile(each, incoming / each.name)
        _forbid_cache(incoming)
        incoming.rename(place)

    def _source_config(self, model: str) -> str:
        try:
            text = (self._source / model / CONFIG).read_text(encoding="utf-8")
            return config_text.without_version_policy(text)
        except FileNotFoundError:
            raise NotFetched(f"the repository has no {CONFIG} of the model") from None
        except (UnicodeDecodeError, config_text.InvalidConfig) as error:
            raise NotFetched(f"the repository's {CONFIG} cannot be read: {error}") from None

    def _local_config(self, folder: Path) -> str:
        text = _text(folder / CONFIG)
        try:
            return config_text.without_version_policy(text) if text is not None else ""
        except config_text.InvalidConfig:
            return ""


def digest_of(folder: Path) -> Copy:
    """The digest and size of the files of a version.

    SHA-256 over, for each file by its relative path in order: path NUL size NUL SHA-256 LF.

    Raises:
        NotFetched: it holds a link to a folder, whose files nobody would see.
        OSError: it cannot be read.
    """
    return _digested({path: _read(folder / path, None) for path in _files(folder)})


def _copy_folder(source: Path, target: Path) -> Copy:
    target.mkdir()
    parts = {}
    for path in _files(source):
        written = target / path
        written.parent.mkdir(parents=True, exist_ok=True)
        parts[path] = _read(source / path, written)
    for folder in (target, *(each for each in target.rglob("*") if each.is_dir())):
        _forbid_cache(folder)
        _sync_folder(folder)
    return _digested(parts)


def _forbid_cache(folder: Path) -> None:
    """Put a file where Python would make the folder of its cache; it then goes without."""
    if any(folder.glob("*.py")):
        (folder / LEFT_OUT).touch()


def _digested(parts: Mapping[str, tuple[int, str]]) -> Copy:
    whole = hashlib.sha256()
    for path, (size, digest) in sorted(parts.items()):
        # A name that is no UTF-8 counts by its bytes.
        whole.update(f"{path}\0{size}\0{digest}\n".encode(errors="surrogateescape"))
    return Copy(f"sha256:{whole.hexdigest()}", sum(size for size, _ in parts.values()))


def _read(path: Path, target: Path | None) -> tuple[int, str]:
    """The size and SHA-256 of a file, which is copied to `target` on the way."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file, target.open("wb") if target else nullcontext() as written:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if written is not None:
                written.write(chunk)
        if written is not None:
            _sync(written)
    return size, digest.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    """The relative paths of all files below `folder`, as POSIX has them, in no certain order."""
    for at, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != LEFT_OUT]
        for each in folders:
            if Path(at, each).is_symlink():
                raise NotFetched("the version has a link to a folder, which is not copied")
        for each in files:
            if each != LEFT_OUT:
                yield Path(at, each).relative_to(folder).as_posix()


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of all files, by which a change is noticed."""
    seen = {path: (folder / path).stat() for path in _files(folder)}
    return {path: (each.st_size, each.st_mtime_ns) for path, each in seen.items()}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
