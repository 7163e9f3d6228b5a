"""The status of a ModelRollout: pure, derived from the table, what was seen and what was decided.

Nothing is decided by it but for `failed`, which is written before it is acted on, and
`table.revision`, below which no table is ever written again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tidegate_operator.guards import listed
from tidegate_operator.situation import (
    Decision,
    Fail,
    Observed,
    Unreadable,
    VersionSeen,
    Wait,
    Write,
)
from tidegate_operator.spec import Failed
from tidegate_table.document import ModelRoutes, Phase, Roll

MOST_HISTORY = 10
"""Rolls that the history tells of."""

LOST = "TableLost"
"""The reason where no table may be written, since it is not known which is the newest."""

# For these nothing goes on before somebody does something.
_STANDS = ("Paused", "Failed", "InvalidSpec", "UnknownInTable")


def conflict(generation: int, winner: str, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status of a ModelRollout whose model another one has.

    Args:
        winner: the name of that one, which is older.
        before: the status as it is.
        now: the time (RFC 3339).
    """
    message = f"ModelRollout {winner}, which is older, names the same model"
    conditions = [
        ("Available", "Unknown", "Conflict", message),
        ("Progressing", "False", "Conflict", message),
        ("RolledBack", "False", "Conflict", message),
        ("GatewaysSynced", "Unknown", "Conflict", message),
    ]
    return {
        **{name: before[name] for name in ("failed", "table", "history") if name in before},
        "observedGeneration": generation,
        "conditions": _conditions(conditions, before, generation, now),
    }


def lost(generation: int, message: str, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status of a ModelRollout while nobody knows which table is the newest. All that was told
    of it stays, above all the revision and what has failed; what serves is not known.

    Args:
        message: why not, and what to do about it.
        before: the status as it is.
        now: the time (RFC 3339).
    """
    conditions = [
        ("Available", "Unknown", LOST, message),
        ("Progressing", "False", LOST, message),
        ("GatewaysSynced", "Unknown", LOST, message),
    ]
    return {
        **before,
        "observedGeneration": generation,
        "conditions": _conditions(conditions, before, generation, now),
    }


def is_lost(before: Mapping[str, Any]) -> bool:
    """Whether the status says so already."""
    return any(each.get("reason") == LOST for each in before.get("conditions", ()))


def status_of(
    seen: Observed, decision: Decision, generation: int, before: Mapping[str, Any], now: str
) -> dict[str, Any]:
    """The whole status of a ModelRollout.

    Args:
        seen: what the decision rests on; its rollout is the object's.
        decision: the next step, as it was decided, done or not.
        generation: of the object.
        before: the status as it is, of which times and history are kept.
        now: the time (RFC 3339).
    """
    routes, roll = seen.routes, seen.loads.roll if seen.loads is not None else None
    failed = _failed(seen, decision, generation)
    status = {
        "observedGeneration": generation,
        "stableVersion": int(routes.stable) if routes else None,
        "candidateVersion": int(roll.target) if roll else None,
        "phase": str(roll.phase) if roll else None,
        "step": roll.step if roll else None,
        "weight": routes.weights.get(roll.target, 0) if roll and routes else None,
        "failed": failed and _written_failed(failed),
        "table": {"revision": seen.table.revision},
        "history": _history(before, roll, routes, decision, now),
        "conditions": _conditions(
            [
                ("Available", *_available(seen, routes)),
                ("Progressing", *_progressing(decision, roll)),
                ("RolledBack", *_rolled_back(failed, routes, roll)),
                ("GatewaysSynced", *_gateways(decision)),
            ],
            before,
            generation,
            now,
        ),
    }
    return {name: value for name, value in status.items() if value is not None}


def _available(seen: Observed, routes: ModelRoutes | None) -> tuple[str, str, str]:
    if routes is None:
        return "False", "NoStableVersion", "no version of it serves yet"
    told = [loader for loader in seen.loaders if loader.revision is not None]
    serving = [
        loader
        for loader in told
        if loader.ready and loader.versions.get(routes.stable, VersionSeen()).proven
    ]
    if serving:
        of = f"{len(serving)} of {len(seen.loaders)} engines"
        return "True", "Serving", f"version {routes.stable} serves on {of}"
    silent = [loader.name for loader in seen.loaders if loader.ready and loader.revision is None]
    if silent:
        return "Unknown", "LoadersSilent", f"silent: {listed(silent)}"
    return "False", "NoEngine", f"version {routes.stable} serves on none of {len(told)} engines"


def _progressing(decision: Decision, roll: Roll | None) -> tuple[str, str, str]:
    if roll is None:
        # What is written just now is told by the next round.
        return "False", decision.reason, decision.message
    stands = isinstance(decision, Wait) and decision.reason in _STANDS
    reason = decision.reason if stands else str(roll.phase)
    return "False" if stands else "True", reason, decision.message


def _rolled_back(
    failed: Failed | None, routes: ModelRoutes | None, roll: Roll | None
) -> tuple[str, str, str]:
    """Whether what has failed serves no more: neither is it on its way nor stable."""
    if failed is None:
        return "False", "NothingFailed", ""
    is_coming = (
        roll is not None and roll.target == failed.version and roll.phase is not Phase.ROLLING_BACK
    )
    is_stable = routes is not None and routes.stable == failed.version
    message = f"version {failed.version}: {failed.message}"
    return "False" if is_coming or is_stable else "True", failed.reason, message


def _gateways(decision: Decision) -> tuple[str, str, str]:
    if isinstance(decision, Wait) and decision.gateways:
        return "False", "Awaited", f"awaited: {', '.join(decision.gateways)}"
    return "True", "InStep", ""


def _failed(seen: Observed, decision: Decision, generation: int) -> Failed | None:
    """What must not be tried again under this generation of the spec. While nobody can read that
    one, nobody can tell whether it is another try."""
    if isinstance(decision, Fail):
        return Failed(decision.version, generation, decision.reason, decision.message)
    failed = seen.rollout.failed if seen.rollout is not None else None
    if isinstance(seen.rollout, Unreadable) or failed is None:
        return failed
    return failed if failed.generation == generation else None


def _written_failed(failed: Failed) -> dict[str, Any]:
    return {
        "version": int(failed.version),
        "generation": failed.generation,
        "reason": failed.reason,
        "message": failed.message,
    }


def _history(
    before: Mapping[str, Any],
    roll: Roll | None,
    routes: ModelRoutes | None,
    decision: Decision,
    now: str,
) -> list[dict[str, Any]]:
    """The last rolls. The newest is that which is on its way, if one is: it has no end yet."""
    history: list[dict[str, Any]] = [*before.get("history", ())]
    newest = history[-1] if history and "ended" not in history[-1] else None
    if newest is not None and (roll is None or not _is_same(newest, roll)):
        history[-1] = _ended(newest, routes, now)
        newest = None
    if roll is not None and newest is None:
        newest = {**_ends_of(roll), "outcome": "Progressing", "message": "", "started": now}
        history.append(newest)
    if newest is not None and _says_why(decision):
        history[-1] = {**newest, "message": decision.message}
    return history[-MOST_HISTORY:]


def _ends_of(roll: Roll) -> dict[str, int]:
    return (
        {"from": int(roll.origin), "to": int(roll.target)}
        if roll.origin
        else {"to": int(roll.target)}
    )


def _is_same(entry: Mapping[str, Any], roll: Roll) -> bool:
    return {name: entry[name] for name in ("from", "to") if name in entry} == _ends_of(roll)


def _ended(entry: Mapping[str, Any], routes: ModelRoutes | None, now: str) -> dict[str, Any]:
    done = routes is not None and routes.stable == str(entry.get("to"))
    return {
        **entry,
        "outcome": "Completed" if done else "RolledBack",
        "message": "" if done else entry.get("message", ""),
        "ended": now,
    }


def _says_why(decision: Decision) -> bool:
    """Whether it is what a roll does not come to its end for."""
    went_back = isinstance(decision, Write) and decision.reason == Phase.ROLLING_BACK
    return went_back or isinstance(decision, Fail)


def _conditions(
    found: list[tuple[str, str, str, str]], before: Mapping[str, Any], generation: int, now: str
) -> list[dict[str, Any]]:
    known = {each.get("type"): each for each in before.get("conditions", ())}
    return [
        *_written(found, known, generation, now),
        # What another release writes stays.
        *(each for kind, each in known.items() if kind not in {name for name, *_ in found}),
    ]


def _written(
    found: list[tuple[str, str, str, str]], known: Mapping[Any, Any], generation: int, now: str
) -> Iterator[dict[str, Any]]:
    for kind, status, reason, message in found:
        old = known.get(kind, {})
        same = old.get("status") == status
        yield {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": old.get("lastTransitionTime", now) if same else now,
        }
