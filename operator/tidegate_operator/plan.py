"""The heart: what happens to a model next. Pure, and total: one decision for whatever is seen.

The routing table is the truth: `loads` has what every engine is to have loaded and where the roll
stands, `models` what gateways route by. A decision is at most one write of the model's part of it,
made under the resource version of the table that was observed. So there are never two steps from
one observation, and an operator that dies anywhere is followed by one that goes on from the same
place. What is measured in memory (`Memory`) may be lost at any time: then it is measured again.

Why no request fails:

- A version gets weight only after every ready engine has proven it, by a report that is not older
  than the write that asked for it (`guards.unproven`). That holds for the way back, too: while a
  roll goes on, stable is what makes an engine ready; once the candidate is stable, the old version
  is not.
- A step is held only from when every ready gateway routes by it (`guards.behind`).
- A version leaves the table only when no gateway, be it unready or leaving, holds a request that
  came in before the write that took its last way to a request away (`guards.in_use`), and no engine
  has had one for a while (`guards.has_been_quiet`). For the old version that write is not the one
  that brought weight 100, since failures of the candidate were retried on it until it was promoted.
  There is no other way out of the table, not even for a candidate that never had any weight in this
  one: someone may still follow a table that is lost.
- A version is not wanted again before every engine has let go of it (`guards.still_there`).
- Going back needs nobody's leave: it is one write.
- A failure is recorded before it is acted on, so that nobody tries that version again.
- A candidate is proven by the golden request that the spec names, as long as it has no weight: when
  that changes, the roll goes back and begins again, since what engines have proven says nothing of
  the new one.
"""

from dataclasses import replace

from tidegate_operator import faults, guards, writes
from tidegate_operator.guards import listed
from tidegate_operator.situation import Decision, Fail, Memory, Observed, Unreadable, Wait, Write
from tidegate_operator.spec import DRAIN_S, PROGRESS_DEADLINE_S, Rollout
from tidegate_table.document import Loads, Phase, Roll

TOLD_S = 10.0
"""Seconds after which Kubernetes has told of a container that it has started, as far as this says
how long a pod that has not is awaited; `drain` counts where it is longer."""

Outcome = tuple[Decision, Memory]


def next_step(seen: Observed, memory: Memory, now: float) -> Outcome:
    """The one next step for a model, and what is to be remembered until the next round.

    Args:
        memory: what came back the last time, or a new one.
        now: of a monotonic clock, in seconds.
    """
    loads, rollout = seen.loads, seen.rollout
    if loads is None:
        return _enter(seen), Memory()
    if loads.roll is not None and not isinstance(loads.roll.phase, Phase):
        return _unknown("phase", loads.roll.phase), memory
    if isinstance(rollout, Rollout) and loads.policy != writes.policy_of(rollout):
        # At once, for it may be deleted in the next moment.
        return writes.governed(seen, rollout, loads), memory
    roll = loads.roll
    if roll is None:
        return _rest(seen, loads), Memory()
    if memory.since != roll.since:
        memory = Memory(since=roll.since)
    if roll.phase is Phase.ROLLING_BACK:
        return _let_go(seen, loads, roll, memory, now)
    if isinstance(rollout, Unreadable):
        return _unread(seen, rollout, loads, roll), memory
    if why := _why_back(seen, loads, roll):
        return writes.went_back(seen, loads, roll, why), memory
    if rollout is None:
        return _let_go(seen, loads, roll, memory, now)
    return _go_on(seen, rollout, loads, roll, memory, now)


# Without a roll


def _enter(seen: Observed) -> Decision:
    """The model is not in the loaders' half of the table."""
    match seen.rollout:
        case None:
            return Wait("Absent", "no ModelRollout names this model")
        case Unreadable() as rollout:
            return _unreadable(rollout)
        case rollout if seen.routes is not None:
            return writes.adopted(rollout, seen.routes)
        case rollout:
            return _begin(seen, rollout, Loads("", {}), origin="")


def _rest(seen: Observed, loads: Loads) -> Decision:
    """No roll is on its way."""
    routes, rollout = seen.routes, seen.rollout
    stable = routes.stable if routes is not None else ""
    # What no write of this release leaves behind, but an adopted table may have.
    for version in loads.versions:
        if version != stable:
            return _taken_out(seen, loads, stable, version, "it is not what should serve")
    if rollout is None and not stable:
        return Write(None, None, "Dropped", "it has no version")
    if rollout is None:
        on_delete = loads.policy.on_delete if loads.policy is not None else "Keep"
        if on_delete == "Keep":
            return Wait("Kept", f"version {stable} serves, though no ModelRollout names it")
        if on_delete != "Unload":
            return _unknown("onDelete", on_delete)
        return _taken_out(seen, loads, "", stable, "the ModelRollout is deleted")
    if isinstance(rollout, Unreadable):
        return _unreadable(rollout)
    if rollout.spec.version != stable:
        return _begin(seen, rollout, loads, origin=stable)
    wanted, there = rollout.spec.digest, loads.versions.get(stable, "")
    if wanted and there and wanted != there:
        return Wait(
            "DigestDiffers",
            f"version {stable} serves with the digest {there}, and {wanted} is wanted; "
            "other files need another version",
        )
    return Wait("Serving", f"version {stable} serves")


def _taken_out(seen: Observed, loads: Loads, stays: str, goes: str, why: str) -> Decision:
    roll = Roll(stays, goes, Phase.ROLLING_BACK, 0, seen.next_revision)
    return writes.went_back(seen, loads, roll, why)


def _begin(seen: Observed, rollout: Rollout, loads: Loads, *, origin: str) -> Decision:
    """A roll to the spec's version begins, unless something speaks against it."""
    target = rollout.spec.version
    if rollout.has_failed(target):
        return _failed(rollout)
    if rollout.spec.paused:
        return Wait("Paused", f"version {target} is wanted, but the spec says paused")
    if seen.proof_error:
        return Wait("ProofUnreadable", seen.proof_error)
    if there := guards.still_there(seen, target):
        return Wait("Unloading", f"version {target} may still be loaded on {listed(there)}")
    engines = seen.engines
    if fault := faults.unfit(rollout, loads, engines) or faults.too_large(rollout, engines):
        return fault
    # One that takes Triton with it when it is loaded takes one engine, and not all at once. A first
    # version has nothing to lose.
    first = engines[0].name if origin and len(engines) > 1 else ""
    return writes.begun(seen, rollout, loads, origin, first)


# Back


def _why_back(seen: Observed, loads: Loads, roll: Roll) -> str:
    """Why the roll goes back, or ""."""
    rollout = seen.rollout
    if roll.phase is Phase.PROMOTED:
        # The candidate is stable by now: a third version, or none, is for when the roll is over.
        if not isinstance(rollout, Rollout) or not _may_go_back(seen, roll):
            return ""
        if rollout.spec.version == roll.origin:
            return f"version {roll.origin} is wanted again"
    elif not isinstance(rollout, Rollout):
        return "the ModelRollout is deleted"
    elif rollout.spec.version != roll.target:
        return f"version {rollout.spec.version} is wanted"
    elif rollout.spec.digest and loads.versions[roll.target] not in ("", rollout.spec.digest):
        return f"version {roll.target} is wanted with another digest"
    elif roll.phase is Phase.LOADING and _proof_differs(seen, loads, roll):
        # It may have been proven, or refuted, by the one of before.
        return f"version {roll.target} is wanted with another golden request"
    goes_back = rollout.has_failed(roll.target) and rollout.spec.on_failure == "RollBack"
    return _failed(rollout).message if goes_back else ""


def _may_go_back(seen: Observed, roll: Roll) -> bool:
    """Whether the old version could take all requests. While it is stable it does, more or less."""
    is_stable = roll.phase is not Phase.PROMOTED
    return is_stable or not guards.unproven(seen, roll.origin, roll.since)


def _proof_differs(seen: Observed, loads: Loads, roll: Roll) -> bool:
    """Whether the golden request that the spec names now is another one than that by which the
    candidate is proven. One that cannot be read at the moment is not."""
    return not seen.proof_error and seen.proof != loads.proofs.get(roll.target)


def _unread(seen: Observed, rollout: Unreadable, loads: Loads, roll: Roll) -> Decision:
    """A roll is on its way, and nobody can read where it is to go: it stays where it is. But what
    the loaders say of the candidate can be read, and that it goes back is what the spec says unless
    it says otherwise."""
    if not rollout.has_failed(roll.target):
        return faults.reported(seen, roll) or _unreadable(rollout)
    if _may_go_back(seen, roll):
        return writes.went_back(seen, loads, roll, _failed(rollout).message)
    return _unreadable(rollout)


# Forward


def _go_on(  # noqa: PLR0913, PLR0917  all that there is
    seen: Observed, rollout: Rollout, loads: Loads, roll: Roll, memory: Memory, now: float
) -> Outcome:
    """A roll is on its way to what the spec wants, or too far to go anywhere else first."""
    has_failed = rollout.has_failed(roll.target)
    if has_failed and rollout.spec.version == roll.target:
        return _failed(rollout), memory
    if not has_failed and (fault := faults.reported(seen, roll)):
        return fault, memory
    match roll.phase:
        case Phase.LOADING:
            decision = _load(seen, rollout, loads, roll)
        case Phase.STEPPING | Phase.BAKING:
            decision, memory = _hold(seen, rollout, loads, roll, memory, now)
        case _ if rollout.spec.paused:
            message = f"version {roll.origin} stays loaded: the spec says paused"
            return Wait("Paused", message), memory
        case _:
            return _let_go(seen, loads, roll, memory, now)
    if isinstance(decision, Wait) and _proof_differs(seen, loads, roll):
        message = f"{decision.message}; the golden request has changed, which counts for a new roll"
        decision = replace(decision, message=message)
    return _in_time(seen, rollout, roll, decision, memory, now)


def _load(seen: Observed, rollout: Rollout, loads: Loads, roll: Roll) -> Decision:
    """The candidate is being loaded and proven."""
    target, engines = roll.target, seen.engines
    if fault := faults.unfit(rollout, loads, engines) or faults.digests(roll, loads, engines):
        return fault
    if roll.engine:
        return _load_one(seen, rollout, loads, roll)
    if missing := guards.unproven(seen, target, roll.since):
        there = len(engines) - len(missing)
        of = f"{max(there, 0)} of {len(engines)} engines have proven version {target}"
        return Wait("Loading", f"{of}; awaited: {listed(missing)}")
    if rollout.spec.paused:
        return Wait("Paused", f"version {target} is proven, but the spec says paused")
    proven = engines[0].versions[target]
    loads = writes.pinned(loads, target, engines[0].config, proven.digest)
    if not roll.origin:
        return writes.served(seen, loads, roll, len(engines))
    return writes.weighed(seen, rollout, loads, roll, step=0)


def _load_one(seen: Observed, rollout: Rollout, loads: Loads, roll: Roll) -> Decision:
    """One engine loads and proves the candidate before the others do."""
    if roll.engine not in {loader.name for loader in seen.loaders}:
        # It is gone for good, whatever it was that took it.
        first = next((each.name for each in seen.engines), "")
        return writes.spread(seen, loads, roll, first) if first else Wait("Loading", "no engine")
    if roll.engine in guards.unproven_of(seen.loaders, roll.target, roll.since):
        message = f"{roll.engine} has not proven version {roll.target} yet; the others wait for it"
        return Wait("Loading", message)
    if rollout.spec.paused:
        message = f"version {roll.target} is proven on {roll.engine}, but the spec says paused"
        return Wait("Paused", message)
    return writes.spread(seen, loads, roll, "")


def _hold(  # noqa: PLR0913, PLR0917
    seen: Observed, rollout: Rollout, loads: Loads, roll: Roll, memory: Memory, now: float
) -> Outcome:
    """The candidate has weight, for as long as its step or the bake holds."""
    steps, baking = rollout.spec.steps, roll.phase is Phase.BAKING
    if behind := guards.behind(seen, roll.since):
        message = f"gateways do not route by it yet: {listed(behind)}"
        return Wait("Applying", message, tuple(behind)), memory
    # A gateway that is silent for a moment does not make a hold begin again.
    memory = replace(memory, began=_earlier(memory.began, now))
    if baking:
        lasts_s, what = rollout.spec.bake_s, "bake"
    else:
        # The spec may have fewer steps by now.
        lasts_s = steps[roll.step].hold_s if roll.step < len(steps) else 0.0
        what = f"step {roll.step + 1} of {len(steps)}"
    if now - _earlier(memory.began, now) < lasts_s:
        return Wait("Holding", f"{what}: {_weight(seen, roll):g} % for {lasts_s:g} s"), memory
    if missing := guards.unproven(seen, roll.target, roll.since):
        return Wait("Proving", f"version {roll.target} is not proven on {listed(missing)}"), memory
    if rollout.spec.paused:
        return Wait("Paused", f"at {_weight(seen, roll):g} %: the spec says paused"), memory
    if baking:
        return writes.promoted(seen, loads, roll), memory
    return writes.weighed(seen, rollout, loads, roll, step=roll.step + 1), memory


def _in_time(  # noqa: PLR0913, PLR0917
    seen: Observed, rollout: Rollout, roll: Roll, decision: Decision, memory: Memory, now: float
) -> Outcome:
    """The decision, unless nothing has come further for too long.

    Holds and pauses are no standstill. A first version has all the time that engines need to come
    up: there is nothing to go back to.
    """
    if not isinstance(decision, Wait):
        return decision, memory
    if not roll.origin or decision.reason in ("Holding", "Paused"):
        return decision, replace(memory, best=-1, best_at=now)
    come = seen.come(roll.target) - len(guards.behind(seen, roll.since))
    if memory.best_at is None or memory.best_at > now or come > memory.best:
        return decision, replace(memory, best=come, best_at=now)
    if now - memory.best_at < rollout.spec.progress_deadline_s:
        return decision, memory
    message = f"no progress for {rollout.spec.progress_deadline_s:g} s: {decision.message}"
    return Fail(roll.target, "NoProgress", message), memory


# A version goes


def _let_go(seen: Observed, loads: Loads, roll: Roll, memory: Memory, now: float) -> Outcome:
    """Take the version that has lost its weight out of the table, once nobody needs it."""
    goes, _ = writes.going_and_staying(roll)
    spec = seen.rollout.spec if isinstance(seen.rollout, Rollout) else None
    drain_s = spec.drain_s if spec is not None else DRAIN_S
    # A client that goes to engines by itself cannot keep a version there for ever.
    most_s = drain_s + (spec.progress_deadline_s if spec is not None else PROGRESS_DEADLINE_S)
    began = _earlier(memory.began, now)
    memory = guards.counted(seen, goes, replace(memory, began=began), now)
    may_start = now - began < max(drain_s, TOLD_S)
    stays = f"version {goes} stays loaded until"
    if awaited := guards.in_use(seen, roll.since, starting_counts=may_start):
        message = f"{stays} these gateways need it no more: {listed(awaited)}"
        return Wait("Draining", message, tuple(awaited)), replace(memory, free_at=None)
    memory = replace(memory, free_at=_earlier(memory.free_at, now))
    if guards.has_been_quiet(memory, drain_s, now) or now - _earlier(memory.free_at, now) >= most_s:
        return writes.dropped(seen, loads, roll), memory
    return Wait("Draining", f"{stays} its engines have had no request for {drain_s:g} s"), memory


# Small parts


def _earlier(time: float | None, now: float) -> float:
    """When something began that is measured: now, unless it has. A clock that was set back makes it
    begin again."""
    return now if time is None else min(time, now)


def _weight(seen: Observed, roll: Roll) -> float:
    return seen.routes.weights.get(roll.target, 0) if seen.routes is not None else 0


def _unreadable(rollout: Unreadable) -> Wait:
    return Wait("InvalidSpec", f"{rollout.name}: {rollout.message}")


def _unknown(what: str, value: str) -> Wait:
    """The table comes from a later release: what that has begun, it has to end."""
    return Wait("UnknownInTable", f"the routing table has the {what} {value!r}, which is not known")


def _failed(rollout: Rollout | Unreadable) -> Wait:
    failed = rollout.failed
    message = f"version {failed.version} has failed: {failed.message}" if failed else ""
    return Wait("Failed", message)
