"""What the cluster is made of, and the name each part is kept under. Pure, but for reading src/.

A part's name ends in a digest of all that it is made from: its Go module (with the pinned versions
and their checksums) and how it is compiled. The compiler's own version is left out on purpose: it
is no reason to compile for a quarter of an hour.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import DNS_IMAGE, PAUSE_IMAGE

SOURCES = Path(__file__).resolve().parent / "src"
TOOLS = Path(__file__).resolve().parent / "tools.txt"
SERVERS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)
# Set for the compiler whatever the user has set: what is built must depend on the sources alone.
COMPILER = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}


@dataclass(frozen=True)
class Program:
    """A Go module of ours that becomes one program.

    Args:
        name: of the module's folder and of the program.
        title: what it is, for people.
        dependency: the module whose version is the program's; None for our own code.
        links: other names that the program is called by.
        image: the image that holds it, if it runs in pods.
        minutes: how long a first compilation takes on two cores, downloads included.
    """

    name: str
    title: str
    dependency: str | None
    minutes: int
    links: tuple[str, ...] = ()
    image: str | None = None


PROGRAMS = (
    Program("pause", "the pods' first process", None, 1, image=PAUSE_IMAGE),
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", 2),
    Program("coredns", "CoreDNS", "github.com/coredns/coredns", 3, image=DNS_IMAGE),
    Program("hyper", "Kubernetes", "k8s.io/kubernetes", 12, links=SERVERS),
)


@dataclass(frozen=True)
class Parts:
    """Where everything is once it is built.

    Args:
        folders: part → its folder in the cache.
    """

    folders: Mapping[str, Path]

    @property
    def etcd(self) -> Path:
        """The etcd program."""
        return self.folders["etcd"] / "etcd"

    @property
    def kubernetes(self) -> Path:
        """The folder of the Kubernetes servers."""
        return self.folders["hyper"]

    @property
    def tools(self) -> dict[str, Path]:
        """kubectl and helm."""
        return {name: self.folders["tools"] / name for name in ("kubectl", "helm")}

    @property
    def images(self) -> list[Path]:
        """The archives of the images that every node needs."""
        return [self.folders[p.name] / "image.tar" for p in PROGRAMS if p.image]

    def missing(self) -> list[str]:
        """The parts that have to be made yet."""
        return [name for name, folder in self.folders.items() if not folder.exists()]


def cache_folder(variables: Mapping[str, str]) -> Path:
    """The user's cache for test clusters, from the environment's variables."""
    home = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tidegate" / "cluster"


def version(go_mod: str, module: str) -> str:
    """The version that a go.mod requires of a module, without the "v"."""
    match = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise ValueError(f"the go.mod requires no {module}")
    return match[1]


def go_minimum(go_mod: str) -> tuple[int, ...]:
    """The Go that a go.mod asks for: `go 1.24.0` → (1, 24, 0)."""
    match = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    if match is None:
        raise ValueError("the go.mod names no Go version")
    return tuple(map(int, match[1].split(".")))


def linker_flags(program: Program, go_mod: str) -> str:
    """What the linker leaves out (symbols), and for Kubernetes the version that it reports."""
    flags = "-s -w"
    if program.dependency == "k8s.io/kubernetes":
        whole = version(go_mod, program.dependency)
        major, minor, _ = whole.split(".")
        names = {"gitVersion": f"v{whole}", "gitMajor": major, "gitMinor": minor}
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += "".join(f" -X {package}.{name}={value}" for name, value in names.items())
    return flags


def parts(cache: Path) -> Parts:
    """Where the parts are, or will be, for the sources as they are."""
    folders = {"tools": cache / f"tools-{_digest([TOOLS.read_bytes()])}"}
    for program in PROGRAMS:
        source = SOURCES / program.name
        contents = [
            *(path.name.encode() + b"\0" + path.read_bytes() for path in sorted(source.iterdir())),
            *(f"{name}={value}".encode() for name, value in COMPILER.items()),
            linker_flags(program, go_mod(program)).encode(),
            str((program.links, program.image)).encode(),
        ]
        folders[program.name] = cache / f"{program.name}-{_digest(contents)}"
    return Parts(folders)


def go_mod(program: Program) -> str:
    """The text of a program's go.mod."""
    return (SOURCES / program.name / "go.mod").read_text(encoding="utf-8")


def _digest(contents: Sequence[bytes]) -> str:
    sha = hashlib.sha256()
    for content in contents:
        sha.update(hashlib.sha256(content).digest())
    return sha.hexdigest()[:12]
