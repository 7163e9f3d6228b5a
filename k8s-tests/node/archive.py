"""Image archives: made of one static program without Docker, and asked what they hold."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ClusterError


@dataclass(frozen=True)
class Image:
    """An image in an archive.

    Args:
        name: its whole name with its tag.
        config: the digest of its configuration ("sha256:…"), which stands for all of it.
    """

    name: str
    config: str


def pack(program: Path, name: str, target: Path) -> None:
    """Write an image that holds one static program, which it starts, as a docker-archive.

    The same program and name give the same bytes.

    Args:
        program: the program; it lies at `/<its name>` in the image.
        name: the image's name with its tag.
        target: the archive.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, program.name, program.read_bytes(), 0o755)
    diff = _digest(layer.getvalue())
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        },
        sort_keys=True,
    ).encode()
    config_name = f"{_digest(config).removeprefix('sha256:')}.json"
    index = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "layer.tar", layer.getvalue(), 0o644)
        _add(tar, config_name, config, 0o644)
        _add(tar, "manifest.json", json.dumps(index).encode(), 0o644)


def images(archive: Path) -> list[Image]:
    """The images in a docker-archive or an OCI archive.

    Raises:
        ClusterError: it is neither, or cannot be read.
    """
    try:
        with tarfile.open(archive) as tar:
            members = {name.removeprefix("./"): name for name in tar.getnames()}
            if "manifest.json" in members:
                return _docker(_json(tar, members["manifest.json"]))
            if "index.json" in members:
                return _oci(tar, members)
    except FileNotFoundError:
        raise ClusterError(
            f"There is no image archive {archive}: `make images` makes it."
        ) from None
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        raise ClusterError(f"The image archive {archive} cannot be read: {error}.") from None
    raise ClusterError(
        f"{archive} is neither a docker-archive (a tar with manifest.json) nor an OCI archive (a "
        "tar with index.json)."
    )


def _docker(index: Any) -> list[Image]:
    found = []
    for entry in index:
        config = Path(entry["Config"]).name.removesuffix(".json")
        found += [Image(name, f"sha256:{config}") for name in entry["RepoTags"] or []]
    return found


def _oci(tar: tarfile.TarFile, members: dict[str, str]) -> list[Image]:
    found = []
    for entry in _json(tar, members["index.json"])["manifests"]:
        notes = entry.get("annotations", {})
        name = notes.get("io.containerd.image.name") or notes["org.opencontainers.image.ref.name"]
        blob = members[f"blobs/{entry['digest'].replace(':', '/')}"]
        found.append(Image(name, _json(tar, blob)["config"]["digest"]))
    return found


def _json(tar: tarfile.TarFile, member: str) -> Any:
    file = tar.extractfile(member)
    if file is None:
        raise KeyError(member)
    return json.load(file)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
