"""The gRPC channel to one engine: how it is kept, and what its failures mean.

One channel with one connection is made when an endpoint is found, and kept while it is there.
gRPC's own balancing over several addresses does not notice those that are added later; hence a
channel each, and our own choice between them. Every failure of a call is translated here, once, for
both protocols that an engine may speak.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import grpc
import grpc.aio

from tidegate_gateway.deadline import Deadline
from tidegate_gateway.endpoints import Connection
from tidegate_gateway.errors import (
    BackendDead,
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.settings import EngineSettings

E = TypeVar("E")

# Milliseconds before the first new try to reach an engine that is away; doubled up to the setting.
_RECONNECT_FIRST_MS = 100

_MOST_HELD_BYTES = 2**30

_CONNECTIONS = {
    grpc.ChannelConnectivity.READY: Connection.UP,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE: Connection.DOWN,
    grpc.ChannelConnectivity.SHUTDOWN: Connection.DOWN,
}

# Triton says all of these with UNAVAILABLE or NOT_FOUND; only the words tell them apart.
_QUEUE_FULL = "exceeds maximum queue size"
_QUEUE_TIMEOUT = "request timeout expired"
_STOPPING = "has no available versions"
_UNREADY = "is not at ready state"
_DEAD_BACKEND = re.compile(r"stub process .*is not healthy")

_AWAY = "no engine can be reached; try again later"

_REQUEST_ID_PREFIX = re.compile(r"^\[request id: [^\]]*\] ")
# What may be a path, an address, a port, or a place in a program. Rather too much than too little:
# the client then reads our own words, and the log has the engine's.
_INTERNALS = re.compile(r"[/\\]|::|:\d|\b\d+\.\d+\.\d+\.\d+\b|\.(?:py|cc|so)\b|\bline \d|Traceback")


def open_channel(address: str, engine: EngineSettings) -> grpc.aio.Channel:
    """A channel to the engine at `address`; it connects when it is first used or watched, and comes
    back by itself when the engine does."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_send_message_length", engine.max_message_bytes),
            ("grpc.max_receive_message_length", engine.max_message_bytes),
            # A call that meets an engine's GOAWAY is sent again on the next connection, but only
            # while gRPC still holds all of it; by default that is 256 KiB, less than one image.
            ("grpc.per_rpc_retry_buffer_size", min(engine.max_message_bytes, _MOST_HELD_BYTES)),
            # A connection of its own, also where an endpoint went and came back meanwhile.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", _ms(engine.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(engine.keepalive_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            # Without it gRPC tests a quiet connection about once a minute, whatever keepalive_s is.
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
            # In spite of its name, the least time that a try to connect gets.
            ("grpc.min_reconnect_backoff_ms", _ms(engine.connect_timeout_s)),
            ("grpc.max_reconnect_backoff_ms", _ms(engine.reconnect_max_s)),
            # A proxy of the environment is for the internet, not for the engine next door.
            ("grpc.enable_http_proxy", 0),
        ],
    )


class ChannelLink(Generic[E]):
    """The connection to an endpoint over `channel`, and the `engine` that is reached by it."""

    def __init__(self, channel: grpc.aio.Channel, engine: E) -> None:
        self._channel = channel
        self.engine = engine

    async def connections(self) -> AsyncIterator[Connection]:
        """How the connection is, now and at every change; it is kept up meanwhile."""
        state = self._channel.get_state(try_to_connect=True)
        while True:
            yield _CONNECTIONS.get(state, Connection.COMING)
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    async def close(self) -> None:
        """Close it; what is in flight on it fails."""
        await self._channel.close()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@contextmanager
def translated(model: str, deadline: Deadline) -> Iterator[None]:
    """Turn the failure of a gRPC call about `model` into the domain's error."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translate(error.code(), error.details() or "", model, deadline) from None


def translate(code: grpc.StatusCode, text: str, model: str, deadline: Deadline) -> RequestError:
    """The domain's error for a call that ended with `code` and the engine's words `text`."""
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return deadline.exceeded()
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.NOT_FOUND | grpc.StatusCode.CANCELLED:
            return _not_served(code, text, model, deadline)
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            return InvalidInput(
                _public(text, f"the engine refused the request for {model!r}"), detail=text
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return InvalidInput(
                f"model {model!r} cannot be asked in this way: {_public(text, 'not offered')}",
                detail=text,
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return PayloadTooLarge(
                f"a message to or from model {model!r} is larger than the engine or "
                "engine.max_message_bytes allows",
                detail=text,
            )
        case _:
            is_dead = code is grpc.StatusCode.INTERNAL and _DEAD_BACKEND.search(text.lower())
            kind = BackendDead if is_dead else EngineFailed
            return kind(f"model {model!r} failed in the engine", detail=f"{code.name}: {text}")


def is_unavailable(text: str) -> bool:
    """Whether Triton says `text` with UNAVAILABLE."""
    words = text.lower()
    return any(each in words for each in (_QUEUE_FULL, _QUEUE_TIMEOUT, _STOPPING, _UNREADY))


def _not_served(code: grpc.StatusCode, text: str, model: str, deadline: Deadline) -> RequestError:
    words = text.lower()
    if code is grpc.StatusCode.UNAVAILABLE and _QUEUE_TIMEOUT in words:
        return deadline.exceeded()
    if code is grpc.StatusCode.UNAVAILABLE and _QUEUE_FULL in words:
        return Overloaded(f"the queue of model {model!r} is full; try again later", detail=text)
    if _STOPPING in words or _UNREADY in words:
        return VersionUnready(_AWAY, detail=text)
    if code is grpc.StatusCode.NOT_FOUND:
        return ModelNotFound(f"no engine has {_what(model, text)}", detail=text)
    return EngineUnavailable(_AWAY, detail=text)


def _what(model: str, text: str) -> str:
    version = re.search(r"version (\d+)", text)
    return f"model {model!r}" + (f" in version {version[1]}" if version else "")


def _public(text: str, instead: str) -> str:
    """The engine's own words when they hold nothing of its insides, else `instead`."""
    first = _REQUEST_ID_PREFIX.sub("", text).partition("\n")[0]
    return instead if not first or _INTERNALS.search(text) else first
