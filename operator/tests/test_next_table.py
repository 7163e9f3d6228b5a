"""What is decided for each model becomes one table, or is left out and said."""

import pytest

from tidegate_operator.next_table import MOST_BYTES, next_table
from tidegate_operator.situation import Decision, Fail, Wait, Write
from tidegate_table.document import Loads, ModelRoutes, Table

BEFORE = Table(
    revision=7,
    models={"m": ModelRoutes("1", {"1": 100}), "n": ModelRoutes("4", {"4": 100})},
    aliases={"other-m": "m", "other-n": "n"},
    loads={"m": Loads("", {"1": ""}), "n": Loads("", {"4": ""})},
    unknown={"later": True},
)
FORWARD = Write(
    Loads("", {"1": "", "2": ""}), ModelRoutes("1", {"1": 90, "2": 10}), "Stepping", "10 %"
)


def test_all_that_is_decided_in_a_round_is_one_revision() -> None:
    drafted, done = next_table(BEFORE, {"m": FORWARD, "n": FORWARD, "o": Wait("Loading", "…")})

    assert drafted is not None
    assert drafted.revision == 8
    assert drafted.models["m"].weights == drafted.models["n"].weights == {"1": 90, "2": 10}
    assert drafted.unknown == {"later": True}
    assert done["m"] is FORWARD


@pytest.mark.parametrize("decision", [Wait("Serving", "…"), Fail("2", "CandidateFailed", "…")])
def test_without_a_write_there_is_no_table(decision: Decision) -> None:
    assert next_table(BEFORE, {"m": decision}) == (None, {"m": decision})


def test_a_model_that_goes_takes_its_other_names_with_it() -> None:
    drafted, _ = next_table(BEFORE, {"m": Write(None, None, "Unloading", "…")})

    assert drafted is not None
    assert ([*drafted.models], [*drafted.loads], drafted.aliases) == (
        ["n"],
        ["n"],
        {"other-n": "n"},
    )


UNREADABLE = Write(Loads("", {"1": ""}), ModelRoutes("1", {"1": 60, "2": 10}), "Stepping", "10 %")
TOO_LARGE = Write(Loads("x" * MOST_BYTES, {"1": ""}), None, "Loading", "it is loaded")


@pytest.mark.parametrize(
    ("bad", "why"),
    [(UNREADABLE, "expected a sum of 100, got 70"), (TOO_LARGE, f"at most {MOST_BYTES} bytes")],
    ids=["unreadable", "too large"],
)
def test_a_write_that_cannot_be_is_said_and_the_others_are_made(bad: Write, why: str) -> None:
    drafted, done = next_table(BEFORE, {"m": bad, "n": FORWARD})

    assert drafted is not None
    assert drafted.models["m"] == BEFORE.models["m"]
    assert drafted.models["n"] == FORWARD.routes
    refused = done["m"]
    assert isinstance(refused, Wait)
    assert refused.reason == "TableRefused"
    assert refused.message.startswith(f"{bad.message}: ")
    assert why in refused.message

    assert next_table(BEFORE, {"m": bad})[0] is None
