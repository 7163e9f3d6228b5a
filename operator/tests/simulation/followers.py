"""Whoever follows the ConfigMap."""

from typing import Protocol

from tidegate_table.document import InvalidTable, Table, read

from .api_server import ApiServer
from .rules import Rules


class Surroundings(Protocol):
    """What followers need of the world."""

    api: ApiServer
    rules: Rules


class Follower:
    """Whoever follows the ConfigMap: what is on its way to it, and what it has kept."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world, self.name = world, name
        self.coming: list[bytes] = []
        self.kept: Table | None = None
        self.reaches_api = True
        self.is_silent = False
        self.is_misled = False  # It has begun by a table that someone has put back.

    @property
    def table(self) -> Table | None:
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        raise NotImplementedError

    def apply(self, table: Table) -> None:
        raise NotImplementedError

    def receive(self, content: bytes) -> None:
        if not self.is_alive:
            return
        try:
            table = read(content)
        except InvalidTable:
            return
        newer = self.table is None or table.revision > self.table.revision
        if newer or not self.world.rules.by_revision:
            if self.world.rules.persist_first:
                self.kept = table
            self.is_misled = False
            self.apply(table)

    def begin(self) -> None:
        """A process begins: it lists, and takes what it has kept only where that does not do."""
        if not self.world.rules.persist_first and self.table is not None:
            self.kept = self.table
        self.coming = []
        if self.kept is not None and (not self.reaches_api or self._listed_is_older(self.kept)):
            self.apply(self.kept)
        else:
            self.relist()

    def _listed_is_older(self, kept: Table) -> bool:
        try:
            listed = read(self.world.api.content or b"")
        except InvalidTable:
            return True
        return listed.revision <= kept.revision

    def relist(self) -> None:
        if self.reaches_api:
            self.coming = []
            if self.world.api.content is not None:
                begins = self.table is None
                self.receive(self.world.api.content)
                self.is_misled = self.world.api.is_put_back if begins else self.is_misled

    def deliver(self, index: int = 0) -> None:
        if self.coming and self.reaches_api:
            self.receive(self.coming.pop(index % len(self.coming)))
