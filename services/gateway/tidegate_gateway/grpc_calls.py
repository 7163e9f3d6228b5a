"""What every gRPC call shares: its message, its record, its deadline, its refusal.

Messages are read here and not by grpcio, which answers what it cannot read with INTERNAL and writes
a traceback into the log.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from tidegate_gateway import statuses
from tidegate_gateway.access import REQUEST_ID_HEADER, Access, recorded
from tidegate_gateway.admission import PRIORITY_HEADER, Priority
from tidegate_gateway.deadline import TIMEOUT_HEADER, Deadline
from tidegate_gateway.errors import EngineFailed, InvalidInput, RequestError
from tidegate_gateway.inference import STICKY_HEADER
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import Settings

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """A message as it came.

    Attributes:
        message: None where the bytes are none of its kind.
        kind: its name.
        size: bytes on the wire, decompressed.
    """

    message: M | None
    kind: str
    size: int

    def read(self) -> M:
        """The message; raises InvalidInput where there is none."""
        if self.message is None:
            raise InvalidInput(
                f"the message: expected {self.kind} as protobuf, got {self.size} bytes that are not"
            )
        return self.message


def reader(kind: type[M]) -> Callable[[bytes], Received[M]]:
    """Reads messages of that kind, whatever the bytes are."""
    name = kind.DESCRIPTOR.full_name

    def read(data: bytes) -> Received[M]:
        try:
            return Received(kind.FromString(data), name, len(data))
        except DecodeError:
            return Received(None, name, len(data))

    return read


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is being answered.

    Attributes:
        access: its record.
        metadata: the client's.
        ends: when the client's gRPC deadline is, or None.
        deadline: that of one answer.
        key: the client's sticky key, or None.
        priority: of its requests, against others that wait.
    """

    access: Access
    metadata: Mapping[str, str]
    ends: Deadline | None
    deadline: Deadline
    key: str | None
    priority: Priority


class Calls:
    """Answers calls by the settings of one gateway."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics

    @asynccontextmanager
    async def answering(self, method: str, context: Context) -> AsyncIterator[Call]:
        """Keep the record of a call; what the body raises becomes the call's status."""
        sent = context.invocation_metadata() or ()
        metadata = {key: _text(value) for key, value in sent}
        sent_id = metadata.get(REQUEST_ID_HEADER)
        with recorded("grpc", sent_id, self._metrics, self._settings.answers) as access:
            access.route = method
            try:
                left = context.time_remaining()
                ends = None if left is None else Deadline.after(max(0.0, left))
                yield Call(
                    access=access,
                    metadata=metadata,
                    ends=ends,
                    deadline=self.deadline(metadata, ends),
                    key=metadata.get(STICKY_HEADER),
                    priority=Priority.parse(metadata.get(PRIORITY_HEADER)),
                )
                context.set_trailing_metadata(tuple(access.headers()))
                access.status = grpc.StatusCode.OK.name
            except RequestError as error:
                await _refuse(context, access, error)
            except asyncio.CancelledError:
                access.status = grpc.StatusCode.CANCELLED.name
                raise
            except grpc.aio.InternalError:
                # What cannot be written any more: the client has left, of which gRPC has not told
                # us yet.
                access.status = grpc.StatusCode.CANCELLED.name
                raise asyncio.CancelledError from None
            except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
                _log.exception("the gateway failed to answer")
                await _refuse(
                    context,
                    access,
                    EngineFailed("the gateway failed; its log says more by request id"),
                )

    def deadline(
        self, metadata: Mapping[str, str], ends: Deadline | None, *, streamed: bool = False
    ) -> Deadline:
        """The deadline of a request that comes now: what the client has asked for, and never beyond
        the end of its call.

        Args:
            streamed: whether the request may have any number of answers.

        Raises:
            InvalidInput: it has asked for no time.
        """
        settings = self._settings
        default, most = settings.deadline.v2_s, settings.deadline.max_s
        if streamed:
            default = most = settings.stream.max_s
        asked = Deadline.requested(metadata.get(TIMEOUT_HEADER), default=default, most=most)
        return asked if ends is None or asked.at < ends.at else ends


async def _refuse(context: Context, access: Access, error: RequestError) -> None:
    access.error = error
    access.status = statuses.grpc_code(error).name
    context.set_trailing_metadata(tuple(access.headers()))
    await context.abort(statuses.grpc_code(error), error.message)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
