"""The gRPC channel to an engine: how it is kept, and what its failures mean.

One channel is made when the gateway starts and kept. Every failure of a call is translated here,
once, for both protocols that an engine may speak.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio

from tidegate_gateway.attempts import Deadline
from tidegate_gateway.errors import (
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RequestError,
)
from tidegate_gateway.settings import EngineSettings

# Milliseconds before the first new try to reach an engine that is away; doubled up to the setting.
_RECONNECT_FIRST_MS = 100

# One connection to each address of the engine's name, and calls to those that are up, in turn.
_IN_TURN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
# Milliseconds. gRPC looks names up again when a connection drops; its own floor is 30 s, far longer
# than an engine takes to come back under a new address.
_RESOLVE_AT_MOST_EACH_MS = 1000

_MOST_HELD_BYTES = 2**30

# Triton says all of these with UNAVAILABLE or NOT_FOUND; only the words tell them apart.
_QUEUE_FULL = "exceeds maximum queue size"
_QUEUE_TIMEOUT = "request timeout expired"
_STOPPING = "has no available versions"

_REQUEST_ID_PREFIX = re.compile(r"^\[request id: [^\]]*\] ")
# What may be a path, an address, a port, or a place in a program. Rather too much than too little:
# the client then reads our own words, and the log has the engine's.
_INTERNALS = re.compile(r"[/\\]|::|:\d|\b\d+\.\d+\.\d+\.\d+\b|\.(?:py|cc|so)\b|\bline \d|Traceback")


def open_channel(engine: EngineSettings) -> grpc.aio.Channel:
    """A channel to the engine; it connects when it is first used, and comes back by itself when the
    engine does."""
    return grpc.aio.insecure_channel(
        engine.address,
        options=[
            ("grpc.max_send_message_length", engine.max_message_bytes),
            ("grpc.max_receive_message_length", engine.max_message_bytes),
            ("grpc.service_config", _IN_TURN),
            # A call that meets an engine's GOAWAY is sent again on the next connection, but only
            # while gRPC still holds all of it; by default that is 256 KiB, less than one image.
            ("grpc.per_rpc_retry_buffer_size", min(engine.max_message_bytes, _MOST_HELD_BYTES)),
            ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_AT_MOST_EACH_MS),
            ("grpc.keepalive_time_ms", _ms(engine.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(engine.keepalive_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
            # In spite of its name, the least time that a try to connect gets.
            ("grpc.min_reconnect_backoff_ms", _ms(engine.connect_timeout_s)),
            ("grpc.max_reconnect_backoff_ms", _ms(engine.reconnect_max_s)),
            # A proxy of the environment is for the internet, not for the engine next door.
            ("grpc.enable_http_proxy", 0),
        ],
    )


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
    words = text.lower()
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return deadline.exceeded()
        case grpc.StatusCode.UNAVAILABLE if _QUEUE_TIMEOUT in words:
            return deadline.exceeded()
        case grpc.StatusCode.UNAVAILABLE if _QUEUE_FULL in words:
            return Overloaded(f"the queue of model {model!r} is full; try again later", detail=text)
        case grpc.StatusCode.NOT_FOUND if _STOPPING not in words:
            return ModelNotFound(f"no engine has {_what(model, text)}", detail=text)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.NOT_FOUND:
            return EngineUnavailable("no engine can be reached; try again later", detail=text)
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
            return EngineFailed(
                f"model {model!r} failed in the engine", detail=f"{code.name}: {text}"
            )


def _what(model: str, text: str) -> str:
    version = re.search(r"version (\d+)", text)
    return f"model {model!r}" + (f" in version {version[1]}" if version else "")


def _public(text: str, instead: str) -> str:
    """The engine's own words when they hold nothing of its insides, else `instead`."""
    first = _REQUEST_ID_PREFIX.sub("", text).partition("\n")[0]
    return instead if not first or _INTERNALS.search(text) else first
