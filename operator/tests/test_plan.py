"""The decision table: phase and situation → the one next step; and that there always is one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_operator.next_table import next_table
from tidegate_operator.plan import TOLD_S, next_step
from tidegate_operator.situation import (
    Decision,
    Fail,
    GatewaySeen,
    LoaderSeen,
    Memory,
    Observed,
    Unreadable,
    VersionSeen,
    Wait,
    Write,
)
from tidegate_operator.spec import DRAIN_S, PROGRESS_DEADLINE_S, Failed, Rollout, Spec, Step
from tidegate_table.document import (
    Loads,
    ModelRoutes,
    Phase,
    Policy,
    Proof,
    Roll,
    Table,
    parse,
    write,
)

MODEL = "m"
REVISION = 42
SINCE = 40
NOW = 1000.0
A, B = (f"sha256:{digit * 64}" for digit in "ab")
CONFIG = 'backend: "onnxruntime"'
POLICY = Policy("uid", "Keep")
SPEC = Spec(MODEL, "2", steps=(Step(5, 60.0), Step(50, 120.0)), bake_s=90.0, drain_s=30.0)
ROLLOUT = Rollout("name", "uid", 3, "2026-12-01T00:00:00Z", SPEC)
HAS_FAILED = Failed("2", 3, "CandidateFailed", "engine-0: wrong")
PROVEN = VersionSeen(A, loaded=True, proven=True)


# What is seen


def rollout(version: str = "2", failed: Failed | None = None, **spec: Any) -> Rollout:
    return replace(ROLLOUT, spec=replace(SPEC, version=version, **spec), failed=failed)


def table(  # noqa: PLR0917
    phase: Phase | str | None = None,
    versions: tuple[str, ...] = ("1", "2"),
    weights: Mapping[str, float] | None = None,
    origin: str = "1",
    step: int = 0,
    digest: str = "",
    policy: Policy | None = POLICY,
    target: str = "2",
) -> Table:
    """One in which the model is; `weights` are its routes, with the first as stable."""
    routes = {MODEL: ModelRoutes(next(iter(weights)), weights)} if weights else {}
    roll = Roll(origin, target, phase, step, SINCE) if phase else None
    wanted = {name: A if name == "1" else digest for name in versions}
    loads = Loads(CONFIG, wanted, roll=roll, policy=policy)
    return Table(REVISION, routes, loads={MODEL: loads})


NO_TABLE = Table(REVISION, {})
ROUTED = Table(REVISION, {MODEL: ModelRoutes("1", {"1": 90, "3": 10, "4": 0})})
STABLE = table(versions=("1",), weights={"1": 100})
FIRST = table(Phase.LOADING, versions=("2",), origin="")
LOADING = table(Phase.LOADING, weights={"1": 100})
STEP_1 = table(Phase.STEPPING, weights={"1": 95, "2": 5})
STEP_2 = table(Phase.STEPPING, weights={"1": 50, "2": 50}, step=1)
BAKING = table(Phase.BAKING, weights={"1": 0, "2": 100})
PROMOTED = table(Phase.PROMOTED, weights={"2": 100, "1": 0})
BACK = table(Phase.ROLLING_BACK, weights={"1": 100, "2": 0})
FIRST_BACK = table(Phase.ROLLING_BACK, versions=("2",), origin="")
OUT = table(Phase.ROLLING_BACK, versions=("1",), origin="", target="1")


def loader(
    name: str = "engine-0", *, ready: bool = True, revision: int | None = SINCE, **versions: Any
) -> LoaderSeen:
    """One that has proven versions 1 and 2, but for what `versions` says (as v2=…)."""
    seen = {"1": PROVEN, "2": PROVEN} | {name[1:]: each for name, each in versions.items()}
    there = {name: each for name, each in seen.items() if each is not None}
    return LoaderSeen(name, ready, revision, CONFIG, versions=there)


def gateway(
    name: str = "gateway-0",
    *,
    ready: bool = True,
    started: bool = True,
    revision: int | None = SINCE,
    oldest: int | None = SINCE,
) -> GatewaySeen:
    return GatewaySeen(name, ready, started, revision, oldest)


def observed(
    at: Table,
    acts: Rollout | Unreadable | None = ROLLOUT,
    loaders: tuple[LoaderSeen, ...] = (loader(),),
    gateways: tuple[GatewaySeen, ...] = (gateway(),),
    **more: Any,
) -> Observed:
    return Observed(MODEL, at, acts, loaders, gateways, **more)


HELD = Memory(since=SINCE, began=0.0, best=1, best_at=NOW)
"""The hold is over."""
STILL = Memory(since=SINCE, best=100, best_at=0.0)
"""Nothing has moved for long."""
QUIET = Memory(since=SINCE, began=0.0, counts={"engine-0": 0}, counts_at=0.0, free_at=NOW - 60)
"""No engine has been asked for long."""


def step(seen: Observed, memory: Memory = HELD, now: float = NOW) -> Decision:
    return next_step(seen, memory, now)[0]


def told(decision: Decision) -> tuple[Any, ...]:
    """What a decision is, in short: for a write its reason, what is wanted, and the weights."""
    match decision:
        case Write(loads, routes, reason):
            wanted = loads and tuple(loads.versions)
            return (reason, wanted, routes and (routes.stable, dict(routes.weights)))
        case Fail(version, reason):
            return ("FAIL", version, reason)
        case Wait(reason):
            return (reason,)


UNREADABLE = Unreadable("name", "version: expected a whole number from 1, got 0")
UNREADABLE_FAILED = replace(UNREADABLE, generation=3, failed=HAS_FAILED)
NOT_PROVEN = VersionSeen(A, loaded=True)
WRONG = VersionSeen(A, loaded=True, failed=True, error="answers otherwise")
NONE_READY = (loader(ready=False),)
GONE_BACK = ("RollingBack", ("1", "2"), ("1", {"1": 100, "2": 0}))

CASES: dict[str, tuple[Observed, tuple[Any, ...]]] = {
    # Not in the table
    "nothing names the model": (observed(NO_TABLE, None), ("Absent",)),
    "what names it cannot be read": (observed(NO_TABLE, UNREADABLE), ("InvalidSpec",)),
    "a first version is loaded before it gets requests": (
        observed(NO_TABLE, loaders=(loader(v2=None),)),
        ("Loading", ("2",), None),
    ),
    "a first version waits while paused": (observed(NO_TABLE, rollout(paused=True)), ("Paused",)),
    "one that serves already is adopted as it is": (
        observed(ROUTED),
        ("Adopted", ("1", "3"), ("1", {"1": 90, "3": 10, "4": 0})),
    ),
    # No roll
    "stable is what is wanted": (observed(STABLE, rollout("1")), ("Serving",)),
    "a roll begins": (
        observed(STABLE, loaders=(loader(v2=None),)),
        ("Loading", ("1", "2"), ("1", {"1": 100})),
    ),
    "one that has failed is not tried again": (
        observed(STABLE, rollout(failed=HAS_FAILED), (loader(v2=None),)),
        ("Failed",),
    ),
    "it is tried again under another spec": (
        observed(STABLE, rollout(failed=replace(HAS_FAILED, generation=2)), (loader(v2=None),)),
        ("Loading", ("1", "2"), ("1", {"1": 100})),
    ),
    "nothing begins while paused": (observed(STABLE, rollout(paused=True)), ("Paused",)),
    "nothing begins without the golden request that is named": (
        observed(STABLE, loaders=(loader(v2=None),), proof_error="there is none"),
        ("ProofUnreadable",),
    ),
    "a version is not wanted again while an engine lets go of it": (
        observed(STABLE),
        ("Unloading",),
    ),
    "a version is not wanted again while a ready engine cannot be asked": (
        observed(STABLE, loaders=(loader(v2=None), loader("engine-1", revision=None))),
        ("Unloading",),
    ),
    "an engine that is away does not keep a roll from beginning": (
        observed(STABLE, loaders=(loader(v2=None), loader("engine-1", ready=False, revision=None))),
        ("Loading", ("1", "2"), ("1", {"1": 100})),
    ),
    "other files under the version that serves are not taken": (
        observed(STABLE, rollout("1", digest=B)),
        ("DigestDiffers",),
    ),
    "a policy is kept in step": (
        observed(STABLE, rollout("1", on_delete="Unload")),
        ("Governed", ("1",), ("1", {"1": 100})),
    ),
    "a policy is kept in step in mid-roll": (
        observed(STEP_1, rollout(on_delete="Unload")),
        ("Governed", ("1", "2"), ("1", {"1": 95, "2": 5})),
    ),
    "a model that is let go stays where it may": (observed(STABLE, None), ("Kept",)),
    "and leaves by the barrier where it is to": (
        observed(table(versions=("1",), weights={"1": 100}, policy=Policy("uid", "Unload")), None),
        ("RollingBack", ("1",), None),
    ),
    "what cannot be read changes nothing": (observed(STABLE, UNREADABLE), ("InvalidSpec",)),
    "a version too many leaves by the barrier": (
        observed(table(versions=("1", "3"), weights={"1": 90, "3": 10}), rollout("1")),
        ("RollingBack", ("1", "3"), ("1", {"1": 100, "3": 0})),
    ),
    "a model without any version is nobody's": (
        observed(table(versions=()), None),
        ("Dropped", None, None),
    ),
    # Loading
    "the first version waits for its proof": (
        observed(FIRST, loaders=(loader(v2=NOT_PROVEN),)),
        ("Loading",),
    ),
    "the first version, proven, gets all at once": (
        observed(FIRST),
        ("Serving", ("2",), ("2", {"2": 100})),
    ),
    "a first version that is not wanted any more leaves without ever having served": (
        observed(FIRST, None),
        ("RollingBack", ("2",), None),
    ),
    "the candidate waits for its proof": (
        observed(LOADING, loaders=(loader(), loader("engine-1", v2=NOT_PROVEN))),
        ("Loading",),
    ),
    "a proof from before it was wanted is none": (
        observed(LOADING, loaders=(loader(revision=SINCE - 1),)),
        ("Loading",),
    ),
    "a silent engine is waited for": (
        observed(LOADING, loaders=(loader(), loader("engine-1", revision=None))),
        ("Loading",),
    ),
    "an engine that is not ready is not waited for": (
        observed(LOADING, loaders=(loader(), loader("engine-1", ready=False, v2=NOT_PROVEN))),
        ("Stepping", ("1", "2"), ("1", {"1": 95, "2": 5})),
    ),
    "no engine, no proof": (observed(LOADING, loaders=()), ("Loading",)),
    "where no engine is ready all are to prove it": (
        observed(LOADING, loaders=(*NONE_READY, loader("e-1", ready=False, v2=NOT_PROVEN))),
        ("Loading",),
    ),
    "a stable version that is bad everywhere can be rolled away from": (
        observed(LOADING, loaders=(loader(ready=False, v1=WRONG),)),
        ("Stepping", ("1", "2"), ("1", {"1": 95, "2": 5})),
    ),
    "proven everywhere, it gets the first weight": (
        observed(LOADING),
        ("Stepping", ("1", "2"), ("1", {"1": 95, "2": 5})),
    ),
    "without steps it gets all": (
        observed(LOADING, rollout(steps=())),
        ("Baking", ("1", "2"), ("1", {"1": 0, "2": 100})),
    ),
    "it gets no weight while paused": (observed(LOADING, rollout(paused=True)), ("Paused",)),
    "it fails on any engine, be it ready or not": (
        observed(LOADING, loaders=(loader(), loader("engine-1", ready=False, v2=WRONG))),
        ("FAIL", "2", "CandidateFailed"),
    ),
    "what failed before it was wanted has not failed": (
        observed(LOADING, loaders=(loader(revision=SINCE - 1, v2=WRONG),)),
        ("Loading",),
    ),
    "engines have other files": (
        observed(LOADING, loaders=(loader(), loader("e-1", v2=replace(PROVEN, digest=B)))),
        ("FAIL", "2", "DigestsDiffer"),
    ),
    "they have the same, but not what is wanted": (
        observed(table(Phase.LOADING, weights={"1": 100}, digest=B), rollout(digest=B)),
        ("FAIL", "2", "DigestDiffers"),
    ),
    "the engines have other configurations": (
        observed(LOADING, loaders=(loader(), replace(loader("e-1"), config="other"))),
        ("FAIL", "2", "ConfigDiffers"),
    ),
    # Stepping, Baking
    "a step holds from when every ready gateway routes by it": (
        observed(STEP_1, gateways=(gateway(), gateway("gateway-1", revision=SINCE - 1))),
        ("Applying",),
    ),
    "a silent gateway that is ready holds it up": (
        observed(STEP_1, gateways=(gateway(), gateway("gateway-1", revision=None))),
        ("Applying",),
    ),
    "one that is not ready does not": (
        observed(STEP_1, gateways=(gateway(), gateway("gateway-1", ready=False, revision=None))),
        ("Stepping", ("1", "2"), ("1", {"1": 50, "2": 50})),
    ),
    "without a ready gateway nothing goes on": (
        observed(STEP_1, gateways=(gateway(ready=False),)),
        ("Applying",),
    ),
    "the hold over, the next step": (
        observed(STEP_1),
        ("Stepping", ("1", "2"), ("1", {"1": 50, "2": 50})),
    ),
    "after the last step it bakes": (
        observed(STEP_2),
        ("Baking", ("1", "2"), ("1", {"1": 0, "2": 100})),
    ),
    "where the spec has fewer steps by now it bakes": (
        observed(table(Phase.STEPPING, weights={"1": 50, "2": 50}, step=7)),
        ("Baking", ("1", "2"), ("1", {"1": 0, "2": 100})),
    ),
    "the bake over, it is stable": (
        observed(BAKING),
        ("Promoted", ("1", "2"), ("2", {"2": 100, "1": 0})),
    ),
    "it goes no further where it is not proven": (
        observed(STEP_1, loaders=(loader(), loader("engine-1", v2=NOT_PROVEN))),
        ("Proving",),
    ),
    "it goes no further by a proof of before the step": (
        observed(STEP_1, loaders=(loader(revision=SINCE - 1),)),
        ("Proving",),
    ),
    "it goes no further without an engine": (observed(BAKING, loaders=()), ("Proving",)),
    "a step stays while paused": (observed(STEP_1, rollout(paused=True)), ("Paused",)),
    "the bake stays while paused": (observed(BAKING, rollout(paused=True)), ("Paused",)),
    "a wrong answer under weight is a failure": (
        observed(STEP_1, loaders=(loader(v2=WRONG),)),
        ("FAIL", "2", "CandidateFailed"),
    ),
    "paused or not": (
        observed(STEP_1, rollout(paused=True), (loader(v2=WRONG),)),
        ("FAIL", "2", "CandidateFailed"),
    ),
    # Back
    **{
        f"{phase}: {why}": (observed(at, acts), GONE_BACK)
        for phase, at in (("loading", LOADING), ("stepping", STEP_1), ("baking", BAKING))
        for why, acts in (
            ("stable is wanted", rollout("1")),
            ("a third one is wanted", rollout("3")),
            ("the ModelRollout is deleted", None),
            ("it has failed", rollout(failed=HAS_FAILED)),
            ("paused, and it has failed", rollout(failed=HAS_FAILED, paused=True)),
        )
    },
    "other files are wanted": (
        observed(table(Phase.STEPPING, weights={"1": 95, "2": 5}, digest=A), rollout(digest=B)),
        GONE_BACK,
    ),
    "the way back needs neither gateways nor engines": (
        observed(STEP_1, rollout("1"), (), (gateway(revision=None),)),
        GONE_BACK,
    ),
    "a failure is left to a person": (
        observed(STEP_1, rollout(failed=HAS_FAILED, on_failure="Pause")),
        ("Failed",),
    ),
    "a spec that cannot be read changes nothing in mid-roll": (
        observed(STEP_1, UNREADABLE),
        ("InvalidSpec",),
    ),
    **{
        f"{phase}, with a spec that cannot be read: {what}": (observed(at, acts, loaders), expected)
        for phase, at in (
            ("loading", LOADING),
            ("stepping", STEP_1),
            ("baking", BAKING),
            ("promoted", PROMOTED),
        )
        for what, acts, loaders, expected in (
            ("it stays", UNREADABLE, (loader(),), ("InvalidSpec",)),
            ("it fails", UNREADABLE, (loader(v2=WRONG),), ("FAIL", "2", "CandidateFailed")),
            ("it has failed", UNREADABLE_FAILED, (loader(v2=WRONG),), GONE_BACK),
            (
                "it had failed before",
                replace(UNREADABLE_FAILED, generation=4),
                (loader(),),
                ("InvalidSpec",),
            ),
        )
    },
    "promoted, there is no way back to what is not proven, be the spec what it may": (
        observed(PROMOTED, UNREADABLE_FAILED, (loader(v1=WRONG, v2=WRONG),)),
        ("InvalidSpec",),
    ),
    # From a later release
    "a phase that is not known is left to who knows it": (
        observed(table("Shadowing", weights={"1": 100}), rollout("1", on_delete="Unload")),
        ("UnknownInTable",),
    ),
    "what is to become of a model is not guessed": (
        observed(table(versions=("1",), weights={"1": 100}, policy=Policy("uid", "Archive")), None),
        ("UnknownInTable",),
    ),
    "a spec that can be read takes its place": (
        observed(
            table(versions=("1",), weights={"1": 100}, policy=Policy("uid", "Archive")),
            rollout("1"),
        ),
        ("Governed", ("1",), ("1", {"1": 100})),
    ),
    # Promoted
    "promoted, the old one is wanted again": (observed(PROMOTED, rollout("1")), GONE_BACK),
    "promoted, it has failed": (observed(PROMOTED, rollout(failed=HAS_FAILED)), GONE_BACK),
    "promoted, there is no way back to what is not proven": (
        observed(PROMOTED, rollout("1"), (loader(v1=NOT_PROVEN),)),
        ("Unloading", ("2",), ("2", {"2": 100})),
    ),
    "promoted, it fails": (
        observed(PROMOTED, loaders=(loader(v2=WRONG),)),
        ("FAIL", "2", "CandidateFailed"),
    ),
    "promoted, the old one stays while paused": (
        observed(PROMOTED, rollout(paused=True)),
        ("Paused",),
    ),
    "promoted, the old one goes": (observed(PROMOTED), ("Unloading", ("2",), ("2", {"2": 100}))),
    "promoted, the old one goes before a third comes": (
        observed(PROMOTED, rollout("3")),
        ("Unloading", ("2",), ("2", {"2": 100})),
    ),
    "promoted, it fails, and a third one is wanted": (
        observed(PROMOTED, rollout("3"), (loader(v2=WRONG),)),
        ("FAIL", "2", "CandidateFailed"),
    ),
    "promoted, it has failed, and the old one serves until a third comes": (
        observed(PROMOTED, rollout("3", failed=HAS_FAILED), (loader(v2=WRONG),)),
        GONE_BACK,
    ),
    "promoted, it has failed like the old one, and makes way for a third": (
        observed(PROMOTED, rollout("3", failed=HAS_FAILED), (loader(v1=WRONG, v2=WRONG),)),
        ("Unloading", ("2",), ("2", {"2": 100})),
    ),
    "promoted, it has failed, and a person wants a third one": (
        observed(PROMOTED, rollout("3", failed=HAS_FAILED, on_failure="Pause")),
        ("Unloading", ("2",), ("2", {"2": 100})),
    ),
    "promoted, it has failed, and is left to a person": (
        observed(PROMOTED, rollout(failed=HAS_FAILED, on_failure="Pause")),
        ("Failed",),
    ),
    "promoted, the old one goes without a ModelRollout": (
        observed(PROMOTED, None),
        ("Unloading", ("2",), ("2", {"2": 100})),
    ),
    # RollingBack
    "back, the candidate goes": (observed(BACK), ("Unloading", ("1",), ("1", {"1": 100}))),
    "back, it goes whatever is wanted": (
        observed(BACK, rollout("3", paused=True)),
        ("Unloading", ("1",), ("1", {"1": 100})),
    ),
    "back, it goes without a ModelRollout": (
        observed(BACK, None),
        ("Unloading", ("1",), ("1", {"1": 100})),
    ),
    "back, it goes though the spec cannot be read": (
        observed(BACK, UNREADABLE),
        ("Unloading", ("1",), ("1", {"1": 100})),
    ),
    "a first version that was given up goes": (
        observed(FIRST_BACK, loaders=(loader(v1=None),)),
        ("Unloading", None, None),
    ),
    "a model that is taken out goes": (observed(OUT, None), ("Unloading", None, None)),
    # The barrier
    "a gateway routes by an older table": (
        observed(BACK, gateways=(gateway(), gateway("g-1", ready=False, revision=SINCE - 1))),
        ("Draining",),
    ),
    "a gateway that leaves has a request of before": (
        observed(BACK, gateways=(gateway(), gateway("g-1", ready=False, oldest=SINCE - 1))),
        ("Draining",),
    ),
    "a gateway does not answer": (
        observed(BACK, gateways=(gateway(), gateway("g-1", ready=False, revision=None))),
        ("Draining",),
    ),
    "a gateway that has long not started is not awaited": (
        observed(BACK, gateways=(gateway("g-1", ready=False, started=False, revision=None),)),
        ("Unloading", ("1",), ("1", {"1": 100})),
    ),
    "a gateway that has no request of a model that it does not know is not awaited": (
        observed(BACK, gateways=(gateway(oldest=None),)),
        ("Unloading", ("1",), ("1", {"1": 100})),
    ),
    "an engine was asked just now": (
        observed(BACK, loaders=(loader(v2=replace(PROVEN, requests=7)),)),
        ("Draining",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_next_step(case: str) -> None:
    seen, expected = CASES[case]
    roll = seen.loads.roll if seen.loads is not None else None
    goes = roll is not None and roll.phase in (Phase.PROMOTED, Phase.ROLLING_BACK)
    assert told(step(seen, QUIET if goes else HELD)) == expected


# What a write says


def written(seen: Observed, memory: Memory = HELD) -> Write:
    decision = step(seen, memory)
    assert isinstance(decision, Write)
    return decision


def test_each_phase_and_step_begins_with_the_write_that_brings_it() -> None:
    rolls = [
        written(seen, memory).loads
        for seen, memory in (
            (observed(STABLE, loaders=(loader(v2=None),)), HELD),
            (observed(LOADING), HELD),
            (observed(STEP_1), HELD),
            (observed(STEP_2), HELD),
            (observed(BAKING), HELD),
            (observed(STEP_1, rollout("1")), HELD),
        )
    ]

    assert [each and each.roll for each in rolls] == [
        Roll("1", "2", phase, index, REVISION + 1)
        for phase, index in (
            (Phase.LOADING, 0),
            (Phase.STEPPING, 0),
            (Phase.STEPPING, 1),
            (Phase.BAKING, 0),
            (Phase.PROMOTED, 0),
            (Phase.ROLLING_BACK, 0),
        )
    ]


def test_a_change_of_the_policy_does_not_make_a_hold_begin_again() -> None:
    seen = observed(STEP_1, rollout(on_delete="Unload"))
    decision, memory = next_step(seen, HELD, NOW)

    assert isinstance(decision, Write)
    assert decision.loads is not None
    assert decision.loads.policy == Policy("uid", "Unload")
    assert decision.loads.roll == STEP_1.loads[MODEL].roll
    assert memory == HELD


def test_the_digest_and_the_configuration_that_it_was_proven_with_are_pinned() -> None:
    loads = replace(LOADING.loads[MODEL], config="")
    seen = observed(
        replace(LOADING, loads={MODEL: loads}), loaders=(loader(v2=replace(PROVEN, digest=B)),)
    )

    found = written(seen).loads

    assert found is not None
    assert found.config == CONFIG
    assert found.versions == {"1": A, "2": B}


def test_a_golden_request_comes_with_its_version_and_goes_with_it() -> None:
    proof = Proof({"inputs": []}, None, 0.01)
    begun = written(observed(STABLE, loaders=(loader(v2=None),), proof=proof)).loads
    assert begun is not None
    assert begun.proofs == {"2": proof}

    loads = replace(BACK.loads[MODEL], proofs={"1": proof, "2": proof})
    dropped = written(observed(replace(BACK, loads={MODEL: loads})), QUIET).loads
    assert dropped is not None
    assert dropped.proofs == {"1": proof}


def test_a_version_that_is_tried_again_has_the_golden_request_of_now() -> None:
    loads = replace(STABLE.loads[MODEL], proofs={"2": Proof({"old": 1})})
    begun = written(
        observed(replace(STABLE, loads={MODEL: loads}), loaders=(loader(v2=None),))
    ).loads

    assert begun is not None
    assert begun.proofs == {}


PROOF, OTHER = Proof({"inputs": []}, None, 0.01), Proof({"inputs": [1]}, None, 0.01)


def proven_by(at: Table, proof: Proof | None) -> Table:
    proofs = {"2": proof} if proof is not None else {}
    return replace(at, loads={MODEL: replace(at.loads[MODEL], proofs=proofs)})


@pytest.mark.parametrize(("there", "wanted"), [(PROOF, OTHER), (None, PROOF), (PROOF, None)])
def test_a_candidate_that_has_no_weight_is_loaded_anew_for_another_golden_request(
    there: Proof | None, wanted: Proof | None
) -> None:
    """A loader does not prove again what it has proven, and a failure was one by the old one."""
    for loaders in ((loader(),), (loader(v2=WRONG),)):
        seen = observed(proven_by(LOADING, there), loaders=loaders, proof=wanted)
        assert told(step(seen)) == GONE_BACK
    assert told(step(observed(proven_by(LOADING, there), proof=there)))[0] == "Stepping"

    gone = observed(proven_by(STABLE, there), loaders=(loader(v2=None),), proof=wanted)
    begun = written(gone).loads
    assert begun is not None
    assert begun.proofs.get("2") == wanted


def test_one_that_cannot_be_read_just_now_changes_nothing() -> None:
    seen = observed(proven_by(LOADING, PROOF), proof_error="there is none")
    assert told(step(seen))[0] == "Stepping"


def test_what_has_weight_keeps_its_golden_request_and_says_that_there_is_another_one() -> None:
    note = "; the golden request has changed, which counts for a new roll"
    for proof, changed in ((OTHER, True), (PROOF, False)):
        waits = step(observed(proven_by(STEP_1, PROOF), proof=proof), Memory())
        assert isinstance(waits, Wait)
        assert waits.message.endswith(note) is changed
    assert told(step(observed(proven_by(STEP_1, PROOF), proof=OTHER)))[0] == "Stepping"


# Time


def test_a_hold_begins_when_every_ready_gateway_routes_by_it_and_lasts_as_long_as_it_says() -> None:
    behind = observed(STEP_1, gateways=(gateway(revision=SINCE - 1),))
    decision, memory = next_step(behind, Memory(), 0.0)
    assert told(decision) == ("Applying",)

    decision, memory = next_step(observed(STEP_1), memory, 100.0)
    assert told(decision) == ("Holding",)
    decision, memory = next_step(observed(STEP_1), memory, 159.9)
    assert told(decision) == ("Holding",)
    assert told(step(observed(STEP_1), memory, 160.0))[0] == "Stepping"


def test_a_gateway_that_is_silent_for_a_moment_does_not_make_a_hold_begin_again() -> None:
    _, memory = next_step(observed(STEP_1), Memory(), 0.0)
    silent = observed(STEP_1, gateways=(gateway(revision=None),))
    decision, memory = next_step(silent, memory, 30.0)

    assert told(decision) == ("Applying",)
    assert told(step(observed(STEP_1), memory, 60.0))[0] == "Stepping"


@pytest.mark.parametrize("memory", [Memory(), replace(HELD, since=SINCE - 1)])
def test_a_hold_that_is_not_remembered_begins_again(memory: Memory) -> None:
    assert told(step(observed(STEP_1), memory)) == ("Holding",)


def test_a_clock_that_was_set_back_makes_a_hold_begin_again() -> None:
    _, memory = next_step(observed(STEP_1), Memory(), 1000.0)
    decision, memory = next_step(observed(STEP_1), memory, 10.0)
    assert told(decision) == ("Holding",)
    assert told(step(observed(STEP_1), memory, 69.0)) == ("Holding",)
    assert told(step(observed(STEP_1), memory, 70.0))[0] == "Stepping"


@pytest.mark.parametrize(
    "seen",
    [
        observed(LOADING, loaders=(loader(v2=NOT_PROVEN),)),
        observed(STEP_1, gateways=(gateway(revision=None),)),
        observed(BAKING, loaders=(loader(v2=NOT_PROVEN),)),
    ],
)
def test_what_does_not_move_for_too_long_fails(seen: Observed) -> None:
    memory = replace(STILL, began=0.0 if seen.table is BAKING else None)
    deadline = SPEC.progress_deadline_s

    assert isinstance(step(seen, memory, deadline - 0.1), Wait)
    assert told(step(seen, memory, deadline)) == ("FAIL", "2", "NoProgress")


@pytest.mark.parametrize(
    "seen",
    [
        observed(LOADING, rollout(paused=True)),
        observed(FIRST, loaders=(loader(v2=None),)),
        observed(table(Phase.STEPPING, weights={"1": 95, "2": 5}), rollout(steps=(Step(5, 1e6),))),
        observed(BACK, gateways=(gateway(revision=None),)),
        observed(PROMOTED, gateways=(gateway(revision=None),)),
    ],
)
def test_holds_pauses_first_versions_and_barriers_are_no_standstill(seen: Observed) -> None:
    assert isinstance(step(seen, STILL, 10 * SPEC.progress_deadline_s), Wait)


def test_what_comes_further_has_its_time_anew() -> None:
    fetched = observed(LOADING, loaders=(loader(v2=VersionSeen(A)),))
    loaded = observed(LOADING, loaders=(loader(v2=NOT_PROVEN),))
    deadline = SPEC.progress_deadline_s
    _, memory = next_step(fetched, Memory(), 0.0)

    decision, memory = next_step(loaded, memory, deadline - 1)
    assert told(decision) == ("Loading",)
    decision, memory = next_step(fetched, memory, deadline + 1)
    assert told(decision) == ("Loading",)
    assert told(step(fetched, memory, 2 * deadline)) == ("FAIL", "2", "NoProgress")


def test_a_version_goes_once_it_has_not_been_asked_for_as_long_as_the_drain() -> None:
    def asked(requests: int) -> Observed:
        return observed(BACK, loaders=(loader(v2=replace(PROVEN, requests=requests)),))

    decision, memory = next_step(asked(1), Memory(), 0.0)
    assert told(decision) == ("Draining",)
    decision, memory = next_step(asked(2), memory, 29.0)
    decision, memory = next_step(asked(2), memory, 58.9)
    assert told(decision) == ("Draining",)
    assert told(step(asked(2), memory, 59.0))[0] == "Unloading"


def test_who_asks_engines_by_himself_does_not_keep_a_version_for_ever() -> None:
    memory, most_s = Memory(), SPEC.drain_s + SPEC.progress_deadline_s
    decisions = []
    for now in (0.0, 20.0, most_s - 1, most_s):
        asked = loader(v2=replace(PROVEN, requests=int(now)))
        decision, memory = next_step(observed(BACK, loaders=(asked,)), memory, now)
        decisions.append(told(decision)[0])

    assert decisions == ["Draining", "Draining", "Draining", "Unloading"]


def test_that_does_not_count_while_a_gateway_needs_it() -> None:
    memory, most_s = Memory(), DRAIN_S + PROGRESS_DEADLINE_S
    busy = observed(BACK, gateways=(gateway(oldest=SINCE - 1),))
    _, memory = next_step(busy, memory, 0.0)
    asked = observed(BACK, loaders=(loader(v2=replace(PROVEN, requests=1)),))

    assert told(next_step(asked, memory, 2 * most_s)[0]) == ("Draining",)


@pytest.mark.parametrize("drain_s", [0.0, 300.0])
def test_a_gateway_that_has_not_started_is_awaited_for_a_while(drain_s: float) -> None:
    starting = gateway("g-1", ready=False, started=False, revision=None)
    seen = observed(BACK, rollout(drain_s=drain_s), gateways=(starting,))
    lasts_s = max(drain_s, TOLD_S)

    decision, memory = next_step(seen, Memory(), 0.0)
    assert told(decision) == ("Draining",)
    assert isinstance(decision, Wait)
    assert decision.gateways == ("g-1 (does not answer)",)
    assert told(step(seen, memory, lasts_s - 0.1)) == ("Draining",)
    decision, memory = next_step(seen, memory, lasts_s)
    assert told(decision)[0] == "Unloading"


# Whatever is seen

VERSIONS = st.sampled_from(["1", "2", "3"])
REVISIONS = st.integers(0, REVISION + 1) | st.none()
TIMES = st.sampled_from([0.0, 1.0, 29.9, 30.0, 60.0, 899.0, 900.0, 1e6])
DIGESTS = st.sampled_from(["", A, B])
FLAGS = st.booleans()
VERSIONS_SEEN = st.builds(
    VersionSeen, DIGESTS, FLAGS, FLAGS, FLAGS, st.sampled_from(["", "wrong"]), st.integers(0, 2)
)
LOADERS = st.builds(
    LoaderSeen,
    st.sampled_from(["e-0", "e-1"]),
    FLAGS,
    REVISIONS,
    st.sampled_from(["", CONFIG, "ensemble_scheduling {}"]),
    st.sampled_from(["", "spoilt"]),
    st.dictionaries(VERSIONS, VERSIONS_SEEN),
    st.none() | st.integers(0, 9),
)
GATEWAYS = st.builds(
    GatewaySeen, st.sampled_from(["g-0", "g-1"]), FLAGS, FLAGS, REVISIONS, REVISIONS
)
SPECS = st.builds(
    Spec,
    model=st.just(MODEL),
    version=VERSIONS,
    digest=DIGESTS,
    steps=st.sampled_from([(), SPEC.steps]),
    bake_s=TIMES,
    drain_s=TIMES,
    progress_deadline_s=TIMES,
    on_failure=st.sampled_from(["RollBack", "Pause"]),
    on_delete=st.sampled_from(["Keep", "Unload"]),
    paused=FLAGS,
    memory_bytes=st.none() | st.just(5),
)
FAILURES = st.builds(Failed, VERSIONS, st.integers(2, 3), st.just("Why"), st.just("why"))
ROLLOUTS = (
    st.none()
    | st.just(UNREADABLE)
    | st.just(UNREADABLE_FAILED)
    | st.builds(
        Rollout,
        st.just("name"),
        st.sampled_from(["uid", "other"]),
        st.just(3),
        st.just(""),
        SPECS,
        st.none() | FAILURES,
    )
)
MEMORIES = st.builds(
    Memory,
    st.sampled_from([0, SINCE]),
    st.none() | TIMES,
    st.integers(-1, 9),
    st.none() | TIMES,
    st.none() | st.dictionaries(st.sampled_from(["e-0", "e-1"]), st.integers(0, 2)),
    st.none() | TIMES,
    st.none() | TIMES,
)
OTHERS = Table(
    REVISION,
    {"other": ModelRoutes("7", {"7": 100}, {"later": 1})},
    aliases={"alias": "other", "own": MODEL},
    loads={"other": Loads("", {"7": A}, unknown={"later": 2})},
    unknown={"later": 3},
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any that can be read, and more than this operator writes."""
    versions = draw(st.lists(VERSIONS, unique=True, max_size=3))
    loads: dict[str, Any] = {name: {"digest": draw(DIGESTS)} for name in versions}
    routes: dict[str, Any] | None = None
    if draw(FLAGS) and versions:
        share, rest = draw(st.sampled_from([0, 5, 100])), versions[-1]
        weights = (
            {versions[0]: 100} if len(versions) == 1 else {versions[0]: 100 - share, rest: share}
        )
        routes = {"stable": versions[0], "weights": weights, "later": 4}
    roll = None
    if draw(FLAGS) and versions:
        target = draw(st.sampled_from(versions))
        roll = {
            "from": draw(st.sampled_from(["", *(each for each in versions if each != target)])),
            "to": target,
            "phase": draw(st.sampled_from([*Phase, "Later"])),
            "step": draw(st.integers(0, 3)),
            "since": draw(st.integers(1, REVISION)),
        }
    policy = draw(st.none() | st.sampled_from(["Keep", "Unload", "Later"]))
    document = write(OTHERS)
    if draw(FLAGS):
        document["loads"][MODEL] = {
            "config": draw(st.sampled_from(["", CONFIG])),
            "versions": loads,
            "roll": roll,
            "policy": policy and {"uid": "uid", "onDelete": policy},
            "later": 5,
        }
    if routes is not None:
        document["models"][MODEL] = routes
    else:
        document["aliases"].pop("own")
    return parse(document)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(tables(), ROLLOUTS, st.lists(LOADERS, max_size=2), st.lists(GATEWAYS, max_size=2),
       MEMORIES, TIMES)  # fmt: skip
def test_whatever_is_seen_there_is_one_next_step_and_its_table_can_be_read(  # noqa: PLR0917
    at: Table,
    acts: Rollout | Unreadable | None,
    loaders: list[LoaderSeen],
    gateways: list[GatewaySeen],
    memory: Memory,
    now: float,
) -> None:
    seen = Observed(MODEL, at, acts, loaders, gateways)

    decision, memory = next_step(seen, memory, now)

    assert isinstance(memory, Memory)
    drafted, done = next_table(at, {MODEL: decision})
    assert done == {MODEL: decision}
    if not isinstance(decision, Write):
        assert drafted is None
        return
    assert drafted is not None
    assert drafted.revision == at.revision + 1
    assert parse(write(drafted)) == drafted
    for half, before in ((drafted.models, at.models), (drafted.loads, at.loads)):
        assert half["other"] == before["other"]
    assert drafted.unknown == at.unknown
    assert drafted.aliases["alias"] == "other"
    # What serves is never let go of by the way: a stable version leaves in a table of its own.
    routes, loads = drafted.models.get(MODEL), decision.loads
    if routes is not None and loads is not None:
        assert routes.stable in loads.versions
    if seen.routes is not None and seen.loads is not None and routes is None:
        assert loads is not None
        assert seen.routes.stable in loads.versions


# One engine first


def test_one_engine_loads_a_candidate_before_the_others() -> None:
    """A candidate that takes Triton with it when it is loaded takes one."""
    two = (loader(v2=None), loader("engine-1", v2=None))
    begun = step(observed(STABLE, loaders=two))
    assert isinstance(begun, Write)
    assert begun.loads is not None
    assert begun.loads.roll == Roll("1", "2", Phase.LOADING, 0, REVISION + 1, "engine-0")

    alone = step(observed(STABLE, loaders=(loader(v2=None),)))
    assert isinstance(alone, Write)
    assert alone.loads is not None
    assert alone.loads.roll is not None
    assert alone.loads.roll.engine == ""


def on_one(*loaders: LoaderSeen, acts: Rollout = ROLLOUT) -> Decision:
    """The step where engine-0 is to load the candidate alone."""
    roll = Roll("1", "2", Phase.LOADING, 0, SINCE, "engine-0")
    loads = replace(LOADING.loads[MODEL], roll=roll)
    return step(observed(replace(LOADING, loads={MODEL: loads}), acts, loaders=loaders))


def spread_to(decision: Decision) -> str:
    assert isinstance(decision, Write)
    assert decision.loads is not None
    assert decision.loads.roll is not None
    assert decision.loads.roll.phase is Phase.LOADING
    assert decision.loads.roll.since == REVISION + 1
    return decision.loads.roll.engine


def test_the_others_follow_when_it_is_proven_there() -> None:
    other = loader("engine-1", v2=None)
    waits = on_one(loader(v2=NOT_PROVEN), other)
    assert isinstance(waits, Wait)
    assert waits.message == "engine-0 has not proven version 2 yet; the others wait for it"
    assert isinstance(on_one(loader(ready=False, v2=NOT_PROVEN), other), Wait)
    assert spread_to(on_one(loader(), other)) == ""
    paused = on_one(loader(), other, acts=rollout(paused=True))
    assert isinstance(paused, Wait)
    assert paused.reason == "Paused"


def test_another_one_takes_the_place_of_one_that_is_gone() -> None:
    assert spread_to(on_one(loader("engine-3", v2=None))) == "engine-3"
    assert isinstance(on_one(), Wait)


def test_what_failed_on_the_first_engine_never_gets_to_the_others() -> None:
    failed = on_one(loader(v2=WRONG), loader("engine-1", v2=None))
    assert isinstance(failed, Fail)
    roll = Roll("1", "2", Phase.LOADING, 0, SINCE, "engine-0")
    at = replace(LOADING, loads={MODEL: replace(LOADING.loads[MODEL], roll=roll)})
    back = step(observed(at, rollout(failed=HAS_FAILED)))
    assert isinstance(back, Write)
    assert back.loads is not None
    assert back.loads.roll is not None
    assert (back.loads.roll.phase, back.loads.roll.engine) == (Phase.ROLLING_BACK, "engine-0")
