"""What the cluster is made of: versions, keys of the cache, images without Docker, sentences."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from node import api, archive, build, machine, parts
from node.archive import Image
from node.errors import ClusterError
from node.machine import Facts

GO_MOD = """\
module tidegate.dev/hyper

go 1.24.0

require (
	k8s.io/component-base v0.34.4
	k8s.io/kubernetes v1.34.4
)
"""
STATE = Path("/clone/.run/cluster")


def program(name: str) -> parts.Program:
    (found,) = (each for each in parts.PROGRAMS if each.name == name)
    return found


def test_versions_come_from_go_mod() -> None:
    assert parts.version(GO_MOD, "k8s.io/kubernetes") == "1.34.4"
    assert parts.go_minimum(GO_MOD) == (1, 24, 0)
    with pytest.raises(ValueError, match=r"requires no k8s\.io/kube$"):
        parts.version(GO_MOD, "k8s.io/kube")


def test_every_program_has_its_module_and_its_version() -> None:
    for each in parts.PROGRAMS:
        go_mod = (parts.SOURCES / each.name / "go.mod").read_text()
        assert parts.go_minimum(go_mod) >= (1, 24)
        if each.dependency:
            assert parts.version(go_mod, each.dependency)


def test_kubernetes_reports_its_version() -> None:
    flags = parts.linker_flags(program("hyper"), GO_MOD)
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in flags
    assert parts.linker_flags(program("etcd"), GO_MOD) == "-s -w"


def test_a_changed_source_is_another_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in parts.PROGRAMS:
        folder = tmp_path / each.name
        folder.mkdir()
        for source in (parts.SOURCES / each.name).iterdir():
            (folder / source.name).write_bytes(source.read_bytes())
    before = parts.parts(tmp_path).folders
    monkeypatch.setattr(parts, "SOURCES", tmp_path)
    assert parts.parts(tmp_path).folders == before, "the digest depends on contents alone"
    (tmp_path / "etcd" / "main.go").write_text("package main\n")
    changed = {name for name, path in parts.parts(tmp_path).folders.items() if path != before[name]}
    assert changed == {"etcd"}


def test_the_cache_follows_the_users_setting() -> None:
    assert parts.cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/tidegate/cluster")
    assert parts.cache_folder({}) == Path.home() / ".cache" / "tidegate" / "cluster"


def test_progress_tells_downloads_packages_and_errors_apart() -> None:
    progress = build.Progress()
    for line in (
        b"go: downloading k8s.io/api v0.34.4\n",
        b"internal/goarch\n",
        b"github.com/go-logr/logr\n",
        b"gopkg.in/yaml.v3\n",
        b"./main.go:7:2: undefined: x\n",
    ):
        progress.take(line)
    assert str(progress) == "1 modules downloaded, 3 packages compiled"
    assert progress.rest == b"./main.go:7:2: undefined: x\n"


def test_go_that_is_missing_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (sentence,) = build.unfit(["etcd"])
    assert sentence.startswith("Go, which compiles Kubernetes, is not on this machine: install Go")
    assert build.unfit(["tools"]) == []
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    go.chmod(0o755)
    (sentence,) = build.unfit(["etcd", "tools"])
    assert sentence.startswith("Go 1.19.8 is too old to compile Kubernetes: install Go")


def test_an_image_of_one_program_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "pause").write_bytes(b"\x7fELF")
    packed = tmp_path / "image.tar"
    archive.pack(tmp_path / "pause", "localhost/a/pause:1", packed)
    (image,) = archive.images(packed)
    assert image.name == "localhost/a/pause:1"
    again = tmp_path / "again.tar"
    archive.pack(tmp_path / "pause", "localhost/a/pause:1", again)
    assert again.read_bytes() == packed.read_bytes()
    (tmp_path / "pause").write_bytes(b"\x7fELF2")
    archive.pack(tmp_path / "pause", "localhost/a/pause:1", again)
    assert archive.images(again)[0].config != image.config


def test_the_images_of_an_oci_archive(tmp_path: Path) -> None:
    blobs = {
        "index.json": {
            "manifests": [
                {
                    "digest": "sha256:aa",
                    "annotations": {"org.opencontainers.image.ref.name": "localhost/a/b:dev"},
                }
            ]
        },
        "blobs/sha256/aa": {"config": {"digest": "sha256:bb"}},
    }
    for name, content in blobs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    with tarfile.open(tmp_path / "oci.tar", "w") as tar:
        for name in blobs:
            tar.add(tmp_path / name, name)
    assert archive.images(tmp_path / "oci.tar") == [Image("localhost/a/b:dev", "sha256:bb")]


def test_archives_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match=r"^There is no image archive .*: `make images` makes it\.$"
    ):
        archive.images(tmp_path / "absent.tar")
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(ClusterError, match="cannot be read"):
        archive.images(tmp_path / "text.tar")
    with tarfile.open(tmp_path / "other.tar", "w"):
        pass
    with pytest.raises(ClusterError, match=r"is neither a docker-archive .* nor an OCI archive"):
        archive.images(tmp_path / "other.tar")


def test_a_dns_question_and_what_answers_it() -> None:
    question = api.question(0x1234, "kubernetes.default")
    assert question[12:] == b"\x0akubernetes\x07default\x00\x00\x01\x00\x01"
    good = b"\x12\x34\x85\x80\x00\x01\x00\x01\x00\x00\x00\x00"
    assert api.answers(0x1234, good)
    assert not api.answers(0x1235, good), "an answer to another question"
    assert not api.answers(0x1234, good[:3] + b"\x83" + good[4:]), "NXDOMAIN"
    assert not api.answers(0x1234, good[:7] + b"\x00" + good[8:]), "no record"
    assert not api.answers(0x1234, b"\x12\x34")


def test_a_machine_that_fits() -> None:
    assert machine.sentences(Facts(), STATE) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            Facts(system="Darwin", architecture="arm64"),
            "The test cluster runs on Linux x86_64; this machine is Darwin arm64.",
        ),
        (
            Facts(root=False),
            "The test cluster needs root, for its namespaces, mounts and cgroups: run this as root "
            "(with sudo, or in a container that is `--privileged`).",
        ),
        (
            Facts(missing_packages=("conntrack", "runc")),
            "Missing Debian packages: conntrack, runc; `make cluster-deps` installs them.",
        ),
        (
            Facts(missing_features=("bridges",)),
            "This machine's kernel lacks bridges: load or enable it.",
        ),
        (
            Facts(missing_controllers=("memory",)),
            "The cgroup controllers memory are missing here: enable them at boot.",
        ),
        (
            Facts(overlay=False),
            "overlayfs does not work in /clone/.run/cluster: put the clone on a disk with ext4 or "
            "xfs (not on another overlay), on a kernel that has the module overlay.",
        ),
        (
            Facts(hidden=True),
            "The clone lies below a folder that each node has for itself (/clone/.run/cluster): "
            "put it elsewhere.",
        ),
        (
            Facts(memory=10**9),
            "The test cluster needs 1.5 GB of memory, and 1.0 GB are free: free some.",
        ),
        (
            Facts(disk=10**9),
            "The test cluster needs 3.0 GB of disk space for the clone, and 1.0 GB are free: free "
            "some.",
        ),
    ],
)
def test_a_machine_that_does_not_fit(facts: Facts, sentence: str) -> None:
    assert machine.sentences(facts, STATE) == [sentence]


def test_without_root_or_packages_nothing_else_is_said() -> None:
    poor = Facts(memory=1, disk=1, overlay=False)
    assert len(machine.sentences(poor, STATE)) == 3
    assert len(machine.sentences(replace(poor, root=False), STATE)) == 1
    assert len(machine.sentences(replace(poor, missing_packages=("runc",)), STATE)) == 1


def test_missing_programs_are_named_by_their_packages() -> None:
    assert "nowhere" in machine.missing_packages({"no-such-program": "nowhere"})
    assert "nowhere" not in machine.missing_packages({"sh": "nowhere"})
