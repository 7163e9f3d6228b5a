"""Where the routing table comes from, which one is applied, and which are still in use.

Order is by revision alone: whichever way a table comes, a lower or equal revision changes nothing.
A request is counted under the revision by which it came in until it ends, since a version may only
be unloaded when no gateway holds a request that an older table could have sent there.
"""

import asyncio
import json
import logging
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import orjson

from tidegate_gateway.routing import InvalidTable, Route, Served, Table, parse, write

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 8 * 2**20
"""Largest file with a routing table, in bytes: several times what a ConfigMap can hold (1 MiB)."""


class Routes:
    """The applied table, if any, and the revisions that requests in flight came in by.

    Args:
        random: chance, for requests without a sticky key.

    Attributes:
        table: the applied one, or None.
    """

    def __init__(self, random: Random) -> None:
        self.table: Table | None = None
        self._random = random
        self._listeners: list[Callable[[Table], None]] = []
        # By model the number of requests under each revision; few revisions are in use at a time.
        self._in_use: dict[str, Counter[int]] = {}

    @property
    def revision(self) -> int:
        """That of the applied table; 0 without one."""
        return self.table.revision if self.table is not None else 0

    def on_change(self, listener: Callable[[Table], None]) -> None:
        """Have `listener` called with each table that is applied from now on."""
        self._listeners.append(listener)

    def apply(self, table: Table) -> bool:
        """Route by `table` from now on, if its revision is above that of the applied one.

        Returns:
            Whether it is applied. Unless it is the applied table once more, a warning says why not.
        """
        if table.revision <= self.revision:
            if table != self.table:
                _log.warning(
                    "expected a routing table of a revision above %d, got %d: "
                    "the change is not applied",
                    self.revision,
                    table.revision,
                )
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
        """The version for one request, as `Table.route` chooses it; without a table all is left to
        the engine.

        Raises:
            ModelNotFound: as `Table.route` does.
        """
        if self.table is None:
            return Route(model, pin, revision=0, pinned=bool(pin), fallback="")
        return self.table.route(model, pin, key, self._random.random(), served)

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


def read_file(path: Path) -> Table:
    """The routing table in the file at `path`.

    Raises:
        InvalidTable: it cannot be read, or holds none; each fault names the file.
    """
    return _table_in(_content(path), path)


async def follow_file(path: Path, routes: Routes, *, interval_s: float) -> None:
    """Apply the table in the file at `path`, and again whenever it changes; never ends by itself.

    A file that is gone or invalid leaves the applied table as it is. Its faults are logged once for
    as long as they stay the same.

    Args:
        interval_s: seconds between two looks at the file.
    """
    content: bytes | None = None
    faults: tuple[str, ...] = ()
    while True:
        try:
            # Its content is what is compared: a ConfigMap is swapped whole under the same path, and
            # two changes may have one time stamp. In a thread, since a volume may be slow.
            found = await asyncio.to_thread(_content, path)
            if found != content:
                routes.apply(await asyncio.to_thread(_table_in, found, path))
                content = found
                if faults:
                    _log.info("routing table: the file can be used again")
                    faults = ()
        except InvalidTable as invalid:
            content = None
            if invalid.faults != faults:
                faults = invalid.faults
                _log.warning(
                    "routing table: the file cannot be used",
                    extra={"faults": faults, "applied_revision": routes.revision},
                )
        await asyncio.sleep(interval_s)


def _content(path: Path) -> bytes:
    content = b""
    try:
        # Nothing else is opened: reading from a pipe may never end.
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidTable([f"{path}: cannot be read: {error.strerror}"]) from None
    if not regular:
        raise InvalidTable([f"{path}: expected a file, got a folder or device"])
    if len(content) > MAX_FILE_BYTES:
        raise InvalidTable([f"{path}: expected at most {MAX_FILE_BYTES} bytes, got more"])
    return content


def _table_in(content: bytes, path: Path) -> Table:
    try:
        return parse(_json(content))
    except InvalidTable as invalid:
        raise InvalidTable([f"{path}: {fault}" for fault in invalid.faults]) from None


def _json(content: bytes) -> object:
    try:
        # Stricter than json: no NaN, no number that becomes infinite, no lone surrogate. What is
        # applied can be told again by `document`. But only json tells what comes twice.
        orjson.loads(content)
        return json.loads(content, object_pairs_hook=_each_once)
    except RecursionError:
        raise InvalidTable(["expected JSON, got some that is nested too deep"]) from None
    except ValueError as error:
        raise InvalidTable([f"expected JSON: {error}"]) from None


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what `json` would take the last of: a model, say, that someone adds once more."""
    found = dict(members)
    if len(found) < len(members):
        counts = Counter(name for name, _ in members)
        raise InvalidTable(
            [f"expected {name!r} once, got it {n} times" for name, n in counts.items() if n > 1]
        )
    return found
