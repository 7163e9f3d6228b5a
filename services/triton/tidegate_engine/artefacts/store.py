"""The cache of artefacts: which there are, where each lies, whether its bytes are the right ones.

A file lies at `<cache>/artefacts/<first digits of its SHA-256>/<name>`: an artefact that changes
gets another place, and whoever still uses the old one is left alone. A file has its final name
only once it is whole.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidegate_engine.artefacts.errors import ArtefactError

# Name → SHA-256 in hexadecimal.
DIGESTS: Mapping[str, str] = json.loads(
    (Path(__file__).parent / "artefacts.json").read_text(encoding="utf-8")
)


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/tidegate`, or `~/.cache/tidegate` where that is unset or not absolute.

    Raises:
        ArtefactError: The user has no home folder.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "tidegate"
    try:
        return Path.home() / ".cache" / "tidegate"
    except RuntimeError:
        raise ArtefactError(
            "This user has no home folder: set XDG_CACHE_HOME to an absolute path, "
            "or name a folder with --cache."
        ) from None


def artefact_path(name: str, cache: Path) -> Path:
    """Where the artefact lies once it is built; says nothing about whether it is.

    Raises:
        ArtefactError: There is no artefact of this name.
    """
    if name not in DIGESTS:
        raise ArtefactError(f"There is no artefact {name!r}; there are {', '.join(DIGESTS)}.")
    return cache / "artefacts" / DIGESTS[name][:16] / name


def is_intact(name: str, cache: Path) -> bool:
    """Whether the artefact is in the cache with the expected bytes.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        with artefact_path(name, cache).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == DIGESTS[name]
    except FileNotFoundError:
        return False


def store(name: str, content: bytes, cache: Path) -> None:
    """Puts an artefact into the cache, whole or not at all, in place of what is there.

    Raises:
        ArtefactError: The content has another digest than the manifest says.
        OSError: The file cannot be written.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != DIGESTS[name]:
        raise ArtefactError(
            f"The artefact {name} was built with SHA-256 {digest}, expected {DIGESTS[name]}: "
            "install the versions that uv.lock names, or correct artefacts.json if the change "
            "is meant."
        )
    path = artefact_path(name, cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two builds at once write two files; the later rename replaces one by its equal.
    descriptor, partial = tempfile.mkstemp(prefix=f".{name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            # Repositories hold hard links to it: a stray write there must not reach the cache.
            os.fchmod(descriptor, 0o444)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
