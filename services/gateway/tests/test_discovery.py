"""What is believed of a source: a loss at once, the loss of all only after a while."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.discovery import (
    Belief,
    Endpoint,
    address_of,
    announced,
    believed,
    outage,
    usable,
)

PATIENT = 20.0
GRACE_S = 30.0
Snapshot = tuple[Endpoint, ...]


def endpoint(number: int, *, ready: bool = True, terminating: bool = False) -> Endpoint:
    address = f"10.0.0.{number}:8001"
    return Endpoint(address, name=address, ready=ready, terminating=terminating)


A, B = endpoint(1), endpoint(2)
ENDPOINTS = st.builds(endpoint, st.integers(1, 9), ready=st.booleans(), terminating=st.booleans())
SNAPSHOTS = st.lists(ENDPOINTS, max_size=5).map(tuple)
quick = settings(max_examples=200, deadline=None, database=None)


# Which of them take requests


def test_an_engine_that_is_not_ready_or_is_leaving_gets_nothing_new() -> None:
    leaving = endpoint(3, terminating=True)
    starting = endpoint(4, ready=False)

    assert usable((A, leaving, starting, B)) == (A, B)


@quick
@given(SNAPSHOTS)
def test_where_none_is_ready_all_are_tried(endpoints: Snapshot) -> None:
    chosen = usable(endpoints)
    well = [each for each in endpoints if each.ready and not each.terminating]

    assert list(chosen) == (well or list(endpoints))


# Addresses


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:8001"),
        ("::1", "[::1]:8001"),
        ("2001:DB8:0:0:0:0:0:1", "[2001:db8::1]:8001"),
        ("fe80::1%eth0", "[fe80::1%eth0]:8001"),
    ],
)
def test_an_address_is_written_in_one_way(host: str, address: str) -> None:
    assert address_of(host, 8001) == address


def test_a_name_is_no_address() -> None:
    with pytest.raises(ValueError, match="localhost"):
        address_of("localhost", 8001)


# What is believed


def belief_of(*heard: Snapshot) -> Belief:
    belief = Belief(GRACE_S)
    for snapshot in heard:
        belief.hear(snapshot, 0.0)
    return belief


def test_the_loss_of_one_is_believed_at_once() -> None:
    assert belief_of((A, B), (B,)).endpoints == (B,)


def test_the_loss_of_all_is_believed_when_the_source_keeps_to_it() -> None:
    belief = belief_of((A, B), ())

    seen = []
    for now in (0.0, GRACE_S - 0.1, GRACE_S):
        belief.wait(now)
        seen.append((belief.endpoints, belief.due()))

    assert seen == [((A, B), GRACE_S), ((A, B), GRACE_S), ((), None)]


def test_saying_it_again_does_not_begin_the_wait_anew() -> None:
    belief = belief_of((A,), ())
    belief.hear((), 20.0)

    assert belief.due() == GRACE_S


def test_a_source_that_takes_it_back_has_not_kept_to_it() -> None:
    belief = belief_of((A,), ())
    belief.hear((B,), 20.0)
    belief.hear((), 25.0)

    belief.wait(GRACE_S)
    assert belief.endpoints == (B,)
    assert belief.due() == 25.0 + GRACE_S


@quick
@given(
    st.lists(st.tuples(st.floats(0, 40), st.one_of(st.none(), SNAPSHOTS)), max_size=30),
    st.floats(0, 40),
)
def test_belief_follows_the_source_but_for_an_empty_set_within_the_grace(
    steps: list[tuple[float, Snapshot | None]], grace_s: float
) -> None:
    belief, now = Belief(grace_s), 0.0
    told: Snapshot = ()
    last: Snapshot = ()
    since = 0.0
    for pause, snapshot in steps:
        now += pause
        if snapshot is None:
            belief.wait(now)
        else:
            if bool(snapshot) != bool(told):
                since = now
            told = snapshot
            last = snapshot or last
            belief.hear(snapshot, now)

        kept = not told and now >= since + grace_s
        assert belief.endpoints == (() if kept or not last else last)


# Sources that are followed


class Played:
    """A source that says what it is told to; real ones say the same only with a fault to cause."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.closed = False

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        try:
            while True:
                yield await self.queue.get()
        finally:
            self.closed = True


async def following(told: AsyncGenerator[Snapshot, None]) -> Snapshot:
    return await asyncio.wait_for(anext(told), PATIENT)


async def test_an_empty_set_is_held_back_for_the_grace() -> None:
    source = Played()
    told = believed(source, empty_grace_s=0.2)
    source.queue.put_nowait((A, B))
    assert await following(told) == (A, B)

    begin = time.monotonic()
    source.queue.put_nowait(())
    assert await following(told) == ()
    assert time.monotonic() - begin >= 0.19
    await told.aclose()


async def test_an_empty_set_that_is_taken_back_is_never_told() -> None:
    source = Played()
    told = believed(source, empty_grace_s=PATIENT)
    source.queue.put_nowait((A,))
    assert await following(told) == (A,)

    source.queue.put_nowait(())
    source.queue.put_nowait((B,))

    assert await following(told) == (B,)
    await told.aclose()


async def test_an_empty_set_at_the_start_is_told_at_once() -> None:
    source = Played()
    told = believed(source, empty_grace_s=10 * PATIENT)
    source.queue.put_nowait(())

    assert await following(told) == ()
    await told.aclose()


async def test_closing_closes_the_source_and_leaves_no_task() -> None:
    source = Played()
    told = believed(source, empty_grace_s=GRACE_S)
    source.queue.put_nowait((A,))
    await following(told)

    await told.aclose()

    assert source.closed
    assert len(asyncio.all_tasks()) == 1


async def test_cancelling_who_reads_closes_the_source_too() -> None:
    source = Played()
    told = believed(source, empty_grace_s=GRACE_S)
    source.queue.put_nowait((A,))
    await following(told)
    reader = asyncio.create_task(anext(told))
    await asyncio.sleep(0)

    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)

    assert source.closed
    assert len(asyncio.all_tasks()) == 1


async def test_a_fault_of_ours_is_raised_and_not_taken_for_quiet() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    told = announced([broken], lambda: None, asyncio.Event())

    with pytest.raises(ZeroDivisionError):
        await following(told)


async def test_what_was_overtaken_before_it_was_read_is_not_told() -> None:
    changed = asyncio.Event()
    sets: list[Snapshot] = [(A,)]
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        for each in ((B,), (A,), (A, B)):
            sets.append(each)
            changed.set()

    told = announced([work], lambda: sets[-1], changed)
    assert await following(told) == (A,)
    go_on.set()

    assert await following(told) == (A, B)
    await told.aclose()


# Outages


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    lasting = outage(source="dns", host="engines")
    steps: list[Callable[[], None]] = [
        lasting.ends,
        lambda: lasting.begins("EAI_AGAIN"),
        lambda: lasting.begins("no answer"),
        lasting.ends,
        lasting.ends,
        lambda: lasting.begins("again"),
    ]
    counts = []
    for step in steps:
        step()
        counts.append(len(caplog.records))

    assert counts == [0, 1, 1, 2, 2, 3]
    assert [vars(each).get("reason") for each in caplog.records] == ["EAI_AGAIN", None, "again"]
    assert {vars(each)["host"] for each in caplog.records} == {"engines"}
    assert all(a.levelno != b.levelno for a, b in pairwise(caplog.records))
