"""ModelStreamInfer: many requests on one stream, any number of answers to each.

Requests of a stream are worked on side by side, each admitted, routed and attempted for itself.
What fails is told in the stream, which goes on. Answers keep the order of their requests where a
model answers each one once, and come as they come where it is decoupled: so does Triton. Requests
of one sequence wait for each other.

Nothing piles up: so many requests are read as may be worked on, and answers wait for their client
one by one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc.aio

from tidegate_gateway import kserve_v2
from tidegate_gateway.errors import EngineUnavailable, RequestError
from tidegate_gateway.grpc_calls import Call, Calls, Context, Received
from tidegate_gateway.inference import Inference, Upstream
from tidegate_gateway.requests import FINAL, Request, Response
from tidegate_gateway.settings import StreamSettings
from tidegate_gateway.streams import Streams
from tidegate_proto import kserve_v2_pb2 as pb

_log = logging.getLogger(__name__)

_STATUS_WANTED = "triton_grpc_error"
"""Metadata: "true" has the first failure end the stream, with its status."""


class InferStream:
    """One stream of one client."""

    def __init__(  # noqa: PLR0913, PLR0917  the parts that it connects
        self,
        inference: Inference,
        streams: Streams[Upstream],
        settings: StreamSettings,
        calls: Calls,
        call: Call,
        context: Context,
    ) -> None:
        self._inference = inference
        self._streams = streams
        self._calls = calls
        self._call = call
        self._context = context
        self._ends_with_status = call.metadata.get(_STATUS_WANTED) == "true"
        self._stopped_reading = False
        self._room = asyncio.Semaphore(settings.max_in_flight)
        self._writing = asyncio.Lock()
        self._order = _Order()
        # By sequence, the end of the request of it that came last.
        self._sequences: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        """Answer all its requests.

        Raises:
            RequestError: what ends it, besides the client.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while (received := await self._next_request()) is not None:
                    group.create_task(self._work_on(received, self._order.line_up()))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if self._stopped_reading:
            error = EngineUnavailable("the gateway is leaving; open the stream anew")
            await self._tell("", error)
            raise error

    async def _next_request(self) -> Received[pb.ModelInferRequest] | None:
        """The next one, once there is room for it; None where there is none, or none is to be read
        any more."""
        await self._room.acquire()
        reading = asyncio.ensure_future(self._context.read())
        leaving = asyncio.ensure_future(self._streams.leaving.wait())
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            self._stopped_reading = not reading.done()
            received: Any = grpc.aio.EOF if self._stopped_reading else reading.result()
        finally:
            reading.cancel()
            leaving.cancel()
        return None if received is grpc.aio.EOF else received

    async def _work_on(self, received: Received[pb.ModelInferRequest], turn: asyncio.Event) -> None:
        counts = self._call.access.counts
        counts["requests"] = counts.get("requests", 0) + 1
        try:
            await self._answer(received, turn)
        except RequestError as error:
            counts["errors"] = counts.get("errors", 0) + 1
            _log.info(
                "refused in a stream",
                extra={
                    "error": error.message,
                    "error_type": type(error).__name__,
                    "detail": error.detail,
                },
            )
            await turn.wait()
            if self._ends_with_status:
                raise
            await self._tell("" if received.message is None else received.message.id, error)
        finally:
            self._order.leave(turn)
            self._room.release()

    async def _answer(self, received: Received[pb.ModelInferRequest], turn: asyncio.Event) -> None:
        request = kserve_v2.read_request(received.read())
        async with (
            self._after_its_sequence(request.sequence),
            aclosing(self._answers(request, received.size, turn)) as answers,
        ):
            async for answer in answers:
                message = kserve_v2.write_response(answer)
                await self._write(pb.ModelStreamInferResponse(infer_response=message))

    async def _answers(
        self, request: Request, size: int, turn: asyncio.Event
    ) -> AsyncGenerator[Response, None]:
        """The answers to `request`, each when it may be written."""
        call, tried = self._call, list[str]()
        until = self._calls.deadline(call.metadata, call.ends)
        admitted = self._inference.admitted(
            request.model, request.version, call.key, tried, call.priority, until
        )
        async with admitted as admission:
            admission.slot.hold(size)
            model = await self._inference.model(admission, until)
            call.access.model = model.name
            if model.decoupled:
                until = self._calls.deadline(call.metadata, call.ends, streamed=True)
                self._order.leave(turn)
            answers = self._inference.stream(admission, request, until)
            async with aclosing(answers):
                async for answer in answers:
                    await turn.wait()
                    call.access.version = answer.version
                    call.access.add_engines(tried)
                    yield answer

    @asynccontextmanager
    async def _after_its_sequence(self, sequence: str) -> AsyncIterator[None]:
        """Wait until the request before of the same sequence has ended: its state comes from it."""
        if not sequence:
            yield
            return
        before, ended = self._sequences.get(sequence), asyncio.Event()
        self._sequences[sequence] = ended
        try:
            if before is not None:
                await before.wait()
            yield
        finally:
            ended.set()
            if self._sequences[sequence] is ended:
                del self._sequences[sequence]

    async def _tell(self, request_id: str, error: RequestError) -> None:
        """Say in the stream what has failed, and of which request it was the end."""
        told = pb.ModelInferResponse(id=request_id)
        told.parameters[FINAL].bool_param = True
        message = pb.ModelStreamInferResponse(error_message=error.message, infer_response=told)
        await self._write(message)

    async def _write(self, message: pb.ModelStreamInferResponse) -> None:
        async with self._writing:
            await self._context.write(message)
        counts = self._call.access.counts
        counts["answers"] = counts.get("answers", 0) + 1


class _Order:
    """The order in which requests have come and are to be answered; who leaves it lets the next
    one have its turn."""

    def __init__(self) -> None:
        self._turns: deque[asyncio.Event] = deque()

    def line_up(self) -> asyncio.Event:
        """A turn: set when it has come."""
        turn = asyncio.Event()
        self._turns.append(turn)
        self._turns[0].set()
        return turn

    def leave(self, turn: asyncio.Event) -> None:
        """Need the turn no longer, whether it has come or not; more than once is once."""
        if turn in self._turns:
            self._turns.remove(turn)
            turn.set()
            if self._turns:
                self._turns[0].set()
