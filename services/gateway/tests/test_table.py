"""Which routing table is applied, what is in use of it, and the file that it comes from."""

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path, PosixPath
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.errors import ModelNotFound
from tidegate_gateway.routing import InvalidTable, ModelRoutes, Route, Table
from tidegate_gateway.table import MAX_FILE_BYTES, Routes, follow_file, read_file

PATIENT_S = 20.0


def table(revision: int, *, stable: str = "1", models: tuple[str, ...] = ("m",)) -> Table:
    return Table(
        revision=revision,
        models={model: ModelRoutes(stable, {stable: 100}) for model in models},
        aliases={"alias": "m"} if "m" in models else {},
    )


def text(revision: int, *, stable: str = "1") -> str:
    models = {"m": {"stable": stable}}
    return json.dumps({"schema": 1, "revision": revision, "models": models})


def anywhere(model: str, version: str) -> bool:
    return True


@pytest.fixture
def routes() -> Routes:
    return Routes(Random(1))


# What is applied


def test_order_is_by_revision_alone(routes: Routes) -> None:
    seen: list[int] = []
    routes.on_change(lambda applied: seen.append(applied.revision))

    applied = [routes.apply(table(revision)) for revision in (5, 4, 5, 6, 1, 9)]

    assert applied == [True, False, False, True, False, True]
    assert seen == [5, 6, 9]
    assert routes.revision == 9
    assert routes.table == table(9)


@pytest.mark.parametrize("revision", [7, 3])
def test_a_change_without_a_higher_revision_is_told(
    routes: Routes, revision: int, caplog: pytest.LogCaptureFixture
) -> None:
    routes.apply(table(7))

    assert not routes.apply(table(revision, stable="2"))

    assert routes.table == table(7)
    assert warnings(caplog) == [
        f"expected a routing table of a revision above 7, got {revision}: the change is not applied"
    ]


def test_the_same_table_again_is_nothing_to_tell(
    routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    routes.apply(table(7))

    assert not routes.apply(table(7))

    assert warnings(caplog) == []


def test_what_is_applied_is_logged_with_what_is_ignored(
    routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    routes.apply(Table(3, {"m": ModelRoutes("1", {"1": 100}, {"weigths": {}})}))

    (record,) = caplog.records
    assert record.message == "routing table applied"
    assert vars(record)["table_revision"] == 3
    assert vars(record)["ignored"] == ["model 'm': weigths"]


@pytest.mark.parametrize("pin", ["", "3"])
def test_without_a_table_all_is_left_to_the_engine(routes: Routes, pin: str) -> None:
    assert routes.revision == 0
    assert routes.route("any", pin, "key", anywhere) == Route("any", pin, 0, bool(pin), "")


def test_with_a_table_it_decides(routes: Routes) -> None:
    routes.apply(table(4, stable="2"))

    assert routes.route("alias", "", None, anywhere) == Route("m", "2", 4, False, "")
    with pytest.raises(ModelNotFound):
        routes.route("any", "", None, anywhere)


def test_chance_differs_from_request_to_request(routes: Routes) -> None:
    routes.apply(Table(1, {"m": ModelRoutes("1", {"1": 50, "2": 50})}))

    assert {routes.route("m", "", None, anywhere).version for _ in range(100)} == {"1", "2"}


# What is in use


def test_a_request_holds_the_revision_that_it_came_in_by(routes: Routes) -> None:
    with routes.in_use("m"):
        routes.apply(table(1, models=("m", "other")))
        assert routes.oldest_in_use() == {"m": 0, "other": 1}
        with routes.in_use("m"), routes.in_use("other"):
            routes.apply(table(2, models=("m", "other")))
            assert routes.oldest_in_use() == {"m": 0, "other": 1}
    assert routes.oldest_in_use() == {"m": 2, "other": 2}


def test_a_request_by_an_alias_is_one_of_the_model(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("alias"):
        routes.apply(table(2))
        assert routes.oldest_in_use() == {"m": 1}


def test_a_request_that_fails_is_over(routes: Routes) -> None:
    routes.apply(table(1))
    with suppress(ModelNotFound), routes.in_use("m"):
        raise ModelNotFound("no")
    routes.apply(table(2))

    assert routes.oldest_in_use() == {"m": 2}


def test_a_model_that_left_the_table_is_named_while_it_has_requests(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("m"):
        routes.apply(table(2, models=("other",)))
        assert routes.oldest_in_use() == {"m": 1, "other": 2}
    assert routes.oldest_in_use() == {"other": 2}


def test_names_that_clients_invent_are_not_told(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("invented"):
        assert routes.oldest_in_use() == {"m": 1}


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(st.just("begin"), st.sampled_from(["a", "b"]))
        | st.tuples(st.just("end"), st.integers(0, 20))
        | st.tuples(st.just("apply"), st.none()),
        max_size=30,
    )
)
def test_the_oldest_is_the_lowest_of_those_in_flight(steps: list[tuple[str, Any]]) -> None:
    routes = Routes(Random(1))
    in_flight: list[tuple[str, int, ExitStack]] = []
    for step, argument in [("apply", None), *steps]:
        match step:
            case "begin":
                request = ExitStack()
                request.enter_context(routes.in_use(argument))
                in_flight.append((argument, routes.revision, request))
            case "end" if in_flight:
                in_flight.pop(argument % len(in_flight))[2].close()
            case "apply":
                routes.apply(table(routes.revision + 1, models=("a", "b")))
        assert routes.oldest_in_use() == {
            model: min((r for m, r, _ in in_flight if m == model), default=routes.revision)
            for model in ("a", "b")
        }


def test_the_document_tells_all(routes: Routes) -> None:
    assert routes.document() == {"revision": 0, "table": None, "oldestInUse": {}}

    routes.apply(table(3))
    with routes.in_use("m"):
        routes.apply(table(4))
        told = routes.document()

    assert json.loads(json.dumps(told)) == {
        "revision": 4,
        "table": {
            "schema": 1,
            "revision": 4,
            "aliases": {"alias": "m"},
            "models": {"m": {"stable": "1", "weights": {"1": 100}}},
        },
        "oldestInUse": {"m": 3},
    }


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
async def following(path: Path, routes: Routes) -> AsyncIterator[None]:
    task = asyncio.create_task(follow_file(path, routes, interval_s=0.005))
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
def applied(routes: Routes) -> list[int]:
    """The revisions of the tables that are applied, in order."""
    revisions: list[int] = []
    routes.on_change(lambda table: revisions.append(table.revision))
    return revisions


async def test_each_change_of_the_file_is_applied(
    path: Watched, routes: Routes, applied: list[int]
) -> None:
    path.write_text(text(1))
    async with following(path, routes):
        await until(lambda: routes.revision == 1)
        await looked_at_again(path)
        assert applied == [1]

        replace(path, text(2, stable="3"))
        await until(lambda: routes.revision == 2)

    assert routes.table == Table(2, {"m": ModelRoutes("3", {"3": 100})})


async def test_a_swap_as_the_kubelet_makes_it_is_applied(
    tmp_path: Path, routes: Routes, caplog: pytest.LogCaptureFixture, applied: list[int]
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
    async with following(tmp_path / "routing.json", routes):
        for revision in range(1, 6):
            await until(lambda revision=revision: routes.revision == revision)  # type: ignore[misc]
            publish(revision + 1)
        await until(lambda: routes.revision == 6)

    assert applied == [1, 2, 3, 4, 5, 6]
    assert warnings(caplog) == []


async def test_a_file_that_is_half_written_is_applied_when_it_is_whole(
    path: Watched, routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(1))
    async with following(path, routes):
        await until(lambda: routes.revision == 1)
        with path.open("w") as file:
            file.write(text(2)[:20])
            file.flush()
            await until(lambda: bool(warnings(caplog)))
            assert routes.table == Table(1, {"m": ModelRoutes("1", {"1": 100})})
            file.write(text(2)[20:])
        await until(lambda: routes.revision == 2)


async def test_a_file_that_is_gone_changes_nothing(
    path: Watched, routes: Routes, caplog: pytest.LogCaptureFixture, applied: list[int]
) -> None:
    caplog.set_level(logging.INFO)
    path.write_text(text(1))
    gone = (
        f"routing table: the file cannot be used: {path}: cannot be read: No such file or directory"
    )
    async with following(path, routes):
        await until(lambda: routes.revision == 1)
        path.unlink()
        await until(lambda: bool(warnings(caplog)))
        await looked_at_again(path)
        assert routes.revision == 1
        assert warnings(caplog) == [gone]

        replace(path, text(1))
        await until(lambda: "can be used again" in caplog.text)
        await looked_at_again(path)
        assert applied == [1]
        assert warnings(caplog) == [gone]

        path.unlink()
        await until(lambda: warnings(caplog) == [gone, gone])


async def test_a_file_may_come_later(path: Watched, routes: Routes) -> None:
    async with following(path, routes):
        await looked_at_again(path)
        assert routes.table is None
        path.write_text(text(1))
        await until(lambda: routes.revision == 1)


async def test_each_fault_is_told_once_while_it_lasts(
    path: Watched, routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(0))
    async with following(path, routes):
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
    assert routes.table is None


async def test_a_change_without_a_new_revision_is_told_once(
    path: Watched, routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text(7))
    async with following(path, routes):
        await until(lambda: routes.revision == 7)
        replace(path, text(7, stable="2"))
        await until(lambda: bool(warnings(caplog)))
        await looked_at_again(path)
        replace(path, text(8, stable="2"))
        await until(lambda: routes.revision == 8)

    assert warnings(caplog) == [
        "expected a routing table of a revision above 7, got 7: the change is not applied"
    ]


async def test_a_slow_volume_holds_nothing_up(tmp_path: Path, routes: Routes) -> None:
    """The slow volume is a fake: a file system that stalls cannot be had without root."""
    looking, go_on = threading.Event(), threading.Event()

    class Stalled(PosixPath):
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            looking.set()
            go_on.wait(PATIENT_S)
            return super().stat(follow_symlinks=follow_symlinks)

    (tmp_path / "routing.json").write_text(text(1))
    async with following(Stalled(tmp_path / "routing.json"), routes):
        await until(looking.is_set)
        assert routes.revision == 0
        go_on.set()
        await until(lambda: routes.revision == 1)
