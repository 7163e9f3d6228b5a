"""The report of a run, as frozen types and as JSON. Times are seconds since the run's start."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tidegate_traffic.histogram import Latency
from tidegate_traffic.outcomes import Outcome

SCHEMA = 1

_T = TypeVar("_T")


@dataclass(frozen=True)
class RouteReport:
    """One route's requests.

    Attributes:
        rate: requests a second, as planned.
        scheduled: requests that were due so far: sent ones and those that were not sent.
        in_flight: sent, and not ended yet.
        ok, failed: ended ones; a request that was not sent is a failed one.
        latency: of those that ended well, from the time each was due.
        failed_latency: of those that were sent and failed.
    """

    kind: str
    model: str
    rate: float
    scheduled: int
    in_flight: int
    ok: int
    failed: int
    latency: Latency
    failed_latency: Latency


@dataclass(frozen=True)
class Cell:
    """The ended requests that have all this in common.

    Attributes:
        second: they were due in [second, second + 1).
        version, engine, gateway: who answered; empty where the answer does not tell.
        detail: see `Answer`.
        max_latency_ms: the longest of them, from the time it was due.
    """

    second: int
    route: str
    model: str
    version: str
    engine: str
    gateway: str
    outcome: Outcome
    detail: str
    count: int
    max_latency_ms: float


@dataclass(frozen=True)
class FaultReport:
    """What was in flight at the moment of a fault, which lies between its begin and its end.

    Attributes:
        ended_s: None: its end has not been announced.
        in_flight: requests that were in flight at the begin, and at the end too unless they failed,
            or were tried on another engine, in between.
        pending: those of them without an answer yet; the following figures are of the others.
        by_engine: how many of them each engine was tried for. A request that was tried on two
            engines counts for both, so that its first engine has it although another answered.
        by_gateway, by_route, by_outcome: the same for the gateway that answered, and so on.
    """

    name: str
    began_s: float
    ended_s: float | None
    in_flight: int
    pending: int
    by_engine: Mapping[str, int]
    by_gateway: Mapping[str, int]
    by_route: Mapping[str, int]
    by_outcome: Mapping[str, int]


@dataclass(frozen=True)
class Failure:
    """One failed request; of each sort the first few are kept."""

    due_s: float
    route: str
    request_id: str
    outcome: Outcome
    detail: str
    sentence: str


@dataclass(frozen=True)
class Report:
    """A run so far, or the whole of it when `state` is "ended".

    Attributes:
        run: what the request ids begin with.
        state: "waiting" for its start, "sending", "finishing" (nothing more is due, some in
            flight), "ended".
        started_at: UTC, ISO 8601; empty before the start.
        elapsed_s: since the start, until the end.
        sending_s: for how long requests were due.
        lateness: how long after its due time each request was sent. It is the generator's own
            fault, and included in latencies.
        peak_in_flight: requests.
        failures: examples.
    """

    run: str
    state: str
    started_at: str
    elapsed_s: float
    sending_s: float
    lateness: Latency
    max_in_flight: int
    peak_in_flight: int
    routes: Mapping[str, RouteReport]
    cells: tuple[Cell, ...]
    faults: tuple[FaultReport, ...]
    failures: tuple[Failure, ...]

    @property
    def ok(self) -> int:
        """Requests that ended well."""
        return sum(route.ok for route in self.routes.values())

    @property
    def failed(self) -> int:
        """Requests that failed, those that were not sent included."""
        return sum(route.failed for route in self.routes.values())

    @property
    def in_flight(self) -> int:
        """Requests that have been sent and have not ended."""
        return sum(route.in_flight for route in self.routes.values())

    def to_document(self) -> dict[str, Any]:
        """As JSON's types; cells as a table, since there are many."""
        columns = [field.name for field in dataclasses.fields(Cell)]
        document = {"schema": SCHEMA, **dataclasses.asdict(dataclasses.replace(self, cells=()))}
        document["cells"] = {
            "columns": columns,
            "rows": [[getattr(cell, column) for column in columns] for cell in self.cells],
        }
        return document

    def to_json(self) -> str:
        """In one line."""
        return json.dumps(self.to_document(), separators=(",", ":"))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """What `to_document` gave.

        Raises:
            ValueError: it is of another schema.
        """
        members = dict(document)
        if (schema := members.pop("schema", None)) != SCHEMA:
            raise ValueError(f"expected a report of schema {SCHEMA}, got {schema!r}")
        columns = members["cells"]["columns"]
        members["cells"] = tuple(
            _typed(Cell, dict(zip(columns, row, strict=True))) for row in members["cells"]["rows"]
        )
        members["lateness"] = Latency(**members["lateness"])
        members["routes"] = {name: _route(route) for name, route in members["routes"].items()}
        members["faults"] = tuple(FaultReport(**fault) for fault in members["faults"])
        members["failures"] = tuple(_typed(Failure, failure) for failure in members["failures"])
        return cls(**members)


def _typed(kind: type[_T], members: Mapping[str, Any]) -> _T:
    return kind(**{**members, "outcome": Outcome(members["outcome"])})


def _route(members: Mapping[str, Any]) -> RouteReport:
    latencies = {name: Latency(**members[name]) for name in ("latency", "failed_latency")}
    return RouteReport(**{**members, **latencies})
