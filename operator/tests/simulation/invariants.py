"""What must never be, whatever happens in whatever order."""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from tidegate_operator.situation import Observed
from tidegate_operator.spec import Rollout
from tidegate_table.document import Phase, Table, parse, write

from .api_server import BAKE_S, HOLD_S, LONG_S, ApiServer
from .engines import Engine
from .gateways import Gateway, Request
from .repository import MODEL
from .rules import Rules, Violation

_HELD_S: Mapping[str, int] = {Phase.STEPPING: HOLD_S, Phase.BAKING: BAKE_S}


class Surroundings(Protocol):
    """What is judged of the world."""

    now: float
    api: ApiServer
    rules: Rules
    engines: dict[str, Engine]
    gateways: dict[str, Gateway]
    ghosts: list[Gateway]

    @property
    def requests(self) -> Sequence[Request]: ...


class Invariants:
    """The judge of what happens, and what it remembers of what has happened.

    Attributes:
        proven: versions that some engine has proven since the table last began to want them.
        gave_up: (uid, generation, version) that have been tried and gone back from.
        followed_at: when all ready gateways went by a phase and step, by its revision.
        jumped_at: when an operator's clock last jumped.
    """

    def __init__(self, world: Surroundings) -> None:
        self.world = world
        self.proven: set[str] = set()
        self.gave_up: set[tuple[str, int, str]] = set()
        self.followed_at: dict[int, float] = {}
        self.jumped_at = float("-inf")

    def check_unload(self, engine: Engine, version: str) -> None:
        """Triton lets a version go because the loader says so."""
        for request in self.world.requests:
            if request.may_go_to(version) and not request.is_misled:
                raise Violation(
                    f"{engine.name} unloads version {version}, which a request of revision "
                    f"{request.revision} in {request.gateway.name} may still go to"
                )
        for gateway in (*self.world.gateways.values(), *self.world.ghosts):
            table = gateway.table if not gateway.is_misled else None
            if table is not None and (MODEL, version) in table.versions():
                raise Violation(
                    f"{engine.name} unloads version {version}, which {gateway.name} routes to by "
                    f"revision {table.revision}"
                )

    def check_sent(self, request: Request) -> None:
        if request.version not in self.proven:
            raise Violation(
                f"{request.gateway.name} sends a request to version {request.version}, which no "
                "engine has proven"
            )

    def check_write(self, old: Table | None, new: Table, seen: Observed | None) -> None:
        """A table is about to be stored; `seen` is what it comes from, None for one made anew."""
        self._check_document(new)
        if old is not None and new.revision <= old.revision and self.world.rules.by_revision:
            raise Violation(f"revision {new.revision} is written over {old.revision}")
        was = old.models.get(MODEL) if old is not None else None
        comes = new.models.get(MODEL)
        loads = new.loads.get(MODEL)
        kept = loads.versions if loads is not None else {}
        if was is not None and seen is not None and was.stable not in kept:
            raise Violation(f"version {was.stable}, which is stable, is dropped")
        if comes is None or seen is None or old is None:
            return
        for version, weight in comes.weights.items():
            if weight > 0 and (was is None or was.weights.get(version, 0) == 0):
                self._check_may_weigh(version, old, new, seen)
        self._check_held(old, new)

    def _check_document(self, table: Table) -> None:
        document = write(table)
        if parse(json.loads(json.dumps(document))) != table:
            raise Violation("a table is not what is written of it")

    def _check_may_weigh(self, version: str, old: Table, new: Table, seen: Observed) -> None:
        roll = old.loads[MODEL].roll if MODEL in old.loads else None
        if roll is None or version not in (roll.origin, roll.target):
            raise Violation(f"version {version} gets weight without a roll")
        if version == roll.origin and roll.phase is not Phase.PROMOTED:
            return  # It is stable, and makes engines ready.
        ready = [
            self.world.engines[each.name]
            for each in seen.engines
            if each.name in self.world.engines
        ]
        if not seen.engines:
            raise Violation(f"version {version} gets weight while there is no engine")
        for engine in ready:
            # A Triton that has ended since proves nothing, and was proven.
            if (
                engine.boot
                and engine.proven_at.get(version, 0) < roll.since
                and engine.boot == (engine.book.boot if engine.book is not None else 0)
            ):
                raise Violation(f"version {version} gets weight and is not proven on {engine.name}")
        pinned = new.loads[MODEL].versions[version]
        for engine in ready:
            found = engine.copies().get(version)
            if engine.has(version) and found is not None and found.digest != pinned:
                raise Violation(f"version {version} has other files on {engine.name}")

    def _check_held(self, old: Table, new: Table) -> None:
        before = old.loads[MODEL].roll if MODEL in old.loads else None
        after = new.loads[MODEL].roll if MODEL in new.loads else None
        if before is None or after is None or self.jumped_at > self.world.now - 10 * LONG_S:
            return
        held = _HELD_S.get(before.phase)
        if held is None or after.phase is Phase.ROLLING_BACK or before.since == after.since:
            return
        if self.world.now - self.followed_at.get(before.since, self.world.now) < held:
            raise Violation(f"revision {before.since} was not held for {held} s")

    def note_rolls(self, old: Table | None, new: Table, seen: Observed | None) -> None:
        before = old.loads[MODEL].roll if old is not None and MODEL in old.loads else None
        after = new.loads[MODEL].roll if MODEL in new.loads else None
        loads = new.loads.get(MODEL)
        if seen is not None:
            self.proven &= {*loads.versions} if loads is not None else set()
        if seen is None or not isinstance(seen.rollout, Rollout) or after is None:
            return
        key = seen.rollout.uid, seen.rollout.generation, after.target
        if before is None and after.phase is Phase.LOADING and key in self.gave_up:
            raise Violation(f"version {after.target} is tried again under the same spec")
        goes_back = (
            after.phase is Phase.ROLLING_BACK
            and before is not None
            and before.phase is not Phase.ROLLING_BACK
        )
        if goes_back and seen.rollout.spec.version == after.target:
            self.gave_up.add(key)

    def note_followed(self) -> None:
        """When every ready gateway went by the phase and step that the stored table has."""
        table = self.world.api.table
        loads = table.loads.get(MODEL) if table is not None else None
        ready = [gateway for gateway in self.world.gateways.values() if gateway.is_ready]
        if loads is not None and loads.roll is not None and ready:
            since = loads.roll.since
            if all(gateway.routes.revision >= since for gateway in ready):
                self.followed_at.setdefault(since, self.world.now)
