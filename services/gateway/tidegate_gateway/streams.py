"""Requests with any number of answers, as decoupled models give.

Until its first answer has come, such a request is tried elsewhere like any other. After that it is
not: what the client has had cannot be taken back, and what another engine would say may not go on
from there. So it ends, if its engine is lost, with an error in the stream.

A stream may last long, and others wait for it to end: a version that is to be unloaded, a gateway
that is to leave. Both have their limits, and a stream that meets one is told why it ends.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Generic, TypeVar

from tidegate_gateway.attempts import Attempts, Reason
from tidegate_gateway.balancing import Cause, Key, Outcome, Ticket
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.endpoints import Target
from tidegate_gateway.errors import (
    BackendDead,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    ModelNotFound,
    RequestError,
    ServingError,
    VersionUnready,
)
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import StreamSettings
from tidegate_gateway.table import Routes

_log = logging.getLogger(__name__)

E = TypeVar("E")
T = TypeVar("T")

# What an endpoint has in flight of streams that have begun: it counts for its load, but says
# nothing of how long a model takes.
_STREAMING: Key = ("", "streaming")

Call = Callable[[E, str, Deadline], AsyncGenerator[T, None]]


class Streams(Generic[E]):
    """Answers requests by `attempts`, any number of times each.

    Attributes:
        leaving: set when the gateway takes no new requests: whoever waits for a further request of
            a stream is to end it.
    """

    def __init__(self, attempts: Attempts[E], routes: Routes, settings: StreamSettings) -> None:
        self.leaving = asyncio.Event()
        self._attempts = attempts
        self._routes = routes
        self._settings = settings
        self._cuts: dict[_Cut, _Course[E, Any]] = {}
        routes.on_change(lambda _: self._limit_withdrawn())

    def end_all(self) -> None:
        """End all that still streams, now."""
        for cut in self._cuts:
            cut.end(EngineUnavailable("the gateway is leaving; ask again and another one answers"))

    async def answers(
        self,
        route: Route,
        call: Call[E, T],
        deadline: Deadline,
        tried: list[str],
        *,
        sequence: str = "",
    ) -> AsyncGenerator[T, None]:
        """All answers of a request, as they come.

        Args:
            call: one attempt, with an engine and a version.
            tried: gets the name of each endpoint that is tried.
            sequence: not "": one attempt alone, at the endpoint of that sequence.

        Raises:
            RequestError: there is no answer; or there are some, and there may have been more.
        """
        course = _Course(self._attempts, route, call, deadline, tried, sequence)
        with self._cut_for(course) as cut:
            while True:
                try:
                    async with aclosing(course.answers()) as answers:
                        while (answer := await self._next(answers, cut, deadline)) is not None:
                            yield answer
                except RequestError as error:
                    if cut.error.done() or not course.goes_on(error):
                        raise
                else:
                    return

    async def _next(
        self, answers: AsyncGenerator[T, None], cut: "_Cut", deadline: Deadline
    ) -> T | None:
        """The next answer, None at the end."""
        silent_s, left = self._settings.silent_s, deadline.remaining()
        following = asyncio.ensure_future(anext(answers, None))
        ends: set[asyncio.Future[Any]] = {following, cut.error}
        try:
            await asyncio.wait(
                ends,
                timeout=min(silent_s, left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if following.done():
                return following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if cut.error.done():
            raise cut.error.result()
        if silent_s < left:
            raise DeadlineExceeded(f"no answer for {silent_s:g} s (stream.silent_s)")
        raise deadline.exceeded()

    @contextmanager
    def _cut_for(self, course: "_Course[E, T]") -> Iterator["_Cut"]:
        cut = _Cut()
        self._cuts[cut] = course
        try:
            yield cut
        finally:
            cut.release()
            del self._cuts[cut]

    def _limit_withdrawn(self) -> None:
        """Set a limit to the streams of versions that get no more traffic."""
        wanted, limit = self._routes.wanted(), self._settings.max_after_roll_s
        for cut, course in self._cuts.items():
            model, version = course.key
            if wanted is None or (model, version) in wanted:
                cut.keep()
                continue
            sentence = (
                f"version {version} of model {model!r} gets no more requests, and its answers have "
                f"gone on for {limit:g} s since then (stream.max_after_roll_s); ask again"
            )
            cut.end_after(limit, EngineUnavailable(sentence))


class _Cut:
    """What ends one stream from outside.

    Attributes:
        error: why it ends, once it is to end.
    """

    def __init__(self) -> None:
        self.error: asyncio.Future[RequestError] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    def end(self, error: RequestError) -> None:
        if not self.error.done():
            self.error.set_result(error)

    def end_after(self, seconds: float, error: RequestError) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end, error)

    def keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        self.keep()
        self.error.cancel()


class _Course(Generic[E, T]):
    """One request on its way from endpoint to endpoint, until one of them has begun to answer."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        attempts: Attempts[E],
        route: Route,
        call: Call[E, T],
        deadline: Deadline,
        tried: list[str],
        sequence: str,
    ) -> None:
        self._attempts = attempts
        self._endpoints = attempts.endpoints
        self._model = route.model
        self._version, self._fallback = route.version, route.fallback
        self._in_table = bool(route.revision)
        self._call = call
        self._deadline = deadline
        self._tried = tried
        self._sequence = sequence
        self._left = 1 if sequence else attempts.rules.most
        self._used: set[str] = set()
        self._reason = Reason.FIRST
        self._has_begun = False
        self._deaths = 0

    @property
    def key(self) -> Key:
        """The model and the version that are asked."""
        return self._model, self._version

    async def answers(self) -> AsyncGenerator[T, None]:
        """All answers of the next endpoint."""
        self._left -= 1
        target = await self._target()
        self._used.add(target.endpoint.address)
        self._tried.append(target.name)
        ticket, outcome = self._endpoints.begin(target, self.key), Outcome.DROPPED
        streaming: Ticket | None = None
        try:
            engine = target.link.engine
            async with aclosing(self._call(engine, self._version, self._deadline)) as told:
                async for answer in told:
                    if streaming is None:
                        self._has_begun = True
                        streaming = self._endpoints.begin(target, _STREAMING)
                        self._end(target, ticket, Outcome.GOOD)
                    yield answer
            outcome = Outcome.GOOD
        except RequestError as error:
            outcome = self._learn(target, error)
            raise
        finally:
            if streaming is None:
                self._end(target, ticket, outcome)
            else:
                self._endpoints.end_question(target, streaming)
                if outcome is Outcome.FAILED:
                    self._end(target, self._endpoints.begin(target, self.key), outcome)

    def goes_on(self, error: RequestError) -> bool:
        """Whether there is to be another attempt after `error`."""
        if self._has_begun or self._sequence or not self._deadline.remaining():
            return False
        if self._fallback and isinstance(error, ServingError | ModelNotFound):
            self._version, self._fallback = self._fallback, ""
            self._used.clear()
            self._left = max(self._left, 1)
            self._reason = Reason.FALLBACK
        elif self._left and self._is_retryable(error):
            self._reason = Reason.RETRY
        else:
            return False
        _log.info(
            "further attempt",
            extra={"model": self._model, "model_version": self._version, "reason": self._reason},
        )
        return self._attempts.allows(self._reason, error)

    def _is_retryable(self, error: RequestError) -> bool:
        if isinstance(error, BackendDead):
            return self._deaths == 1
        return isinstance(error, EngineUnavailable) or (
            isinstance(error, ModelNotFound) and self._in_table
        )

    async def _target(self) -> Target[E]:
        if not self._used:
            return await self._endpoints.choose(self.key, self._deadline, sequence=self._sequence)
        target = self._endpoints.choose_now(self.key, excluding=self._used)
        if target is None or target.endpoint.address in self._used:
            # There is no other: give this one a moment.
            await asyncio.sleep(min(self._attempts.rules.backoff_s, self._deadline.remaining()))
            return await self._endpoints.choose(self.key, self._deadline)
        return target

    def _learn(self, target: Target[E], error: RequestError) -> Outcome:
        _log.info(
            "attempt failed",
            extra={
                "model": self._model,
                "model_version": self._version,
                "endpoint": target.name,
                "error_type": type(error).__name__,
                "detail": error.detail,
            },
        )
        if isinstance(error, ModelNotFound | VersionUnready):
            self._endpoints.refused(target, self.key)
            return Outcome.DROPPED
        if isinstance(error, BackendDead):
            self._deaths += 1
            self._endpoints.eject(target, self.key, Cause.BACKEND)
        return (
            Outcome.FAILED
            if isinstance(error, EngineFailed | EngineUnavailable)
            else Outcome.DROPPED
        )

    def _end(self, target: Target[E], ticket: Ticket, outcome: Outcome) -> None:
        is_candidate = bool(self._fallback)
        self._endpoints.end(target, self.key, ticket, outcome, is_candidate=is_candidate)
        self._attempts.metrics.attempts.labels(self._model, self._reason, outcome.value).inc()
