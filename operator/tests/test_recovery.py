"""Which table counts when the stored one is gone, spoilt, or an older one."""

from dataclasses import replace

import pytest

from tidegate_operator.recovery import LEAP, Lost, Rewrite, Stands, current
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

ROLL = Roll("1", "2", Phase.STEPPING, 1, 7)


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


def test_the_stored_table_counts_where_nobody_has_a_newer_one() -> None:
    stored = table(9)
    assert current(stored, [], 0) == Stands(stored)
    assert current(stored, [table(9), table(3)], 9) == Stands(stored)


def test_it_counts_whoever_is_silent() -> None:
    assert current(table(9), [], 9, ["gateway-0"]) == Stands(table(9))


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
    found = current(stored, held, 9, ["gateway-0", "engine-1"])

    assert isinstance(found, Lost)
    assert found.message.endswith("gateway-0, engine-1 may hold it and cannot be asked")


def test_nor_is_the_first_one() -> None:
    assert isinstance(current(None, [], 0, ["gateway-0"]), Lost)


@pytest.mark.parametrize(("held", "got"), [([], "none"), ([table(8)], "8")])
def test_nothing_is_written_from_a_table_that_is_older_than_one_that_is_known(
    held: list[Table], got: str
) -> None:
    assert current(None, held, 9) == Lost(
        f"the routing table is gone; expected a gateway or loader that holds revision 9, got {got}"
    )
