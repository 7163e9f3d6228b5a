"""The open loop: requests go out when they are due, whatever becomes of those before them."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from tidegate_traffic.connections import Connections, Sender
from tidegate_traffic.ledger import Ledger, Subject
from tidegate_traffic.over_grpc import InferenceServiceSender, V2Sender
from tidegate_traffic.over_http import json_sender, photo_sender
from tidegate_traffic.plan import Kind, Plan, Route
from tidegate_traffic.report import Report
from tidegate_traffic.schedule import Arrival, arrivals


class Generator:
    """One run of `plan`. It must be made and used in one event loop."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._run = uuid.uuid4().hex[:8]
        self.ledger = Ledger(
            [Subject(route.name, route.kind, route.model, route.rate) for route in plan.routes],
            self._run,
        )
        self._start = asyncio.Event()
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._begin = 0.0
        self._started_at = ""
        self._end_s = plan.duration_s  # what is due from then on is not sent
        self._all_sent = False
        self._elapsed_s: float | None = None

    @property
    def state(self) -> str:
        """See `Report`."""
        if self._ended.is_set():
            return "ended"
        if self._all_sent:
            return "finishing"
        return "sending" if self._started_at else "waiting"

    @property
    def now_s(self) -> float:
        """Seconds since the start; 0 before it."""
        return time.monotonic() - self._begin if self._started_at else 0.0

    def start(self) -> None:
        """Begin to send; once begun, this does nothing."""
        self._start.set()

    def stop(self) -> None:
        """Let nothing more be due; what was due before is sent, and what is in flight ends."""
        self._end_s = min(self._end_s, self.now_s)
        self._stop.set()

    async def ended(self) -> Report:
        """The last report, when the run has ended."""
        await self._ended.wait()
        return self.report()

    async def run(self) -> None:
        """Wait for the start, send until the plan's duration is over or `stop`, and finish."""
        stopped = asyncio.create_task(self._stop.wait())
        started = asyncio.create_task(self._start.wait())
        try:
            await asyncio.wait({stopped, started}, return_when=asyncio.FIRST_COMPLETED)
            self._begin = time.monotonic()
            self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            async with contextlib.AsyncExitStack() as stack:
                connections = [self._connections(route) for route in self._plan.routes]
                for each in connections:
                    stack.push_async_callback(each.close)
                # A request that raises is a mistake of ours: the group ends the run with it.
                async with asyncio.TaskGroup() as requests:
                    await self._pace(stopped, requests, connections)
                    self._all_sent = True
            self._elapsed_s = self.now_s
        finally:
            stopped.cancel()
            started.cancel()
            self._ended.set()

    def report(self) -> Report:
        """The report so far."""
        ledger = self.ledger
        elapsed_s = self.now_s if self._elapsed_s is None else self._elapsed_s
        return Report(
            run=self._run,
            state=self.state,
            started_at=self._started_at,
            elapsed_s=round(elapsed_s, 3),
            sending_s=round(min(elapsed_s, self._end_s), 3),
            lateness=ledger.lateness(),
            max_in_flight=self._plan.max_in_flight,
            peak_in_flight=ledger.peak_in_flight,
            routes=ledger.routes(),
            cells=ledger.cells(),
            faults=ledger.faults(),
            failures=ledger.failures(),
        )

    def _connections(self, route: Route) -> Connections:
        return Connections(
            _sender_maker(self._plan, route), route.connections, route.requests_per_connection
        )

    async def _pace(
        self,
        stopped: "asyncio.Task[bool]",
        requests: asyncio.TaskGroup,
        connections: list[Connections],
    ) -> None:
        rates = [route.rate for route in self._plan.routes]
        for number, arrival in enumerate(arrivals(rates)):
            # Also without a wait when it is late, so that answers are read meanwhile.
            await asyncio.wait({stopped}, timeout=max(0.0, arrival.at_s - self.now_s))
            if arrival.at_s >= self._end_s:
                return
            self._emit(number, arrival, requests, connections[arrival.route])

    def _emit(
        self,
        number: int,
        arrival: Arrival,
        requests: asyncio.TaskGroup,
        connections: Connections,
    ) -> None:
        route = self._plan.routes[arrival.route]
        if self.ledger.in_flight >= self._plan.max_in_flight:
            sentence = f"{self.ledger.in_flight} requests were in flight (max_in_flight)"
            self.ledger.not_sent(number, route.name, arrival.at_s, sentence)
            return
        self.ledger.sent(number, route.name, arrival.at_s, self.now_s)
        requests.create_task(self._request(number, connections))

    async def _request(self, number: int, connections: Connections) -> None:
        lease = connections.take()
        try:
            answer = await lease.sender.send(number, self.ledger.request_id(number))
            self.ledger.ended(number, answer, self.now_s)
        finally:
            await connections.give_back(lease)


def _sender_maker(plan: Plan, route: Route) -> Callable[[], Sender]:
    if route.echo is None:
        return partial(photo_sender, plan, route)
    match route.kind:
        case Kind.V2_JSON:
            return partial(json_sender, plan, route, route.echo)
        case Kind.V2_GRPC:
            return partial(V2Sender, plan, route, route.echo)
        case _:
            return partial(InferenceServiceSender, plan, route, route.echo)
