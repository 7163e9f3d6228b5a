"""Which table counts when the ConfigMap is gone, spoilt, or put back to an older one: pure.

Gateways and loaders keep the table that they had, whatever becomes of the ConfigMap, and take none
of a lower revision. So the newest that any of them holds is what serves, and it is written anew
under a higher revision. Five things are not so simple:

- Someone who is silent just now may hold a newer one: nothing is written before all have answered.
  Nor is a table that is older than what a status tells of.
- Where nobody tells of any table, there may never have been one, and a gateway that cannot start
  must not keep a new installation from its first. A gateway is not ready without a table, so one
  that has never been ready serves by none: it is not awaited. It may have kept one all the same: it
  may have ended before a probe came, and the operator before a status told of it. So the first
  table is then above all that such a gateway can have seen.
- Where a status tells of a table and every pod that there is says that it has none, nobody follows
  it any more, and nobody ever will: the ModelRollouts are from an installation that was removed.
  The history begins again above that revision, with an empty table. A pod says so as well just
  after it began, before it has looked at what it kept: so this has to last. A gateway that is no
  pod any more, on a node that is cut off, may go on by the lost table. It loses nothing by this:
  engines that have no table have none of its versions. But a ConfigMap that is there may be mended,
  and a table that is older than what is known may be better than none: those a person decides on.
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

EMPTY_S = 60.0
"""Seconds for which all pods must have said that they have no table, before what a status tells of
is given up. One that begins says so until it has waited for the API server, for 5 s by default
(`silent_s` of gateways and loaders), and then looks at what it has kept."""

_REMEDY = "docs/install.md, `When the routing table is lost`, says what to do"


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


@dataclass(frozen=True, slots=True)
class Silence:
    """Who does not answer, by name.

    Attributes:
        pods: all of them, and those that are missing: that there is no gateway, or no engine.
        running: those of them that may hold a table: gateways that have started, and engines that
            are ready.
        served: those of them that have had one: engines that are ready, and gateways that may have
            been.
    """

    pods: Sequence[str] = ()
    running: Sequence[str] = ()
    served: Sequence[str] = ()


_NOBODY = Silence()


def current(  # noqa: PLR0913  all that there is
    stored: Table | None,
    held: Iterable[Table],
    known_revision: int,
    silent: Silence = _NOBODY,
    empty_for_s: float = 0.0,
    *,
    spoilt: bool = False,
) -> Stands | Rewrite | Lost:
    """What is to be done about the stored table.

    Args:
        stored: what the ConfigMap holds; None: there is none, or it cannot be read.
        held: the tables that gateways and loaders route and load by.
        known_revision: the highest that anyone has told of: the status of a ModelRollout, or a pod
            whose table cannot be read; 0 without one.
        silent: who does not answer.
        empty_for_s: seconds for which every pod has answered that it has no table; 0 where one has
            any, or is silent.
        spoilt: there is a ConfigMap, and it cannot be read.
    """
    newest = max(held, key=lambda table: table.revision, default=None)
    held_revision = newest.revision if newest is not None else 0
    most = max(known_revision, held_revision)
    if stored is not None and stored.revision >= most:
        return Stands(stored)
    if most == 0:
        return _first(silent)
    was = _was(stored, spoilt=spoilt)
    if silent.running:
        return Lost(f"{was}; {_named(silent.running)}; {_REMEDY}")
    if newest is not None and held_revision == most:
        return Rewrite(_anew(newest, most + LEAP), f"{was}: written anew from revision {most}")
    message = (
        f"{was}; expected a gateway or loader that holds revision {most}, "
        f"got {held_revision or 'none'}; "
    )
    if spoilt and newest is None:
        return Lost(f"{message}mend the ConfigMap, or delete it; {_REMEDY}")
    if stored is not None or newest is not None:
        return Lost(
            f"{message}put back a copy of that revision, or have the ModelRollouts forget it; "
            f"{_REMEDY}"
        )
    if empty_for_s < EMPTY_S:
        awaited = f": {', '.join(silent.pods)}" if silent.pods else ""
        return Lost(
            f"{message}a new one begins when every gateway and every engine has said for "
            f"{EMPTY_S:g} s that it holds none{awaited}; {_REMEDY}"
        )
    return Rewrite(
        Table(revision=most + LEAP, models={}),
        f"{was}, and nobody holds it any more: a new one begins above revision {most}",
    )


def _was(stored: Table | None, *, spoilt: bool) -> str:
    if stored is not None:
        return f"the routing table was put back to revision {stored.revision}"
    return "the routing table cannot be read" if spoilt else "the routing table is gone"


def _first(silent: Silence) -> Rewrite | Lost:
    """Nobody has told of any table."""
    if silent.served:
        return Lost(f"there is no routing table; {_named(silent.served)}; {_REMEDY}")
    revision = 1 + LEAP if silent.running else 1
    return Rewrite(Table(revision=revision, models={}), "the first routing table")


def _named(silent: Sequence[str]) -> str:
    names = ", ".join(silent)
    return f"{names} may hold it and cannot be asked: have them answer, or delete these pods"


def _anew(table: Table, revision: int) -> Table:
    loads = {model: _since(each, revision) for model, each in table.loads.items()}
    return replace(table, revision=revision, loads=loads)


def _since(loads: Loads, revision: int) -> Loads:
    return replace(loads, roll=replace(loads.roll, since=revision)) if loads.roll else loads
