"""How the table is followed: a file, a ConfigMap, and the copy that survives a restart."""

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PosixPath
from typing import Any

import pytest

from tidegate_table.api_server import ApiServer, Pace
from tidegate_table.document import InvalidTable, ModelRoutes, Table
from tidegate_table.following import (
    MAX_FILE_BYTES,
    Store,
    follow_config_map,
    follow_file,
    read_file,
)

PATIENT_S = 20.0


class Applied:
    """Who goes by a table, and notes which ones it has gone by."""

    def __init__(self) -> None:
        self.table: Table | None = None
        self.revisions: list[int] = []

    @property
    def revision(self) -> int:
        return self.table.revision if self.table else 0

    def apply(self, table: Table) -> None:
        self.table = table
        self.revisions.append(table.revision)


@pytest.fixture
def holder() -> Applied:
    return Applied()


def table(revision: int, *, stable: str = "1", models: tuple[str, ...] = ("m",)) -> Table:
    return Table(
        revision=revision,
        models={model: ModelRoutes(stable, {stable: 100}) for model in models},
        aliases={"alias": "m"} if "m" in models else {},
    )


def text(revision: int, *, stable: str = "1") -> str:
    models = {"m": {"stable": stable}}
    return json.dumps({"schema": 1, "revision": revision, "models": models})


# The file


def faults_of(path: Path) -> list[str]:
    with pytest.raises(InvalidTable) as refused:
        read_file(path)
    return [fault.replace(str(path), "routing.json") for fault in refused.value.faults]


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text(text(5, stable="2"))

    assert read_file(path) == Table(5, {"m": ModelRoutes("2", {"2": 100})})


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (
            b'{"schema": 1, "models": {"m": {}, "n": {}, "m": {}, "n": {}, "n": {}}}',
            ["expected 'm' once, got it 2 times", "expected 'n' once, got it 3 times"],
        ),
        (b"[]", ["the table: expected an object, got a list"]),
        (
            b'{"schema": 1, "revision": 0, "models": {"m": 1}}',
            [
                "revision: expected a whole number from 1, got 0",
                "model 'm': expected an object, got 1",
            ],
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_that_holds_no_table_is_refused(
    content: bytes, faults: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "routing.json"
    path.write_bytes(content)

    assert faults_of(path) == [f"routing.json: {fault}" for fault in faults]


@pytest.mark.parametrize(
    "content",
    [b"", b'{"schema": 1', b"\xff{}", b"\xef\xbb\xbf{}", b"[NaN]", b"[-1e999]", rb'["\ud800"]'],
    ids=repr,
)
def test_what_is_no_json_is_told_with_its_place(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_bytes(content)

    (fault,) = faults_of(path)

    assert re.fullmatch(r"routing.json: expected JSON: .+: line 1 column \d+ .*", fault), fault


@pytest.mark.parametrize("depth", [900, 1000, 1020, 2000, 100_000])
def test_no_nesting_is_too_deep_for_an_answer(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text("[" * depth + "]" * depth)

    assert len(faults_of(path)) == 1


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert faults_of(tmp_path / "routing.json") == [
        "routing.json: cannot be read: No such file or directory"
    ]
    assert faults_of(tmp_path) == ["routing.json: expected a file, got a folder or device"]
    assert faults_of(pipe) == ["routing.json: expected a file, got a folder or device"]


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text(text(1).ljust(MAX_FILE_BYTES))
    assert read_file(path).revision == 1

    path.write_text(text(1).ljust(MAX_FILE_BYTES + 1))
    assert faults_of(path) == [f"routing.json: expected at most {MAX_FILE_BYTES} bytes, got more"]


# Following it


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far, with the faults that they tell."""
    return [
        ": ".join([record.message, *vars(record).get("faults", ())])
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not check():  # noqa: ASYNC110 - files and logs have no event
            await asyncio.sleep(0.005)


class Watched(PosixPath):
    """A path that counts how often it is looked at."""

    looks = 0

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self.looks += 1
        return super().stat(follow_symlinks=follow_symlinks)


@asynccontextmanager
async def following(path: Path, holder: Applied) -> AsyncIterator[None]:
    task = asyncio.create_task(follow_file(path, holder, interval_s=0.005))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def replace(path: Path, content: str) -> None:
    """Writes the whole file at once, as far as a reader can see."""
    new = path.with_suffix(".new")
    new.write_text(content)
    new.rename(path)


async def looked_at_again(path: Watched) -> None:
    """Waits for two whole looks."""
    seen = path.looks
    await until(lambda: path.looks >= seen + 3)


@pytest.fixture
def path(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "routing.json")


@pytest.fixture
def applied(holder: Applied) -> list[int]:
    """The revisions of the tables that are applied, in order."""
    return holder.revisions


async def test_each_change_of_the_file_is_applied(
    path: Watched, holder: Applied, applied: list[int]
) -> None:
    path.write_text(text(1))
    async with following(path, holder):
        await until(lambda: holder.revision == 1)
        await looked_at_again(path)
        assert applied == [1]

        replace(path, text(2, stable="3"))
        await until(lambda: holder.revision == 2)

    assert holder.table == Table(2, {"m": ModelRoutes("3", {"3": 100})})


async def test_a_swap_as_the_kubelet_makes_it_is_applied(
    tmp_path: Path, holder: Applied, caplog: pytest.LogCaptureFixture, applied: list[int]
) -> None:
    def publish(revision: int) -> None:
        """A new folder, and one rename that makes ..data point to it."""
        version = tmp_path / f"..{revision}"
        version.mkdir()
        (version / "routing.json").write_text(text(revision))
        # What a comparison of times and sizes would take for the same file.
        os.utime(version / "routing.json", ns=(10**18, 10**18))
        (tmp_path / "..data_tmp").symlink_to(version.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish(1)
    (tmp_path / "routing.json").symlink_to("..data/routing.json")
    async with following(tmp_path / "routing.json", holder):
        for revision in range(1, 6):
            await until(lambda revision=revision: holder.revision == revision)  # type: ignore[misc]
            publish(revision + 1)
        await until(lambda: holder.revision == 6)

    assert applied == [1, 2, 3, 4, 5, 6]
    assert warnings(caplog) == []


async def test_a_file_that_is_half_written_is_applied_when_it_is_whole(
    path: Watched, holder: Applied, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(1))
    async with following(path, holder):
        await until(lambda: holder.revision == 1)
        with path.open("w") as file:
            file.write(text(2)[:20])
            file.flush()
            await until(lambda: bool(warnings(caplog)))
            assert holder.table == Table(1, {"m": ModelRoutes("1", {"1": 100})})
            file.write(text(2)[20:])
        await until(lambda: holder.revision == 2)


async def test_a_file_that_is_gone_changes_nothing(
    path: Watched, holder: Applied, caplog: pytest.LogCaptureFixture, applied: list[int]
) -> None:
    caplog.set_level(logging.INFO)
    path.write_text(text(1))
    gone = (
        f"routing table: the file cannot be used: {path}: cannot be read: No such file or directory"
    )
    async with following(path, holder):
        await until(lambda: holder.revision == 1)
        path.unlink()
        await until(lambda: bool(warnings(caplog)))
        await looked_at_again(path)
        assert holder.revision == 1
        assert warnings(caplog) == [gone]

        replace(path, text(1))
        await until(lambda: "can be used again" in caplog.text)
        await looked_at_again(path)
        assert applied == [1]
        assert warnings(caplog) == [gone]

        path.unlink()
        await until(lambda: warnings(caplog) == [gone, gone])


async def test_a_file_may_come_later(path: Watched, holder: Applied) -> None:
    async with following(path, holder):
        await looked_at_again(path)
        assert holder.table is None
        path.write_text(text(1))
        await until(lambda: holder.revision == 1)


async def test_each_fault_is_told_once_while_it_lasts(
    path: Watched, holder: Applied, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(0))
    async with following(path, holder):
        await until(lambda: len(warnings(caplog)) == 1)
        await looked_at_again(path)
        replace(path, text(1, stable="x"))
        await until(lambda: len(warnings(caplog)) == 2)
        await looked_at_again(path)

    unusable = f"routing table: the file cannot be used: {path}: "
    assert warnings(caplog) == [
        f"{unusable}revision: expected a whole number from 1, got 0",
        f"{unusable}model 'm': stable: expected a version such as '1', got 'x'",
    ]
    assert holder.table is None


async def test_a_change_without_a_new_revision_is_told_once(
    path: Watched, holder: Applied, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(7))
    async with following(path, holder):
        await until(lambda: holder.revision == 7)
        replace(path, text(7, stable="2"))
        await until(lambda: bool(warnings(caplog)))
        await looked_at_again(path)
        replace(path, text(8, stable="2"))
        await until(lambda: holder.revision == 8)

    assert warnings(caplog) == [
        "expected a routing table of a revision above 7, got 7: the change is not applied"
    ]


async def test_a_slow_volume_holds_nothing_up(tmp_path: Path, holder: Applied) -> None:
    """The slow volume is a fake: a file system that stalls cannot be had without root."""
    looking, go_on = threading.Event(), threading.Event()

    class Stalled(PosixPath):
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            looking.set()
            go_on.wait(PATIENT_S)
            return super().stat(follow_symlinks=follow_symlinks)

    (tmp_path / "routing.json").write_text(text(1))
    async with following(Stalled(tmp_path / "routing.json"), holder):
        await until(looking.is_set)
        assert holder.revision == 0
        go_on.set()
        await until(lambda: holder.revision == 1)


# A ConfigMap


class ConfigMaps:
    """An API server with at most one ConfigMap. A fake: a real one cannot be kept silent at will.
    How lists and watches go wrong is tested with the EndpointSlices of the gateway."""

    def __init__(self) -> None:
        self.silent = False
        self.version = 10
        self.data: dict[str, str] | None = None
        self.watches: set[asyncio.StreamWriter] = set()
        self.paths: list[str] = []
        self.port = 0

    def put(self, content: str) -> None:
        kind = "ADDED" if self.data is None else "MODIFIED"
        self.version += 1
        self.data = {"table.json": content}
        self._tell(kind)

    def delete(self) -> None:
        self.version += 1
        self._tell("DELETED")
        self.data = None

    def _tell(self, kind: str) -> None:
        line = json.dumps({"type": kind, "object": self._object()}).encode() + b"\n"
        for writer in self.watches:
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _object(self) -> dict[str, Any]:
        metadata = {"name": "tidegate-routing", "resourceVersion": str(self.version)}
        return {"metadata": metadata, "data": self.data}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.paths.append(head.split()[1].decode())
                if not self.silent:
                    self._answer(b"watch=true" in head, writer)
        self.watches.discard(writer)
        writer.close()

    def _answer(self, watch: bool, writer: asyncio.StreamWriter) -> None:
        if watch:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.watches.add(writer)
            return
        items = [] if self.data is None else [self._object()]
        metadata = {"resourceVersion": str(self.version)}
        body = json.dumps({"kind": "ConfigMapList", "metadata": metadata, "items": items}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture
async def maps() -> AsyncIterator[ConfigMaps]:
    fake = ConfigMaps()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    yield fake
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def following_map(
    maps: ConfigMaps, holder: Applied, store: Store, silent_s: float = PATIENT_S
) -> AsyncIterator[None]:
    task = asyncio.create_task(
        follow_config_map(
            "tidegate-routing",
            holder,
            store,
            api=ApiServer(f"http://127.0.0.1:{maps.port}", namespace="models"),
            silent_s=silent_s,
            pace=Pace(settled_s=0.05, pause_first_s=0.01, pause_most_s=0.05, list_s=0.5),
        )
    )
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await until(lambda: not maps.watches)


async def test_a_config_map_is_listed_then_watched_and_each_table_is_kept(
    maps: ConfigMaps, holder: Applied, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    maps.put(text(3))
    async with following_map(maps, holder, store):
        await until(lambda: holder.revision == 3 and bool(maps.watches))
        assert store.load() == holder.table
        maps.put(text(4, stable="2"))
        await until(lambda: holder.revision == 4)
        assert store.load() == holder.table
    assert all("/namespaces/models/configmaps?" in path for path in maps.paths)
    assert all("fieldSelector=metadata.name%3Dtidegate-routing" in path for path in maps.paths)


async def test_a_table_is_kept_before_it_is_applied(
    maps: ConfigMaps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    class Checking(Applied):
        def apply(self, table: Table) -> None:
            assert store.load() == table
            super().apply(table)

    holder = Checking()
    maps.put(text(3))
    async with following_map(maps, holder, store):
        await until(lambda: holder.revision == 3)


async def test_a_table_that_cannot_be_kept_is_not_applied_until_it_can(
    maps: ConfigMaps, holder: Applied, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "not there yet"
    maps.put(text(3))
    async with following_map(maps, holder, Store(folder)):
        await until(lambda: bool(warnings(caplog)))
        assert holder.table is None
        folder.mkdir()
        await until(lambda: holder.revision == 3)


async def test_a_deleted_config_map_and_lower_revisions_change_nothing(
    maps: ConfigMaps, holder: Applied, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maps.put(text(5))
    async with following_map(maps, holder, Store(tmp_path)):
        await until(lambda: holder.revision == 5 and bool(maps.watches))
        maps.delete()
        await until(lambda: len(warnings(caplog)) == 1)
        maps.put(text(4))
        await until(lambda: len(warnings(caplog)) == 2)
        maps.put("{")
        await until(lambda: len(warnings(caplog)) == 3)
        maps.put(text(6))
        await until(lambda: holder.revision == 6)

    assert holder.revisions == [5, 6]
    assert "there is no ConfigMap with the routing table" in warnings(caplog)[0]
    assert "above 5, got 4" in warnings(caplog)[1]
    assert "the ConfigMap cannot be used" in warnings(caplog)[2]


async def test_a_config_map_that_is_not_there_yet_is_told(
    maps: ConfigMaps, holder: Applied, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following_map(maps, holder, Store(tmp_path)):
        await until(lambda: bool(warnings(caplog)))
        assert holder.table is None
        maps.put(text(1))
        await until(lambda: holder.revision == 1)

    assert warnings(caplog) == ["there is no ConfigMap with the routing table"]


async def test_while_the_api_server_is_silent_the_kept_table_is_used(
    maps: ConfigMaps, holder: Applied, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.save(Table(7, {"m": ModelRoutes("1", {"1": 100})}))
    maps.silent = True
    maps.put(text(8))
    async with following_map(maps, holder, store, silent_s=0.1):
        await until(lambda: holder.revision == 7)
        maps.silent = False
        await until(lambda: holder.revision == 8)


@pytest.mark.parametrize("listed", ["older", "none"])
async def test_what_is_listed_does_not_put_a_restarted_one_back(
    listed: str, maps: ConfigMaps, holder: Applied, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.save(Table(7, {"m": ModelRoutes("1", {"1": 100})}))
    if listed == "older":
        maps.put(text(6))
    async with following_map(maps, holder, store):
        await until(lambda: holder.revision == 7)
    assert holder.revisions == [7]


async def test_a_newer_table_is_applied_without_the_kept_one_in_between(
    maps: ConfigMaps, holder: Applied, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.save(Table(7, {"m": ModelRoutes("1", {"1": 100})}))
    maps.put(text(9))
    async with following_map(maps, holder, store):
        await until(lambda: holder.revision == 9)
    assert holder.revisions == [9]


def test_a_copy_that_is_spoilt_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "table.json").write_text("{")
    assert Store(tmp_path).load() is None
    assert warnings(caplog) == ["the copy of the routing table cannot be used"]
