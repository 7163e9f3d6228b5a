"""What engines say is asked once for all that wait, remembered for a while, and never spoiled."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator

import pytest

from tidegate_gateway.catalogue import Catalogue
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import DeadlineExceeded, EngineUnavailable, ModelNotFound

PATIENT = 20.0


class Engine:
    """Answers with a number that counts up, when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.deadlines: list[Deadline] = []
        self.answers = asyncio.Event()
        self.failure: Exception | None = None

    async def describe(self, key: str, deadline: Deadline) -> str:
        self.asked.append(key)
        self.deadlines.append(deadline)
        count = len(self.asked)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return f"{key} {count}"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def catalogue(engine: Engine) -> Catalogue[str, str]:
    return Catalogue(engine.describe, ttl_s=30, timeout_s=5)


@pytest.fixture(autouse=True)
async def _nothing_is_left_unread() -> AsyncIterator[None]:
    """What asyncio reports of tasks that nobody has looked at fails the test."""
    reports: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context["message"]))
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert reports == []


def get(
    catalogue: Catalogue[str, str], key: str = "m", seconds: float = PATIENT
) -> asyncio.Task[str]:
    return asyncio.create_task(catalogue.get(key, Deadline.after(seconds)))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_question_for_all_that_wait(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    waiting = [get(catalogue) for _ in range(100)]
    await turns()
    engine.answers.set()

    assert set(await asyncio.gather(*waiting)) == {"m 1"}
    assert engine.asked == ["m"]


async def test_each_key_is_a_question_of_its_own(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.answers.set()

    assert [await get(catalogue, "a"), await get(catalogue, "b")] == ["a 1", "b 2"]


async def test_an_engine_has_its_own_time_to_answer(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.answers.set()
    await get(catalogue, seconds=PATIENT)

    assert engine.deadlines[0].given == 5


async def test_a_waiter_that_leaves_spoils_nothing_for_the_others(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    leaving, staying = get(catalogue), get(catalogue)
    await turns()

    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    engine.answers.set()

    assert await staying == "m 1"
    assert engine.asked == ["m"]


async def test_a_waiter_with_little_time_spoils_nothing_for_the_others(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    hasty, patient = get(catalogue, seconds=0.01), get(catalogue)

    with pytest.raises(DeadlineExceeded) as exceeded:
        await hasty
    assert exceeded.value.message == "no answer within the deadline of 0.01 s"
    engine.answers.set()

    assert await patient == "m 1"
    assert engine.asked == ["m"]


async def test_an_answer_that_nobody_waits_for_any_longer_is_remembered(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    only = get(catalogue)
    await turns()
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    engine.answers.set()
    await turns()

    assert await get(catalogue) == "m 1"
    assert engine.asked == ["m"]


async def test_a_failure_goes_to_all_that_wait_and_is_not_remembered(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.failure = ModelNotFound("no engine has model 'm'")
    waiting = [get(catalogue) for _ in range(3)]
    await turns()
    engine.answers.set()
    for failed in await asyncio.gather(*waiting, return_exceptions=True):
        assert failed is engine.failure

    engine.failure = None
    assert await get(catalogue) == "m 2"


async def test_a_failure_that_nobody_waits_for_any_longer_is_quiet(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.failure = EngineUnavailable("no engine can be reached; try again later")
    only = get(catalogue, seconds=0.01)
    with pytest.raises(DeadlineExceeded):
        await only
    engine.answers.set()
    await turns()

    engine.failure = None
    assert await get(catalogue) == "m 2"


async def test_what_is_known_ages(
    catalogue: Catalogue[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers.set()
    assert await get(catalogue) == "m 1"
    real = time.monotonic

    monkeypatch.setattr(time, "monotonic", lambda: real() + 29)
    assert await get(catalogue) == "m 1"
    monkeypatch.setattr(time, "monotonic", lambda: real() + 31)
    assert await get(catalogue) == "m 2"


async def test_what_has_aged_is_not_told_while_the_engine_is_away(
    engine: Engine,
) -> None:
    catalogue = Catalogue(engine.describe, ttl_s=1e-9, timeout_s=5)
    engine.answers.set()
    assert await get(catalogue) == "m 1"

    engine.failure = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await get(catalogue)


async def test_what_is_forgotten_is_asked_anew(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.answers.set()
    assert await get(catalogue) == "m 1"

    catalogue.forget("m")
    catalogue.forget("never known")

    assert await get(catalogue) == "m 2"


async def test_what_is_forgotten_while_it_is_asked_is_not_remembered(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    before = get(catalogue)
    await turns()
    catalogue.forget("m")
    after = get(catalogue)
    await turns()
    engine.answers.set()

    assert [await before, await after] == ["m 1", "m 2"]
    assert await get(catalogue) == "m 2"

    engine.answers.clear()
    catalogue.forget("m")
    alone = get(catalogue)
    await turns()
    catalogue.forget("m")
    engine.answers.set()

    assert [await alone, await get(catalogue)] == ["m 3", "m 4"]


async def test_an_older_question_that_ends_last_changes_nothing(engine: Engine) -> None:
    slow = asyncio.Event()

    async def first_is_slow(key: str, deadline: Deadline) -> str:
        answer = await engine.describe(key, deadline)
        if answer == "m 1":
            await slow.wait()
        return answer

    catalogue = Catalogue(first_is_slow, ttl_s=30, timeout_s=5)
    engine.answers.set()
    before = get(catalogue)
    await turns()
    catalogue.forget("m")
    assert await get(catalogue) == "m 2"

    slow.set()

    assert await before == "m 1"
    assert await get(catalogue) == "m 2"


async def test_what_has_aged_is_dropped(
    catalogue: Catalogue[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers.set()
    real = time.monotonic
    for key in ("a", "b", "c"):
        await get(catalogue, key)
    monkeypatch.setattr(time, "monotonic", lambda: real() + 20)
    await get(catalogue, "d")
    assert set(catalogue._known) == {"a", "b", "c", "d"}

    monkeypatch.setattr(time, "monotonic", lambda: real() + 31)
    await get(catalogue, "e")

    assert set(catalogue._known) == {"d", "e"}


async def test_closing_ends_what_is_being_asked(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    waiting = [get(catalogue, key) for key in ("a", "b", "c")]
    await turns()
    catalogue.forget("b")

    await catalogue.close()

    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError)
    assert len(asyncio.all_tasks()) == 1


async def test_closing_with_nothing_being_asked(
    catalogue: Catalogue[str, str], engine: Engine
) -> None:
    engine.answers.set()
    await get(catalogue)

    await catalogue.close()
    await catalogue.close()
