"""How much is taken in at once, and who comes first.

More requests than can be worked on wait, and more than can be answered in time are refused at once:
a client that is told so can go elsewhere or wait by itself, and what waits behind it is still in
time. Each model has its own places, so that a slow one does not take those of the others.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import InvalidInput, Overloaded
from tidegate_gateway.settings import AdmissionSettings

PRIORITY_HEADER = "tidegate-priority"
"""HTTP header and gRPC metadata: high, normal or low."""

# How much the newest interval between two ends counts for the mean of them.
_NEWEST = 0.1


class Priority(IntEnum):
    """Who comes first among those that wait."""

    LOW = 0
    NORMAL = 1
    HIGH = 2

    @classmethod
    def parse(cls, text: str | None) -> "Priority":
        """The priority called `text`; NORMAL for None.

        Raises:
            InvalidInput: there is none of that name.
        """
        if text is None:
            return cls.NORMAL
        found = _PRIORITIES.get(text)
        if found is None:
            raise InvalidInput(f"{PRIORITY_HEADER}: expected high, normal or low, got {text!r}")
        return found


_PRIORITIES = {priority.name.lower(): priority for priority in Priority}


class Pace:
    """How fast the requests of one model end while others wait for their places. Pure: the clock is
    the caller's.

    Only then it is the model's own pace; when nobody waits, it is that of the clients.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._interval_s: float | None = None

    def ended(self, now: float, *, others_wait: bool) -> None:
        """A request has ended, and had others waiting behind it or not."""
        if self._last is not None:
            interval = now - self._last
            known = self._interval_s
            self._interval_s = interval if known is None else known + _NEWEST * (interval - known)
        self._last = now if others_wait else None

    def wait_s(self, place: int) -> float:
        """Seconds until the one in that place of the queue, from 1 on, gets its turn; 0 while that
        is not known."""
        return place * (self._interval_s or 0.0)


class Admissions:
    """The places of all models."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._models: dict[str, _Places] = {}
        self._total = 0
        self.held_bytes = 0

    def in_flight(self) -> int:
        """Requests that are worked on."""
        return sum(places.taken for places in self._models.values())

    def waiting(self) -> int:
        """Requests that wait."""
        return self._total - self.in_flight()

    async def enter(self, model: str, priority: Priority, deadline: Deadline) -> "Slot":
        """A place for a request, in its turn.

        Raises:
            Overloaded: there are too many already, or it could not be in time.
            DeadlineExceeded: its turn has not come.
        """
        settings, places = self._settings, self._models.get(model)
        if self._total >= settings.max_total:
            raise Overloaded(
                f"{self._total} requests are worked on or wait (admission.max_total); try again "
                "later"
            )
        if places is None:
            places = self._models[model] = _Places(model, settings)
        if places.taken < settings.max_in_flight:
            places.taken += 1
            self._total += 1
            return Slot(self, places)
        turn = places.line_up(priority, deadline)
        self._total += 1
        try:
            await deadline.wait_for(turn.given)
        except BaseException:
            self._gave_up(places, turn)
            raise
        return Slot(self, places)

    def hold(self, size: int) -> None:
        """So many more bytes are held; raises Overloaded."""
        if self.held_bytes + size > self._settings.max_bytes:
            raise Overloaded(
                f"requests of {self.held_bytes} bytes are held, and of {self._settings.max_bytes} "
                "at most (admission.max_bytes); try again later"
            )
        self.held_bytes += size

    def left(self, places: "_Places", size: int) -> None:
        """A request has ended that had a place and held so many bytes."""
        self.held_bytes -= size
        self._total -= 1
        places.leave(time.monotonic())
        if not places.taken:
            del self._models[places.model]

    def _gave_up(self, places: "_Places", turn: "_Turn") -> None:
        if turn.has_place:
            # Its turn came in the moment in which it gave up.
            self.left(places, 0)
        else:
            self._total -= 1
            places.give_up(turn)


class Slot:
    """The place of one request, and the bytes that it holds."""

    __slots__ = ("_admissions", "_places", "_size")

    def __init__(self, admissions: Admissions, places: "_Places") -> None:
        self._admissions = admissions
        self._places = places
        self._size = 0

    def hold(self, size: int) -> None:
        """So many more bytes of its body are held; raises Overloaded where that is too much."""
        self._admissions.hold(size)
        self._size += size

    def leave(self) -> None:
        """Give the place to the next one; once."""
        self._admissions.left(self._places, self._size)


@dataclass(eq=False, slots=True)
class _Turn:
    """A request that waits."""

    priority: Priority
    deadline: Deadline
    given: asyncio.Future[None] = field(default_factory=asyncio.Future)
    has_place: bool = False


class _Places:
    """The places of one model, and the queue before them: the highest priority first, and then in
    the order in which they came."""

    def __init__(self, model: str, settings: AdmissionSettings) -> None:
        self.model = model
        self.taken = 0
        self._settings = settings
        self._queues: dict[Priority, deque[_Turn]] = {
            Priority.HIGH: deque(),
            Priority.NORMAL: deque(),
            Priority.LOW: deque(),
        }
        self._pace = Pace()

    def line_up(self, priority: Priority, deadline: Deadline) -> _Turn:
        """A place in the queue."""
        ahead = sum(len(queue) for p, queue in self._queues.items() if p >= priority)
        behind = sum(len(queue) for p, queue in self._queues.items() if p < priority)
        wait_s = self._pace.wait_s(ahead + 1)
        if wait_s > deadline.remaining():
            raise Overloaded(
                f"model {self.model!r}: {ahead} requests wait, so that an answer within the "
                f"deadline of {deadline.given:g} s is not to be expected; try again later"
            )
        if ahead + behind >= self._settings.max_waiting:
            if not behind:
                raise self._full()
            self._displace()
        turn = _Turn(priority, deadline)
        self._queues[priority].append(turn)
        return turn

    def leave(self, now: float) -> None:
        """Give a place that was taken to the next one."""
        turn = self._next()
        self._pace.ended(now, others_wait=turn is not None)
        if turn is None:
            self.taken -= 1
        else:
            turn.has_place = True
            turn.given.set_result(None)

    def give_up(self, turn: _Turn) -> None:
        """It does not wait any longer, if it still did."""
        queue = self._queues[turn.priority]
        if turn in queue:
            queue.remove(turn)

    def _next(self) -> _Turn | None:
        for queue in self._queues.values():
            while queue:
                turn = queue.popleft()
                # One that has given up, or has no time left, comes to know that by itself.
                if not turn.given.done() and turn.deadline.remaining():
                    return turn
        return None

    def _displace(self) -> None:
        """Refuse the newest one of the lowest priority."""
        queue = next(queue for queue in reversed(self._queues.values()) if queue)
        displaced = queue.pop()
        if not displaced.given.done():
            displaced.given.set_exception(self._full())

    def _full(self) -> Overloaded:
        return Overloaded(
            f"model {self.model!r}: {self.taken} requests are worked on and "
            f"{self._settings.max_waiting} wait (admission.max_in_flight, admission.max_waiting); "
            "try again later"
        )
