"""What the status of a ModelRollout tells: what serves, what comes, and why it does not go on."""

from dataclasses import replace
from typing import Any

import pytest

from tidegate_operator.conditions import MOST_HISTORY, conflict, is_lost, lost, status_of
from tidegate_operator.situation import (
    Decision,
    Fail,
    LoaderSeen,
    Observed,
    Unreadable,
    VersionSeen,
    Wait,
    Write,
)
from tidegate_operator.spec import Failed, Rollout, Spec
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

MODEL = "m"
GENERATION = 3
THEN, NOW = "2026-12-01T00:00:00Z", "2026-12-01T01:00:00Z"
ROLLOUT = Rollout("roll", "uid", GENERATION, THEN, Spec(MODEL, "2"))
FAILED = Failed("2", GENERATION, "CandidateFailed", "engine-0: load failed")
PROVEN = VersionSeen("", loaded=True, proven=True)
STABLE_1 = ModelRoutes("1", {"1": 100})
SERVING = Wait("Serving", "version 1 serves")
LOADING = Wait("Loading", "0 of 2 engines have proven version 2; awaited: engine-0, engine-1")


def engine(
    index: int, *, ready: bool = True, silent: bool = False, proven: str = "1"
) -> LoaderSeen:
    return LoaderSeen(f"engine-{index}", ready, None if silent else 9, versions={proven: PROVEN})


def seen(
    phase: Phase | None = None,
    routes: ModelRoutes | None = STABLE_1,
    origin: str = "1",
    rollout: Rollout | Unreadable | None = ROLLOUT,
    loaders: tuple[LoaderSeen, ...] = (engine(0), engine(1)),
) -> Observed:
    roll = Roll(origin, "2", phase, 1, 8) if phase is not None else None
    models = {MODEL: routes} if routes is not None else {}
    return Observed(
        MODEL,
        Table(9, models, loads={MODEL: Loads("", {"1": "", "2": ""}, roll=roll)}),
        rollout,
        loaders,
    )


def told(observed: Observed, decision: Decision, before: Any = None) -> dict[str, Any]:
    return status_of(observed, decision, GENERATION, before or {}, NOW)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = (each for each in status["conditions"] if each["type"] == kind)
    return dict(found)


def said(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    found = condition(status, kind)
    return found["status"], found["reason"], found["message"]


def test_a_model_that_serves_has_no_candidate_and_nothing_of_a_roll() -> None:
    status = told(seen(), SERVING)

    assert {name: value for name, value in status.items() if name != "conditions"} == {
        "observedGeneration": GENERATION,
        "stableVersion": 1,
        "table": {"revision": 9},
        "history": [],
    }
    assert said(status, "Available") == ("True", "Serving", "version 1 serves on 2 of 2 engines")
    assert said(status, "Progressing") == ("False", "Serving", "version 1 serves")
    assert said(status, "RolledBack") == ("False", "NothingFailed", "")
    assert said(status, "GatewaysSynced") == ("True", "InStep", "")


def test_a_roll_tells_what_is_coming_and_how_far() -> None:
    routes = ModelRoutes("1", {"1": 50, "2": 50})
    holding = Wait("Holding", "step 2 of 2: 50 % for 60 s")
    status = told(seen(Phase.STEPPING, routes), holding)

    assert (status["stableVersion"], status["candidateVersion"]) == (1, 2)
    assert (status["phase"], status["step"], status["weight"]) == ("Stepping", 1, 50)
    assert said(status, "Progressing") == ("True", "Stepping", holding.message)


def test_a_first_version_has_no_weight_and_is_not_available_yet() -> None:
    status = told(seen(Phase.LOADING, None, origin=""), LOADING)

    assert "stableVersion" not in status
    assert "weight" not in status
    assert said(status, "Available")[:2] == ("False", "NoStableVersion")
    assert said(status, "Progressing") == ("True", "Loading", LOADING.message)


@pytest.mark.parametrize(
    ("loaders", "available", "reason"),
    [
        ((engine(0), engine(1, silent=True)), "True", "Serving"),
        ((engine(0, proven="2"), engine(1, silent=True)), "Unknown", "LoadersSilent"),
        ((engine(0, ready=False), engine(1, proven="2")), "False", "NoEngine"),
        ((), "False", "NoEngine"),
    ],
)
def test_it_is_available_where_a_ready_engine_has_proven_stable(
    loaders: tuple[LoaderSeen, ...], available: str, reason: str
) -> None:
    status = told(seen(loaders=loaders), SERVING)
    assert said(status, "Available")[:2] == (available, reason)


@pytest.mark.parametrize("reason", ["Paused", "Failed", "InvalidSpec", "UnknownInTable"])
def test_a_roll_that_stands_does_not_progress(reason: str) -> None:
    status = told(seen(Phase.STEPPING), Wait(reason, "why"))
    assert said(status, "Progressing") == ("False", reason, "why")


def test_gateways_that_are_awaited_are_named() -> None:
    awaited = ("gateway-1 (does not answer)",)
    status = told(seen(Phase.PROMOTED), Wait("Draining", "…", awaited))
    assert said(status, "GatewaysSynced") == (
        "False",
        "Awaited",
        "awaited: gateway-1 (does not answer)",
    )


# What has failed


def test_a_failure_is_recorded_with_the_generation_that_it_is_about() -> None:
    status = told(seen(Phase.LOADING), Fail("2", "CandidateFailed", "engine-0: load failed"))

    assert status["failed"] == {
        "version": 2,
        "generation": GENERATION,
        "reason": "CandidateFailed",
        "message": "engine-0: load failed",
    }
    expected = ("False", "CandidateFailed", "version 2: engine-0: load failed")
    assert said(status, "RolledBack") == expected, "it goes back by the next write"


def test_it_stays_recorded_until_the_spec_changes() -> None:
    failed = replace(ROLLOUT, failed=FAILED)
    assert told(seen(rollout=failed), Wait("Failed", "…"))["failed"]["version"] == 2

    changed = status_of(seen(rollout=failed), SERVING, GENERATION + 1, {}, NOW)
    assert "failed" not in changed
    assert said(changed, "RolledBack")[0] == "False"


STABLE_2 = ModelRoutes("2", {"2": 100, "1": 0})


@pytest.mark.parametrize(
    ("phase", "routes", "rolled_back"),
    [
        (Phase.LOADING, STABLE_1, "False"),
        (Phase.STEPPING, STABLE_1, "False"),
        (Phase.BAKING, STABLE_1, "False"),
        (Phase.PROMOTED, STABLE_2, "False"),
        (Phase.ROLLING_BACK, STABLE_1, "True"),
        (Phase.ROLLING_BACK, None, "True"),
        (None, STABLE_1, "True"),
        (None, None, "True"),
        (None, STABLE_2, "False"),
    ],
)
@pytest.mark.parametrize("on_failure", ["RollBack", "Pause"])
def test_it_is_rolled_back_when_what_failed_is_neither_stable_nor_on_its_way(
    phase: Phase | None, routes: ModelRoutes | None, rolled_back: str, on_failure: Any
) -> None:
    spec = replace(ROLLOUT.spec, on_failure=on_failure)
    failed = replace(ROLLOUT, failed=FAILED, spec=spec)
    status = told(seen(phase, routes, rollout=failed), Wait("Failed", "…"))
    assert said(status, "RolledBack")[:2] == (rolled_back, "CandidateFailed")


@pytest.mark.parametrize("generation", [GENERATION, GENERATION - 1])
def test_what_has_failed_stays_recorded_while_the_spec_cannot_be_read(generation: int) -> None:
    failed = replace(FAILED, generation=generation)
    unreadable = Unreadable("roll", "version: …", GENERATION, failed)
    status = told(seen(rollout=unreadable), Wait("InvalidSpec", "…"))
    assert status["failed"]["version"] == 2
    assert status["failed"]["generation"] == generation
    assert said(status, "RolledBack")[0] == "True"


def test_what_fails_while_the_spec_cannot_be_read_is_recorded() -> None:
    unreadable = Unreadable("roll", "version: …", GENERATION)
    status = told(seen(Phase.STEPPING, rollout=unreadable), Fail("2", "CandidateFailed", "why"))
    assert (status["failed"]["version"], status["failed"]["generation"]) == (2, GENERATION)


# Times


def test_a_time_changes_only_with_its_condition() -> None:
    before = status_of(seen(), SERVING, GENERATION, {}, THEN)
    status = told(seen(Phase.LOADING), LOADING, before)

    assert condition(status, "Progressing")["lastTransitionTime"] == NOW
    for kind in ("Available", "RolledBack", "GatewaysSynced"):
        assert condition(status, kind)["lastTransitionTime"] == THEN
    assert told(seen(Phase.LOADING), LOADING, status) == status


def test_conditions_of_others_stay() -> None:
    other = {"type": "Later", "status": "True"}
    assert other in told(seen(), SERVING, {"conditions": [other]})["conditions"]


# History


def over(*rounds: tuple[Observed, Decision]) -> list[dict[str, Any]]:
    status: dict[str, Any] = {}
    for observed, decision in rounds:
        status = told(observed, decision, status)
    history: list[dict[str, Any]] = status["history"]
    return history


def test_a_roll_is_in_the_history_from_its_beginning() -> None:
    assert over((seen(Phase.LOADING), LOADING)) == [
        {"from": 1, "to": 2, "outcome": "Progressing", "message": "", "started": NOW}
    ]


def test_a_roll_that_came_to_its_end_is_completed() -> None:
    promoted = ModelRoutes("2", {"2": 100, "1": 0})
    history = over(
        (seen(Phase.LOADING), LOADING),
        (seen(Phase.PROMOTED, promoted), Wait("Draining", "…")),
        (seen(None, ModelRoutes("2", {"2": 100})), SERVING),
    )
    assert history == [
        {
            "from": 1,
            "to": 2,
            "outcome": "Completed",
            "message": "",
            "started": NOW,
            "ended": NOW,
        }
    ]


def test_a_roll_that_went_back_says_why() -> None:
    back = Write(None, None, "RollingBack", "back to version 1: version 3 is wanted")
    history = over(
        (seen(Phase.STEPPING), LOADING),
        (seen(Phase.STEPPING), back),
        (seen(Phase.ROLLING_BACK), Wait("Draining", "…")),
        (seen(), SERVING),
    )
    (entry,) = history
    assert (entry["outcome"], entry["message"]) == ("RolledBack", back.message)


def test_a_first_version_comes_from_nowhere() -> None:
    (entry,) = over((seen(Phase.LOADING, None, origin=""), LOADING))
    assert "from" not in entry


def test_only_the_last_rolls_are_told() -> None:
    rounds = [(seen(Phase.LOADING), LOADING), (seen(), SERVING)] * (MOST_HISTORY + 2)
    history = over(*rounds)
    assert len(history) == MOST_HISTORY
    assert all("ended" in each for each in history)


# Those that do not act


def test_one_whose_model_another_has_tells_which_and_keeps_what_counts() -> None:
    before = told(seen(Phase.LOADING), Fail("2", "CandidateFailed", "…"))
    status = conflict(GENERATION, "older", before, NOW)

    expected = ("False", "Conflict", "ModelRollout older, which is older, names the same model")
    assert said(status, "Progressing") == expected
    assert said(status, "Available")[0] == "Unknown"
    assert {*status} == {"observedGeneration", "failed", "table", "history", "conditions"}
    assert status["table"] == {"revision": 9}


def test_while_the_table_is_lost_all_that_was_told_stays_but_for_what_serves() -> None:
    before = told(seen(Phase.STEPPING), Fail("2", "CandidateFailed", "…"))
    status = lost(GENERATION, "the routing table is gone; …", before, NOW)

    message = "the routing table is gone; …"
    assert said(status, "Progressing") == ("False", "TableLost", message)
    assert said(status, "Available") == ("Unknown", "TableLost", message)
    assert said(status, "GatewaysSynced") == ("Unknown", "TableLost", message)
    assert condition(status, "RolledBack") == condition(before, "RolledBack")
    kept = {name: value for name, value in before.items() if name != "conditions"}
    assert {name: value for name, value in status.items() if name != "conditions"} == kept
    assert (is_lost(before), is_lost(status)) == (False, True)
    assert not is_lost(told(seen(), SERVING, status))


def test_one_that_cannot_be_read_says_so() -> None:
    unreadable = Unreadable("roll", "version: expected a whole number from 1, got 'x'")
    wait = Wait("InvalidSpec", f"roll: {unreadable.message}")
    status = told(seen(rollout=unreadable), wait)
    assert said(status, "Progressing") == ("False", "InvalidSpec", wait.message)
