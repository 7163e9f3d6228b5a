"""Deadlines: what clients may ask for, and that nothing waits longer."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import DeadlineExceeded, InvalidInput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still at 1000 s."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)


def requested(text: str | None, *, default: float = 3.0, most: float = 300.0) -> Deadline:
    return Deadline.requested(text, default=default, most=most)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("2.5", 2.5),
        ("0.001", 0.001),
        ("007", 7.0),
        ("300", 300.0),
        ("300.1", 300.0),
        ("999999999", 300.0),
        (None, 3.0),
    ],
)
def test_a_client_gets_what_it_asks_for_up_to_the_most(text: str | None, seconds: float) -> None:
    deadline = requested(text)

    assert deadline == Deadline(at=1000.0 + seconds, given=seconds)
    assert deadline.remaining() == pytest.approx(seconds)


@pytest.mark.usefixtures("clock")
def test_the_most_is_for_those_who_do_not_ask_as_well() -> None:
    assert requested(None, default=30, most=10).given == 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "0.0",
        "0.000000000",
        "-1",
        "+1",
        "1e3",
        "inf",
        "nan",
        "1_000",
        "1.",
        ".5",
        "1,5",
        "1 ",
        " 1",
        "1\n",
        "1s",
        "0x10",
        "1.2.3",
        "1000000000",
        "1.0000000000",
        "\u0663",
        "\u00b2",
        "9" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        requested(text)

    sentence = f"tidegate-timeout: expected decimal seconds above 0, such as 2.5, got {text!r}"
    assert refused.value.message[:1000] == sentence[:1000]


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(max_size=12) | st.from_regex(r"[0-9.]{1,12}", fullmatch=True))
def test_no_header_makes_a_deadline_of_none_or_too_much(text: str) -> None:
    try:
        deadline = requested(text)
    except InvalidInput:
        return
    assert 0 < deadline.given <= 300


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("seconds", "given_s"), [(None, 5.0), (7.0, 5.0), (5.0, 5.0), (2.0, 2.0), (0.0, 0.0), (-1, 0.0)]
)
def test_a_deadline_is_only_ever_shortened(seconds: float | None, given_s: float) -> None:
    deadline = Deadline.after(5.0).earlier(seconds)

    assert deadline == Deadline(at=1000.0 + given_s, given=given_s)


def test_what_remains_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline.after(5.0)
    later = time.monotonic() + 6.0
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert deadline.remaining() == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.0, "3 s"), (0.25, "0.25 s"), (300.0, "300 s"), (1 / 3, "0.333333 s")]
)
def test_the_error_says_what_was_given(seconds: float, words: str) -> None:
    assert Deadline.after(seconds).exceeded().message == f"no answer within the deadline of {words}"


async def test_an_answer_in_time_is_returned() -> None:
    async def answer() -> str:
        await asyncio.sleep(0)
        return "here"

    assert await Deadline.after(20).wait_for(answer()) == "here"


async def test_when_time_is_up_the_wait_ends_and_what_was_awaited_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(DeadlineExceeded) as exceeded:
        await Deadline.after(0.01).wait_for(never())

    assert cancelled.is_set()
    assert exceeded.value.message == "no answer within the deadline of 0.01 s"
    assert exceeded.value.__suppress_context__


async def test_without_time_nothing_is_awaited_for_long() -> None:
    with pytest.raises(DeadlineExceeded):
        await Deadline.after(0).wait_for(asyncio.Event().wait())


async def test_a_failure_comes_through_as_it_is() -> None:
    async def fail() -> None:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        await Deadline.after(20).wait_for(fail())


async def test_a_timeout_of_what_is_awaited_is_not_the_clients() -> None:
    async def time_out() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await Deadline.after(20).wait_for(time_out())


async def test_a_request_that_is_cancelled_is_not_late() -> None:
    task = asyncio.create_task(Deadline.after(20).wait_for(asyncio.Event().wait()))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
