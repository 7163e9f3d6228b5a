"""Endpoints from addresses and names: what an answer says, and what an outage does not."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway import dns
from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.dns import AddressSource, InvalidAddresses, Resolve, parse, pause_s

PATIENT = 20.0
Snapshot = tuple[Endpoint, ...]


class Names:
    """A resolver that is told what to answer. A fake: outages of the DNS, and names that change,
    cannot be caused in the system's one.

    A set event in `hanging` lets a lookup that hangs go on.
    """

    def __init__(self, **answers: list[str] | Exception) -> None:
        self.answers = dict(answers)
        self.hanging: dict[str, threading.Event] = {}
        self.asked: dict[str, int] = dict.fromkeys(answers, 0)
        self.running: dict[str, int] = dict.fromkeys(answers, 0)
        self.most_running = 0
        self._lock = threading.Lock()

    def resolve(self, host: str) -> list[str]:
        with self._lock:
            self.asked[host] += 1
            self.running[host] += 1
            self.most_running = max(self.most_running, self.running[host])
        try:
            if host in self.hanging:
                self.hanging[host].wait(PATIENT)
            answer = self.answers[host]
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            with self._lock:
                self.running[host] -= 1

    async def is_asked_again(self, host: str) -> None:
        """Wait until what is answered now has been taken in."""
        # The lookup after the next begins only when the next one's answer is there.
        before = self.asked[host]
        await until(lambda: self.asked[host] >= before + 2)


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT):
        while not check():  # noqa: ASYNC110 - what it asks of happens in threads
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "FLOOR_S", 0.01)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENT)
        assert not thread.is_alive()


@asynccontextmanager
async def told(
    addresses: str, resolve: Resolve, *, lookup_timeout_s: float = PATIENT
) -> AsyncIterator[AsyncGenerator[Snapshot, None]]:
    source = AddressSource(
        addresses, interval_s=0.01, lookup_timeout_s=lookup_timeout_s, resolve=resolve
    )
    snapshots = source.snapshots()
    try:
        yield snapshots
    finally:
        await snapshots.aclose()
        assert len(asyncio.all_tasks()) == 1


async def addresses_in(snapshots: AsyncGenerator[Snapshot, None]) -> list[str]:
    return [each.address for each in await asyncio.wait_for(anext(snapshots), PATIENT)]


def refused(code: int) -> socket.gaierror:
    return socket.gaierror(code, "as the resolver says it")


# What is given


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("10.0.0.1:8001", [("10.0.0.1", 8001)]),
        ("engine:1,[::1]:65535", [("engine", 1), ("::1", 65535)]),
        (" a.b.svc:80 , b_c:81", [("a.b.svc", 80), ("b_c", 81)]),
    ],
)
def test_addresses_are_host_and_port(addresses: str, expected: list[tuple[str, int]]) -> None:
    assert parse(addresses) == expected


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "engine",
        "engine:",
        ":8001",
        "engine:0",
        "engine:65536",
        "engine:８",
        "::1:8001",
        "[engine]:8001",
        "[10.0.0.1]:8001",
        "dns:///engine:8001",
        "a b:8001",
        "x..y:8001",
        f"{'x' * 64}:8001",
    ],
)
def test_anything_else_is_refused_by_name(entry: str) -> None:
    with pytest.raises(InvalidAddresses) as caught:
        AddressSource(f"10.0.0.1:8001,{entry}", interval_s=1)

    assert str(caught.value).startswith("engine.address: expected ")
    assert repr(entry) in str(caught.value)


# Without a fault


async def test_numeric_addresses_are_told_once_in_order_and_never_looked_up() -> None:
    async with told("10.0.0.2:1,[::0:1]:2,10.0.0.1:1,10.0.0.2:1", Names().resolve) as snapshots:
        expected = ("10.0.0.1:1", "10.0.0.2:1", "[::1]:2")
        assert await anext(snapshots) == tuple(Endpoint(each, name=each) for each in expected)

        further = asyncio.create_task(anext(snapshots))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not further.done()
        further.cancel()
        with pytest.raises(asyncio.CancelledError):
            await further


async def test_the_systems_resolver_knows_this_machine() -> None:
    known = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    expected = sorted(f"[{each}]:8001" if ":" in each else f"{each}:8001" for each in known)

    async with told("localhost:8001", dns.system_resolver) as snapshots:
        assert await addresses_in(snapshots) == expected


async def test_a_name_is_all_its_addresses_and_changes_are_told() -> None:
    names = Names(engines=["10.0.0.2", "::2", "10.0.0.1", "10.0.0.2"])
    async with told("engines:8001", names.resolve) as snapshots:
        assert await addresses_in(snapshots) == ["10.0.0.1:8001", "10.0.0.2:8001", "[::2]:8001"]

        names.answers["engines"] = ["10.0.0.3"]
        assert await addresses_in(snapshots) == ["10.0.0.3:8001"]


async def test_a_name_with_several_ports_is_looked_up_once() -> None:
    names = Names(engines=["10.0.0.1"])
    async with told("engines:2,engines:1,engines:2", names.resolve) as snapshots:
        assert await addresses_in(snapshots) == ["10.0.0.1:1", "10.0.0.1:2"]

    assert names.most_running == 1


async def test_answers_in_another_order_are_no_change() -> None:
    names = Names(engines=["10.0.0.1", "10.0.0.2"])
    async with told("engines:1", names.resolve) as snapshots:
        await addresses_in(snapshots)
        names.answers["engines"] = ["10.0.0.2", "10.0.0.1"]
        await names.is_asked_again("engines")

        names.answers["engines"] = ["10.0.0.3"]
        assert await addresses_in(snapshots) == ["10.0.0.3:1"]


# That there are none, and that nobody knows


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_NODATA])
async def test_that_a_name_has_no_addresses_is_an_answer(code: int) -> None:
    names = Names(engines=["10.0.0.1"])
    async with told("engines:1", names.resolve) as snapshots:
        await addresses_in(snapshots)

        names.answers["engines"] = refused(code)
        assert await addresses_in(snapshots) == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (refused(socket.EAI_AGAIN), f"gaierror: [Errno {socket.EAI_AGAIN}] as the resolver says"),
        (refused(socket.EAI_FAIL), f"gaierror: [Errno {socket.EAI_FAIL}] as the resolver says"),
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (MemoryError("no"), "MemoryError: no"),
    ],
)
async def test_an_outage_keeps_what_was_known_and_is_logged_once(
    failure: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    names = Names(engines=["10.0.0.1"])
    async with told("engines:1", names.resolve) as snapshots:
        await addresses_in(snapshots)

        names.answers["engines"] = failure
        await names.is_asked_again("engines")
        names.answers["engines"] = ["10.0.0.1", "10.0.0.2"]
        assert await addresses_in(snapshots) == ["10.0.0.1:1", "10.0.0.2:1"]

    begin, end = caplog.records
    assert (begin.levelname, end.levelname) == ("WARNING", "INFO")
    assert vars(begin)["host"] == vars(end)["host"] == "engines"
    assert vars(begin)["reason"].startswith(reason)


async def test_one_name_in_an_outage_keeps_its_own_while_the_others_go_on() -> None:
    names = Names(a=["10.0.0.1"], b=["10.0.0.2"])
    async with told("a:1,b:1", names.resolve) as snapshots:
        while await addresses_in(snapshots) != ["10.0.0.1:1", "10.0.0.2:1"]:
            pass

        names.answers["a"] = refused(socket.EAI_AGAIN)
        names.answers["b"] = ["10.0.0.3"]
        assert await addresses_in(snapshots) == ["10.0.0.1:1", "10.0.0.3:1"]


async def test_that_there_are_none_is_not_said_before_every_name_has_answered() -> None:
    names = Names(a=refused(socket.EAI_NONAME), b=refused(socket.EAI_AGAIN))
    async with told("a:1,b:1", names.resolve) as snapshots:
        first = asyncio.create_task(addresses_in(snapshots))
        await names.is_asked_again("a")
        await names.is_asked_again("b")
        assert not first.done()

        names.answers["b"] = refused(socket.EAI_NODATA)
        assert await first == []


async def test_what_one_name_answers_does_not_wait_for_the_other() -> None:
    names = Names(a=["10.0.0.1"], b=["10.0.0.2"])
    names.hanging["b"] = threading.Event()
    async with told("a:1,b:1", names.resolve) as snapshots:
        assert await addresses_in(snapshots) == ["10.0.0.1:1"]

        names.hanging["b"].set()
        assert await addresses_in(snapshots) == ["10.0.0.1:1", "10.0.0.2:1"]


async def test_a_machine_that_gives_no_more_threads_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    names = Names(engines=["10.0.0.1"])
    async with told("engines:1", names.resolve) as snapshots:
        await addresses_in(snapshots)

        # A fake: a limit of threads would hold for whatever else the tests do.
        with monkeypatch.context() as none_left:
            none_left.setattr(threading.Thread, "start", no_more_threads)
            await until(lambda: len(caplog.records) == 1)
        names.answers["engines"] = ["10.0.0.2"]
        assert await addresses_in(snapshots) == ["10.0.0.2:1"]

    assert vars(caplog.records[0])["reason"] == "RuntimeError: can't start new thread"
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


def no_more_threads(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


# Lookups that hang


async def test_a_lookup_that_hangs_is_an_outage_with_one_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    names = Names(engines=["10.0.0.1"], other=["10.0.1.1"])
    async with told("engines:1,other:1", names.resolve, lookup_timeout_s=0.02) as snapshots:
        while len(await addresses_in(snapshots)) < 2:
            pass
        names.hanging["engines"] = threading.Event()
        await until(lambda: bool(caplog.records))
        # Many intervals, and many times the timeout of a lookup.
        for _ in range(10):
            await names.is_asked_again("other")
        assert names.running["engines"] == 1

        names.answers["engines"] = ["10.0.0.2"]
        names.hanging.pop("engines").set()
        assert await addresses_in(snapshots) == ["10.0.0.2:1", "10.0.1.1:1"]

    assert names.most_running == 1
    assert vars(caplog.records[0])["reason"] == "no answer within 0.02 s"
    assert len(caplog.records) == 2


async def test_closing_does_not_wait_for_a_lookup_that_hangs() -> None:
    names = Names(engines=["10.0.0.1"])
    names.hanging["engines"] = threading.Event()
    async with told("engines:1", names.resolve) as snapshots:
        first = asyncio.create_task(addresses_in(snapshots))
        await until(lambda: names.running["engines"] == 1)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first

    assert names.running["engines"] == 1
    names.hanging["engines"].set()


HANGING = """
import asyncio, time, uvloop
from tidegate_gateway.dns import AddressSource

async def main():
    source = AddressSource(
        "engines:1,10.0.0.1:1", interval_s=1, resolve=lambda host: time.sleep(3600)
    )
    async for _ in source.snapshots():
        break

uvloop.run(main())
"""


def test_a_lookup_that_hangs_does_not_keep_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", HANGING],
        check=False,
        timeout=PATIENT,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )

    assert (ended.returncode, ended.stderr) == (0, "")


# How often


@settings(max_examples=200, deadline=None, database=None)
@given(st.floats(0, 3600))
def test_the_pause_is_the_interval_give_or_take_a_fifth_and_has_a_floor(interval_s: float) -> None:
    pause = pause_s(interval_s)

    assert pause >= dns.FLOOR_S
    assert pause == dns.FLOOR_S or 0.8 * interval_s <= pause <= 1.2 * interval_s


def test_gateways_that_started_together_do_not_go_on_together() -> None:
    assert len({pause_s(10) for _ in range(10)}) > 5
