"""Attempts: one request, tried at one endpoint after another until it is answered.

A further attempt begins

- when the one before has failed in a way that another engine may not fail in (RETRY);
- when a version that is being tried out has failed: once, on the stable one (FALLBACK);
- when no answer has come in the time that the model usually needs, while the one before goes on
  (OVERDUE; HEDGE where that time is the setting's shorter one).

The first good answer wins, or the first refusal that is the request's own fault, and the other
attempts are cancelled. Every further attempt is work that the engines would not have without it,
and an overload in which each request is sent twice does not end; so they come out of a budget. Two
kinds are outside it: a FALLBACK, and a RETRY after a connection is lost, since what the others then
get is what the lost engine no longer has to do. Questions are outside it too: they are hardly any
work, and those about models that do not exist must not use up what requests need.
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from tidegate_gateway.balancing import Cause, Key, Outcome, Ticket
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.endpoints import Endpoints, Target
from tidegate_gateway.errors import (
    BackendDead,
    ClientError,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    ModelNotFound,
    Overloaded,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.latency import Quantiles
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import AttemptSettings

_log = logging.getLogger(__name__)

E = TypeVar("E")
T = TypeVar("T")

# What engines are asked besides inferences has latencies of its own, whatever the model.
_QUESTIONS: Key = ("", "")

# Seconds over which requests and further attempts are set against each other.
_BUDGET_WINDOW_S = 10

# Models and versions whose latencies are kept; of those that have been unloaded since, some.
_MOST_KEYS = 1000


class Reason(StrEnum):
    """Why an attempt begins."""

    FIRST = "first"
    RETRY = "retry"
    FALLBACK = "fallback"
    OVERDUE = "overdue"
    HEDGE = "hedge"


class Budget:
    """How many further attempts there may be. Pure: the clock is the caller's.

    In the last ten seconds, counted in whole ones, at most `ratio` of the requests and `burst`
    more.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        # Each a second, its requests and its further attempts; the oldest first.
        self._seconds: deque[list[int]] = deque()
        self._requests = 0
        self._spent = 0

    def deposit(self, now: float) -> None:
        """A request has come."""
        self._second(now)[1] += 1
        self._requests += 1

    def withdraw(self, now: float, burst: int) -> bool:
        """Whether there may be one more further attempt; if so, it is counted."""
        second = self._second(now)
        if self._spent + 1 > self._ratio * self._requests + burst:
            return False
        second[2] += 1
        self._spent += 1
        return True

    def _second(self, now: float) -> list[int]:
        second = int(now)
        while self._seconds and self._seconds[0][0] <= second - _BUDGET_WINDOW_S:
            _, requests, spent = self._seconds.popleft()
            self._requests -= requests
            self._spent -= spent
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        return self._seconds[-1]


def patience(
    remaining: float, usual: float | None, rules: AttemptSettings, *, hedged: float | None = None
) -> float:
    """Seconds without an answer after which another attempt begins.

    min(half of what remains, max(the least, a multiple of the model's p99)); while the model's
    latency is not known, half of what remains.

    Args:
        remaining: seconds until the deadline.
        usual: the model's 99th percentile in seconds, or None.
        hedged: its 95th percentile where attempts are hedged: the limit if it is shorter.
    """
    if usual is None:
        return remaining / 2
    wait = _longest_usual(usual, rules)
    return min(remaining / 2, wait if hedged is None else min(wait, hedged))


def is_late(seconds: float, usual: float | None, rules: AttemptSettings) -> bool:
    """Whether `seconds` without an answer are more than the model usually needs. Where that is not
    known, a client's short deadline says nothing about an engine."""
    return usual is not None and seconds >= _longest_usual(usual, rules)


def _longest_usual(usual: float, rules: AttemptSettings) -> float:
    return max(rules.wait_least_s, rules.wait_p99_factor * usual)


class Attempts(Generic[E]):
    """Answers requests at one or more of `endpoints`.

    Args:
        cancel_after_s: seconds that an attempt may take to end by itself once nobody wants its
            answer any more; then it is cancelled.
    """

    def __init__(
        self,
        endpoints: Endpoints[E],
        rules: AttemptSettings,
        metrics: Metrics,
        *,
        cancel_after_s: float = 0.0,
    ) -> None:
        self.cancel_after_s = cancel_after_s
        self.endpoints = endpoints
        self.rules = rules
        self.metrics = metrics
        self._budget = Budget(rules.budget_ratio)
        self._latencies: OrderedDict[Key, Quantiles] = OrderedDict()  # the least used first

    async def run(
        self,
        route: Route,
        call: Callable[[E, str, Deadline], Awaitable[T]],
        deadline: Deadline,
        tried: list[str],
        *,
        sequence: str = "",
    ) -> T:
        """The answer of an inference.

        Args:
            call: one attempt, with an engine and a version; it ends by the deadline by itself.
            tried: gets the name of each endpoint that is tried.
            sequence: not "": one attempt alone, at the endpoint of that sequence.

        Raises:
            RequestError: the last attempt's, or EngineUnavailable where there is no engine.
        """
        self._budget.deposit(time.monotonic())
        return await self._answer(_Course(self, route, call, deadline, tried, sequence))

    async def ask(
        self, route: Route, call: Callable[[E, str, Deadline], Awaitable[T]], deadline: Deadline
    ) -> T:
        """The answer of a question about a model, which says nothing of the model's health.

        Raises:
            RequestError: as `run` does.
        """
        return await self._answer(_Course(self, route, call, deadline, [], "", is_question=True))

    async def _answer(self, course: "_Course[E, T]") -> T:
        try:
            return await course.answer()
        finally:
            course.abandon()

    def allows(self, reason: Reason, error: RequestError | None) -> bool:
        """Whether the budget has a further attempt; if so, it is spent."""
        if reason is Reason.FALLBACK or (reason is Reason.RETRY and _is_lost(error)):
            return True
        burst = max(self.rules.budget_burst, self.endpoints.largest_in_flight())
        return self._budget.withdraw(time.monotonic(), burst)

    def observe(self, key: Key, seconds: float) -> None:
        """An attempt has been answered after `seconds`."""
        quantiles = self._latencies.get(key)
        if quantiles is None:
            quantiles = self._latencies[key] = Quantiles()
            if len(self._latencies) > _MOST_KEYS:
                self._latencies.popitem(last=False)
        self._latencies.move_to_end(key)
        quantiles.observe(seconds, time.monotonic())

    def quantile(self, key: Key, q: float) -> float | None:
        """Seconds that a share `q` of the recent answers took at most; None while not known."""
        quantiles = self._latencies.get(key)
        return None if quantiles is None else quantiles.quantile(q, time.monotonic())


@dataclass(eq=False, slots=True)
class _Attempt(Generic[E, T]):
    target: Target[E]
    version: str
    # What its outcome and latency count for.
    key: Key
    reason: Reason
    ticket: Ticket
    began: float
    task: asyncio.Future[T]


class _Course(Generic[E, T]):
    """The attempts of one request."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        attempts: Attempts[E],
        route: Route,
        call: Callable[[E, str, Deadline], Awaitable[T]],
        deadline: Deadline,
        tried: list[str],
        sequence: str,
        *,
        is_question: bool = False,
    ) -> None:
        self._attempts = attempts
        self._endpoints = attempts.endpoints
        self._rules = attempts.rules
        self._route = route
        self._version = route.version
        self._fallback = route.fallback
        self._call = call
        self._deadline = deadline
        self._tried = tried
        self._sequence = sequence
        self._is_question = is_question
        self._left = 1 if sequence else attempts.rules.most
        self._backoff_s = attempts.rules.backoff_s
        self._deaths = 0
        self._refused: set[Reason] = set()
        # Addresses that have been tried for the present version.
        self._used: set[str] = set()
        self._running: list[_Attempt[E, T]] = []
        self._overdue_at = math.inf
        self._news: asyncio.Future[None] | None = None

    async def answer(self) -> T:
        """The first good answer; raises RequestError when there is none."""
        first = await self._endpoints.choose(self._key, self._deadline, sequence=self._sequence)
        self._launch(first, Reason.FIRST)
        while True:
            ended = await self._next_to_end()
            if ended is None:
                self._begin_overdue()
                continue
            error = _error(ended.task)
            self._running.remove(ended)
            if error is None:
                self._won(ended)
                return ended.task.result()
            self._lost(ended, error)
            goes_on = await self._go_on(ended, error)
            if _is_final(error) or not (goes_on or self._running):
                raise self._told(error)

    def abandon(self) -> None:
        """Cancel what still runs."""
        for attempt in self._running:
            self._cancel(attempt, Outcome.DROPPED)
        self._running.clear()

    # --- Beginning --------------------------------------------------------------------------------

    def _launch(self, target: Target[E], reason: Reason) -> None:
        work = asyncio.ensure_future(self._call(target.link.engine, self._version, self._deadline))
        work.add_done_callback(self._tell_news)
        key = _QUESTIONS if self._is_question else self._key
        ticket = self._endpoints.begin(target, key)
        now = time.monotonic()
        self._running.append(_Attempt(target, self._version, key, reason, ticket, now, work))
        self._left -= 1
        self._used.add(target.endpoint.address)
        self._tried.append(target.name)
        self._overdue_at = now + self._patience() if self._left else math.inf
        if reason is not Reason.FIRST:
            self._log("further attempt", reason=reason.value, endpoint=target.name)

    def _begin_overdue(self) -> None:
        """Another attempt beside those that run, if there is an engine for it and the budget; of a
        candidate's request, at the stable version, or a candidate that hangs would hang it."""
        oldest, version = self._running[0], self._fallback or self._version
        left = self._deadline.remaining()
        usual = self._usual(oldest.key)
        late = is_late(time.monotonic() - oldest.began, usual, self._rules)
        is_hedge = self._rules.hedge and usual is not None and not late
        reason = Reason.HEDGE if is_hedge else Reason.OVERDUE
        # One that cannot be in time would cost others of the budget for nothing.
        needed = self._attempts.quantile((self._route.model, version), 0.5) or 0.0
        target = self._elsewhere(version) if left > needed else None
        is_free = version == self._fallback and self._hangs(oldest)
        if target is not None and (is_free or self._may(reason)):
            self._turn_to(version)
            self._launch(target, reason)
        else:
            # The patience shrinks with what remains, so that alone it would be looked at ever more
            # often.
            wait = max(self._patience(), self._rules.wait_least_s)
            self._overdue_at = time.monotonic() + wait

    async def _go_on(self, ended: _Attempt[E, T], error: RequestError) -> bool:
        """Begin the attempt that follows on `error`, if there is to be one."""
        reason = self._reason_after(ended, error)
        if reason is None:
            return False
        version = self._fallback if reason is Reason.FALLBACK else self._version
        try:
            target = await self._next_target(reason, version)
        except EngineUnavailable:
            return False
        if target is None or not self._may(reason, error):
            return False
        self._turn_to(version)
        self._launch(target, reason)
        return True

    async def _next_target(self, reason: Reason, version: str) -> Target[E] | None:
        target = self._elsewhere(version)
        # While one waits here, the others that run would not be heard.
        if target is not None or self._running:
            return target
        key = self._route.model, version
        if reason is Reason.RETRY and self._endpoints.choose_now(key) is not None:
            # There is no other: give this one a moment.
            await asyncio.sleep(min(self._backoff_s, self._deadline.remaining()))
            self._backoff_s *= 2
            target = self._elsewhere(version)
        return target or await self._endpoints.choose(key, self._deadline)

    def _elsewhere(self, version: str) -> Target[E] | None:
        """An endpoint that may serve `version`, and has not been tried so far."""
        key = self._route.model, version
        target = self._endpoints.choose_now(key, excluding=self._used)
        if target is None or target.endpoint.address in self._used:
            return None
        return None if target.peer.serves(key) is False else target

    def _turn_to(self, version: str) -> None:
        if version != self._version:
            self._version, self._fallback = version, ""
            # What the other version failed at may be well for this one, unless it hangs.
            self._used = {attempt.target.endpoint.address for attempt in self._running}
            self._left = max(self._left, 1)

    def _reason_after(self, ended: _Attempt[E, T], error: RequestError) -> Reason | None:
        if self._sequence or not self._deadline.remaining():
            return None
        if self._running and ended.version != self._version:
            # The stable version is being tried, by now.
            return None
        if self._fallback and (_is_versions_own(error) or (_is_lost(error) and not self._left)):
            return Reason.FALLBACK
        return Reason.RETRY if self._left and self._is_retryable(error) else None

    def _is_retryable(self, error: RequestError) -> bool:
        if isinstance(error, ModelNotFound):
            # Without a table, another engine may have it; one that may is asked, and no others.
            return bool(self._route.revision) or self._elsewhere(self._version) is not None
        if isinstance(error, BackendDead):
            # Once: a request that ends the process it runs in would end them all. And elsewhere:
            # an engine does not start that process again.
            return self._deaths == 1 and self._elsewhere(self._version) is not None
        return isinstance(error, EngineUnavailable)

    # --- Ending -----------------------------------------------------------------------------------

    async def _next_to_end(self) -> _Attempt[E, T] | None:
        """An attempt that has ended, or None when it is time for another one beside them."""
        while True:
            done = (attempt for attempt in self._running if attempt.task.done())
            # A good one first, and the oldest first: of two, the one that was to answer.
            ended = min(done, key=lambda attempt: _error(attempt.task) is not None, default=None)
            if ended is not None or time.monotonic() >= self._overdue_at:
                return ended
            await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        """Until an attempt may have ended or may be overdue. As asyncio.wait does, at two thirds of
        its cost, which is a good part of what a request with one attempt costs here."""
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = None
        if self._overdue_at < math.inf:
            timer = loop.call_later(self._overdue_at - time.monotonic(), self._tell_news)
        try:
            await self._news
        finally:
            if timer is not None:
                timer.cancel()

    def _tell_news(self, _: object = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _won(self, attempt: _Attempt[E, T]) -> None:
        now = time.monotonic()
        self._attempts.observe(attempt.key, now - attempt.began)
        self._end(attempt, Outcome.GOOD)
        overtaken = [
            other
            for other in self._running
            if other.began < attempt.began and self._is_its_fault(other)
        ]
        for other in overtaken:
            self._running.remove(other)
            self._cancel(other, Outcome.LATE)

    def _cancel(self, attempt: _Attempt[E, T], outcome: Outcome) -> None:
        attempt.task.add_done_callback(_read)
        if self._attempts.cancel_after_s:
            _cancel_later(attempt.task, self._attempts.cancel_after_s)
        else:
            attempt.task.cancel()
        self._end(attempt, outcome)

    def _lost(self, attempt: _Attempt[E, T], error: RequestError) -> None:
        self._end(attempt, self._outcome(attempt, error))
        self._log(
            "attempt failed",
            reason=attempt.reason.value,
            endpoint=attempt.target.name,
            error_type=type(error).__name__,
            detail=error.detail,
        )
        if isinstance(error, BackendDead):
            self._deaths += 1
        if self._is_question:
            return
        if isinstance(error, ModelNotFound | VersionUnready):
            self._endpoints.refused(attempt.target, attempt.key)
        elif isinstance(error, BackendDead):
            self._endpoints.eject(attempt.target, attempt.key, Cause.BACKEND)

    def _outcome(self, attempt: _Attempt[E, T], error: RequestError) -> Outcome:
        if isinstance(error, DeadlineExceeded):
            return Outcome.LATE if self._is_its_fault(attempt) else Outcome.DROPPED
        if isinstance(error, EngineFailed) or _is_lost(error):
            return Outcome.FAILED
        # A refusal of the request, a full queue, a version that is not there.
        return Outcome.DROPPED

    def _end(self, attempt: _Attempt[E, T], outcome: Outcome) -> None:
        if self._is_question:
            self._endpoints.end_question(attempt.target, attempt.ticket)
            return
        self._endpoints.end(
            attempt.target,
            attempt.key,
            attempt.ticket,
            outcome,
            is_candidate=self._is_candidate(attempt.key),
        )
        self._attempts.metrics.attempts.labels(
            attempt.key[0], attempt.reason.value, outcome.value
        ).inc()

    def _told(self, error: RequestError) -> RequestError:
        if isinstance(error, ModelNotFound) and self._route.revision:
            return EngineUnavailable(
                f"no engine serves model {self._route.model!r} in version {self._version} now; "
                "try again later",
                detail=error.detail,
            )
        return error

    # --- Shared -----------------------------------------------------------------------------------

    @property
    def _key(self) -> Key:
        return self._route.model, self._version

    def _is_candidate(self, key: Key) -> bool:
        return bool(self._route.fallback) and key[1] == self._route.version

    def _is_its_fault(self, attempt: _Attempt[E, T]) -> bool:
        """Whether that no answer has come so far is the endpoint's fault."""
        seconds = time.monotonic() - attempt.began
        return is_late(seconds, self._usual(attempt.key), self._rules) or self._hangs(attempt)

    def _hangs(self, attempt: _Attempt[E, T]) -> bool:
        """Whether a candidate seems to hang at an endpoint: nobody has had an answer of it there
        since the attempt began, for longer than it usually takes. What works, be it too much, goes
        on answering."""
        usual = self._usual(attempt.key)
        return (
            self._is_candidate(attempt.key)
            and usual is not None
            and time.monotonic() - attempt.began > usual
            and not attempt.target.has_answered(attempt.key, since=attempt.began)
        )

    def _patience(self) -> float:
        if self._is_question:
            # Others may wait for the answer, and to ask costs next to nothing.
            return min(self._deadline.remaining() / 2, self._rules.wait_least_s)
        key = self._key
        hedged = self._usual(key, 0.95) if self._rules.hedge else None
        return patience(self._deadline.remaining(), self._usual(key), self._rules, hedged=hedged)

    def _usual(self, key: Key, q: float = 0.99) -> float | None:
        """Seconds that `key` usually needs. Of a candidate too new to tell, what the stable version
        does: one that never answers would never be late."""
        usual = self._attempts.quantile(key, q)
        if usual is None and self._is_candidate(key):
            return self._attempts.quantile((key[0], self._route.fallback), q)
        return usual

    def _may(self, reason: Reason, error: RequestError | None = None) -> bool:
        """Whether there may be a further attempt; if so, it is counted."""
        if self._is_question or self._attempts.allows(reason, error):
            return True
        if reason not in self._refused:
            # Once: what is overdue asks again and again.
            self._refused.add(reason)
            self._attempts.metrics.attempts_refused.labels(reason.value).inc()
            self._log("no budget for a further attempt", reason=reason.value)
        return False

    def _log(self, message: str, **fields: str) -> None:
        _log.info(
            message,
            extra={"model": self._route.model, "model_version": self._version, **fields},
        )


def _cancel_later(task: asyncio.Future[T], seconds: float) -> None:
    """Cancel `task` in so many seconds, unless it has ended by itself."""
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    task.add_done_callback(lambda _: timer.cancel())


def _error(task: asyncio.Future[T]) -> RequestError | None:
    """How an attempt that has ended failed, if it did; raises what is none of the domain's."""
    if task.cancelled():
        # Not by us: its connection was closed under it.
        return EngineUnavailable("no engine can be reached; try again later", detail="cut off")
    error = task.exception()
    if error is None or isinstance(error, RequestError):
        return error
    raise error


def _is_lost(error: RequestError | None) -> bool:
    return isinstance(error, EngineUnavailable) and not isinstance(error, VersionUnready)


def _is_final(error: RequestError) -> bool:
    """Whether every engine would say the same."""
    return isinstance(error, ClientError) and not isinstance(error, ModelNotFound)


def _is_versions_own(error: RequestError) -> bool:
    """Whether another version may be better than the same one elsewhere. A deadline is the
    version's where time is left: the engine's own limit for its queue."""
    return isinstance(
        error, EngineFailed | VersionUnready | ModelNotFound | Overloaded | DeadlineExceeded
    )


def _read(task: asyncio.Future[T]) -> None:
    # asyncio would report an exception that nobody has looked at.
    if not task.cancelled():
        task.exception()
