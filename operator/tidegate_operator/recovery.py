"""Which table counts when the ConfigMap is gone, spoilt, or put back to an older one: pure.

Gateways and loaders keep the table that they had, whatever becomes of the ConfigMap, and take none
of a lower revision. So the newest that any of them holds is what serves, and it is written anew
under a higher revision. Three things are not so simple:

- Someone who is silent just now may hold a newer one: nothing is written before all have answered.
  Nor is a table that is older than what a status tells of.
- Tables that nobody has shown yet may be on their way to someone. So the new revision is higher by
  far, not by one: two tables of one revision would both be followed for good.
- Whoever follows a lost table may hold requests by it. So every roll stands as if it had come to
  where it is by this write: holds begin again, and nothing is let go before all follow it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate_table.document import Loads, Table

LEAP = 1000
"""By how much the revision of a table that is written anew is higher: more than the writes that can
be lost, of which there is at most one a second, before a status tells of them."""


@dataclass(frozen=True, slots=True)
class Stands:
    """The stored table counts."""

    table: Table


@dataclass(frozen=True, slots=True)
class Rewrite:
    """This table is to be written in place of what is stored, if anything is."""

    table: Table
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """It is not known which table is the newest: nothing may be written."""

    message: str


def current(
    stored: Table | None,
    held: Iterable[Table],
    known_revision: int,
    silent: Sequence[str] = (),
) -> Stands | Rewrite | Lost:
    """What is to be done about the stored table.

    Args:
        stored: what the ConfigMap holds; None: there is none, or it cannot be read.
        held: the tables that gateways and loaders route and load by.
        known_revision: the highest that anyone has told of: the status of a ModelRollout, or a pod
            whose table cannot be read; 0 without one.
        silent: gateways that have started and engines that are ready, and do not answer.
    """
    newest = max(held, key=lambda table: table.revision, default=None)
    held_revision = newest.revision if newest is not None else 0
    most = max(known_revision, held_revision)
    if stored is not None and stored.revision >= most:
        return Stands(stored)
    was = "is gone" if stored is None else f"was put back to revision {stored.revision}"
    if silent:
        return Lost(f"the routing table {was}; {', '.join(silent)} may hold it and cannot be asked")
    if newest is None and most == 0:
        return Rewrite(Table(revision=1, models={}), "the first routing table")
    if newest is None or held_revision < most:
        return Lost(
            f"the routing table {was}; expected a gateway or loader that holds revision {most}, "
            f"got {held_revision or 'none'}"
        )
    return Rewrite(
        _anew(newest, most + LEAP),
        f"the routing table {was}: written anew from revision {most}",
    )


def _anew(table: Table, revision: int) -> Table:
    loads = {model: _since(each, revision) for model, each in table.loads.items()}
    return replace(table, revision=revision, loads=loads)


def _since(loads: Loads, revision: int) -> Loads:
    return replace(loads, roll=replace(loads.roll, since=revision)) if loads.roll else loads
