"""Versions come into the local repository whole or not at all, and are known by their digest."""

import hashlib
from pathlib import Path

import pytest

from tidegate_engine.loader import repository as repositories
from tidegate_engine.loader.errors import NotFetched
from tidegate_engine.loader.memory import Crashes, Memory, Trial
from tidegate_engine.loader.plan import Copy
from tidegate_engine.loader.repository import Repository, digest_of

CONFIG = 'backend: "python"\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    version = tmp_path / "source" / "echo" / "1"
    (version / "weights").mkdir(parents=True)
    (version / "model.py").write_bytes(b"code")
    (version / "weights" / "a.bin").write_bytes(b"\0\1")
    (version / "__pycache__").mkdir()
    (version / "__pycache__" / "model.pyc").write_bytes(b"cache")
    (version.parent / "config.pbtxt").write_text(f"{CONFIG}version_policy {{ all {{}} }}\n")
    (version.parent / "labels.txt").write_text("tabby\n")
    (version.parent / ".2-uploading").mkdir()
    return tmp_path / "source"


def opened(source: Path, *, link: bool = False) -> Repository:
    local = source.parent / "local"
    local.mkdir(exist_ok=True)
    made = Repository(source, local, link=link)
    made.clear_leftovers()
    return made


def digest(files: dict[str, bytes]) -> str:
    """As the design has it, written once more."""
    lines = b"".join(
        b"%s\0%d\0%s\n"
        % (path.encode(), len(content), hashlib.sha256(content).hexdigest().encode())
        for path, content in sorted(files.items())
    )
    return f"sha256:{hashlib.sha256(lines).hexdigest()}"


def test_a_version_is_copied_with_what_lies_beside_it(source: Path) -> None:
    repository, local = opened(source), source.parent / "local"
    copy, config = repository.fetch("echo", "1", "")
    assert copy == Copy(digest({"model.py": b"code", "weights/a.bin": b"\0\1"}), 6)
    assert config == CONFIG
    assert (local / "echo" / "1" / "weights" / "a.bin").read_bytes() == b"\0\1"
    assert (local / "echo" / "labels.txt").read_text() == "tabby\n"
    assert digest_of(local / "echo" / "1") == copy
    assert sorted(each.name for each in (local / "echo").iterdir()) == ["1", "labels.txt"]
    # A file where Python would put its cache: that would change the version's time of change.
    assert (local / "echo" / "1" / "__pycache__").is_file()
    repository.write_config("echo", config, ("2", "1"))
    assert (local / "echo" / "config.pbtxt").read_text() == (
        f"{CONFIG}version_policy: {{ specific: {{ versions: [ 1, 2 ] }} }}\n"
    )


def test_a_second_version_leaves_what_lies_beside_it_alone(source: Path) -> None:
    repository, beside = opened(source), source.parent / "local" / "echo" / "labels.txt"
    repository.fetch("echo", "1", "")
    before = beside.stat()
    (source / "echo" / "1").rename(source / "echo" / "2")
    (source / "echo" / "labels.txt").write_text("others\n")
    (source / "echo" / "more.txt").touch()
    repository.fetch("echo", "2", "")
    assert beside.stat().st_mtime_ns == before.st_mtime_ns
    assert not beside.with_name("more.txt").exists()


def test_one_that_is_not_right_leaves_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, local = opened(source), source.parent / "local"
    wrong = f"sha256:{'0' * 64}"
    with pytest.raises(NotFetched, match=f"expected files with the digest {wrong}, got sha256:"):
        repository.fetch("echo", "1", wrong)
    with pytest.raises(NotFetched, match="the repository has no version 3"):
        repository.fetch("echo", "3", "")
    with pytest.raises(NotFetched, match=r"the repository has no config\.pbtxt"):
        repository.fetch("other", "1", "")
    (source / "echo" / "1" / "linked").symlink_to(source)
    with pytest.raises(NotFetched, match="a link to a folder"):
        repository.fetch("echo", "1", "")
    (source / "echo" / "1" / "linked").unlink()

    # Another writer at just that moment cannot be had from outside.
    def copy_and_change(at: Path, target: Path) -> Copy:
        monkeypatch.undo()
        copied = repositories._copy_folder(at, target)
        (at / "model.py").write_bytes(b"changed")
        return copied

    monkeypatch.setattr(repositories, "_copy_folder", copy_and_change)
    with pytest.raises(NotFetched, match="changed while they were copied"):
        repository.fetch("echo", "1", "")
    assert not (local / "echo").exists()
    assert [*(local / ".loader" / "incoming").iterdir()] == []


def test_what_an_earlier_loader_left_is_found_and_what_it_did_not_finish_is_gone(
    source: Path,
) -> None:
    copy, config = opened(source).fetch("echo", "1", "")
    opened(source).write_config("echo", config, ("1",))
    unfinished = source.parent / "local" / ".loader" / "incoming" / "echo~2"
    unfinished.mkdir()
    again = opened(source)
    assert not unfinished.exists()
    found = again.scan(Memory())
    assert found["echo"].copies == {"1": copy}
    assert found["echo"].config == CONFIG
    remembered = Copy("sha256:remembered", 1)
    assert again.scan(Memory(copies={"echo": {"1": remembered}}))["echo"].copies["1"] == remembered


def test_what_is_remembered_is_recalled_and_rubbish_is_nothing(source: Path) -> None:
    repository = opened(source)
    assert repository.recall() == Memory()
    memory = Memory(
        copies={"echo": {"1": Copy("sha256:x", 3)}},
        trials={"echo": Trial("2", 4)},
        crashes={"echo": {"2": Crashes(1, 7)}},
    )
    repository.remember(memory)
    assert opened(source).recall() == memory
    for rubbish in ("", "{", "[]", '{"schema": 2}', '{"schema": 1, "copies": 3}'):
        (source.parent / "local" / ".loader" / "memory.json").write_text(rubbish)
        assert repository.recall() == Memory()


def test_a_link_is_a_link_and_is_all_that_is_removed(source: Path) -> None:
    repository, place = opened(source, link=True), source.parent / "local" / "echo" / "1"
    copy, _ = repository.fetch("echo", "1", "")
    assert place.readlink() == source / "echo" / "1"
    assert repository.scan(Memory())["echo"].copies == {"1": copy}
    repository.discard("echo", "1")
    assert not place.is_symlink()
    assert (source / "echo" / "1" / "model.py").exists()
    repository.discard("echo", "")
    assert not place.parent.exists()
    repository.discard("echo", "")
