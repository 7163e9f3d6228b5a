"""What is to be once the world has been left alone."""

from collections.abc import Sequence
from typing import Protocol

from tidegate_operator.sightings import claims_of, known_revision
from tidegate_operator.spec import Rollout
from tidegate_table.document import Loads, Table

from .api_server import ApiServer
from .engines import Engine
from .followers import Follower
from .gateways import Gateway
from .operators import Operator
from .repository import BAD, GOOD, MODEL, Repository
from .rules import Violation


class Surroundings(Protocol):
    """What is looked at of the world."""

    api: ApiServer
    repository: Repository
    engines: dict[str, Engine]
    gateways: dict[str, Gateway]

    @property
    def followers(self) -> Sequence[Follower]: ...

    @property
    def operator(self) -> Operator: ...


def check_end(world: Surroundings) -> None:
    """What is to be at the end."""
    table = world.api.table
    if world.operator.lost:
        _check_lost(world)
        return
    assert table is not None
    routes, loads = table.models.get(MODEL), table.loads.get(MODEL)
    roll = loads.roll if loads is not None else None
    if roll is not None and not roll.origin and world.repository.kind(roll.target) == "hanging":
        return  # A first version has all the time that it wants.
    if roll is not None:
        raise Violation(f"a roll has not come to its end: {roll}")
    if (routes is None) != (loads is None):
        raise Violation("the two halves of the table differ")
    stable = routes.stable if routes is not None else ""
    if routes is not None and loads is not None:
        if dict(routes.weights) != {stable: 100} or [*loads.versions] != [stable]:
            raise Violation(f"more than version {stable} is left: {routes}, {loads}")
        # Files are torn, and a configuration is another one, only where there are others.
        if world.repository.kind(stable) in {*BAD} - {"other config", "torn"}:
            raise Violation(f"version {stable} serves: {world.repository.kind(stable)}")
    _check_wanted(world, stable, loads)
    _check_followed(world, table, loads)


def _check_lost(world: Surroundings) -> None:
    """Nobody has the newest table any more, and that is for a person to decide."""
    held = max((each.table.revision for each in world.followers if each.table), default=0)
    if held >= known_revision(world.api.rollouts.values()):
        raise Violation(f"revision {held} is held, and said to be lost: {world.operator.lost}")


def _check_wanted(world: Surroundings, stable: str, loads: Loads | None) -> None:
    """What the spec says is what serves, or has failed for a reason of its own."""
    owner = claims_of(world.api.rollouts.values()).owners.get(MODEL)
    rollout = owner.rollout if owner is not None else None
    if not isinstance(rollout, Rollout) or stable == rollout.spec.version:
        return
    wanted = rollout.spec.version
    if not rollout.has_failed(wanted):
        raise Violation(f"version {wanted} is wanted, and {stable or 'none'} serves")
    fits = loads is None or loads.config == world.repository.config(wanted)
    if world.repository.kind(wanted) == GOOD and fits:
        raise Violation(f"a good version has failed: {rollout.failed}")


def _check_followed(world: Surroundings, table: Table, loads: Loads | None) -> None:
    """Everyone goes by the table, and engines have what it wants and no more."""
    versions = loads.versions if loads is not None else {}
    for engine in world.engines.values():
        has = {version for version in engine.states if engine.has(version)}
        wanted = {
            v for v, digest in versions.items() if digest == world.repository.digest(v, engine.name)
        }
        if has != wanted:
            raise Violation(f"{engine.name} has {has}, and is to have {wanted}")
        if has and loads is not None and engine.local[MODEL].config != loads.config:
            raise Violation(f"{engine.name} serves with another configuration")
    for gateway in world.gateways.values():
        if gateway.routes.revision != table.revision:
            raise Violation(f"{gateway.name} routes by revision {gateway.routes.revision}")
