"""The loop: what it writes and when, whatever fails meanwhile.

The API server and the pods are a few lines of dictionaries: real ones do not fail in the midst of a
round on demand. With a real API server the whole operator is tested in k8s-tests.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tidegate_operator import plan, reconcile, settings
from tidegate_operator.cluster import Cluster, Stored
from tidegate_operator.errors import ClusterFailed, Conflict
from tidegate_operator.lease import Claim, Lease
from tidegate_operator.reconcile import NotDone, Reconciler
from tidegate_operator.resources import PodSeen, table_text
from tidegate_operator.situation import Decision, Memory, Observed
from tidegate_process.asking import Asking, NoAnswer
from tidegate_table.document import Loads, ModelRoutes, Phase, Policy, Roll, Table, read

CONFIG = 'name: "m"'
STEPPING = Table(
    revision=5,
    models={"m": ModelRoutes("1", {"1": 90, "2": 10})},
    loads={
        "m": Loads(
            CONFIG,
            {"1": "", "2": ""},
            roll=Roll("1", "2", Phase.STEPPING, 0, 5),
            policy=Policy("m", "Keep"),
        )
    },
)


def merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """As RFC 7396 says."""
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        elif value is None:
            into.pop(name, None)
        else:
            into[name] = value


class FakeCluster(Cluster):
    """An API server.

    Attributes:
        calls: what was asked of it, in order.
        failing: what is refused → how.
    """

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.stored: Stored | None = None
        self.signed: Claim | None = None
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.events: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Mapping[str, Any]]] = []

    def make(self, model: str, version: int, **status: Any) -> None:
        """Let there be a ModelRollout named like its model."""
        self.documents[model] = {
            "metadata": {"name": model, "namespace": "n", "uid": model, "generation": 1,
                         "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"model": model, "version": version},
            "status": status,
        }  # fmt: skip

    def put(self, table: Table) -> None:
        """Let that be the table."""
        self.stored = Stored(table_text(table).encode(), str(table.revision))

    def table_now(self) -> Table:
        """The table as it is."""
        assert self.stored is not None
        return read(self.stored.content)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]

    async def rollouts(self) -> list[dict[str, Any]]:
        self._called("rollouts")
        return [*self.documents.values()]

    async def table(self) -> Stored | None:
        self._called("table")
        return self.stored

    async def pods(self, selector: str) -> list[PodSeen]:
        self._called("pods")
        return [PodSeen(selector.partition("=")[2], "u", "10.0.0.1", True, True)]

    async def write_table(self, table: Table, over: str | None) -> None:
        self._called("write_table")
        assert over == (self.stored.version if self.stored is not None else None)
        self.put(table)

    async def patch_status(self, name: str, version: str, patch: Mapping[str, Any]) -> None:
        self._called(f"patch_status {name}")
        assert version == self.documents[name]["metadata"]["resourceVersion"]
        self.patches.append((name, patch))
        merge(self.documents[name]["status"], patch)

    async def post_event(
        self, rollout: Mapping[str, Any], *, warning: bool, reason: str, message: str
    ) -> None:
        self._called("post_event")
        self.events.append(("Warning" if warning else "Normal", reason))

    async def claim(self) -> Claim | None:
        self._called("claim")
        return self.signed

    async def write_claim(self, holder: str, duration_s: int, over: Claim | None) -> Claim:
        self.signed = Claim("1", holder, duration_s, 0)
        return self.signed

    async def close(self) -> None:
        self._called("close")


class FakeAsking(Asking):
    """A gateway and an engine, which follow the table at once.

    Attributes:
        failed: versions → why they fail on the engine.
        broken: how every question ends instead.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.failed: dict[str, str] = {}
        self.broken: Exception | None = None

    async def ask(self, address: str, port: int, path: str) -> Mapping[str, Any]:
        if self.broken is not None:
            raise self.broken
        table = self._cluster.table_now() if self._cluster.stored is not None else Table(0, {})
        if path == "/routing":
            return {"revision": table.revision, "oldestInUse": {}}
        models = {
            model: {
                "config": CONFIG, "configError": "",
                "versions": {version: self._version(version) for version in loads.versions},
            }
            for model, loads in table.loads.items()
        }  # fmt: skip
        return {"schema": 1, "revision": table.revision, "models": models}

    def _version(self, version: str) -> dict[str, Any]:
        why = self.failed.get(version, "")
        return {"digest": "", "loaded": not why, "proven": not why, "failed": bool(why),
                "error": why, "requests": 0}  # fmt: skip

    async def close(self) -> None:
        pass


class Loop:
    """A reconciler and all that it speaks to."""

    def __init__(self, *arguments: str) -> None:
        self.cluster = FakeCluster()
        self.asking = FakeAsking(self.cluster)
        self.now = 100.0
        given = settings.load(
            ["--pace.interval_s=60", "--pace.pause_first_s=0.05", "--pace.pause_most_s=0.1",
             *arguments]
        )  # fmt: skip
        lease = Lease(self.cluster, holder="me", duration_s=15, renew_s=5, clock=lambda: self.now)
        self.reconciler = Reconciler(
            self.cluster, self.asking, lease, given, clock=lambda: self.now
        )

    async def rounds(self, most: int = 20) -> None:
        """Rounds until one writes no table."""
        for _ in range(most):
            before = self.cluster.calls.count("write_table")
            await self.reconciler.round()
            self.now += 1
            if self.cluster.calls.count("write_table") == before:
                return
        raise AssertionError(f"the table still changes after {most} rounds")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
async def turning() -> AsyncIterator[Loop]:
    """One whose rounds begin by themselves."""
    made = Loop()
    yield made
    await made.reconciler.end()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_first_version_is_loaded_and_then_serves(loop: Loop) -> None:
    loop.cluster.make("m", 1)

    await loop.rounds()

    table = loop.cluster.table_now()
    assert (table.revision, table.models["m"].stable) == (3, "1")
    assert loop.cluster.events == [("Normal", "Loading"), ("Normal", "Serving")]
    assert loop.cluster.documents["m"]["status"]["stableVersion"] == 1


async def test_the_table_is_read_before_the_pods_and_written_once_a_round(loop: Loop) -> None:
    loop.cluster.make("m", 1)
    loop.cluster.make("n", 1)
    loop.cluster.put(Table(1, {}))

    await loop.reconciler.round()

    calls = loop.cluster.calls
    assert calls.index("rollouts") < calls.index("table") < calls.index("pods")
    assert calls.count("write_table") == 1
    assert {*loop.cluster.table_now().loads} == {"m", "n"}


async def test_what_is_as_it_should_be_is_not_written_again(loop: Loop) -> None:
    loop.cluster.make("m", 1)
    await loop.rounds()
    await loop.reconciler.round()
    loop.cluster.calls.clear()

    await loop.reconciler.round()

    assert loop.cluster.calls == ["rollouts", "table", "pods", "pods"]


async def test_a_failure_is_recorded_before_it_is_acted_on(loop: Loop) -> None:
    loop.cluster.make("m", 2)
    loop.cluster.put(STEPPING)
    loop.asking.failed["2"] = "wrong answer"

    await loop.reconciler.round()
    assert loop.cluster.table_now() == STEPPING
    assert loop.cluster.documents["m"]["status"]["failed"]["version"] == 2
    assert loop.cluster.events == [("Warning", "CandidateFailed")]

    await loop.reconciler.round()
    assert loop.cluster.table_now().models["m"].weights == {"1": 100, "2": 0}
    assert loop.cluster.events[-1] == ("Warning", "RollingBack")


async def test_a_failure_that_cannot_be_recorded_is_not_acted_on(loop: Loop) -> None:
    loop.cluster.make("m", 2)
    loop.cluster.put(STEPPING)
    loop.asking.failed["2"] = "wrong answer"

    loop.cluster.failing["patch_status m"] = Conflict("changed")
    await loop.reconciler.round()
    loop.cluster.failing["patch_status m"] = ClusterFailed("refused")
    with pytest.raises(NotDone, match="refused"):
        await loop.reconciler.round()

    assert loop.cluster.table_now() == STEPPING
    assert not loop.cluster.events


async def test_without_the_lease_nothing_is_asked_or_written(loop: Loop) -> None:
    loop.cluster.make("m", 1)
    loop.cluster.signed = Claim("1", "another", 15, 0)

    await loop.reconciler.round()

    assert loop.cluster.calls == ["claim"]


async def test_a_lease_that_may_end_before_a_write_does_keeps_it_from_beginning(
    loop: Loop,
) -> None:
    loop.cluster.make("m", 1)
    loop.cluster.put(Table(1, {}))
    slow = loop.cluster.pods

    async def pods(selector: str) -> list[PodSeen]:
        loop.now += 5.5  # Twice in a round: 11 s of the lease's 15 s, and a write may take 5 s.
        return await slow(selector)

    loop.cluster.pods = pods  # type: ignore[method-assign]
    with pytest.raises(NotDone, match="the Lease is about to expire"):
        await loop.reconciler.round()

    assert loop.cluster.table_now() == Table(1, {})
    assert not loop.cluster.patches


async def test_what_is_decided_is_told_though_the_table_cannot_be_written(loop: Loop) -> None:
    loop.cluster.make("m", 1)
    loop.cluster.put(Table(1, {}))
    loop.cluster.failing["write_table"] = Conflict("another writer")

    with pytest.raises(Conflict):
        await loop.reconciler.round()

    assert not loop.cluster.events
    assert [name for name, _ in loop.cluster.patches] == ["m"]


async def test_a_status_that_cannot_be_written_keeps_no_other_from_it(loop: Loop) -> None:
    loop.cluster.make("a", 1)
    loop.cluster.make("b", 1)
    loop.cluster.put(Table(1, {}))
    loop.cluster.failing["patch_status a"] = ClusterFailed("refused")

    with pytest.raises(NotDone, match="refused"):
        await loop.reconciler.round()

    assert [name for name, _ in loop.cluster.patches] == ["b"]


async def test_an_event_that_is_lost_is_only_logged(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.cluster.make("m", 1)
    loop.cluster.failing["post_event"] = ClusterFailed("refused")

    await loop.rounds()

    assert loop.cluster.table_now().models["m"].stable == "1"
    assert "an Event is lost" in caplog.messages


async def test_a_model_that_cannot_be_decided_on_keeps_no_other_from_it(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def next_step(seen: Observed, memory: Memory, now: float) -> tuple[Decision, Memory]:
        if seen.model == "a":
            raise ZeroDivisionError
        return plan.next_step(seen, memory, now)

    monkeypatch.setattr(reconcile, "next_step", next_step)
    loop.cluster.make("a", 1)
    loop.cluster.make("b", 1)

    await loop.rounds()

    assert {*loop.cluster.table_now().models} == {"b"}
    assert "nothing is decided for a model" in caplog.messages


async def test_a_spoilt_status_keeps_no_other_from_being_told(loop: Loop) -> None:
    loop.cluster.make("a", 1, conditions=["not a condition"])
    loop.cluster.make("b", 1)

    await loop.rounds()

    assert {*loop.cluster.table_now().models} == {"a", "b"}
    assert {name for name, _ in loop.cluster.patches} == {"b"}


@pytest.mark.parametrize("broken", [NoAnswer("timeout"), ZeroDivisionError()], ids=repr)
async def test_a_pod_that_says_nothing_of_use_is_silent_and_said_once(
    loop: Loop, broken: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loop.cluster.make("m", 2)
    loop.cluster.put(STEPPING)
    loop.asking.broken = broken

    await loop.rounds()
    await loop.reconciler.round()

    assert loop.cluster.table_now() == STEPPING
    assert caplog.messages.count("a pod is silent") == 2
    loop.asking.broken = None
    await loop.reconciler.round()
    assert caplog.messages.count("a pod answers") == 2


async def test_a_table_that_nobody_can_read_is_written_anew(loop: Loop) -> None:
    loop.cluster.stored = Stored(b"{", "9")
    loop.cluster.make("m", 1)
    answers: dict[str, dict[str, Any]] = {
        "/routing": {"revision": 5, "table": None, "oldestInUse": {}}
    }

    async def ask(address: str, port: int, path: str) -> Mapping[str, Any]:
        return answers.get(path, {"schema": 1, "revision": 0, "models": {}})

    loop.asking.ask = ask  # type: ignore[method-assign]
    with pytest.raises(NotDone, match="holds revision 5"):
        await loop.reconciler.round()
    answers["/routing"]["table"] = {
        "schema": 1, "revision": 5, "models": {"m": {"stable": "1"}}, "unread": True,
    }  # fmt: skip
    await loop.reconciler.round()

    table = loop.cluster.table_now()
    assert table.revision > 5
    assert table.models["m"].stable == "1"
    assert table.unknown == {"unread": True}


# A table that is lost


def progressing(loop: Loop, name: str = "m") -> tuple[str, str]:
    conditions = loop.cluster.documents[name]["status"]["conditions"]
    (found,) = (each for each in conditions if each["type"] == "Progressing")
    return found["status"], found["reason"]


async def test_that_it_is_lost_is_told_in_every_modelrollout_and_once_as_an_event(
    loop: Loop,
) -> None:
    loop.cluster.make("m", 1, table={"revision": 9})
    loop.cluster.make("n", 1, conditions=["not a condition"])
    loop.cluster.make("o", 1)

    for _ in range(3):
        with pytest.raises(NotDone, match="the routing table is gone"):
            await loop.reconciler.round()

    assert loop.cluster.stored is None
    assert progressing(loop) == progressing(loop, "o") == ("False", "TableLost")
    assert loop.cluster.documents["m"]["status"]["table"] == {"revision": 9}
    assert loop.cluster.events == [("Warning", "TableLost")] * 2


async def test_that_it_is_lost_is_logged_though_no_status_can_be_written(loop: Loop) -> None:
    loop.cluster.make("m", 1, table={"revision": 9})
    loop.cluster.failing["patch_status m"] = ClusterFailed("refused")

    with pytest.raises(NotDone, match=r"the routing table is gone.*refused"):
        await loop.reconciler.round()

    assert not loop.cluster.events


async def test_modelrollouts_of_an_installation_that_was_removed_begin_again(loop: Loop) -> None:
    loop.cluster.make("m", 2, table={"revision": 9})
    with pytest.raises(NotDone, match="has said for 60 s"):
        await loop.reconciler.round()

    loop.now += 60
    await loop.rounds()

    table = loop.cluster.table_now()
    assert table.revision > 9
    assert table.models["m"].stable == "2"
    assert progressing(loop) == ("False", "Serving")


async def test_a_round_that_fails_is_none_in_which_nobody_had_a_table(loop: Loop) -> None:
    loop.cluster.make("m", 2, table={"revision": 9})

    async def lost() -> None:
        with pytest.raises(NotDone, match="the routing table is gone"):
            await loop.reconciler.round()

    await lost()
    loop.cluster.failing["pods"] = ClusterFailed("away")
    with pytest.raises(ClusterFailed):
        await loop.reconciler.round()
    loop.cluster.failing.clear()
    loop.now += 60
    await lost()
    loop.asking.broken = NoAnswer("timeout")
    loop.now += 60
    await lost()
    loop.asking.broken = None
    await lost()
    loop.now += 59
    await lost()

    assert loop.cluster.stored is None
    loop.now += 1
    await loop.rounds()
    assert loop.cluster.table_now().models["m"].stable == "2"


async def test_what_cannot_be_read_is_not_begun_again(loop: Loop) -> None:
    loop.cluster.stored = Stored(b"{", "9")
    loop.cluster.make("m", 2, table={"revision": 9})

    async def ask(address: str, port: int, path: str) -> Mapping[str, Any]:
        return {"schema": 1, "revision": 0, "models": {}, "oldestInUse": {}}

    loop.asking.ask = ask  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(NotDone, match="the routing table cannot be read"):
            await loop.reconciler.round()
        loop.now += 60

    assert loop.cluster.stored == Stored(b"{", "9")


async def test_a_gateway_that_cannot_start_keeps_no_installation_from_its_first_table(
    loop: Loop,
) -> None:
    async def pods(selector: str) -> list[PodSeen]:
        loops = PodSeen("loops", "u", "10.0.0.9", ready=False, started=True, was_ready=False)
        well = PodSeen("well", "u", "10.0.0.1", ready=True, started=True)
        return [loops, well] if "gateway" in selector else [well]

    async def ask(address: str, port: int, path: str) -> Mapping[str, Any]:
        if address == "10.0.0.9":
            raise NoAnswer("nobody listens")
        return await answer(address, port, path)

    answer, loop.asking.ask = loop.asking.ask, ask  # type: ignore[method-assign]
    loop.cluster.pods = pods  # type: ignore[method-assign]
    loop.cluster.make("m", 1)

    await loop.rounds()

    assert loop.cluster.table_now().models["m"].stable == "1"


# The golden request


async def test_the_golden_request_is_read_until_its_version_serves(loop: Loop) -> None:
    data = {"request.json": '{"inputs": [1]}'}
    asked = []

    async def config(name: str) -> Mapping[str, str]:
        asked.append(name)
        return data

    loop.cluster.config = config  # type: ignore[method-assign]
    loop.cluster.put(Table(1, {}))
    loop.cluster.make("m", 1)
    loop.cluster.documents["m"]["spec"]["proof"] = {"configMapRef": {"name": "golden"}}

    await loop.reconciler.round()
    assert loop.cluster.table_now().loads["m"].proofs["1"].request == {"inputs": [1]}
    data["request.json"] = '{"inputs": [2]}'
    await loop.reconciler.round()
    roll = loop.cluster.table_now().loads["m"].roll
    assert roll is not None
    assert roll.phase is Phase.ROLLING_BACK

    for _ in range(10):
        await loop.reconciler.round()
        loop.now += 10
    await loop.rounds()
    table = loop.cluster.table_now()
    assert table.models["m"].stable == "1"
    assert table.loads["m"].proofs["1"].request == {"inputs": [2]}

    asked.clear()
    await loop.reconciler.round()
    assert not asked


# Round after round


async def test_a_change_begins_a_round_at_once(turning: Loop) -> None:
    turning.cluster.put(Table(1, {}))
    turning.reconciler.begin()
    await until(lambda: "pods" in turning.cluster.calls)

    turning.cluster.make("m", 1)
    turning.reconciler.wake()

    await until(lambda: "m" in turning.cluster.table_now().loads)


@pytest.mark.parametrize("error", [ClusterFailed("away"), ZeroDivisionError()], ids=repr)
async def test_whatever_fails_the_next_round_comes(
    turning: Loop, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    turning.cluster.make("m", 1)
    turning.cluster.put(Table(1, {}))
    turning.cluster.failing["rollouts"] = error
    turning.reconciler.begin()
    await until(lambda: caplog.messages.count("a round failed") >= 3)

    turning.cluster.failing.clear()

    await until(lambda: "m" in turning.cluster.table_now().loads)


async def test_it_gives_the_lease_back_when_it_ends() -> None:
    loop = Loop()
    loop.reconciler.begin()
    await until(lambda: "pods" in loop.cluster.calls)

    await loop.reconciler.end()

    assert loop.cluster.signed is not None
    assert loop.cluster.signed.holder == ""
    assert loop.cluster.calls[-1] == "close"


async def test_it_knows_for_how_long_no_round_has_begun(turning: Loop) -> None:
    hanging = asyncio.Event()
    hung: list[Awaitable[bool]] = []

    async def table() -> Stored | None:
        hung.append(hanging.wait())
        await hung[-1]
        return None

    turning.cluster.table = table  # type: ignore[method-assign]
    turning.reconciler.begin()
    await until(lambda: bool(hung))
    turning.now += 30

    assert turning.reconciler.still_for_s() == 30


async def test_one_model_goes_back_and_another_goes_on_in_the_same_table(loop: Loop) -> None:
    other = replace(STEPPING.loads["m"], policy=Policy("n", "Keep"))
    other = replace(other, versions={"1": "", "3": ""}, roll=Roll("1", "3", Phase.LOADING, 0, 5))
    loads = {**STEPPING.loads, "n": other}
    models = {**STEPPING.models, "n": ModelRoutes("1", {"1": 100})}
    loop.cluster.put(replace(STEPPING, models=models, loads=loads))
    loop.cluster.make("m", 1)
    loop.cluster.make("n", 3)

    await loop.reconciler.round()

    table = loop.cluster.table_now()
    assert table.revision == 6
    assert table.models["m"].weights == {"1": 100, "2": 0}
    assert table.models["n"].weights == {"1": 90, "3": 10}
