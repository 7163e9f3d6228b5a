"""Who gets in, who waits, who is refused at once; on a loop whose time passes by itself."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.admission import Admissions, Pace, Priority, Slot
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import DeadlineExceeded, InvalidInput, Overloaded, RequestError
from tidegate_gateway.settings import AdmissionSettings

from .scripted import in_virtual_time

NORMAL, HIGH, LOW = Priority.NORMAL, Priority.HIGH, Priority.LOW
LONG = 1000.0


def two_and_two(**changes: int) -> Admissions:
    """Two of a model are worked on, and two wait."""
    return Admissions(AdmissionSettings(**{"max_in_flight": 2, "max_waiting": 2} | changes))


def enter(
    admissions: Admissions, model: str = "m", priority: Priority = NORMAL, seconds: float = LONG
) -> asyncio.Task[Slot]:
    return asyncio.create_task(admissions.enter(model, priority, Deadline.after(seconds)))


async def entered(task: asyncio.Task[Slot]) -> bool:
    """Whether it has its place by now."""
    await asyncio.sleep(0.001)
    return task.done() and task.exception() is None


async def refused(task: asyncio.Task[Slot]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await task
    return raised.value


def is_empty(admissions: Admissions) -> bool:
    return (admissions.in_flight(), admissions.waiting(), admissions.held_bytes) == (0, 0, 0)


def test_priorities_have_names() -> None:
    assert [Priority.parse(text) for text in ("high", "normal", "low", None)] == [
        HIGH,
        NORMAL,
        LOW,
        NORMAL,
    ]
    for text in ("", "High", "2"):
        with pytest.raises(InvalidInput) as raised:
            Priority.parse(text)
        assert raised.value.message == (
            f"tidegate-priority: expected high, normal or low, got {text!r}"
        )


@in_virtual_time
async def test_so_many_are_worked_on_so_many_wait_and_the_next_is_refused_at_once() -> None:
    admissions = two_and_two()
    tasks = [enter(admissions) for _ in range(4)]
    assert [await entered(task) for task in tasks] == [True, True, False, False]
    assert (admissions.in_flight(), admissions.waiting()) == (2, 2)

    began = asyncio.get_running_loop().time()
    error = await refused(enter(admissions))
    assert asyncio.get_running_loop().time() == began
    assert isinstance(error, Overloaded)
    assert error.message == (
        "model 'm': 2 requests are worked on and 2 wait (admission.max_in_flight, "
        "admission.max_waiting); try again later"
    )
    tasks[0].result().leave()
    assert await entered(tasks[2])
    assert not await entered(tasks[3])
    for task in tasks[1:]:
        (await task).leave()
    assert is_empty(admissions)


@in_virtual_time
async def test_models_have_places_of_their_own_up_to_the_total() -> None:
    admissions = two_and_two(max_total=5)
    others = [enter(admissions, "slow") for _ in range(4)]
    fast = enter(admissions, "fast")
    assert await entered(fast)
    error = await refused(enter(admissions, "third"))
    assert error.message == (
        "5 requests are worked on or wait (admission.max_total); try again later"
    )
    fast.result().leave()
    for task in others:
        (await task).leave()
    assert is_empty(admissions)


@in_virtual_time
async def test_high_comes_before_normal_and_that_before_low_whoever_came_first() -> None:
    admissions = two_and_two(max_in_flight=1, max_waiting=10)
    first = enter(admissions)
    assert await entered(first)
    order: list[str] = []

    async def wait(name: str, priority: Priority) -> None:
        slot = await admissions.enter("m", priority, Deadline.after(LONG))
        order.append(name)
        await asyncio.sleep(1)
        slot.leave()

    waiting = []
    for name, priority in [
        ("l1", LOW),
        ("n1", NORMAL),
        ("h1", HIGH),
        ("n2", NORMAL),
        ("h2", HIGH),
        ("l2", LOW),
    ]:
        waiting.append(asyncio.create_task(wait(name, priority)))
        await asyncio.sleep(0)
    first.result().leave()
    await asyncio.gather(*waiting)
    assert order == ["h1", "h2", "n1", "n2", "l1", "l2"]
    assert is_empty(admissions)


@in_virtual_time
async def test_where_the_queue_is_full_the_newest_of_the_lowest_makes_room() -> None:
    admissions = two_and_two(max_in_flight=1)
    first = enter(admissions)
    low, newer = enter(admissions, priority=LOW), enter(admissions, priority=LOW)
    assert await entered(first)
    high = enter(admissions, priority=HIGH)
    assert isinstance(await refused(newer), Overloaded)
    error = await refused(enter(admissions, priority=LOW))
    assert isinstance(error, Overloaded)
    first.result().leave()
    assert await entered(high)
    high.result().leave()
    (await low).leave()
    assert is_empty(admissions)


@in_virtual_time
async def test_who_waits_in_vain_is_told_and_leaves_nothing() -> None:
    admissions = two_and_two(max_in_flight=1)
    first = enter(admissions)
    impatient = enter(admissions, seconds=5)
    error = await refused(impatient)
    assert isinstance(error, DeadlineExceeded)
    assert error.message == "no answer within the deadline of 5 s"
    gone = enter(admissions)
    assert not await entered(gone)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert admissions.waiting() == 0
    first.result().leave()
    assert is_empty(admissions)


@in_virtual_time
async def test_a_place_that_comes_as_its_client_leaves_goes_to_the_next() -> None:
    admissions = two_and_two(max_in_flight=1)
    first = enter(admissions)
    gone, following = enter(admissions), enter(admissions)
    assert await entered(first)
    first.result().leave()
    gone.cancel()
    assert await entered(following)
    following.result().leave()
    assert is_empty(admissions)


@in_virtual_time
async def test_who_could_not_be_in_time_is_refused_once_the_pace_is_known() -> None:
    admissions = two_and_two(max_in_flight=1, max_waiting=100)

    async def work() -> None:
        slot = await admissions.enter("m", NORMAL, Deadline.after(LONG))
        await asyncio.sleep(1)
        slot.leave()

    tasks = [asyncio.create_task(work()) for _ in range(20)]
    await asyncio.sleep(5.5)
    assert admissions.waiting() == 14
    error = await refused(enter(admissions, seconds=10))
    assert isinstance(error, Overloaded)
    assert error.message == (
        "model 'm': 14 requests wait, so that an answer within the deadline of 10 s is not to be "
        "expected; try again later"
    )
    assert await enter(admissions, priority=HIGH, seconds=10)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_the_pace_is_that_of_the_model_only_while_others_wait() -> None:
    pace = Pace()
    assert pace.wait_s(10) == 0
    for now in (0.0, 50.0, 100.0):
        pace.ended(now, others_wait=False)
    assert pace.wait_s(10) == 0
    for now in (200.0, 202.0, 204.0):
        pace.ended(now, others_wait=True)
    assert pace.wait_s(10) == pytest.approx(20)
    pace.ended(205.0, others_wait=True)
    assert 18 < pace.wait_s(10) < 20


@in_virtual_time
async def test_bodies_have_a_sum() -> None:
    admissions = Admissions(AdmissionSettings(max_bytes=2**20))
    one, other = await enter(admissions), await enter(admissions, "n")
    one.hold(2**19)
    other.hold(2**19)
    with pytest.raises(Overloaded) as raised:
        other.hold(1)
    assert raised.value.message == (
        "requests of 1048576 bytes are held, and of 1048576 at most (admission.max_bytes); try "
        "again later"
    )
    one.leave()
    other.hold(1)
    other.leave()
    assert is_empty(admissions)


@settings(max_examples=60, deadline=None, database=None)
@given(seed=st.integers(0, 2**32), places=st.integers(1, 4), waiting=st.integers(0, 5))
def test_whatever_happens_nobody_is_lost_and_nothing_is_left(
    seed: int, places: int, waiting: int
) -> None:
    chance = Random(seed)
    admissions = Admissions(
        AdmissionSettings(max_in_flight=places, max_waiting=waiting, max_total=12)
    )
    working = dict.fromkeys("ab", 0)
    ends: list[str] = []

    async def client() -> None:
        model, priority = chance.choice("ab"), chance.choice([*Priority])
        try:
            slot = await admissions.enter(model, priority, Deadline.after(chance.random() * 5))
        except Overloaded:
            ends.append("refused")
            return
        except DeadlineExceeded:
            ends.append("late")
            return
        working[model] += 1
        assert working[model] <= places
        try:
            await asyncio.sleep(chance.random() * 3)
        finally:
            working[model] -= 1
            slot.leave()
        ends.append("done")

    @in_virtual_time
    async def run() -> None:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(client()))
            await asyncio.sleep(chance.random() * 0.5)
            if chance.random() < 0.2:
                chance.choice(tasks).cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        lost = [each for each in told if isinstance(each, BaseException)]
        assert all(isinstance(each, asyncio.CancelledError) for each in lost)
        assert len(ends) + len(lost) == 40
        assert is_empty(admissions)

    run()
