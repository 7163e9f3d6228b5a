"""Why a step is not safe yet: pure, one function for each guard of the promise.

Each closes a race, which docs/design/2026-12-01-rolls.md tells; a test takes out each by itself and
shows what then goes wrong.
"""

from collections.abc import Sequence
from dataclasses import replace

from tidegate_operator.situation import LoaderSeen, Memory, Observed, VersionSeen

# Names that a message lists before it says how many more there are.
_MOST_NAMES = 3


def still_there(seen: Observed, version: str) -> list[str]:
    """The engines that have a version which the table does not want, or do not tell.

    Its loader is letting go of it, and may do so after a table that wants it again is applied. So
    until all have, it is not wanted again.
    """
    return [
        loader.name
        for loader in seen.loaders
        if (version in loader.versions if loader.revision is not None else loader in seen.engines)
    ]


def unproven(seen: Observed, version: str, since: int) -> list[str]:
    """The engines that get requests and have not proven a version, by a report of that revision or
    later."""
    engines = seen.engines
    return unproven_of(engines, version, since) if engines else ["there is none"]


def unproven_of(loaders: Sequence[LoaderSeen], version: str, since: int) -> list[str]:
    """Those of these engines that have not proven a version, by a report of that revision or
    later."""
    return [
        loader.name
        for loader in loaders
        if loader.revision is None
        or loader.revision < since
        or not loader.versions.get(version, VersionSeen()).proven
    ]


def behind(seen: Observed, since: int) -> list[str]:
    """The ready gateways that do not route by that revision; where none is ready, all of them."""
    ready = [gateway for gateway in seen.gateways if gateway.ready]
    if not ready:
        return [gateway.name for gateway in seen.gateways] or ["there is none"]
    return [each.name for each in ready if each.revision is None or each.revision < since]


def in_use(seen: Observed, since: int, *, starting_counts: bool) -> list[str]:
    """The gateways that may hold a request of before that revision, each with why.

    A pod none of whose containers has ever started holds none. It is awaited for a while all the
    same, since what Kubernetes tells of containers comes late.
    """
    awaited = []
    for gateway in seen.gateways:
        if not gateway.started and not starting_counts:
            continue
        oldest = gateway.oldest_in_use
        if gateway.revision is None:
            awaited.append(f"{gateway.name} (does not answer)")
        elif gateway.revision < since:
            awaited.append(f"{gateway.name} (routes by revision {gateway.revision})")
        elif oldest is not None and oldest < since:
            awaited.append(f"{gateway.name} (has requests from before)")
    return awaited


def counted(seen: Observed, version: str, memory: Memory, now: float) -> Memory:
    """What the engines have served of a version, and since when no more."""
    counts = {
        loader.name: loader.versions[version].requests
        for loader in seen.loaders
        if loader.revision is not None and version in loader.versions
    }
    moved = counts != memory.counts or memory.counts_at is None or memory.counts_at > now
    return replace(memory, counts=counts, counts_at=now) if moved else memory


def has_been_quiet(memory: Memory, drain_s: float, now: float) -> bool:
    """Whether the engines have had no request for the version for so long."""
    return memory.counts_at is not None and now - memory.counts_at >= drain_s


def listed(names: Sequence[str]) -> str:
    """The names for a message: the first few, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    rest = len(names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown
