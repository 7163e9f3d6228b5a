"""Engines in memory that do what a test tells them to, at a time that passes by itself.

They are for what no real engine does on demand: to hang in one request and answer the next, to fail
with a certain error, to be late by so many milliseconds. All else is real: the endpoints, the pool,
the attempts.
"""

import asyncio
import functools
import gc
import math
import selectors
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, ParamSpec
from unittest import mock

from prometheus_client import Counter

from tidegate_gateway.attempts import Attempts
from tidegate_gateway.balancing import Key, Pool, Rules
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.endpoints import Connection, Endpoints, Target
from tidegate_gateway.loaders import Report
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import AttemptSettings, HealthSettings
from tidegate_process.asking import NoAnswer

P = ParamSpec("P")

MODEL = "m"
STABLE: Key = (MODEL, "1")
CANDIDATE: Key = (MODEL, "2")
ROUTE = Route(MODEL, "1", 7, pinned=False, fallback="")
"""As a table of revision 7 has it: all to the stable version."""

USUAL_S = 0.01
"""Seconds that an engine takes unless told otherwise."""

# More turns of the loop without any time passing are a loop that spins.
_MOST_TURNS = 10_000


class _Clock(selectors.DefaultSelector):
    """The time of one loop: it stands still while there is something to do, and then goes on to
    what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._turns = 0

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self._turns += 1
        if not ready and timeout != 0:
            assert timeout is not None, "everybody waits, and nothing will ever happen"
            self._now += timeout
            self._turns = 0
        assert self._turns < _MOST_TURNS, "the loop spins"
        return ready


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on a loop whose time is virtual: seconds take no time, and what is
    said of them is exact. Nothing may be left over: no task, no exception that nobody has seen."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        clock = _Clock()
        unseen: list[dict[str, Any]] = []

        async def checked() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, told: unseen.append(told))
            await test(*args, **kwargs)
            await asyncio.sleep(0.001)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with (
            mock.patch.object(time, "monotonic", clock.time),
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner,
        ):
            runner.run(checked())
            gc.collect(1)
        assert unseen == []

    return run


@dataclass(frozen=True)
class Does:
    """What an engine does with a request: after `seconds`, or when `until` is set, it fails with
    `error` or answers. `punctual`: it ends by the deadline, as a client of an engine does."""

    seconds: float = USUAL_S
    error: BaseException | None = None
    until: asyncio.Event | None = None
    punctual: bool = True

    async def do(self, deadline: Deadline) -> None:
        if self.until is not None:
            wait: Coroutine[Any, Any, Any] = self.until.wait()
        elif self.seconds == math.inf:
            wait = asyncio.Event().wait()
        else:
            wait = asyncio.sleep(self.seconds)
        await (deadline.wait_for(wait) if self.punctual else wait)
        if self.error is not None:
            raise self.error


ANSWERS = Does()
HANGS = Does(math.inf)


def fails(error: BaseException, seconds: float = USUAL_S) -> Does:
    return Does(seconds, error)


@dataclass(eq=False)
class Engine:
    """An engine that serves versions 1 and 2 of the model."""

    name: str
    does: dict[str, Does] = field(default_factory=lambda: defaultdict(lambda: ANSWERS))
    """What it does with requests, by version."""
    serves: set[Key] = field(default_factory=lambda: {STABLE, CANDIDATE})
    says: Does = Does(0.001)
    """What it does when it is asked which versions it serves."""
    golden: Does = Does(0.001)
    """What it does with a golden request."""
    golden_by: dict[Key, Does] = field(default_factory=dict)
    """The same for a version that does otherwise."""
    asked: list[tuple[float, Key]] = field(default_factory=list)
    probed: list[tuple[float, Key]] = field(default_factory=list)


@dataclass(frozen=True)
class Call:
    """An attempt as an engine saw it."""

    engine: str
    version: str
    at: float


class Link:
    """A connection to `engine`, which is as the test says."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self.engine = engine
        self.closed = 0
        self._told = asyncio.Queue[Connection]()
        self.becomes(connection)

    def becomes(self, connection: Connection) -> None:
        self._told.put_nowait(connection)

    async def connections(self) -> AsyncIterator[Connection]:
        while True:
            yield await self._told.get()

    async def close(self) -> None:
        self.closed += 1


class _Questions:
    async def serves(self, engine: Engine, key: Key, deadline: Deadline) -> bool:
        engine.asked.append((time.monotonic(), key))
        await engine.says.do(deadline)
        return key in engine.serves

    async def probe(self, engine: Engine, key: Key, deadline: Deadline) -> None:
        engine.probed.append((time.monotonic(), key))
        await engine.golden_by.get(key, engine.golden).do(deadline)


class _Routing:
    """What the table of a fleet says, in which loaders have all."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    def wanted(self) -> Collection[Key] | None:
        return self._fleet.wanted or None

    def is_on_trial(self, model: str, version: str) -> bool:
        return (model, version) != STABLE

    def digest(self, model: str, version: str) -> str:
        return self._fleet.digests.get((model, version), "")


class Fleet:
    """Scripted engines e1, e2, … behind real endpoints; made by `a_fleet`.

    Attributes:
        plan: what is done with the next attempts, wherever they go; then each engine does its own.
        calls: all attempts so far.
        cancelled: those that were cancelled.
        reports: what loaders say, by their engine's name, and `report_takes_s` seconds later.
        questions: how often each has been asked.
        wanted: the versions of the table; none: there is no table.
        digests: what the table says of their files.
        links: all that were ever opened, by the engine's name.
        follow: what follows the source of endpoints.
    """

    follow: asyncio.Task[None]

    def __init__(  # keywords, each with a default
        self,
        *,
        attempts: AttemptSettings,
        health: HealthSettings,
        rules: Rules,
        wanted: Iterable[Key],
        connection: Connection,
        most: int,
        close_after_s: float,
        loaders: bool,
    ) -> None:
        self.reports: dict[str, Report | NoAnswer] = {}
        self.report_takes_s = 0.0
        self.questions: dict[str, int] = defaultdict(int)
        self.plan: list[Does] = []
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        self.engines: dict[str, Engine] = {}
        self.links: dict[str, list[Link]] = defaultdict(list)
        self.connection = connection
        self.wanted = set(wanted)
        self.digests: dict[Key, str] = {}
        self.metrics = Metrics()
        self.endpoints = Endpoints[Engine](
            Pool(rules, Random(1)),
            open_link=self._open,
            questions=_Questions(),
            routing=_Routing(self),
            health=health,
            metrics=self.metrics,
            random=Random(2),
            identity="gateway",
            most=most,
            first_connection_s=1.0,
            close_after_s=close_after_s,
            reports=self._report if loaders else None,
        )
        self.attempts = Attempts(self.endpoints, attempts, self.metrics)
        self.snapshots = asyncio.Queue[tuple[Endpoint, ...]]()

    async def _report(self, endpoint: Endpoint) -> Report:
        """What its loader says; one that the test says nothing of is silent."""
        self.questions[endpoint.name] += 1
        said = self.reports.get(endpoint.name, NoAnswer("no answer"))
        await asyncio.sleep(self.report_takes_s)
        if isinstance(said, NoAnswer):
            raise said
        return said

    async def told(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        """What the source of endpoints tells."""
        while True:
            yield await self.snapshots.get()

    async def announce(self, *endpoints: Endpoint) -> None:
        """These are all, from now on. Returns when they are connected and have been asked."""
        self.snapshots.put_nowait(endpoints)
        await asyncio.sleep(0.1)

    async def run(
        self,
        route: Route,
        *,
        timeout: float = 3.0,
        tried: list[str] | None = None,
        sequence: str = "",
    ) -> str:
        """The answer to one request: `engine:version`."""
        names = [] if tried is None else tried
        until = Deadline.after(timeout)
        return await self.attempts.run(route, self.call, until, names, sequence=sequence)

    async def call(self, engine: Engine, version: str, deadline: Deadline) -> str:
        """One attempt."""
        call = Call(engine.name, version, time.monotonic())
        self.calls.append(call)
        does = self.plan.pop(0) if self.plan else engine.does[version]
        try:
            await does.do(deadline)
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise
        return f"{engine.name}:{version}"

    async def warm_up(self, version: str = "1", *, requests: int = 30) -> None:
        """So many requests that the usual latency of `version` is known."""
        for _ in range(requests):
            await self.run(Route(MODEL, version, 1, pinned=False, fallback=""))
        self.calls.clear()

    def all_do(self, does: Does, *versions: str) -> None:
        """Have every engine do so with requests for `versions`."""
        for engine in self.engines.values():
            engine.does.update(dict.fromkeys(versions or ("1", "2"), does))

    def become(self, connection: Connection, *names: str) -> None:
        """Have the connections to engines (all of them by default) be so."""
        for name in names or self.engines:
            self.links[name][-1].becomes(connection)

    def described(self, name: str) -> dict[str, Any]:
        """What `GET /endpoints` says of one."""
        (found,) = [each for each in self.endpoints.document() if each["name"] == name]
        return found

    def version(self, name: str, key: Key) -> dict[str, Any]:
        """What it says of one version there."""
        versions = self.described(name)["versions"]
        (found,) = [each for each in versions if (each["model"], each["version"]) == key]
        assert isinstance(found, dict)
        return found

    def target(self, name: str) -> Target[Engine]:
        """The endpoint of that name, which is connected."""
        others = [each["address"] for each in self.endpoints.document() if each["name"] != name]
        found = self.endpoints.choose_now(STABLE, excluding=others)
        assert found is not None
        assert found.name == name
        return found

    def in_flight(self) -> int:
        """Attempts and questions that have not ended, at all endpoints."""
        return sum(each["inFlight"] for each in self.endpoints.document())

    @staticmethod
    def counted(counter: Counter) -> dict[tuple[str, ...], float]:
        """The values of a metric by its labels, but for the model."""
        return {
            tuple(value for name, value in sample.labels.items() if name != "model"): sample.value
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def _open(self, endpoint: Endpoint) -> Link:
        engine = self.engines.setdefault(endpoint.name, Engine(endpoint.name))
        link = Link(engine, self.connection)
        self.links[endpoint.name].append(link)
        return link


def endpoint(number: int, **members: Any) -> Endpoint:
    """That of engine e`number`."""
    return Endpoint(f"10.0.0.{number}:8001", f"e{number}", **members)


@asynccontextmanager
async def a_fleet(
    count: int,
    *,
    attempts: AttemptSettings | None = None,
    health: HealthSettings | None = None,
    rules: Rules | None = None,
    wanted: Collection[Key] = (STABLE, CANDIDATE),
    connection: Connection = Connection.UP,
    most: int = 0,
    close_after_s: float = 300.0,
    loaders: bool = False,
) -> AsyncIterator[Fleet]:
    """A fleet of so many engines; at its end nothing may be in flight, and all is closed."""
    fleet = Fleet(
        attempts=attempts or AttemptSettings(),
        health=health or HealthSettings(),
        rules=rules or Rules(),
        wanted=wanted,
        connection=connection,
        most=most,
        close_after_s=close_after_s,
        loaders=loaders,
    )
    fleet.follow = asyncio.create_task(fleet.endpoints.follow(fleet.told()))
    await asyncio.sleep(0)
    if count:
        await fleet.announce(*(endpoint(number + 1) for number in range(count)))
    try:
        yield fleet
        assert fleet.in_flight() == 0
    finally:
        fleet.follow.cancel()
        await asyncio.gather(fleet.follow, return_exceptions=True)
        await fleet.endpoints.close()
    assert {link.closed for links in fleet.links.values() for link in links} <= {1}
