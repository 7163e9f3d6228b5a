"""What becomes of every request: the account that the report is drawn from.

Single-threaded: it belongs to the event loop. All times are seconds since the run's start.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate_traffic.errors import TrafficError
from tidegate_traffic.histogram import Histogram, Latency
from tidegate_traffic.outcomes import Answer, Outcome
from tidegate_traffic.report import Cell, Failure, FaultReport, RouteReport

# Of each sort of failure so many examples are kept, and so many in all.
_EXAMPLES_EACH = 5
_EXAMPLES = 200


@dataclass(frozen=True)
class Subject:
    """What the ledger has to know of a route."""

    name: str
    kind: str
    model: str
    rate: float


@dataclass(eq=False)
class _Tally:
    scheduled: int = 0
    in_flight: int = 0
    ok: int = 0
    failed: int = 0
    latency: Histogram = field(default_factory=Histogram)
    failed_latency: Histogram = field(default_factory=Histogram)


@dataclass(eq=False)
class _Cell:
    count: int = 0
    max_latency_s: float = 0.0


@dataclass(frozen=True)
class _Sent:
    route: str
    due_s: float


@dataclass(eq=False)
class _Fault:
    name: str
    began_s: float
    pending: set[int]
    ended_s: float | None = None
    answers: list[tuple[str, Answer]] = field(default_factory=list)


@dataclass(frozen=True)
class Interval:
    """What ended since the last one was taken."""

    latency: Latency
    failures: Mapping[str, int]


class Ledger:
    """The account of one run of `routes`."""

    def __init__(self, routes: Sequence[Subject], run: str) -> None:
        self._routes = {route.name: route for route in routes}
        self._run = run
        self._tallies = {route.name: _Tally() for route in routes}
        self._sent: dict[int, _Sent] = {}
        self._cells: dict[tuple[int, str, str, str, str, Outcome, str], _Cell] = {}
        self._faults: dict[str, _Fault] = {}
        self._failures: list[Failure] = []
        self._sorts: Counter[tuple[str, Outcome, str]] = Counter()
        self._lateness = Histogram()
        self._interval_latency = Histogram()
        self._interval_failures: Counter[str] = Counter()
        self.peak_in_flight = 0

    def request_id(self, number: int) -> str:
        """What request `number` is called in headers and in the gateway's log."""
        return f"{self._run}-{number}"

    @property
    def in_flight(self) -> int:
        """Requests that have been sent and have not ended."""
        return len(self._sent)

    def in_flight_by_route(self) -> dict[str, int]:
        """The same, by route."""
        return {name: tally.in_flight for name, tally in self._tallies.items()}

    # --- Requests -----------------------------------------------------------------------------

    def not_sent(self, number: int, route: str, due_s: float, sentence: str) -> None:
        """Request `number` was due, and could not be sent."""
        self._tallies[route].scheduled += 1
        self._close(number, _Sent(route, due_s), Answer(Outcome.NOT_SENT, sentence=sentence), 0.0)

    def sent(self, number: int, route: str, due_s: float, now_s: float) -> None:
        """Request `number`, due at `due_s`, is being sent."""
        tally = self._tallies[route]
        tally.scheduled += 1
        tally.in_flight += 1
        self._sent[number] = _Sent(route, due_s)
        self.peak_in_flight = max(self.peak_in_flight, len(self._sent))
        self._lateness.add(now_s - due_s)

    def ended(self, number: int, answer: Answer, now_s: float) -> None:
        """Request `number` has ended with `answer`."""
        request = self._sent.pop(number)
        latency_s = now_s - request.due_s
        tally = self._tallies[request.route]
        tally.in_flight -= 1
        (tally.latency if answer.outcome is Outcome.OK else tally.failed_latency).add(latency_s)
        self._interval_latency.add(latency_s)
        for fault in self._faults.values():
            if number in fault.pending:
                fault.pending.remove(number)
                fault.answers.append((request.route, answer))
        self._close(number, request, answer, latency_s)

    def _close(self, number: int, request: _Sent, answer: Answer, latency_s: float) -> None:
        key = (
            int(request.due_s),
            request.route,
            answer.version,
            answer.engine,
            answer.gateway,
            answer.outcome,
            answer.detail,
        )
        cell = self._cells.setdefault(key, _Cell())
        cell.count += 1
        cell.max_latency_s = max(cell.max_latency_s, latency_s)
        tally = self._tallies[request.route]
        if answer.outcome is Outcome.OK:
            tally.ok += 1
            return
        tally.failed += 1
        self._interval_failures[f"{answer.outcome} {answer.detail}".strip()] += 1
        self._keep_example(number, request, answer)

    def _keep_example(self, number: int, request: _Sent, answer: Answer) -> None:
        sort = (request.route, answer.outcome, answer.detail)
        self._sorts[sort] += 1
        if self._sorts[sort] <= _EXAMPLES_EACH and len(self._failures) < _EXAMPLES:
            self._failures.append(
                Failure(
                    due_s=round(request.due_s, 3),
                    route=request.route,
                    request_id=self.request_id(number),
                    outcome=answer.outcome,
                    detail=answer.detail,
                    sentence=answer.sentence,
                )
            )

    # --- Faults -------------------------------------------------------------------------------

    def begin_fault(self, name: str, now_s: float) -> None:
        """A fault is about to be done: remember what is in flight.

        Raises:
            TrafficError: there was one of that name already.
        """
        if name in self._faults:
            raise TrafficError(f"the fault {name!r} was announced before; give each its own name")
        self._faults[name] = _Fault(name, now_s, set(self._sent))

    def end_fault(self, name: str, now_s: float) -> None:
        """The fault is done.

        What has ended well meanwhile, at its first engine, may have ended before it, and is left
        out.

        Raises:
            TrafficError: it has not begun, or has ended already.
        """
        fault = self._faults.get(name)
        if fault is None or fault.ended_s is not None:
            raise TrafficError(f"the fault {name!r} is not under way; announce its begin first")
        fault.ended_s = now_s
        fault.answers = [(route, answer) for route, answer in fault.answers if _was_hit(answer)]

    # --- Report -------------------------------------------------------------------------------

    def interval(self) -> Interval:
        """What ended since this was asked last."""
        taken = Interval(self._interval_latency.latency(), dict(self._interval_failures))
        self._interval_latency = Histogram()
        self._interval_failures = Counter()
        return taken

    def lateness(self) -> Latency:
        """How long after its due time each request was sent."""
        return self._lateness.latency()

    def routes(self) -> dict[str, RouteReport]:
        """The account of each route."""
        return {
            name: RouteReport(
                kind=self._routes[name].kind,
                model=self._routes[name].model,
                rate=self._routes[name].rate,
                scheduled=tally.scheduled,
                in_flight=tally.in_flight,
                ok=tally.ok,
                failed=tally.failed,
                latency=tally.latency.latency(),
                failed_latency=tally.failed_latency.latency(),
            )
            for name, tally in self._tallies.items()
        }

    def cells(self) -> tuple[Cell, ...]:
        """Who answered how, second by second."""
        return tuple(
            Cell(
                second=second,
                route=route,
                model=self._routes[route].model,
                version=version,
                engine=engine,
                gateway=gateway,
                outcome=outcome,
                detail=detail,
                count=cell.count,
                max_latency_ms=round(cell.max_latency_s * 1000, 3),
            )
            for (second, route, version, engine, gateway, outcome, detail), cell in sorted(
                self._cells.items()
            )
        )

    def faults(self) -> tuple[FaultReport, ...]:
        """What was in flight while each fault was done."""
        return tuple(_fault_report(fault) for fault in self._faults.values())

    def failures(self) -> tuple[Failure, ...]:
        """Examples of failures."""
        return tuple(self._failures)


def _fault_report(fault: _Fault) -> FaultReport:
    answers = [answer for _, answer in fault.answers]
    return FaultReport(
        name=fault.name,
        began_s=round(fault.began_s, 3),
        ended_s=None if fault.ended_s is None else round(fault.ended_s, 3),
        in_flight=len(fault.pending) + len(answers),
        pending=len(fault.pending),
        by_engine=_counts(engine for answer in answers for engine in set(answer.engines)),
        by_gateway=_counts(answer.gateway for answer in answers if answer.gateway),
        by_route=_counts(route for route, _ in fault.answers),
        by_outcome=_counts(answer.outcome.value for answer in answers),
    )


def _was_hit(answer: Answer) -> bool:
    return answer.outcome is not Outcome.OK or len(answer.engines) > 1


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names))
