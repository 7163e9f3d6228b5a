"""What each step makes of a model's part of the table: pure builders, no decisions.

Whatever a step is about, the policy is that of the ModelRollout as it is now, and what a later
release says to gateways of this model stays.
"""

from dataclasses import replace

from tidegate_operator.situation import Observed, Write
from tidegate_operator.spec import Rollout
from tidegate_table.document import WHOLE, Loads, ModelRoutes, Phase, Policy, Roll


def adopted(rollout: Rollout, routes: ModelRoutes) -> Write:
    """A model that is routed already is taken over as it is."""
    versions = {name: "" for name, weight in routes.weights.items() if weight > 0}
    loads = Loads("", {routes.stable: "", **versions}, policy=policy_of(rollout))
    return Write(loads, routes, "Adopted", f"version {routes.stable} serves already")


def governed(seen: Observed, rollout: Rollout, loads: Loads) -> Write:
    """The policy alone changes."""
    message = f"ModelRollout {rollout.name} decides; when it is deleted: {rollout.spec.on_delete}"
    return Write(replace(loads, policy=policy_of(rollout)), seen.routes, "Governed", message)


def begun(seen: Observed, rollout: Rollout, loads: Loads, origin: str, engine: str) -> Write:
    """A roll begins: that engine is to load the candidate, or, where it is "", every one."""
    target = rollout.spec.version
    proofs = {name: proof for name, proof in loads.proofs.items() if name != target}
    if seen.proof is not None:
        proofs[target] = seen.proof
    loads = replace(
        loads,
        versions={**loads.versions, target: rollout.spec.digest},
        proofs=proofs,
        roll=Roll(origin, target, Phase.LOADING, 0, seen.next_revision, engine),
        policy=policy_of(rollout),
    )
    beside = f" beside version {origin}" if origin else ""
    who = engine or "every engine"
    return Write(loads, seen.routes, "Loading", f"{who} loads version {target}{beside}")


def spread(seen: Observed, loads: Loads, roll: Roll, engine: str) -> Write:
    """Another engine, or, where it is "", every one is to load the candidate as well."""
    message = f"{engine or 'every engine'} loads version {roll.target}"
    return _entered(seen, loads, replace(roll, engine=engine), seen.routes, message)


def pinned(loads: Loads, version: str, config: str, digest: str) -> Loads:
    """What a version was proven with is what every engine is to have from now on."""
    return replace(
        loads, config=loads.config or config, versions={**loads.versions, version: digest}
    )


def served(seen: Observed, loads: Loads, roll: Roll, engines: int) -> Write:
    """The first version of a model gets all of its requests."""
    message = f"version {roll.target} is proven on {engines} engines"
    routes = _routes(seen, roll.target, {roll.target: WHOLE})
    return Write(replace(loads, roll=None), routes, "Serving", message)


def weighed(seen: Observed, rollout: Rollout, loads: Loads, roll: Roll, step: int) -> Write:
    """The candidate gets the weight of that step; after the last one, all."""
    steps = rollout.spec.steps
    baking = step >= len(steps)
    weight = WHOLE if baking else steps[step].weight
    phase = Phase.BAKING if baking else Phase.STEPPING
    return _entered(
        seen,
        loads,
        replace(roll, phase=phase, step=0 if baking else step),
        _routes(seen, roll.origin, {roll.origin: WHOLE - weight, roll.target: weight}),
        f"version {roll.target} gets {weight} %",
    )


def promoted(seen: Observed, loads: Loads, roll: Roll) -> Write:
    """The candidate is stable; failures are not retried on the old version any more."""
    return _entered(
        seen,
        loads,
        replace(roll, phase=Phase.PROMOTED, step=0),
        _routes(seen, roll.target, {roll.target: WHOLE, roll.origin: 0}),
        f"version {roll.target} is stable",
    )


def went_back(seen: Observed, loads: Loads, roll: Roll, why: str) -> Write:
    """The old version gets all, if there is one, and the candidate stays until nobody needs it."""
    back = f"back to version {roll.origin}: {why}" if roll.origin else f"given up: {why}"
    routes = (
        _routes(seen, roll.origin, {roll.origin: WHOLE, roll.target: 0}) if roll.origin else None
    )
    roll = replace(roll, phase=Phase.ROLLING_BACK, step=0)
    return _entered(seen, loads, roll, routes, back)


def dropped(seen: Observed, loads: Loads, roll: Roll) -> Write:
    """A version is let go, after which there is no roll: the point of no return."""
    goes, stays = going_and_staying(roll)
    message = f"version {goes} is unloaded"
    if not stays:
        return Write(None, None, "Unloading", message)
    loads = replace(
        loads,
        versions={name: digest for name, digest in loads.versions.items() if name != goes},
        proofs={name: proof for name, proof in loads.proofs.items() if name != goes},
        roll=None,
    )
    return Write(loads, _routes(seen, stays, {stays: WHOLE}), "Unloading", message)


def going_and_staying(roll: Roll) -> tuple[str, str]:
    """The version that a roll in its last phase lets go, and the one that stays."""
    if roll.phase is Phase.PROMOTED:
        return roll.origin, roll.target
    return roll.target, roll.origin


def policy_of(rollout: Rollout) -> Policy:
    """What the table keeps of a ModelRollout."""
    return Policy(rollout.uid, rollout.spec.on_delete)


def _entered(
    seen: Observed, loads: Loads, roll: Roll, routes: ModelRoutes | None, message: str
) -> Write:
    roll = replace(roll, since=seen.next_revision)
    return Write(replace(loads, roll=roll), routes, str(roll.phase), message)


def _routes(seen: Observed, stable: str, weights: dict[str, float]) -> ModelRoutes:
    return ModelRoutes(stable, weights, seen.routes.unknown if seen.routes is not None else {})
