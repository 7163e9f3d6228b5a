"""Where endpoints come from: what a source tells of them, and what of it is believed.

A source tells the whole set of endpoints each time it changes; while it is away it tells nothing,
and the last known set stands. That an engine is gone is believed at once, since the others carry
its requests. That all are gone is far more often a fault of the source (a name server that has just
started and knows nothing yet, a Service whose selector is being edited) than the truth, and costs
every request until it is put right; so it is believed only when the source has kept to it for a
while.
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate_table.api_server import Outage


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The gRPC address of one engine, as its source tells it.

    Attributes:
        address: host:port with a numeric host, [host]:port for IPv6; its identity.
        name: its pod's, else the address.
        zone: "" where unknown.
        ready: its pod takes new requests.
        terminating: its pod is leaving.
    """

    address: str
    name: str
    zone: str = ""
    ready: bool = True
    terminating: bool = False


class Source(Protocol):
    """Tells which endpoints there are."""

    def snapshots(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """Every change of the set, the whole set each time, ordered by address.

        It never ends by itself. An outage of the source yields nothing, and is logged once when it
        begins and once when it ends. Who does not read on closes it (`aclose`), or cancels the task
        that reads.
        """
        ...


def usable(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Those that take new requests: ready and not leaving; where there is none, all.

    The second half is for a probe that fails everywhere at once: then more is lost by believing it
    than by trying.
    """
    well = tuple(each for each in endpoints if each.ready and not each.terminating)
    return well or endpoints


def address_of(host: str, port: int) -> str:
    """The address of a numeric host: one way to write each, so that equal ones are the same.

    Raises:
        ValueError: `host` is not numeric.
    """
    ip = ipaddress.ip_address(host)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


class Belief:
    """What is believed of the snapshots of a source.

    It has no clock: all times are given, in seconds on one that never goes back.

    Args:
        empty_grace_s: seconds for which a source must keep to an empty set.
    """

    def __init__(self, empty_grace_s: float) -> None:
        self.endpoints: tuple[Endpoint, ...] = ()
        self._empty_grace_s = empty_grace_s
        self._empty_from: float | None = None

    def hear(self, snapshot: tuple[Endpoint, ...], now: float) -> None:
        """Take in what the source tells at `now`."""
        if snapshot:
            self.endpoints = snapshot
            self._empty_from = None
        elif self._empty_from is None:
            self._empty_from = now + self._empty_grace_s
        self.wait(now)

    def wait(self, now: float) -> None:
        """Note that it is `now` and the source has told nothing else since."""
        if self._empty_from is not None and now >= self._empty_from:
            self.endpoints = ()

    def due(self) -> float | None:
        """When an empty set is believed if the source keeps to it; None where there is nothing to
        wait for."""
        return self._empty_from if self.endpoints else None


def believed(source: Source, *, empty_grace_s: float) -> AsyncGenerator[tuple[Endpoint, ...], None]:
    """The snapshots of `source` with an empty one held back for `empty_grace_s` seconds.

    An empty one before any other is told at once: there is nothing that it could take away.
    """
    belief, changed = Belief(empty_grace_s), asyncio.Event()
    heard = False

    def wait(until: float) -> None:
        belief.wait(until)
        changed.set()

    async def listen() -> None:
        nonlocal heard
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        try:
            async with aclosing(source.snapshots()) as snapshots:
                async for snapshot in snapshots:
                    heard = True
                    belief.hear(snapshot, loop.time())
                    changed.set()
                    if timer is not None:
                        timer.cancel()
                    due = belief.due()
                    timer = None if due is None else loop.call_at(due, wait, due)
        finally:
            if timer is not None:
                timer.cancel()

    return announced([listen], lambda: belief.endpoints if heard else None, changed)


async def announced(
    work: Iterable[Callable[[], Coroutine[Any, Any, None]]],
    newest: Callable[[], tuple[Endpoint, ...] | None],
    changed: asyncio.Event,
) -> AsyncGenerator[tuple[Endpoint, ...], None]:
    """Run what a source does beside its reader, and tell what it finds, once each.

    Args:
        work: each runs for ever, in a task that ends with the generator.
        newest: the set as it is now, None while it is not known yet.
        changed: `work` sets it after a change; what was overtaken before it was read is not told.

    Raises:
        Exception: what `work` raised, a fault of ours that must not pass for a quiet source.
    """
    tasks = [asyncio.create_task(each()) for each in work]
    for task in tasks:
        task.add_done_callback(lambda _: changed.set())
    told: tuple[Endpoint, ...] | None = None
    try:
        while True:
            current = newest()
            if current is not None and current != told:
                told = current
                yield current
            await changed.wait()
            changed.clear()
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def outage(**about: str) -> Outage:
    """What tells that a source is away, and that it is back.

    Args:
        **about: what the two lines tell of the source.
    """
    return Outage(
        "endpoints cannot be looked up; the last known ones stay",
        "endpoints can be looked up again",
        **about,
    )
