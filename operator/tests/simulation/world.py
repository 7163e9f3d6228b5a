"""All of it: everything that may happen, and how it usually goes."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tidegate_operator.sightings import known_revision
from tidegate_operator.situation import Observed
from tidegate_operator.spec import PROGRESS_DEADLINE_S
from tidegate_table.document import Phase, Table, write

from . import clients
from .api_server import DEADLINE_S, LONG_S, ApiServer
from .endings import check_end
from .engines import Engine
from .followers import Follower
from .gateways import Gateway, Request
from .invariants import Invariants
from .operators import Operator
from .repository import MODEL, Repository
from .rules import Rules, Violation


class World:
    """The whole cluster."""

    def __init__(self, engines: int = 2, gateways: int = 2, seed: int = 0) -> None:
        self.random = Random(seed)
        self.rules = Rules()
        self.now = 1000.0
        self.api = ApiServer()
        self.repository = Repository()
        self.invariants = Invariants(self)
        self.names = 0
        self.gateways: dict[str, Gateway] = {}
        self.engines: dict[str, Engine] = {}
        self.ghosts: list[Gateway] = []
        self.operators = [Operator(self), Operator(self)]
        for _ in range(engines):
            self.add_engine()
        for _ in range(gateways):
            self.add_gateway().start()

    @property
    def operator(self) -> Operator:
        return self.operators[0]

    @property
    def kinds(self) -> dict[str, str]:
        """How the versions in the repository are, by version; the others are good."""
        return self.repository.kinds

    @kinds.setter
    def kinds(self, kinds: dict[str, str]) -> None:
        self.repository.kinds = kinds

    @property
    def table(self) -> Table | None:
        """As it is stored."""
        return self.api.table

    @property
    def phase(self) -> Phase | str | None:
        table = self.table
        loads = table.loads.get(MODEL) if table is not None else None
        return loads.roll.phase if loads is not None and loads.roll is not None else None

    @property
    def followers(self) -> list[Follower]:
        return [*self.gateways.values(), *self.engines.values()]

    @property
    def requests(self) -> list[Request]:
        return [
            each for gateway in (*self.gateways.values(), *self.ghosts) for each in gateway.requests
        ]

    # The ConfigMap

    def write_table(self, table: Table, over: int | None, seen: Observed | None) -> bool:
        """Whether it is stored: only over what was read."""
        api = self.api
        current = api.version if api.content is not None else None
        if over != current and self.rules.precondition:
            return False
        self.invariants.check_write(self.table, table, seen)
        self.invariants.note_rolls(self.table, table, seen)
        self._store(json.dumps(write(table)).encode())
        api.written.append(table)
        return True

    def _store(self, content: bytes) -> None:
        self.api.content, self.api.version = content, self.api.number()
        for follower in self.followers:
            follower.coming.append(content)

    def delete_config_map(self) -> None:
        self.api.content = None

    def put_back(self, index: int) -> None:
        """Someone restores a copy of an older table, though not in the moment of a write."""
        written = self.api.written
        told = known_revision(self.api.rollouts.values())
        if written and told >= written[-1].revision:
            older = written[index % len(written)]
            self._store(json.dumps(write(older)).encode())

    def spoil_config_map(self) -> None:
        self._store(b"{")

    # People

    def apply_rollout(self, version: int, name: str = "roll", **spec: Any) -> None:
        """Make it, or change its spec."""
        self.api.apply_rollout(version, name, spec)

    def change(self, name: str = "roll", **spec: Any) -> None:
        """Change some of its spec."""
        self.api.change_rollout(name, spec)

    def delete_rollout(self, name: str = "roll") -> None:
        self.api.delete_rollout(name)

    def spoil_candidate(self) -> None:
        """A candidate that was good is not any more; one that has ever been stable stays good."""
        table = self.table
        roll = table.loads[MODEL].roll if table is not None and MODEL in table.loads else None
        stable = {each.models[MODEL].stable for each in self.api.written if MODEL in each.models}
        if roll is not None and roll.target not in stable:
            self.kinds.setdefault(roll.target, "wrong")

    # Kubernetes

    def add_gateway(self) -> Gateway:
        self.names += 1
        gateway = Gateway(self, f"gateway-{self.names}")
        self.gateways[gateway.name] = gateway
        return gateway

    def remove_gateway(self, name: str) -> None:
        """It is gone when its requests have ended."""
        gateway = self.gateways[name]
        gateway.is_leaving = True
        gateway.is_ready = False
        if not gateway.requests:
            gateway.kill()
            del self.gateways[name]

    def add_engine(self) -> Engine:
        self.names += 1
        engine = Engine(self, f"engine-{self.names}")
        self.engines[engine.name] = engine
        engine.start_triton()
        engine.start_loader()
        return engine

    def remove_engine(self, name: str) -> None:
        engine = self.engines.pop(name)
        engine.kill_triton()
        engine.kill_loader()
        for request in self.requests:
            if request.engine is engine:
                request.engine = None

    def kill_triton(self, engine: Engine) -> None:
        engine.kill_triton()
        for request in self.requests:
            if request.engine is engine:
                request.engine = None  # It is tried again, elsewhere.

    # Requests

    def land(self, request: Request) -> None:
        clients.land(request, self.engines)

    def finish(self, request: Request) -> None:
        clients.finish(request, self.engines)

    def fall_back(self, request: Request) -> None:
        clients.fall_back(request)

    # Time, and everything as it usually goes

    def tick(self, seconds: float) -> None:
        self.invariants.note_followed()
        self.now += seconds

    def jump(self, seconds: float) -> None:
        """The operators' monotonic clock is not as monotonic as it should be."""
        self.invariants.jumped_at = self.now
        for operator in self.operators:
            operator.clock_off += seconds

    def breathe(self) -> None:
        """Everyone who can gets what is on its way, and goes on; but no operator, and no time."""
        for follower in self.followers:
            while follower.coming and follower.reaches_api:
                follower.deliver()
        for engine in [*self.engines.values()]:
            engine.go_on()
            engine.probe()
        for gateway in [*self.gateways.values()]:
            gateway.probe()
            gateway.look()

    def go_on(self, seconds: float = 1.0, rounds: int = 1) -> None:
        """Some rounds in which nothing goes wrong that is not wrong already."""
        for _ in range(rounds):
            self.breathe()
            self.operator.round()
            self.tick(seconds)

    def until(self, is_so: Callable[[], bool], seconds: float = LONG_S, rounds: int = 80) -> None:
        """Rounds until something is so.

        Raises:
            Violation: it is never so.
        """
        for _ in range(rounds):
            if is_so():
                return
            self.go_on(seconds)
        raise Violation(f"what was to come never came; the table is {self.table}")

    # The end

    def heal(self) -> None:
        """The world is left alone, and nothing is wrong any more."""
        for request in self.requests:
            self.finish(request)
        for name, gateway in [*self.gateways.items()]:
            gateway.reaches_api, gateway.is_silent = True, False
            if gateway.is_leaving:
                self.remove_gateway(name)
            else:
                gateway.start()
        self.ghosts = []
        for engine in self.engines.values():
            engine.reaches_api, engine.is_silent = True, False
            engine.start_triton()
            engine.start_loader()
        for follower in self.followers:
            follower.relist()
        if not self.engines:
            self.add_engine()
        if not self.gateways:
            self.add_gateway().start()
        for operator in self.operators[1:]:
            operator.crash()
        for name in [*self.api.rollouts]:
            self.change(name, paused=False, onFailure="RollBack")

    def settle(self) -> None:
        """Leave the world alone until nothing changes any more, and look at what has become of it.

        Raises:
            Violation: it does not come to rest, or not at what the spec says.
        """
        self.heal()
        self._rest()
        # What else went wrong may have been taken for a fault of the version.
        for name in [*self.api.rollouts]:
            self.change(name, progressDeadline=f"{DEADLINE_S + 1}s")
        self._rest()
        check_end(self)

    def _rest(self) -> None:
        """Nothing has changed for longer than anything is waited for."""
        before, still_s = self.table, 0.0
        for _ in range(120):
            for engine in self.engines.values():
                engine.start_triton()
            for follower in self.followers:
                follower.relist()
            # What is proven for ever without an answer keeps the counts moving until the deadline.
            seconds = LONG_S if self.phase is None else 4 * LONG_S
            self.go_on(seconds)
            still_s = still_s + seconds if self.table == before else 0.0
            before = self.table
            if still_s > (3 * LONG_S if self.phase is None else PROGRESS_DEADLINE_S + 8 * LONG_S):
                return
        raise Violation(f"it does not come to rest: {self.table}")
