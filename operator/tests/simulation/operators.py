"""Operators: the rounds of their loop, in parts between which anything may happen."""

import copy
import json
from collections.abc import Iterator
from typing import Protocol

from tidegate_operator import conditions, gateways, loaders, plan, recovery
from tidegate_operator.next_table import next_table
from tidegate_operator.resources import PodSeen
from tidegate_operator.sightings import Document, Pods, claims_of, known_revision
from tidegate_operator.situation import Fail, Memory, Observed, Wait, Write
from tidegate_table.document import Table

from .api_server import ApiServer, table_of
from .engines import Engine
from .gateways import Gateway
from .invariants import Invariants
from .repository import MODEL
from .rules import Violation


class Surroundings(Protocol):
    """What operators need of the world."""

    now: float
    api: ApiServer
    engines: dict[str, Engine]
    gateways: dict[str, Gateway]
    invariants: Invariants

    def write_table(self, table: Table, over: int | None, seen: Observed | None) -> bool: ...


class Operator:
    """One process of the operator. Its round is told apart into what can be interrupted."""

    def __init__(self, world: Surroundings) -> None:
        self.world = world
        self.memories: dict[str, Memory] = {}
        self.clock_off = 0.0
        self.turn: Iterator[None] | None = None
        self.lost = ""
        self.empty_since: float | None = None

    @property
    def now(self) -> float:
        return self.world.now + self.clock_off

    def crash(self) -> None:
        self.turn, self.memories, self.empty_since = None, {}, None

    def step(self) -> bool:
        """The next part of a round; whether it has ended."""
        if self.turn is None:
            self.turn = self._round()
        try:
            next(self.turn)
        except StopIteration:
            self.turn = None
            return True
        return False

    def round(self) -> None:
        """The rest of a round, or a whole one."""
        while not self.step():
            pass

    def _empty_for_s(self, pods: Pods) -> float:
        if not pods.are_empty():
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = self.now
        return 0.0 if self.empty_since is None else self.now - self.empty_since

    def _round(self) -> Iterator[None]:
        api = self.world.api
        documents = copy.deepcopy(list(api.rollouts.values()))
        yield
        content, version = api.content, api.version
        yield
        # The pods are listed after the table was read.
        engines = [(self._engine_pod(each), each) for each in self.world.engines.values()]
        fronts = [(self._gateway_pod(each), each) for each in self.world.gateways.values()]
        yield
        self.world.invariants.note_followed()
        pods = Pods(
            [(pod, self._ask_loader(each)) for pod, each in engines],
            [(pod, self._ask_gateway(each)) for pod, each in fronts],
        )
        stored = table_of(content)
        held = pods.held_above(stored.revision if stored else 0)
        known = max(known_revision(documents), pods.told_revision())
        empty_for_s = self._empty_for_s(pods)
        spoilt = content is not None and stored is None
        found = recovery.current(stored, held, known, pods.silent(), empty_for_s, spoilt=spoilt)
        self.lost = found.message if isinstance(found, recovery.Lost) else ""
        if not isinstance(found, recovery.Stands):
            if isinstance(found, recovery.Rewrite):
                yield
                self.world.write_table(found.table, version if content is not None else None, None)
            return
        table = found.table
        claims = claims_of(documents)
        seen = {}
        for model in sorted({*table.models, *table.loads, *claims.owners}):
            claimed = claims.owners.get(model)
            seen[model] = Observed(
                model=model,
                table=table,
                rollout=claimed.rollout if claimed is not None else None,
                loaders=pods.loaders_of(model),
                gateways=pods.gateways_of(model),
            )
        decisions, memories = {}, {}
        for model, observed in seen.items():
            decisions[model], memories[model] = plan.next_step(
                observed, self.memories.get(model, Memory()), self.now
            )
        self.memories = memories
        draft, decisions = next_table(table, decisions)
        for decision in decisions.values():
            if isinstance(decision, Wait) and decision.reason == "TableRefused":
                raise Violation(f"a table that nobody can read: {decision.message}")
        yield
        if draft is not None and not self.world.write_table(draft, version, seen.get(MODEL)):
            return
        yield
        for model, decision in decisions.items():
            if (owner := claims.owners.get(model)) is not None:
                self._tell(owner.document, seen[model], decision)

    def _tell(self, document: Document, seen: Observed, decision: Wait | Write | Fail) -> None:
        name, metadata = document["metadata"]["name"], document["metadata"]
        current = self.world.api.rollouts.get(name)
        if current is None or current["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return
        before = document.get("status") or {}
        status = conditions.status_of(seen, decision, metadata["generation"], before, "now")
        json.dumps(status)
        if status != before:
            current["status"] = status
            metadata = current["metadata"]
            metadata["resourceVersion"] = str(self.world.api.number())

    def _ask_loader(self, engine: Engine) -> loaders.Status | None:
        if engine.book is None or engine.is_silent or engine.name not in self.world.engines:
            return None
        return loaders.read(engine.book.report())

    def _ask_gateway(self, gateway: Gateway) -> gateways.Routing | None:
        if not gateway.is_running or gateway.is_silent or gateway.name not in self.world.gateways:
            return None
        return gateways.read(gateway.routes.document())

    def _engine_pod(self, engine: Engine) -> PodSeen:
        return PodSeen(engine.name, engine.name, "10.0.0.1", engine.is_ready, True)

    def _gateway_pod(self, gateway: Gateway) -> PodSeen:
        ready = gateway.is_ready and not gateway.is_leaving
        return PodSeen(gateway.name, gateway.name, "10.0.0.2", ready, gateway.told_started)
