"""What kopf calls, a few lines each: it runs the process, watches ModelRollouts and answers probes.

No handler does anything about a ModelRollout: a change only wakes the loop, which observes all
anew. So kopf writes nothing to the objects, no finalizer and no annotation, and what happened while
the operator was away is not missed.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import kopf

from tidegate_operator.reconcile import Reconciler
from tidegate_operator.resources import GROUP, PLURAL, VERSION


class Stuck(Exception):
    """The loop does not turn."""


def registry_of(reconciler: Reconciler, *, stuck_s: float) -> kopf.OperatorRegistry:
    """The handlers around the loop.

    Args:
        stuck_s: seconds without the beginning of a round after which a probe fails.
    """
    registry = kopf.OperatorRegistry()
    generations: dict[str, object] = {}

    @kopf.on.login(registry=registry)
    def login(**given: Any) -> kopf.ConnectionInfo | None:
        found = kopf.login_with_service_account(**given)
        return found or kopf.login_with_kubeconfig(**given)

    @kopf.on.startup(registry=registry)
    async def begin(**_: Any) -> None:
        reconciler.begin()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def wake(uid: str, meta: kopf.Meta, type: str | None, **_: Any) -> None:  # noqa: A002
        # Our own writes of the status change no generation, and are no news.
        generation = meta.get("generation")
        if type == "DELETED" or generations.get(uid) != generation:
            reconciler.wake()
        generations[uid] = generation

    @kopf.on.probe(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def still_for_s(**_: Any) -> int:
        if (still_s := reconciler.still_for_s()) > stuck_s:
            raise Stuck(f"no round has begun for {still_s:.0f} s")
        return round(still_s)

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await reconciler.end()

    return registry


def settings() -> kopf.OperatorSettings:
    """How kopf is to behave."""
    chosen = kopf.OperatorSettings()
    # Events are told by the loop, once for each thing that it does.
    chosen.posting.enabled = False
    # That would be watches of all CustomResourceDefinitions and Namespaces.
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    # An API server that is away for however long is no reason to end.
    chosen.networking.error_backoffs = _Endless()
    chosen.networking.request_timeout = 10
    chosen.watching.server_timeout = 60
    chosen.watching.client_timeout = 90
    chosen.watching.reconnect_backoff = 1
    # Seconds after which a process that does not leave after SIGTERM is killed.
    chosen.process.ultimate_exiting_timeout = 10
    return chosen


class _Endless(Iterable[float]):
    """Pauses between tries that never end, in seconds."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1, 2), itertools.repeat(5))
