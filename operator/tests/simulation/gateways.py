"""Gateways: their routes and counts, and the requests that they have in flight."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tidegate_gateway.errors import EngineUnavailable, ModelNotFound
from tidegate_gateway.table import Routes
from tidegate_table.document import Table

from . import followers
from .engines import Engine
from .repository import MODEL


class Sending(Protocol):
    """Judges what is sent."""

    def check_sent(self, request: "Request") -> None: ...


class Surroundings(followers.Surroundings, Protocol):
    """What gateways need of the world."""

    random: Random
    engines: dict[str, Engine]

    @property
    def invariants(self) -> Sending: ...


@dataclass(eq=False)
class Request:
    gateway: "Gateway"
    counted: AbstractContextManager[None]
    revision: int
    version: str
    fallback: str
    engine: Engine | None = None  # where it is being answered
    is_misled: bool = False

    def may_go_to(self, version: str) -> bool:
        return version in (self.version, self.fallback)


class Gateway(followers.Follower):
    world: Surroundings

    def __init__(self, world: Surroundings, name: str) -> None:
        super().__init__(world, name)
        self.routes = Routes(Random(0), needed=True)
        self.is_running = self.is_ready = self.is_leaving = self.told_started = False
        self.views: dict[str, set[str]] = {}
        self.requests: list[Request] = []

    @property
    def table(self) -> Table | None:
        return self.routes.table if self.is_running else None

    @property
    def is_alive(self) -> bool:
        return self.is_running

    def apply(self, table: Table) -> None:
        if not self.world.rules.by_revision and self.routes.table is not None:
            self.routes.table = None
        self.routes.apply(table)

    def start(self) -> None:
        if self.is_running:
            return
        self.routes = Routes(self.world.random, needed=True)
        self.is_running = True
        self.begin()

    def kill(self) -> None:
        """Its clients lose their requests, whatever the operator does."""
        self.is_running = self.is_ready = False
        self.requests, self.views = [], {}

    def probe(self) -> None:
        """What the kubelet tells."""
        self.told_started = self.told_started or self.is_running
        self.is_ready = self.is_running and not self.is_leaving and self.table is not None

    def look(self) -> None:
        """It asks the loaders what their engines serve."""
        for engine in self.world.engines.values():
            if engine.book is not None and not engine.is_silent:
                report = engine.book.report()["models"].get(MODEL, {"versions": {}})
                self.views[engine.name] = {
                    version
                    for version, each in report["versions"].items()
                    if each["wanted"] and each["proven"]
                }

    def serves(self, engine: Engine, version: str) -> bool:
        return version in self.views.get(engine.name, ())

    def send(self, pin: str = "", key: str | None = None) -> None:
        if not self.is_running or self.table is None:
            return
        counted = self.routes.in_use(MODEL)
        counted.__enter__()
        try:
            route = self.routes.route(MODEL, pin, key, self._is_served)
        except (ModelNotFound, EngineUnavailable):
            counted.__exit__(None, None, None)
            return
        request = Request(self, counted, route.revision, route.version, route.fallback)
        request.is_misled = self.is_misled
        self.requests.append(request)
        self.world.invariants.check_sent(request)

    def _is_served(self, model: str, version: str) -> bool:
        return any(self.serves(engine, version) for engine in usable(self.world.engines))

    def end(self, request: Request) -> None:
        request.counted.__exit__(None, None, None)
        self.requests.remove(request)


def usable(engines: Mapping[str, Engine]) -> list[Engine]:
    """The engines that gateways send to: those that are ready, or all where none is."""
    ready = [engine for engine in engines.values() if engine.is_ready]
    return ready or list(engines.values())
