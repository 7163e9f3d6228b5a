"""The API server: the ConfigMap that holds the routing table, and the ModelRollouts."""

from dataclasses import dataclass, field
from typing import Any

from tidegate_table.document import InvalidTable, Table, read

from .repository import MODEL

HOLD_S, BAKE_S, DRAIN_S, DEADLINE_S = 20, 30, 15, 300
LONG_S = 25
"""Above `HOLD_S` and `DRAIN_S`: a few of it, and any time has passed."""


@dataclass
class ApiServer:
    """What is stored.

    Attributes:
        content: of the ConfigMap, None while there is none.
        version: the ConfigMap's resourceVersion.
        written: the tables that operators have written, each as it was written.
    """

    content: bytes | None = None
    version: int = 0
    written: list[Table] = field(default_factory=list)
    rollouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    serial: int = 0

    def number(self) -> int:
        self.serial += 1
        return self.serial

    @property
    def table(self) -> Table | None:
        """As it is stored."""
        return table_of(self.content)

    @property
    def is_put_back(self) -> bool:
        """Whether someone has put back an older one."""
        table = self.table
        return table is not None and table.revision < self.written[-1].revision

    # ModelRollouts

    def apply_rollout(self, version: int, name: str, spec: dict[str, Any]) -> None:
        """Make it, or change its spec."""
        strategy = {
            "steps": [{"weight": 10, "hold": f"{HOLD_S}s"}],
            "bake": f"{BAKE_S}s",
            "drain": f"{DRAIN_S}s",
        }
        wanted = {
            "model": MODEL,
            "version": version,
            "strategy": strategy,
            "progressDeadline": f"{DEADLINE_S}s",
            **spec,
        }
        there = self.rollouts.get(name)
        if there is None:
            serial = self.number()
            metadata = {
                "name": name,
                "uid": f"uid-{serial}",
                "generation": 1,
                "creationTimestamp": f"2026-12-01T00:00:{serial % 60:02}Z",
                "resourceVersion": str(serial),
            }
            self.rollouts[name] = {"metadata": metadata, "spec": wanted, "status": {}}
        elif there["spec"] != wanted:
            there["spec"] = wanted
            there["metadata"]["generation"] += 1
            there["metadata"]["resourceVersion"] = str(self.number())

    def change_rollout(self, name: str, spec: dict[str, Any]) -> None:
        """Change some of its spec."""
        there = self.rollouts.get(name)
        if there is not None:
            wanted = {**there["spec"], **spec}
            version = wanted.pop("version")
            del wanted["model"]
            self.apply_rollout(version, name, wanted)

    def delete_rollout(self, name: str) -> None:
        self.rollouts.pop(name, None)


def table_of(content: bytes | None) -> Table | None:
    """The table in a ConfigMap of that content; None where nobody can read one."""
    try:
        return read(content) if content is not None else None
    except InvalidTable:
        return None
