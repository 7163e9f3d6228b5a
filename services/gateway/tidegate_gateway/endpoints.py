"""The endpoints as they are now: how each is connected, what it serves, whether it is well.

A source tells which endpoints there are. To each of them one connection is kept, and beside it go
on, without any request waiting for them,

- the watch of the connection: an endpoint without one gets no requests;
- the questions which versions it serves, to its loader where it has one: at once when it connects,
  when the table changes, when there is none and a version is used for the first time or when it has
  refused one, and else every few seconds;
- the golden request of each model in use, where no request has shown lately that the model answers:
  Triton calls a model ready whose backend process is dead. It is also what lets an endpoint back in
  that was ejected. A version that has left the table is let be: a version is only unloaded when
  its engine has seen no request for it for a while.

An engine that is slow to answer all this is not thereby unwell; only what it answers counts, or
that it answers nothing at all. Which endpoint gets a request is decided in `balancing`.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from tidegate_gateway.balancing import Cause, Ejection, Key, Outcome, Peer, Pool, Ticket, subset
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.discovery import Endpoint, usable
from tidegate_gateway.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    ModelNotFound,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.loaders import Report
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import HealthSettings
from tidegate_process.asking import NoAnswer

_log = logging.getLogger(__name__)

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)

# Seconds between two looks at what has to be probed.
_TICK_S = 0.25
# Seconds after its last request for which a version is probed, and for which engines are asked
# about a version that no table names.
_IN_USE_S = 60.0
# Seconds between two questions to an engine whose loader has a wanted version still to prove: that
# is news which may come at any moment, and nothing else tells of it.
_AWAITED_S = 1.0
# Seconds between two rounds of questions to one endpoint, however often it refuses.
_ASK_PAUSE_S = 0.2
# Share by which pauses differ, so that gateways do not ask in step.
_JITTER = 0.2


class Connection(Enum):
    """How the connection to an endpoint is."""

    UP = "up"
    COMING = "coming"
    DOWN = "down"


class Link(Protocol[E_co]):
    """The one connection to an endpoint, which is kept up while `connections` is read."""

    @property
    def engine(self) -> E_co:
        """What talks to the engine over it."""
        ...

    def connections(self) -> AsyncIterator[Connection]:
        """How the connection is, now and at every change."""
        ...

    async def close(self) -> None:
        """Close it; what is in flight on it fails."""
        ...


class Questions(Protocol[E_contra]):
    """What is asked of engines aside from requests."""

    async def serves(self, engine: E_contra, key: Key, deadline: Deadline) -> bool:
        """Whether it serves that version; raises RequestError where it does not say."""
        ...

    async def probe(self, engine: E_contra, key: Key, deadline: Deadline) -> None:
        """Send the model's golden request; raises RequestError when it does not answer as it
        should."""
        ...


class Routing(Protocol):
    """What the routing table says of versions."""

    def wanted(self) -> Collection[Key] | None:
        """Those that requests may go to; None without a table: any."""
        ...

    def is_on_trial(self, model: str, version: str) -> bool:
        """Whether it is only believed to serve where a loader has proven it."""
        ...

    def digest(self, model: str, version: str) -> str:
        """That of its files; "" where the table has none."""
        ...


@dataclass(eq=False, slots=True)
class Target(Generic[E]):
    """An endpoint that may be chosen."""

    endpoint: Endpoint
    link: Link[E]
    peer: Peer
    connection: Connection = Connection.COMING
    was_up: bool = False
    # When it last gave a good answer: at all, and by version.
    answered_at: float = 0.0
    good_at: dict[Key, float] = field(default_factory=dict)
    # Set when what is known of its versions is out of date.
    stale: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    # Whether its loader was, the last time.
    is_silent: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    # The probe that runs, by version.
    probes: dict[Key, asyncio.Task[None]] = field(default_factory=dict)

    def has_answered(self, key: Key, *, since: float) -> bool:
        """Whether it has given a good answer with that version after `since`."""
        return self.good_at.get(key, -math.inf) > since

    @property
    def name(self) -> str:
        """What answers, logs and `GET /endpoints` call it."""
        return self.endpoint.name


class Endpoints(Generic[E]):
    """All endpoints of one gateway.

    Args:
        pool: their statistics.
        open_link: connects to one.
        questions: what is asked of them.
        routing: which versions they are asked about; those in use are, too.
        health: how often, and how long they may take.
        identity: the gateway's name, which decides its subset; any, while it is its own.
        most: endpoints to connect to; 0: all.
        first_connection_s: seconds that a request waits while no connection has been tried out yet.
        close_after_s: seconds that requests in flight get when their endpoint is gone.
        reports: asks the loader of an endpoint; raises NoAnswer. None: there are no loaders.
        on_discovery: called whenever the source has told which endpoints there are.
    """

    def __init__(  # noqa: PLR0913  keywords
        self,
        pool: Pool,
        *,
        open_link: Callable[[Endpoint], Link[E]],
        questions: Questions[E],
        routing: Routing,
        health: HealthSettings,
        metrics: Metrics,
        random: Random,
        identity: str,
        most: int,
        first_connection_s: float,
        close_after_s: float,
        reports: Callable[[Endpoint], Awaitable[Report]] | None = None,
        on_discovery: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._open_link = open_link
        self._questions = questions
        self._routing = routing
        self._health = health
        self._metrics = metrics
        self._random = random
        self._identity = identity
        self._most = most
        self._first_connection_s = first_connection_s
        self._close_after_s = close_after_s
        self._reports = reports
        self._on_discovery = on_discovery
        self._targets: dict[str, Target[E]] = {}
        self._used: dict[Key, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_discovered = False
        self._changed = asyncio.Event()

    # --- What there is --------------------------------------------------------------------------

    async def follow(self, snapshots: AsyncIterator[tuple[Endpoint, ...]]) -> None:
        """Keep to what a source tells, and probe what has to be, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            async for snapshot in snapshots:
                self._apply(snapshot)

    async def close(self) -> None:
        """Close every connection and end every task."""
        targets, tasks = list(self._targets.values()), list(self._tasks)
        for address in list(self._targets):
            self._targets.pop(address)
            self._pool.remove(address)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(target.link.close() for target in targets))

    def ask_anew(self) -> None:
        """Ask every endpoint which versions it serves, since others may be wanted now."""
        for target in self._targets.values():
            target.stale.set()

    def _apply(self, snapshot: tuple[Endpoint, ...]) -> None:
        by_address = {endpoint.address: endpoint for endpoint in snapshot}
        takes_new = {endpoint.address for endpoint in usable(snapshot)}
        # Those that leave stay until they are gone, since sequences have their state there; but
        # they take no place in the subset, or it might be all of them.
        leaving = by_address.keys() & self._targets.keys() - takes_new
        mine = [*subset(takes_new, of=self._identity, size=self._most), *leaving]
        for address in self._targets.keys() - mine:
            self._let_go(self._targets.pop(address))
        for address in mine:
            endpoint = by_address[address]
            target = self._targets.get(address) or self._connect(endpoint)
            target.endpoint = endpoint
            target.peer.leaving = address in leaving
        self._is_discovered = True
        self._on_discovery()
        self._tell_change()

    def _connect(self, endpoint: Endpoint) -> Target[E]:
        peer = self._pool.add(endpoint.address, zone=endpoint.zone)
        target = Target(endpoint, self._open_link(endpoint), peer)
        self._targets[endpoint.address] = target
        target.tasks = [
            self._begin(self._watch(target)),
            self._begin(self._ask_again_and_again(target)),
        ]
        _log.info("endpoint found", extra={"endpoint": target.name})
        return target

    def _let_go(self, target: Target[E]) -> None:
        self._pool.remove(target.endpoint.address)
        for task in (*target.tasks, *target.probes.values()):
            task.cancel()
        self._begin(self._close_when_idle(target))
        _log.info("endpoint gone", extra={"endpoint": target.name})

    async def _close_when_idle(self, target: Target[E]) -> None:
        try:
            if target.peer.in_flight:
                await asyncio.wait_for(target.idle.wait(), self._close_after_s)
        except TimeoutError:
            _log.warning("requests cut off", extra={"endpoint": target.name})
        finally:
            await target.link.close()

    async def _watch(self, target: Target[E]) -> None:
        async for connection in target.link.connections():
            # What follows a failure is another try, no news until something has come of it.
            if connection is Connection.COMING and target.connection is Connection.DOWN:
                continue
            if connection is target.connection:
                continue
            target.connection = connection
            if connection is Connection.UP:
                target.peer.forget_versions()
                target.peer.connected_since(time.monotonic())
                target.was_up = True
                target.stale.set()
                _log.info("endpoint connected", extra={"endpoint": target.name})
            else:
                target.peer.disconnected()
                if connection is Connection.DOWN:
                    reason = "lost" if target.was_up else "not reached"
                    _log.warning("endpoint away", extra={"endpoint": target.name, "reason": reason})
            self._tell_change()

    # --- Which one ------------------------------------------------------------------------------

    async def choose(self, key: Key, deadline: Deadline, *, sequence: str = "") -> Target[E]:
        """The endpoint for an attempt; see `choose_now`.

        Raises:
            EngineUnavailable: none is connected; at once, unless a connection may be about to come.
        """
        until = deadline.earlier(self._first_connection_s)
        while True:
            target = self.choose_now(key, sequence=sequence)
            if target is not None:
                return target
            if not self._is_hopeful() or not until.remaining():
                raise EngineUnavailable(
                    "no engine can be reached; try again later",
                    detail=f"none of {len(self._targets)} endpoints is connected",
                )
            await self._wait_for_change(until)

    def choose_now(
        self, key: Key, *, excluding: Collection[str] = (), sequence: str = ""
    ) -> Target[E] | None:
        """The endpoint for an attempt that begins now; None where none is connected.

        Args:
            excluding: addresses that come into question only where there is no other.
            sequence: requests of one sequence get the same endpoint while it is there.
        """
        now = time.monotonic()
        if sequence:
            peer = self._pool.stay(key, sequence, now)
        else:
            peer = self._pool.choose(key, now, excluding=excluding)
        return None if peer is None else self._targets[peer.name]

    def serves(self, model: str, version: str) -> bool:
        """Whether an endpoint that is well is known to serve that version."""
        return self._pool.is_served((model, version))

    def connected(self) -> list[E]:
        """All engines that can be reached."""
        up = (t for t in self._targets.values() if t.connection is Connection.UP)
        return [target.link.engine for target in up]

    def document(self) -> list[dict[str, Any]]:
        """What `GET /endpoints` answers."""
        now = time.monotonic()
        return [self._described(target, now) for _, target in sorted(self._targets.items())]

    def count(self, connection: Connection) -> int:
        """How many endpoints are connected like that."""
        return sum(target.connection is connection for target in self._targets.values())

    def largest_in_flight(self) -> int:
        """The most requests that are in flight at one endpoint."""
        return max((target.peer.in_flight for target in self._targets.values()), default=0)

    def _described(self, target: Target[E], now: float) -> dict[str, Any]:
        return {
            "address": target.endpoint.address,
            "name": target.name,
            "zone": target.endpoint.zone,
            "connection": target.connection.value,
            "leaving": target.peer.leaving,
            "inFlight": target.peer.in_flight,
            "versions": [
                {
                    "model": model,
                    "version": version,
                    "serves": target.peer.serves((model, version)),
                    "latencyMs": round(target.peer.latency((model, version), now) * 1000, 1),
                    "ejected": None if ejection is None else ejection.reason,
                }
                for model, version in sorted(self._versions())
                for ejection in [target.peer.ejection((model, version))]
            ],
        }

    def _is_hopeful(self) -> bool:
        if not self._is_discovered:
            return True
        return any(t.connection is Connection.COMING for t in self._targets.values())

    async def _wait_for_change(self, until: Deadline) -> None:
        try:
            await until.wait_for(self._changed.wait())
        except DeadlineExceeded:
            return

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- How attempts go ------------------------------------------------------------------------

    def begin(self, target: Target[E], key: Key) -> Ticket:
        """An attempt or a question begins; it must end."""
        target.idle.clear()
        return target.peer.begin(key, time.monotonic())

    def end_question(self, target: Target[E], ticket: Ticket) -> None:
        """A question has ended, which says nothing about a version."""
        self._end(target, ticket, Outcome.DROPPED, time.monotonic())

    def end(
        self,
        target: Target[E],
        key: Key,
        ticket: Ticket,
        outcome: Outcome,
        *,
        is_candidate: bool = False,
    ) -> None:
        """An attempt has ended."""
        now = time.monotonic()
        if key not in self._used and self._routing.wanted() is None:
            # Nobody has been asked about it: without a table, it is known by being used.
            self.ask_anew()
        self._used[key] = now
        self._end(target, ticket, outcome, now)
        if outcome is Outcome.GOOD:
            target.answered_at = target.good_at[key] = now
        elif outcome is Outcome.LATE:
            # Of many that hang at once only some may be ejected for it; probes know no limit.
            self._probe_soon(target, key)
        ejection = self._pool.judge(target.peer, key, now)
        if ejection is not None:
            self._tell_ejection(target, key, ejection)
        elif (
            is_candidate and target.peer.failures_in_a_row(key) >= self._health.consecutive_failures
        ):
            # A version that is being tried out may be bad everywhere: no half of it has to stay.
            self.eject(target, key, Cause.FAILURES)

    def _end(self, target: Target[E], ticket: Ticket, outcome: Outcome, now: float) -> None:
        target.peer.end(ticket, now, outcome)
        if target.peer.in_flight == 0:
            target.idle.set()

    def refused(self, target: Target[E], key: Key) -> None:
        """The endpoint has said that it does not serve that version."""
        target.peer.set_serves(key, False)
        target.stale.set()

    def eject(self, target: Target[E], key: Key, cause: Cause) -> None:
        """Take a version on an endpoint out, until a probe lets it in again."""
        if target.peer.ejection(key) is None:
            ejection = self._pool.eject(target.peer, key, cause, time.monotonic())
            self._tell_ejection(target, key, ejection)

    def forget_sequence(self, key: Key, sequence: str) -> None:
        """The sequence has ended."""
        self._pool.forget(key, sequence)

    def _tell_ejection(self, target: Target[E], key: Key, ejection: Ejection) -> None:
        self._metrics.ejections.labels(key[0], ejection.cause.value).inc()
        _log.warning(
            "endpoint ejected",
            extra={
                **_named(target, key),
                "cause": ejection.cause.value,
                "reason": ejection.reason,
                "seconds": round(ejection.until - time.monotonic(), 1),
            },
        )

    # --- What is asked --------------------------------------------------------------------------

    async def _ask_again_and_again(self, target: Target[E]) -> None:
        while True:
            target.stale.clear()
            if target.connection is Connection.UP:
                versions = self._versions()
                self._pool.keep_only(target.peer, versions)
                report = await self._report(target)
                await asyncio.gather(*(self._learn(target, key, report) for key in versions))
                await asyncio.sleep(_ASK_PAUSE_S)
            pause = self._pause_s(target) * (1 + _JITTER * self._random.uniform(-1, 1))
            try:
                await asyncio.wait_for(target.stale.wait(), pause)
            except TimeoutError:
                continue

    def _pause_s(self, target: Target[E]) -> float:
        """Seconds until it is asked again, give or take, where nothing happens before."""
        wanted = self._routing.wanted() or ()
        if self._reports is None or all(target.peer.serves(key) for key in wanted):
            return self._health.refresh_s
        return min(_AWAITED_S, self._health.refresh_s)

    def _versions(self) -> set[Key]:
        return {*(self._routing.wanted() or ()), *self._in_use()}

    def _in_use(self) -> Iterable[Key]:
        oldest = time.monotonic() - _IN_USE_S
        self._used = {key: at for key, at in self._used.items() if at > oldest}
        return self._used

    async def _report(self, target: Target[E]) -> Report | None:
        """What the endpoint's loader says; None where it has none, or that one is silent."""
        if self._reports is None:
            return None
        try:
            report = await self._reports(target.endpoint)
        except NoAnswer as silence:
            if not target.is_silent:
                target.is_silent = True
                _log.warning(
                    "loader silent", extra={"endpoint": target.name, "reason": str(silence)}
                )
            return None
        target.is_silent = False
        return report

    async def _learn(self, target: Target[E], key: Key, report: Report | None) -> None:
        """Whether the endpoint serves that version, by its loader or else by the engine itself.

        A version that is only being tried out is never believed to serve because it is loaded: it
        must have been proven. Where the loader says nothing of it, what was known stands.
        """
        said = None if report is None else report.get(key)
        if said is not None:
            self._note(target, key, serves=said.serves(self._routing.digest(*key)))
        elif self._reports is None or not self._routing.is_on_trial(*key):
            await self._ask(target, key)

    async def _ask(self, target: Target[E], key: Key) -> None:
        deadline = Deadline.after(self._health.ask_timeout_s)
        try:
            serves = await self._questions.serves(target.link.engine, key, deadline)
        except (ModelNotFound, VersionUnready):
            serves = False
        except RequestError:
            return
        self._note(target, key, serves=serves)

    def _note(self, target: Target[E], key: Key, *, serves: bool) -> None:
        if target.peer.serves(key) is not serves:
            target.peer.set_serves(key, serves)
            _log.info(
                "version served" if serves else "version not served",
                extra=_named(target, key),
            )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for peer, key in self._pool.due(now):
                # One that is not there cannot be well; it may have been unloaded for good.
                if peer.serves(key) is not False:
                    self._probe_soon(self._targets[peer.name], key)
            for key in self._in_use():
                for target in self._targets.values():
                    if self._is_silent(target, key, now):
                        self._probe_soon(target, key)

    def _is_silent(self, target: Target[E], key: Key, now: float) -> bool:
        """Whether that version should answer there, and has not shown so lately."""
        return (
            bool(target.peer.serves(key))
            and target.peer.ejection(key) is None
            and now - target.good_at.get(key, 0.0) > self._health.probe_interval_s
        )

    def _probe_soon(self, target: Target[E], key: Key) -> None:
        if key in target.probes or target.connection is not Connection.UP:
            return
        wanted = self._routing.wanted()
        if wanted is None or key in wanted:
            target.probes[key] = task = self._begin(self._probe(target, key))
            task.add_done_callback(lambda _: target.probes.pop(key))

    async def _probe(self, target: Target[E], key: Key) -> None:
        began = time.monotonic()
        deadline = Deadline.after(self._health.probe_timeout_s)
        try:
            await self._questions.probe(target.link.engine, key, deadline)
        except (ModelNotFound, VersionUnready):
            self.refused(target, key)
        except DeadlineExceeded:
            # Slow, not unwell, as long as anything else is answered; but one that is out does not
            # come back by it.
            if target.answered_at < began or target.peer.ejection(key) is not None:
                self._failed_probe(target, key, "no answer")
        except RequestError as error:
            self._failed_probe(target, key, error.detail or error.message)
        else:
            self._passed_probe(target, key)

    def _failed_probe(self, target: Target[E], key: Key, why: str) -> None:
        now = time.monotonic()
        _log.info("probe failed", extra={**_named(target, key), "why": why})
        self._tell_ejection(target, key, self._pool.eject(target.peer, key, Cause.PROBE, now))

    def _passed_probe(self, target: Target[E], key: Key) -> None:
        now = time.monotonic()
        target.answered_at = target.good_at[key] = now
        ejection = target.peer.ejection(key)
        # One that began before the ejection, on suspicion, does not end it.
        if ejection is not None and ejection.until <= now:
            self._pool.readmit(target.peer, key, now)
            _log.info(
                "endpoint readmitted",
                extra=_named(target, key),
            )

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the watch of an endpoint has failed", exc_info=error)


def _named(target: Target[Any], key: Key) -> dict[str, str]:
    """What a log line is about: a version on an endpoint."""
    model, version = key
    return {"endpoint": target.name, "model": model, "model_version": version}
