"""Which table counts when the stored one is gone, spoilt, or an older one."""

from dataclasses import replace

import pytest

from tidegate_operator.recovery import (
    EMPTY_S,
    LEAP,
    Lost,
    Rewrite,
    Silence,
    Stands,
    current,
)
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

ROLL = Roll("1", "2", Phase.STEPPING, 1, 7)
REMEDY = "docs/install.md, `When the routing table is lost`, says what to do"


def table(revision: int) -> Table:
    return Table(
        revision,
        {"m": ModelRoutes("1", {"1": 95, "2": 5}), "other": ModelRoutes("7", {"7": 100})},
        aliases={"alias": "m"},
        loads={
            "m": Loads("text", {"1": "", "2": ""}, roll=ROLL),
            "other": Loads("", {"7": ""}),
        },
        unknown={"later": 1},
    )


def silent(*names: str) -> Silence:
    """Pods that serve and do not answer."""
    return Silence(names, names, names)


def test_the_stored_table_counts_where_nobody_has_a_newer_one() -> None:
    stored = table(9)
    assert current(stored, [], 0) == Stands(stored)
    assert current(stored, [table(9), table(3)], 9) == Stands(stored)


def test_it_counts_whoever_is_silent() -> None:
    assert current(table(9), [], 9, silent("gateway-0")) == Stands(table(9))


def test_the_very_first_one_is_empty() -> None:
    assert current(None, [], 0) == Rewrite(Table(1, {}), "the first routing table")


@pytest.mark.parametrize(
    ("stored", "was"), [(None, "is gone"), (table(5), "was put back to revision 5")]
)
def test_otherwise_the_newest_that_anyone_holds_is_written_anew(
    stored: Table | None, was: str
) -> None:
    found = current(stored, [table(8), table(9), table(3)], 9)

    assert isinstance(found, Rewrite)
    assert found.message == f"the routing table {was}: written anew from revision 9"
    revision = 9 + LEAP
    moved = replace(table(9).loads["m"], roll=replace(ROLL, since=revision))
    assert found.table == replace(table(9), revision=revision, loads={**table(9).loads, "m": moved})


@pytest.mark.parametrize("stored", [None, table(5)])
@pytest.mark.parametrize("held", [[], [table(9)]])
def test_nothing_is_written_while_someone_who_may_hold_it_is_silent(
    stored: Table | None, held: list[Table]
) -> None:
    found = current(stored, held, 9, silent("gateway-0", "engine-1"), 2 * EMPTY_S)

    assert isinstance(found, Lost)
    assert found.message.endswith(
        "; gateway-0, engine-1 may hold it and cannot be asked: have them answer, or delete these "
        f"pods; {REMEDY}"
    )


def test_nor_is_the_first_one() -> None:
    found = current(None, [], 0, silent("gateway-0"))

    assert isinstance(found, Lost)
    assert found.message.startswith("there is no routing table; gateway-0 may hold it")


def test_a_gateway_that_has_never_been_ready_does_not_keep_an_installation_from_its_first() -> None:
    """It may have kept one all the same: so this one is above what it can have seen."""
    loops = Silence(pods=["gateway-0"], running=["gateway-0"])

    assert current(None, [], 0, loops) == Rewrite(Table(1 + LEAP, {}), "the first routing table")
    assert isinstance(current(None, [], 9, loops), Lost)


def test_where_all_pods_hold_nothing_for_long_enough_the_history_begins_again() -> None:
    assert isinstance(current(None, [], 9, empty_for_s=EMPTY_S - 1), Lost)

    assert current(None, [], 9, empty_for_s=EMPTY_S) == Rewrite(
        Table(9 + LEAP, {}),
        "the routing table is gone, and nobody holds it any more: a new one begins above "
        "revision 9",
    )


def test_it_does_not_where_there_is_something_to_go_by() -> None:
    for found in (
        current(table(5), [], 9, empty_for_s=EMPTY_S),
        current(None, [table(8)], 9, empty_for_s=EMPTY_S),
        current(None, [], 9, empty_for_s=EMPTY_S, spoilt=True),
    ):
        assert isinstance(found, Lost)
        assert found.message.endswith(f"; {REMEDY}")


def test_whoever_keeps_it_from_beginning_again_is_named() -> None:
    starting = Silence(pods=["engine-0", "a gateway"])
    found = current(None, [], 9, starting)

    assert found == Lost(
        "the routing table is gone; expected a gateway or loader that holds revision 9, got none; "
        "a new one begins when every gateway and every engine has said for 60 s that it holds "
        f"none: engine-0, a gateway; {REMEDY}"
    )


def test_nothing_is_written_from_a_table_that_is_older_than_one_that_is_known() -> None:
    assert current(None, [table(8)], 9) == Lost(
        "the routing table is gone; expected a gateway or loader that holds revision 9, got 8; "
        f"put back a copy of that revision, or have the ModelRollouts forget it; {REMEDY}"
    )
