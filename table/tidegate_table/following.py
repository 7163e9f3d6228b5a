"""How the table is followed: where it comes from, which one counts, and what survives a restart.

Order is by revision alone: whichever way a table comes, a lower or equal revision changes nothing,
and a ConfigMap that is deleted changes nothing either. Each table is persisted, then applied, then
told of by whoever applied it: what has been told once is not forgotten by a restart, also while the
API server is away.
"""

import asyncio
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import orjson

from tidegate_table.api_server import ApiServer, Follower, Objects, Outage, Pace, text
from tidegate_table.document import InvalidTable, Table, read, write

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 8 * 2**20
"""Largest file with a routing table, in bytes: several times what a ConfigMap can hold (1 MiB)."""

KEY = "table.json"
"""Under which key of the ConfigMap, and in which file of the folder, the table is."""

# Seconds until a table is tried again that could not be persisted.
_RETRY_S = 1.0


class Holder(Protocol):
    """Who goes by a table."""

    @property
    def table(self) -> Table | None:
        """The one that is applied."""
        ...

    def apply(self, table: Table) -> object:
        """Go by `table` from now on; its revision is above that of the applied one."""
        ...


def supersedes(table: Table, applied: Table | None) -> bool:
    """Whether `table` is to be applied in place of the applied one. Unless it is that one once
    more, a warning says why not."""
    if applied is None or table.revision > applied.revision:
        return True
    if table != applied:
        _log.warning(
            "expected a routing table of a revision above %d, got %d: the change is not applied",
            applied.revision,
            table.revision,
        )
    return False


class Store:
    """The copy of the applied table in a folder that outlives the process.

    Args:
        folder: it is there, and is nobody else's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY

    def load(self) -> Table | None:
        """The copy; None where there is none that can be used."""
        try:
            return read(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, InvalidTable) as error:
            reason = {"reason": str(error)}
            _log.warning("the copy of the routing table cannot be used", extra=reason)
            return None

    def save(self, table: Table) -> None:
        """Put a copy in place of the one before, whole or not at all, and on the disk.

        Raises:
            OSError: it cannot be written; the one before stands.
        """
        unfinished = self._path.with_suffix(".new")
        with unfinished.open("wb") as file:
            file.write(orjson.dumps(write(table)))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# A ConfigMap


async def follow_config_map(  # noqa: PLR0913  keywords
    name: str,
    holder: Holder,
    store: Store,
    *,
    api: ApiServer,
    namespace: str = "",
    silent_s: float,
    pace: Pace | None = None,
) -> None:
    """Apply the table in a ConfigMap, and again whenever it changes; never ends by itself.

    The copy in `store` is used when the first list does not come in time, and when what is listed
    is older or not there.

    Args:
        name: of the ConfigMap.
        namespace: its namespace; "": our own.
        silent_s: seconds that the API server has for the first list.
    """
    namespace = namespace or api.namespace
    about = {"source": "kubernetes", "config_map": name, "namespace": namespace}
    maps = _ConfigMaps()
    follower = Follower(
        api,
        f"/api/v1/namespaces/{namespace}/configmaps",
        {"fieldSelector": f"metadata.name={name}"},
        maps,
        outage=Outage(
            "the routing table cannot be followed; the last known one stays",
            "the routing table can be followed again",
            **about,
        ),
        about=about,
        pace=pace or Pace(),
    )
    following = asyncio.create_task(follower.follow())
    # A fault of ours must not pass for a quiet API server.
    following.add_done_callback(lambda _: follower.changed.set())
    taking = _Taking(holder, store, about)
    try:
        await _heard(follower, silent_s)
        while True:
            if following.done():
                following.result()
            follower.changed.clear()
            content = maps.found.get(name) if follower.is_listed else None
            if await taking.take(content):
                await follower.changed.wait()
            else:
                await asyncio.sleep(_RETRY_S)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class _ConfigMaps(Objects[str]):
    """At most the one ConfigMap that is followed, by what it has under `KEY`."""

    def __init__(self) -> None:
        super().__init__("ConfigMapList", lambda each: text((each.get("data") or {}).get(KEY)))

    def doubts(self) -> dict[str, dict[str, object]]:
        """That there is none: its name may be a mistake, or nobody has written it so far."""
        return {} if self.found else {"there is no ConfigMap with the routing table": {}}


async def _heard(follower: Follower, silent_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(silent_s):
            await follower.changed.wait()


class _Taking:
    """Takes what a ConfigMap holds: persists it, then applies it."""

    def __init__(self, holder: Holder, store: Store, about: dict[str, str]) -> None:
        self._holder = holder
        self._store = store
        self._about = about
        self._begun = False
        self._content: str | None = None
        self._faults: tuple[str, ...] = ()

    async def take(self, content: str | None) -> bool:
        """Go by `content`, if it is newer than what we go by.

        Returns:
            Whether it is done with; a table that cannot be persisted is not.
        """
        found = self._read(content)
        if not self._begun:
            self._begun = True
            kept = await asyncio.to_thread(self._store.load)
            if kept is not None and (found is None or found.revision < kept.revision):
                self._holder.apply(kept)
        if found is None or not supersedes(found, self._holder.table):
            return True
        try:
            await asyncio.to_thread(self._store.save, found)
        except (OSError, TypeError, ValueError) as error:
            _log.error(
                "the routing table is not applied: its copy cannot be written",
                extra={**self._about, "reason": str(error)},
            )
            self._content = None
            return False
        self._holder.apply(found)
        return True

    def _read(self, content: str | None) -> Table | None:
        """The table in it; None where there is none, or it is what was read the last time."""
        if content is None or content == self._content:
            return None
        self._content = content
        try:
            found = read(content.encode())
        except InvalidTable as invalid:
            if invalid.faults != self._faults:
                self._faults = invalid.faults
                _log.warning(
                    "routing table: the ConfigMap cannot be used",
                    extra={**self._about, "faults": invalid.faults},
                )
            return None
        self._faults = ()
        return found


# A file


def read_file(path: Path) -> Table:
    """The routing table in the file at `path`.

    Raises:
        InvalidTable: it cannot be read, or holds none; each fault names the file.
    """
    return _table_in(_content(path), path)


async def follow_file(path: Path, holder: Holder, *, interval_s: float) -> None:
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
                table = await asyncio.to_thread(_table_in, found, path)
                if supersedes(table, holder.table):
                    holder.apply(table)
                content = found
                if faults:
                    _log.info("routing table: the file can be used again")
                    faults = ()
        except InvalidTable as invalid:
            content = None
            if invalid.faults != faults:
                faults = invalid.faults
                applied = holder.table
                _log.warning(
                    "routing table: the file cannot be used",
                    extra={
                        "faults": faults,
                        "applied_revision": applied.revision if applied else 0,
                    },
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
        return read(content)
    except InvalidTable as invalid:
        raise InvalidTable([f"{path}: {fault}" for fault in invalid.faults]) from None
