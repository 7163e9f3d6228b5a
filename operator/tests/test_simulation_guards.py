"""Each guard closes a race: with it, a history goes well; without it, the same one does not.

The histories are directed, so that each fault is found at once and each time. What goes wrong is
what `simulation` checks whatever happens.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from tidegate_engine.loader import bookkeeping
from tidegate_operator import faults, guards, plan, recovery, writes
from tidegate_operator.sightings import Pods
from tidegate_operator.situation import Fail, GatewaySeen, Memory, Observed, Write
from tidegate_table.document import Loads, Phase, Roll

from .simulation import operators
from .simulation.api_server import DRAIN_S, LONG_S
from .simulation.engines import Engine
from .simulation.gateways import Gateway, Request
from .simulation.repository import MODEL
from .simulation.rules import Violation
from .simulation.world import World

Patch = pytest.MonkeyPatch
TakeOut = Callable[[Patch, World], None]
History = Callable[[World], None]


@pytest.fixture(autouse=True)
def _few_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# What histories have in common


def serving(world: World) -> None:
    """Version 1 serves."""
    world.apply_rollout(1)
    world.until(lambda: _serves(world, "1"))
    world.go_on()


def rolled_to(world: World, phase: Phase | None) -> None:
    """The roll from version 1 to version 2 has come to `phase`, and everyone follows it."""
    serving(world)
    world.apply_rollout(2)
    world.until(lambda: world.phase is phase and (phase is not None or _serves(world, "2")))
    world.breathe()


def going_back(world: World) -> None:
    """The roll goes back from its first step, and everyone but `reaches_api=False` follows it."""
    world.change(version=1)
    world.operator.round()
    assert _is_in(world, Phase.ROLLING_BACK)
    world.breathe()


def all_that_is_due(world: World) -> None:
    """More than any hold, drain and bake lasts."""
    world.go_on(LONG_S, rounds=6)


def _serves(world: World, version: str) -> bool:
    routes = world.table.models.get(MODEL) if world.table is not None else None
    return routes is not None and routes.stable == version and world.phase is None


def _is_in(world: World, phase: Phase) -> bool:
    return world.phase is phase


def first(world: World) -> Gateway:
    return next(iter(world.gateways.values()))


def candidates_request(gateway: Gateway) -> Request:
    """A request that is sent to version 2 and not answered yet."""
    gateway.send(pin="2")
    return gateway.requests[-1]


# Weight


def a_candidate_that_never_answers(world: World) -> None:
    serving(world)
    world.kinds["2"] = "hanging"
    world.apply_rollout(2)
    world.go_on(rounds=4)
    assert _is_in(world, Phase.LOADING)


def without_proofs(patch: Patch, world: World) -> None:
    patch.setattr(guards, "unproven_of", lambda *_: [])


def an_engine_that_comes_back_with_an_old_table(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    late = [*world.engines.values()][-1]
    late.kill_loader()
    going_back(world)
    world.until(lambda: _serves(world, "1"))
    world.go_on(rounds=2)
    world.change(version=2)
    world.operator.round()
    assert _is_in(world, Phase.LOADING)
    late.reaches_api = False
    late.start_loader()
    world.breathe()
    assert late.is_ready
    world.operator.round()
    assert _is_in(world, Phase.LOADING)


def proofs_of_any_revision(patch: Patch, world: World) -> None:
    unproven_of = guards.unproven_of
    patch.setattr(
        guards, "unproven_of", lambda loaders, version, _: unproven_of(loaders, version, 0)
    )


def _engine_about_to_unload(world: World) -> Engine:
    """The operator has just let go of version 2, and only one engine has heard of it."""
    rolled_to(world, Phase.STEPPING)
    going_back(world)
    while world.phase is not None:
        world.breathe()
        world.operator.round()
        world.tick(LONG_S)
    late = [*world.engines.values()][-1]
    late.relist()
    late.notice()
    late.think()
    assert late.doing is not None
    return late


def a_version_wanted_again_while_it_is_unloaded(world: World) -> None:
    late = _engine_about_to_unload(world)
    others = [each for each in world.followers if each is not late]
    world.change(version=2)
    for _ in range(4):
        for engine in world.engines.values():
            if engine is not late:
                engine.go_on()
        for follower in others:
            follower.relist()
        late.relist()
        world.operator.round()
    late.act()


def without_waiting_for_unloads(patch: Patch, world: World) -> None:
    # Loaders take care of it as well, so they have to be careless too.
    loaders_that_tell_what_was_proven_before(patch, world)
    patch.setattr(guards, "still_there", lambda *_: [])


def a_version_that_a_silent_engine_is_about_to_unload(world: World) -> None:
    late = _engine_about_to_unload(world)
    late.is_silent, late.is_ready = True, False
    for engine in world.engines.values():
        if engine is not late:
            engine.relist()
            engine.go_on()
            engine.probe()
    world.change(version=2)
    for _ in range(3):
        world.operator.round()
        late.is_silent = False
        for follower in world.followers:
            follower.relist()
        for engine in world.engines.values():
            if engine is not late:
                engine.go_on()
        late.record_proofs()
        late.probe()
    for gateway in world.gateways.values():
        gateway.relist()
    late.act()
    world.settle()


def loaders_that_tell_what_was_proven_before(patch: Patch, world: World) -> None:
    patch.setattr(bookkeeping._Model, "is_taking_out", lambda *_: False)


def engines_with_other_files(world: World) -> None:
    serving(world)
    world.kinds["2"] = "torn"
    world.apply_rollout(2)
    world.go_on(rounds=6)
    assert _fails(world)


def without_digests(patch: Patch, world: World) -> None:
    patch.setattr(faults, "digests", lambda *_: None)


def an_old_version_that_is_gone_when_it_is_wanted_back(world: World) -> None:
    rolled_to(world, Phase.PROMOTED)
    world.kinds["1"] = "broken"
    for engine in world.engines.values():
        world.kill_triton(engine)
        engine.start_triton()
    world.breathe()
    world.change(version=1)
    world.operator.round()


def back_to_what_is_not_proven(patch: Patch, world: World) -> None:
    unproven = guards.unproven

    def of_candidates(seen: Observed, version: str, since: int) -> list[str]:
        roll = seen.loads.roll if seen.loads is not None else None
        return [] if roll and version == roll.origin else unproven(seen, version, since)

    patch.setattr(guards, "unproven", of_candidates)


def a_gateway_that_hears_nothing_in_a_step(world: World) -> None:
    rolled_to(world, Phase.LOADING)
    first(world).reaches_api = False
    world.until(lambda: world.phase is Phase.STEPPING)
    all_that_is_due(world)
    assert _is_in(world, Phase.STEPPING)


def holds_that_wait_for_nobody(patch: Patch, world: World) -> None:
    patch.setattr(guards, "behind", lambda *_: [])


def a_candidate_that_fails(world: World) -> None:
    serving(world)
    world.kinds["2"] = "broken"
    world.apply_rollout(2)
    for _ in range(5):
        all_that_is_due(world)
    assert _fails(world)


def failures_that_nobody_records(patch: Patch, world: World) -> None:
    next_step = plan.next_step

    def acting_at_once(seen: Observed, memory: Memory, now: float) -> plan.Outcome:
        decision, memory = next_step(seen, memory, now)
        if isinstance(decision, Fail) and seen.loads is not None and seen.loads.roll is not None:
            decision = writes.went_back(seen, seen.loads, seen.loads.roll, decision.message)
        return decision, memory

    patch.setattr(plan, "next_step", acting_at_once)


def _fails(world: World) -> bool:
    return "failed" in world.api.rollouts["roll"]["status"]


# The barrier


def a_request_of_the_candidate_that_lasts(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    request = candidates_request(first(world))
    world.land(request)
    going_back(world)
    all_that_is_due(world)
    world.finish(request)
    world.settle()


def without_the_barrier(patch: Patch, world: World) -> None:
    patch.setattr(guards, "in_use", lambda *_, **__: [])


def requests_in_flight_ignored(patch: Patch, world: World) -> None:
    _as_if(patch, lambda each: replace(each, oldest_in_use=None))


def a_gateway_that_hears_nothing_of_the_way_back(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    first(world).reaches_api = False
    going_back(world)
    all_that_is_due(world)
    world.settle()


def applied_revisions_ignored(patch: Patch, world: World) -> None:
    def seen(each: GatewaySeen) -> GatewaySeen:
        # One that has no requests tells its revision as the oldest in use.
        idle = each.oldest_in_use == each.revision
        return replace(each, revision=10**9, oldest_in_use=None) if idle else each

    _as_if(patch, seen)


def a_gateway_that_does_not_answer(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    gateway = first(world)
    candidates_request(gateway)
    gateway.is_silent = True
    going_back(world)
    all_that_is_due(world)
    world.settle()


def silent_gateways_left_out(patch: Patch, world: World) -> None:
    _as_if(patch, lambda each: None if each.revision is None else each)


def a_gateway_that_leaves_with_a_request(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    gateway = first(world)
    candidates_request(gateway)
    world.remove_gateway(gateway.name)
    going_back(world)
    all_that_is_due(world)
    world.settle()


def unready_gateways_left_out(patch: Patch, world: World) -> None:
    _as_if(patch, lambda each: each if each.ready else None)


def a_gateway_of_whose_start_the_kubelet_has_not_told(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    gateway = world.add_gateway()
    gateway.start()
    candidates_request(gateway)
    world.change(version=1)
    for _ in range(4):
        gateway.deliver()
        gateway.told_started = False
        world.operator.round()
        for follower in world.followers:
            follower.relist()
        for engine in world.engines.values():
            engine.go_on()
        world.tick(DRAIN_S / 4)
    world.settle()


def pods_that_have_not_started_left_out(patch: Patch, world: World) -> None:
    in_use = guards.in_use
    patch.setattr(
        guards, "in_use", lambda seen, since, **_: in_use(seen, since, starting_counts=False)
    )
    patch.setattr(guards, "has_been_quiet", lambda *_: True)


def _as_if(patch: Patch, change: Callable[[GatewaySeen], GatewaySeen | None]) -> None:
    """The barrier sees gateways otherwise than they are."""
    in_use = guards.in_use

    def seeing(seen: Observed, since: int, *, starting_counts: bool) -> list[str]:
        changed = [each for each in map(change, seen.gateways) if each is not None]
        return in_use(replace(seen, gateways=changed), since, starting_counts=starting_counts)

    patch.setattr(guards, "in_use", seeing)


def a_candidates_request_that_may_fall_back(world: World) -> None:
    rolled_to(world, Phase.BAKING)
    gateway = first(world)
    gateway.send()
    (request,) = gateway.requests
    assert (request.version, request.fallback) == ("2", "1")
    world.land(request)
    world.until(lambda: world.phase is Phase.PROMOTED)
    all_that_is_due(world)
    world.fall_back(request)
    world.finish(request)
    world.settle()


def weight_100_taken_for_the_end(patch: Patch, world: World) -> None:
    promoted = writes.promoted

    def as_of_the_bake(seen: Observed, loads: Loads, roll: Roll) -> Write:
        write = promoted(seen, loads, roll)
        assert write.loads is not None
        assert write.loads.roll is not None
        since = replace(write.loads.roll, since=roll.since)
        return replace(write, loads=replace(write.loads, roll=since))

    patch.setattr(writes, "promoted", as_of_the_bake)


def a_gateway_that_is_no_pod_any_more(world: World) -> None:
    """Its pod was deleted by force while its node could not be reached."""
    rolled_to(world, Phase.STEPPING)
    ghost = world.gateways.pop(first(world).name)
    world.ghosts.append(ghost)
    going_back(world)
    for _ in range(8):
        request = candidates_request(ghost)
        world.land(request)
        world.finish(request)
        world.go_on(DRAIN_S / 3)
    world.ghosts.clear()
    world.settle()


def without_quiet(patch: Patch, world: World) -> None:
    patch.setattr(guards, "has_been_quiet", lambda *_: True)


# One writer, one order


def an_operator_that_is_held_up(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    slow, other = world.operators
    world.go_on(LONG_S, rounds=1)
    for _ in range(4):
        slow.step()
    world.change(version=1)
    for _ in range(5):
        world.breathe()
        other.round()
        world.tick(LONG_S)
    slow.round()
    world.settle()


def writes_over_anything(patch: Patch, world: World) -> None:
    world.rules.precondition = False


def a_table_that_is_put_back(world: World) -> None:
    rolled_to(world, None)
    world.go_on(rounds=3)
    stepping = next(
        index
        for index, table in enumerate(world.api.written)
        if MODEL in table.models and table.models[MODEL].weights.get("2") == 10
    )
    world.put_back(stepping)
    gateway = first(world)
    gateway.deliver()
    gateway.send(pin="1")
    world.settle()


def followers_of_any_revision(patch: Patch, world: World) -> None:
    world.rules.by_revision = False


def a_gateway_that_dies_when_it_has_applied(world: World) -> None:
    rolled_to(world, Phase.STEPPING)
    gateway = first(world)
    gateway.kept = gateway.table
    world.until(lambda: _serves(world, "2"))
    all_that_is_due(world)
    gateway.kill()
    gateway.reaches_api = False
    gateway.start()
    gateway.send(pin="1")
    world.settle()


def applied_before_it_is_kept(patch: Patch, world: World) -> None:
    world.rules.persist_first = False


# A table that is lost


def lost_way_back(world: World) -> Gateway:
    """A write that promoted is followed by one that goes back; of that one nobody has heard when
    the ConfigMap is deleted, but it is on its way to a gateway."""
    rolled_to(world, Phase.PROMOTED)
    world.change(version=1)
    world.operator.round()
    assert _is_in(world, Phase.ROLLING_BACK)
    world.delete_config_map()
    world.change(version=2)
    gateway = first(world)
    for follower in world.followers:
        if follower is not gateway:
            follower.coming.clear()
    world.operator.round()
    assert _is_in(world, Phase.PROMOTED)
    return gateway


def a_lost_table_that_comes_late(world: World) -> None:
    gateway = lost_way_back(world)
    gateway.deliver()
    gateway.send(pin="1")
    (request,) = gateway.requests
    world.land(request)
    all_that_is_due(world)
    world.finish(request)
    world.settle()


def revisions_one_higher(patch: Patch, world: World) -> None:
    patch.setattr(recovery, "LEAP", 1)


def a_lost_table_that_is_followed(world: World) -> None:
    gateway = lost_way_back(world)
    gateway.deliver()
    gateway.reaches_api = False
    all_that_is_due(world)
    world.settle()


def rolls_that_stand_as_they_did(patch: Patch, world: World) -> None:
    patch.setattr(recovery, "_since", lambda loads, _: loads)


def a_table_that_the_silent_hold(world: World) -> None:
    serving(world)
    holds, lags = world.gateways.values()
    lags.reaches_api = False
    world.apply_rollout(2)
    world.until(lambda: world.phase is Phase.STEPPING)
    world.breathe()
    world.delete_rollout()
    silent = [holds, *world.engines.values()]
    for follower in silent:
        follower.is_silent = True
    world.delete_config_map()
    world.operator.round()
    for engine in world.engines.values():
        engine.relist()
        engine.go_on()
    world.settle()


def the_silent_left_out(patch: Patch, world: World) -> None:
    patch.setattr(Pods, "silent", lambda _: recovery.Silence())


def a_table_that_only_a_status_tells_of(world: World) -> None:
    serving(world)
    holds, lags = world.gateways.values()
    lags.reaches_api = False
    world.apply_rollout(2)
    world.until(lambda: world.phase is Phase.STEPPING)
    world.go_on()
    # Of these nobody knows whether they have started, or they are not ready.
    holds.told_started = False
    holds.is_silent = True
    for engine in world.engines.values():
        engine.is_silent = True
        engine.is_ready = False
    world.delete_config_map()
    world.operator.round()
    for engine in world.engines.values():
        engine.relist()
        engine.go_on()
    world.settle()


def what_statuses_tell_left_out(patch: Patch, world: World) -> None:
    patch.setattr(operators, "known_revision", lambda _: 0)


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        take_out: has it let everything pass.
        history: goes well with it.
        fault: what then goes wrong in it without the guard, in the words of the simulation.
    """

    name: str
    take_out: TakeOut
    history: History
    fault: str


GUARDS: Sequence[Guard] = [
    Guard(
        "proven before weight",
        without_proofs,
        a_candidate_that_never_answers,
        "gets weight and is not proven on engine-1",
    ),
    Guard(
        "proven by the table that wants it",
        proofs_of_any_revision,
        an_engine_that_comes_back_with_an_old_table,
        "gets weight and is not proven on engine-2",
    ),
    Guard(
        "not wanted again before it is gone",
        without_waiting_for_unloads,
        a_version_wanted_again_while_it_is_unloaded,
        "gets weight and is not proven on engine-1",
    ),
    Guard(
        "not proven while it is taken out",
        loaders_that_tell_what_was_proven_before,
        a_version_that_a_silent_engine_is_about_to_unload,
        "unloads version 2, which gateway-3 routes to",
    ),
    Guard(
        "the same files everywhere",
        without_digests,
        engines_with_other_files,
        "has other files on engine-2",
    ),
    Guard(
        "proven before the way back",
        back_to_what_is_not_proven,
        an_old_version_that_is_gone_when_it_is_wanted_back,
        "version 1 gets weight and is not proven",
    ),
    Guard(
        "holds begin when all follow",
        holds_that_wait_for_nobody,
        a_gateway_that_hears_nothing_in_a_step,
        "was not held for 20 s",
    ),
    Guard(
        "failures are recorded first",
        failures_that_nobody_records,
        a_candidate_that_fails,
        "version 2 is tried again",
    ),
    Guard(
        "the barrier",
        without_the_barrier,
        a_request_of_the_candidate_that_lasts,
        "unloads version 2, which a request",
    ),
    Guard(
        "requests in flight count",
        requests_in_flight_ignored,
        a_request_of_the_candidate_that_lasts,
        "unloads version 2, which a request",
    ),
    Guard(
        "applied revisions count",
        applied_revisions_ignored,
        a_gateway_that_hears_nothing_of_the_way_back,
        "unloads version 2, which gateway-3 routes to",
    ),
    Guard(
        "silent gateways count",
        silent_gateways_left_out,
        a_gateway_that_does_not_answer,
        "unloads version 2, which a request",
    ),
    Guard(
        "leaving gateways count",
        unready_gateways_left_out,
        a_gateway_that_leaves_with_a_request,
        "unloads version 2, which a request",
    ),
    Guard(
        "starting gateways count for a while",
        pods_that_have_not_started_left_out,
        a_gateway_of_whose_start_the_kubelet_has_not_told,
        "unloads version 2, which a request",
    ),
    Guard(
        "promoted before the old one goes",
        weight_100_taken_for_the_end,
        a_candidates_request_that_may_fall_back,
        "unloads version 1, which a request",
    ),
    Guard(
        "engines have been quiet",
        without_quiet,
        a_gateway_that_is_no_pod_any_more,
        "request to version 2, which no engine has proven",
    ),
    Guard(
        "written over what was read",
        writes_over_anything,
        an_operator_that_is_held_up,
        "revision 7 is written over 8",
    ),
    Guard(
        "followed by revision",
        followers_of_any_revision,
        a_table_that_is_put_back,
        "request to version 1, which no engine has proven",
    ),
    Guard(
        "kept before it is applied",
        applied_before_it_is_kept,
        a_gateway_that_dies_when_it_has_applied,
        "request to version 1, which no engine has proven",
    ),
    Guard(
        "revisions leap",
        revisions_one_higher,
        a_lost_table_that_comes_late,
        "unloads version 1, which a request",
    ),
    Guard(
        "rolls stand anew",
        rolls_that_stand_as_they_did,
        a_lost_table_that_is_followed,
        "unloads version 1, which gateway-3 routes to",
    ),
    Guard(
        "all have answered",
        the_silent_left_out,
        a_table_that_the_silent_hold,
        "unloads version 2, which gateway-3 routes to",
    ),
    Guard(
        "nothing older than told",
        what_statuses_tell_left_out,
        a_table_that_only_a_status_tells_of,
        "unloads version 2, which gateway-3 routes to",
    ),
]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_history_goes_well_by_its_guard_alone(guard: Guard, monkeypatch: Patch) -> None:
    guard.history(World())
    world = World()
    guard.take_out(monkeypatch, world)
    with pytest.raises(Violation, match=guard.fault):
        guard.history(world)
