"""Build the container images with buildah or docker, whichever is there: `images.py [NAME …]`.

Run by the Makefile; standard library only. Each image is left in the builder's own store and as an
archive `.run/images/NAME.tar`, which a cluster without a registry can import.

Where the base image cannot be pulled, buildah gets one of the same name, made by mmdebstrap from
Debian's own packages. Where a proxy has a certificate of its own (SSL_CERT_FILE), it is lent to the
build as a secret and stays out of the images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = ROOT / ".run" / "images"
BASE = "docker.io/library/debian:bookworm-slim"
SUITE = "bookworm"
# What Debian's own slim images leave out.
_NOT_IN_SLIM = ("doc", "info", "lintian", "linda", "locale", "man")
TAG = "localhost/tidegate/{}:dev"


class ImageError(Exception):
    """The images cannot be built; the message says why and what to do."""


@dataclass(frozen=True)
class Image:
    """One image: its name, and its Dockerfile relative to the root of the repository."""

    name: str
    dockerfile: str

    @property
    def tag(self) -> str:
        """The name under which a cluster knows it."""
        return TAG.format(self.name)

    @property
    def archive(self) -> Path:
        """Where its archive goes."""
        return ARCHIVES / f"{self.name}.tar"


IMAGES = {
    image.name: image
    for image in (
        Image("gateway", "services/gateway/Dockerfile"),
        Image("triton-cpu", "services/triton/Dockerfile.cpu"),
        Image("triton", "services/triton/Dockerfile"),
        Image("loader", "services/triton/Dockerfile.loader"),
        Image("operator", "operator/Dockerfile"),
        Image("traffic", "k8s-tests/traffic/Dockerfile"),
    )
}
# NVIDIA's image is 20 GB and of no use without a GPU: built only by name.
DEFAULT = ("gateway", "triton-cpu", "loader", "operator", "traffic")


class Docker:
    """docker with BuildKit."""

    def ensure_base(self) -> None:
        """Nothing to do: docker pulls what it lacks."""

    def build(self, image: Image) -> None:
        """Build one image, and write its archive."""
        _run(
            ["docker", "build", *_secrets(), "-q", "-f", image.dockerfile, "-t", image.tag, "."],
            DOCKER_BUILDKIT="1",
        )
        _run(["docker", "save", "-o", str(image.archive), image.tag])


# Also as root in a sandbox without user namespaces.
_BUILDAH = {"BUILDAH_ISOLATION": "chroot"}


class Buildah:
    """buildah, with what it builds in the store of whoever runs it."""

    def ensure_base(self) -> None:
        """Pull the base image, or make it from Debian's packages where no registry answers."""
        if self._succeeds(["inspect", "--type", "image", BASE]) or self._succeeds(["pull", BASE]):
            return
        if shutil.which("mmdebstrap") is None:
            raise ImageError(
                f"{BASE} cannot be pulled, and there is no mmdebstrap to make it from Debian's "
                "packages: apt-get install mmdebstrap"
            )
        with tempfile.TemporaryDirectory() as folder, _step(f"making {BASE}"):
            rootfs = Path(folder) / "rootfs.tar"
            slim = [f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in _NOT_IN_SLIM]
            _run(["mmdebstrap", "--quiet", "--variant=minbase", *slim, SUITE, str(rootfs)])
            (Path(folder) / "Dockerfile").write_text(
                "FROM scratch\nADD rootfs.tar /\n"
                "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                'CMD ["bash"]\n'
            )
            _run(["buildah", "build", "-q", "-t", BASE, folder], **_BUILDAH)

    def build(self, image: Image) -> None:
        """Build one image, and write its archive."""
        options = ["--layers", "--pull-never", *_secrets(), "-q", "-f", image.dockerfile]
        _run(["buildah", "build", *options, "-t", image.tag, "."], **_BUILDAH)
        image.archive.unlink(missing_ok=True)
        target = f"docker-archive:{image.archive}:{image.tag}"
        _run(["buildah", "push", "-q", image.tag, target], **_BUILDAH)

    def _succeeds(self, arguments: Sequence[str]) -> bool:
        command = ["buildah", *arguments]
        quiet = subprocess.DEVNULL
        return subprocess.run(command, stdout=quiet, stderr=quiet, check=False).returncode == 0  # noqa: S603


def builder() -> Docker | Buildah:
    """What can build here.

    Raises:
        ImageError: nothing can.
    """
    if shutil.which("docker") and _docker_engine_answers():
        return Docker()
    if shutil.which("buildah"):
        return Buildah()
    raise ImageError(
        "nothing here can build images: start a docker engine, or apt-get install buildah"
    )


def _docker_engine_answers() -> bool:
    quiet = subprocess.DEVNULL
    command = ["docker", "info"]
    return subprocess.run(command, stdout=quiet, stderr=quiet, check=False).returncode == 0  # noqa: S603


def _secrets() -> list[str]:
    bundle = os.environ.get("SSL_CERT_FILE", "")
    return ["--secret", f"id=ca,src={bundle}"] if Path(bundle).is_file() else []


def _run(command: Sequence[str], **settings: str) -> None:
    ended = subprocess.run(  # noqa: S603
        command,
        cwd=str(ROOT),
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ended.returncode != 0:
        said = ended.stdout.decode(errors="replace").strip()
        raise ImageError(f"`{' '.join(command)}` failed:\n{said}")


class _step:  # noqa: N801 - reads as a word
    """Says what begins, and how long it took."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._began = time.monotonic()
        print(f"{self._what} ...", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            print(f"{self._what}: {time.monotonic() - self._began:.0f} s", file=sys.stderr)


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in IMAGES]
    if unknown:
        raise ImageError(f"expected images of {', '.join(IMAGES)}, got {', '.join(unknown)}")


def main(names: Sequence[str]) -> int:
    """Build the images of these names, by default those that a cluster without GPUs needs."""
    try:
        _check_names(names)
        tool = builder()
        tool.ensure_base()
        ARCHIVES.mkdir(parents=True, exist_ok=True)
        for name in names or DEFAULT:
            with _step(f"building {IMAGES[name].tag}"):
                tool.build(IMAGES[name])
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
