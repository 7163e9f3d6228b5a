"""Engines, gateways and requests in virtual time.

Requests arrive as a Poisson process, whatever becomes of those before them. An engine has a number
of slots and one queue before them. What a gateway knows of an engine is what it has seen itself.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from bench.simulation.choices import Choice
from tidegate_gateway.balancing import Outcome

DEADLINE_S = 3.0
"""What clients give a request, as POST /predict does."""
OVERTAKE_S = DEADLINE_S / 2
"""After this time an attempt is given up for another one elsewhere."""
BUDGET = 0.2
"""Second attempts per request, at most."""
SHARES_S = 0.25
"""Seconds over which the share of the traffic is counted."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is simulated.

    Attributes:
        engines: how many there are.
        gateways: how many there are.
        slots: requests that an engine works at simultaneously.
        service_s: mean seconds that it needs for each; half of it is fixed, the rest exponential.
        load: offered requests over the capacity of all engines as long as all are well.
        warm_s: seconds before anything is measured.
        event_s: seconds at which engines stall or come.
        end_s: seconds that are simulated.
    """

    engines: int = 1000
    gateways: int = 300
    slots: int = 4
    service_s: float = 0.1
    load: float = 0.7
    warm_s: float = 5.0
    event_s: float = 7.0
    end_s: float = 15.0

    @property
    def rate(self) -> float:
        """Requests in a second, at all gateways together."""
        return self.load * self.engines * self.slots / self.service_s


@dataclass(slots=True)
class Engine:
    """One engine.

    Attributes:
        name: its name.
        speed: 1 as all, 0.5 where it takes twice as long.
        marked: whether its share of the traffic is counted.
        stalled: it takes requests and answers none.
        busy_s: slots that were busy, times seconds, since the measuring began.
    """

    name: str
    speed: float = 1.0
    marked: bool = False
    stalled: bool = False
    busy: int = 0
    busy_s: float = 0.0
    queue: "deque[Attempt]" = field(default_factory=deque)


class Request:
    """One request of a client."""

    __slots__ = ("arrived", "choice", "second")

    def __init__(self, choice: Choice[Any], arrived: float) -> None:
        self.choice = choice
        self.arrived = arrived
        self.second = False


class Attempt:
    """One try of a request at one engine."""

    __slots__ = ("began", "ended", "engine", "handle", "request")

    def __init__(self, request: Request, engine: Engine, handle: Any) -> None:
        self.request = request
        self.engine = engine
        self.handle = handle
        self.began = -1.0  # when a slot was free for it; negative while it waits
        self.ended = False


@dataclass(slots=True)
class Result:
    """What came of it.

    Attributes:
        latencies: seconds of every request that arrived while it was measured; those that failed
            have the deadline.
        failed: how many of them had no answer within the deadline.
        utilisation: busy share of the slots of each engine that was not stalled.
        shares: for each SHARES_S, which share of the attempts went to marked engines.
        per_gateway: mean connections of a gateway.
        per_engine: connections of the engine that has most.
    """

    latencies: list[float]
    failed: int
    utilisation: list[float]
    shares: list[float]
    per_gateway: float
    per_engine: int


class World:
    """One run: engines, gateways that choose by `choices`, and requests.

    Args:
        scale: how much.
        engines: the engines that are there from the beginning.
        choices: one for each gateway.
        random: chance.
        event: what happens to the world at `scale.event_s`.
    """

    def __init__(
        self,
        scale: Scale,
        engines: Sequence[Engine],
        choices: Sequence[Choice[Any]],
        random: Random,
        event: "Callable[[World], None]",
    ) -> None:
        self.now = 0.0
        self.engines: dict[str, Engine] = {}
        self._scale = scale
        self._choices = choices
        self._random = random
        self._event = event
        self._order = count()
        self._agenda: list[tuple[float, int, Callable[[Any], None], Any]] = []
        # Patience is the same for all, so that these are in order of time.
        self._patience: deque[tuple[float, Attempt]] = deque()
        self._latencies: list[float] = []
        self._failed = 0
        self._budget = 0.0
        self._shares = [[0, 0] for _ in range(int(scale.end_s / SHARES_S) + 1)]
        self.join(engines)

    def join(self, engines: Sequence[Engine]) -> None:
        """These engines are there from now on, besides those that were."""
        self.engines |= {engine.name: engine for engine in engines}
        for choice in self._choices:
            choice.follow(list(self.engines), self.now)

    def run(self) -> Result:
        """Simulate to the end."""
        scale = self._scale
        self._at(0.0, self._arrive, None)
        self._at(scale.event_s, lambda _: self._event(self), None)
        for second in range(1, int(scale.end_s)):
            self._at(float(second), self._probe, None)
        while True:
            time, _, act, argument = heapq.heappop(self._agenda)
            if time > scale.end_s:
                break
            while self._patience and self._patience[0][0] <= time:
                self.now, attempt = self._patience.popleft()
                self._run_out(attempt)
            self.now = time
            act(argument)
        return self._result()

    def _at(self, time: float, act: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), act, argument))

    def _probe(self, _: None) -> None:
        for choice in self._choices:
            choice.probe(lambda name: not self.engines[name].stalled, self.now)

    # Requests

    def _arrive(self, _: None) -> None:
        self._at(self.now + self._random.expovariate(self._scale.rate), self._arrive, None)
        self._budget += BUDGET
        choice = self._choices[int(self._random.random() * len(self._choices))]
        self._start(Request(choice, self.now), excluding="")

    def _start(self, request: Request, excluding: str) -> None:
        name, handle = request.choice.begin(self.now, excluding)
        engine = self.engines[name]
        shares = self._shares[int(self.now / SHARES_S)]
        shares[0] += 1
        shares[1] += engine.marked
        attempt = Attempt(request, engine, handle)
        self._patience.append((self.now + OVERTAKE_S, attempt))
        if engine.busy < self._scale.slots:
            self._work(engine, attempt)
        else:
            engine.queue.append(attempt)

    def _run_out(self, attempt: Attempt) -> None:
        """Its time is up: once more elsewhere, or the request has failed."""
        if attempt.ended:
            return
        request = attempt.request
        if not request.second and self._budget < 1:
            request.second = True
            self._patience.append((self.now + OVERTAKE_S, attempt))
            return
        self._leave(attempt, Outcome.LATE)
        if request.second:
            self._note(request, failed=True)
        else:
            request.second = True
            self._budget -= 1
            self._start(request, excluding=attempt.engine.name)

    def _note(self, request: Request, failed: bool) -> None:
        if request.arrived >= self._scale.warm_s:
            self._latencies.append(self.now - request.arrived)
            self._failed += failed

    # Engines

    def _work(self, engine: Engine, attempt: Attempt) -> None:
        engine.busy += 1
        attempt.began = self.now
        mean = self._scale.service_s / engine.speed
        seconds = mean * (0.5 + self._random.expovariate(2.0))
        self._at(self.now + seconds, self._finish, attempt)

    def _finish(self, attempt: Attempt) -> None:
        if attempt.ended or attempt.engine.stalled:
            return
        self._leave(attempt, Outcome.GOOD)
        self._note(attempt.request, failed=False)

    def _leave(self, attempt: Attempt, outcome: Outcome) -> None:
        """It leaves its engine, and the next one gets the slot; a stalled engine keeps it."""
        attempt.ended = True
        attempt.request.choice.end(attempt.handle, self.now, outcome)
        engine = attempt.engine
        if attempt.began < 0 or engine.stalled:
            return
        engine.busy -= 1
        engine.busy_s += max(0.0, self.now - max(attempt.began, self._scale.warm_s))
        while engine.queue:
            following = engine.queue.popleft()
            if not following.ended:
                self._work(engine, following)
                return

    def _result(self) -> Result:
        scale = self._scale
        connected: dict[str, int] = dict.fromkeys(self.engines, 0)
        for choice in self._choices:
            for name in choice.connections:
                connected[name] += 1
        return Result(
            latencies=sorted(self._latencies),
            failed=self._failed,
            utilisation=sorted(
                engine.busy_s / (scale.slots * (scale.end_s - scale.warm_s))
                for engine in self.engines.values()
                if not engine.stalled
            ),
            shares=[marked / max(1, all_) for all_, marked in self._shares[:-1]],
            per_gateway=sum(connected.values()) / len(self._choices),
            per_engine=max(connected.values()),
        )
