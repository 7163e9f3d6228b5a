"""The routing table that is applied, and which tables are still in use.

A request is counted under the revision by which it came in until it ends, since a version may only
be unloaded when no gateway holds a request that an older table could have sent there.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tidegate_gateway.errors import EngineUnavailable
from tidegate_gateway.routing import Route, Served, route
from tidegate_table.document import Table, write
from tidegate_table.following import supersedes

_log = logging.getLogger(__name__)


class Routes:
    """The applied table, if any, and the revisions that requests in flight came in by.

    Args:
        random: chance, for requests without a sticky key.
        needed: whether there will be a table, and nobody is to guess before it is there.

    Attributes:
        table: the applied one, or None.
    """

    def __init__(self, random: Random, *, needed: bool = False) -> None:
        self.table: Table | None = None
        self._random = random
        self._needed = needed
        self._listeners: list[Callable[[Table], None]] = []
        # By model the number of requests under each revision; few revisions are in use at a time.
        self._in_use: dict[str, Counter[int]] = {}

    @property
    def revision(self) -> int:
        """That of the applied table; 0 without one."""
        return self.table.revision if self.table is not None else 0

    def wanted(self) -> frozenset[tuple[str, str]] | None:
        """Each (model, version) that requests may go to; None without a table: any."""
        return None if self.table is None else self.table.versions()

    def is_on_trial(self, model: str, version: str) -> bool:
        """Whether it is not the stable version, but one that loaders have to prove."""
        if self.table is None or model not in self.table.loads:
            return False
        routes = self.table.models.get(model)
        return routes is None or routes.stable != version

    def digest(self, model: str, version: str) -> str:
        """That of the version's files; "" where the table has none."""
        loads = self.table.loads.get(model) if self.table is not None else None
        return "" if loads is None else loads.versions.get(version, "")

    def on_change(self, listener: Callable[[Table], None]) -> None:
        """Have `listener` called with each table that is applied from now on."""
        self._listeners.append(listener)

    def apply(self, table: Table) -> bool:
        """Route by `table` from now on, if its revision is above that of the applied one.

        Returns:
            Whether it is applied. Unless it is the applied table once more, a warning says why not.
        """
        if not supersedes(table, self.table):
            return False
        self.table = table
        _log.info(
            "routing table applied",
            extra={"table_revision": table.revision, "ignored": table.ignored()},
        )
        for listener in self._listeners:
            listener(table)
        return True

    def route(self, model: str, pin: str, key: str | None, served: Served) -> Route:
        """The version for one request, as `routing.route` chooses it; where there is no table all
        is left to the engine.

        Raises:
            ModelNotFound: as `routing.route` does.
            EngineUnavailable: there is no table yet, and one is needed.
        """
        if self.table is None and self._needed:
            raise EngineUnavailable("the gateway has no routing table yet; try again later")
        if self.table is None:
            return Route(model, pin, revision=0, pinned=bool(pin), fallback="")
        return route(self.table, model, pin, key, self._random.random(), served)

    @contextmanager
    def in_use(self, model: str) -> Iterator[None]:
        """Count a request of `model` under the revision that is applied now, until it ends.

        Its `route` is to be asked for inside, before anything is awaited: then both are of one
        table, and an alias means one model to both.
        """
        revision = self.revision
        name = self.table.resolve(model) if self.table is not None else model
        counts = self._in_use.setdefault(name, Counter())
        counts[revision] += 1
        try:
            yield
        finally:
            counts[revision] -= 1
            if not counts[revision]:
                del counts[revision]
            if not counts:
                del self._in_use[name]

    def oldest_in_use(self) -> dict[str, int]:
        """By model the lowest revision that a request in flight came in by.

        A model of the table without requests has the applied revision. One that is no longer in the
        table is named for as long as it has requests from before.
        """
        oldest = {model: min(counts) for model, counts in self._in_use.items()}
        models = self.table.models if self.table is not None else {}
        return {model: oldest.get(model, self.revision) for model in models} | {
            model: revision for model, revision in oldest.items() if revision < self.revision
        }

    def document(self) -> dict[str, Any]:
        """What `GET /routing` tells."""
        return {
            "revision": self.revision,
            "table": write(self.table) if self.table is not None else None,
            "oldestInUse": self.oldest_in_use(),
        }
