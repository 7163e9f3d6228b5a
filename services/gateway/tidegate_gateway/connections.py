"""The connections of the HTTP listener: what uvicorn and its parser leave to others.

uvicorn speaks HTTP by httptools, which is quick and strict but bounds nothing: headers have any
length and take any time, and so does what frames a body; a client that has left is noticed when it
is written to; one that does not read holds its answer for ever. Here each connection has bounds.

    START ── first byte ──> HEAD ── headers whole ──> BODY ── message whole ──> START
      │ nothing comes         │ too slow: 408           │ too much framing: 400
      └> closed               └ too long: 431           └ answered before its end: see below

- A request that is refused here is never seen by the application. Answers keep their order: those
  of earlier requests on the connection come first, and after the refusal the connection ends.
- A client that leaves cancels the task that answers it. Half-closing counts as leaving, as it
  does to uvicorn: a process that has died cannot be told from one that has sent all it will.
- A request may be answered before its body is whole. If little of it is left, that is read and
  dropped and the connection stays; otherwise the answer says `connection: close`, and the
  connection lingers for a moment before it is closed: see `_Outgoing`.
- One timer a connection looks at all of this now and then, so that a request costs none.

Of pipelined requests, the headers of all but the first may exceed http.max_header_bytes by what one
read from the socket brings, 256 KiB.
"""

import asyncio
import fcntl
import logging
import math
import socket
import struct
import termios
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, cast

import httptools
import orjson
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tidegate_gateway.settings import HttpSettings
from tidegate_gateway.statuses import RETRY_AFTER_S

ENDED_AS = "tidegate.ended_as"
"""In the scope of a request whose task has been cancelled by its connection: the status to record.
A cancelled task without it has been cancelled by the server, which leaves."""

CLIENT_GONE = "499"
"""Written to the log alone, as nginx has it: the client left before its answer."""

# Most connections that linger after they were turned away, since they are beyond the limit.
_MOST_TURNED_AWAY = 128

# Most bytes of a body that are read and dropped so that a connection can stay: what Go's net/http
# has (maxPostHandlerReadBytes).
_MOST_DROPPED = 256 * 1024

# Most requests that wait for the answer before theirs. A read of 256 KiB may bring ten thousand,
# which take a hundred times that.
_MOST_PIPELINED = 32

# Characters of what the client sent that a sentence quotes.
_LONGEST_QUOTE = 100

_log = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]


def protocol(http: HttpSettings) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn of a listener with these settings."""

    class ListenersConnection(_Connection):
        listener = _Listener(http)

    return ListenersConnection


class _Listener:
    """What the connections of a listener share."""

    def __init__(self, http: HttpSettings) -> None:
        self.http = http
        # No limit below is overshot by more than this.
        self.look_s = min(http.header_timeout_s, http.body_silent_s, http.send_silent_s)
        self.turned_away = 0


class _Stage(Enum):
    """What comes next on a connection."""

    START = "the first byte of a request"
    HEAD = "the rest of its headers"
    BODY = "the rest of its body"


# Looking a member up at its class takes Python 3.11 ten times as long.
_START, _HEAD, _BODY = _Stage.START, _Stage.HEAD, _Stage.BODY


class _Refused(Exception):
    """What came is no request to answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class _Outgoing(asyncio.Transport):
    """The transport as uvicorn has it: counts what is written, and closes as the client needs it.

    A socket that is closed while its client still sends answers with a reset, at which the client's
    system may throw away what it has not read yet: the very answer that tells it to stop. So the
    connection ends in one direction first, and what still comes is dropped (RFC 9112, 9.6).
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self.written = 0
        self.client_sends = False
        self.lingers_since: float | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write and count."""
        self.written += len(data)
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether no more can be written."""
        return self.lingers_since is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close behind what is written; linger while the client sends."""
        if self.client_sends:
            self.linger()
        else:
            self._transport.close()

    def linger(self) -> None:
        """End our own direction; whoever looks at the connection then closes it."""
        if not self.is_closing():
            self.lingers_since = self._loop.time()
            self._transport.resume_reading()
            self._transport.write_eof()


class _Connection(HttpToolsProtocol):
    """One client's connection."""

    listener: _Listener

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._http = self.listener.http
        self._stage = _START
        # Bytes read since the request began, or its headers ended, or a byte of its body came.
        self._overhead = 0
        # When what comes next must be here, on the loop's clock; None: no matter when.
        self._due: float | None = None
        self._dropped = 0
        self._has_body = False
        self._stays = False
        self._refusal: _Refused | None = None
        self._turned_away = False
        # The request that is answered now, or was last.
        self._answering: RequestResponseCycle | None = None
        self._task: asyncio.Task[None] | None = None
        # What the client had taken when it was last seen to take something, and when that was.
        self._taken = -1
        self._taken_at = 0.0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch over a connection, or turn it away."""
        super().connection_made(transport)
        self._socket = transport
        self._outgoing = self.transport = _Outgoing(transport, self.loop)
        self._due = self.loop.time() + self._http.header_timeout_s
        self._timer = self.loop.call_later(self.listener.look_s, self._look)
        if len(self.connections) > self._http.max_connections:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what was done for the client, and every timer."""
        self._timer.cancel()
        self._unset_keepalive_if_required()
        self.listener.turned_away -= self._turned_away
        self._cancel(CLIENT_GONE)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close once what is answered now has been; told when the server leaves."""
        self._stays = False
        if self._outgoing.lingers_since is None:
            super().shutdown()
        else:
            self._socket.close()

    def _turn_away(self) -> None:
        self.connections.discard(self)
        self._turned_away = True
        self.listener.turned_away += 1
        self._refusal = _Refused(
            503,
            f"the gateway: expected at most {self._http.max_connections} connections at a time "
            "(http.max_connections), got one more",
        )
        self._tell_refusal()
        if self.listener.turned_away > _MOST_TURNED_AWAY:
            self._socket.close()

    def _cancel(self, status: str) -> None:
        """Cancel the task that answers, to be recorded with `status`."""
        cycle, task = self._answering, self._task
        if cycle is None or task is None or cycle.response_complete or task.done():
            return
        scope = cast(dict[str, Any], cycle.scope)
        scope.setdefault(ENDED_AS, status)
        cycle.disconnected = True
        cycle.message_event.set()
        task.cancel()

    # What comes

    def data_received(self, data: bytes) -> None:
        """Parse what came, within the bounds."""
        if self._refusal is not None or self._outgoing.lingers_since is not None:
            self._drop(data)
            return
        self._unset_keepalive_if_required()
        if self._stage is _START:
            # Empty lines before a request count as its beginning, or they could go on for ever.
            self._stage, self._overhead, self._due = _HEAD, 0, None
        try:
            self._parse(data)
        except _Refused as refusal:
            self._refuse(refusal)
            return
        if self._stage is _HEAD and self._due is None:
            self._due = self.loop.time() + self._http.header_timeout_s
        elif self._stage is _START and self._is_idle():
            # The rest of a body that had been answered.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _parse(self, data: bytes) -> None:
        limit = self._http.max_header_bytes
        room = limit - self._overhead
        if self._awaits(_HEAD) and len(data) > room:
            self._feed(data[:room])
            if self._awaits(_HEAD):
                raise _Refused(
                    431,
                    f"the headers: expected at most {limit} bytes (http.max_header_bytes), "
                    "got more",
                )
            data = data[room:]
        self._overhead += len(data)
        self._feed(data)
        if self._overhead > limit and self._awaits(_BODY):
            raise _Refused(
                400,
                f"the body: expected at most {limit} bytes of chunk extensions or trailers "
                "(http.max_header_bytes), got more",
            )

    def _awaits(self, stage: _Stage) -> bool:
        return self._stage is stage

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = memoryview(data)[upgrade.args[0] :]
                    self._begin_without_upgrade()
                else:
                    return
        except httptools.HttpParserError as error:
            raise _as_refusal(error) from None

    def _begin_without_upgrade(self) -> None:
        """Parse the headers anew as if they offered no other protocol, which a server may do
        (RFC 9110, 7.8). The parser would take the body for the other protocol, and so for the next
        request. Java's client offers HTTP/2 with its first request on each connection."""
        head = _without_upgrade(
            self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._stage = _HEAD

    def on_headers_complete(self) -> None:
        """The headers are whole: start the task that answers, or queue the request."""
        if not self.url.startswith(b"/"):
            _check_target(self.parser.get_method(), self.url)
        if self.parser.should_upgrade():
            return
        length = body_length(self.parser.get_http_version(), self.headers)
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise _Refused(
                400,
                f"the connection: expected at most {_MOST_PIPELINED} requests that wait for "
                "others, got more",
            )
        super().on_headers_complete()
        self._stage, self._overhead, self._due = _BODY, 0, None
        # Trailers come the same way as headers; the application must not take them for such.
        self.headers = []
        self._has_body = length != 0
        if self._has_body:
            self._outgoing.client_sends = True
            self._stays = self.cycle.keep_alive
            if length is None or length > _MOST_DROPPED or self.expect_100_continue:
                # For as long as the body is not whole.
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Some of the body has come."""
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._stage is not _BODY:
            # It offers another protocol, and is begun anew.
            return
        super().on_message_complete()
        self._stage, self._due = _START, None
        if self._has_body:
            self._outgoing.client_sends = False
            if not self.cycle.response_started:
                self.cycle.keep_alive = self._stays
            if not self.pipeline:
                # uvicorn pauses when much is not fetched yet; then nobody would see a client leave.
                self.flow.resume_reading()

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > max(self._http.max_body_bytes, _MOST_DROPPED):
            self._socket.close()

    # Answers and refusals

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self._task = self.loop.create_task(cycle.run_asgi(partial(_until_ended, app)))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def on_response_complete(self) -> None:
        """An answer has been written: begin the next one, or wait for a request."""
        super().on_response_complete()
        if self._is_idle():
            if self._refusal is not None:
                self._tell_refusal()
            elif self._stage is _BODY:
                self._due = self.loop.time() + self._http.body_silent_s

    def _is_idle(self) -> bool:
        return self._answering is None or (
            self._answering.response_complete and not self._outgoing.is_closing()
        )

    def _refuse(self, refusal: _Refused) -> None:
        """End the connection with `refusal`, once earlier requests have been answered."""
        self._refusal = refusal
        if self._stage is _BODY and not self._give_up_body(refusal):
            return
        if self._answering is None or self._answering.response_complete or self._is_cancelled():
            self._tell_refusal()
        else:
            self.flow.pause_reading()

    def _give_up_body(self, refusal: _Refused) -> bool:
        """Give up the request whose body is broken; returns whether it can still be answered."""
        if self.cycle is not self._answering:
            self.pipeline.popleft()
            return True
        if self.cycle.response_complete:
            self._outgoing.close()
            return False
        self._cancel(str(refusal.status))
        if self.cycle.response_started:
            self._socket.abort()
            return False
        return True

    def _is_cancelled(self) -> bool:
        return self._answering is not None and self._answering.disconnected

    def _tell_refusal(self) -> None:
        refusal = cast(_Refused, self._refusal)
        _log.info(
            "refused",
            extra={"protocol": "http", "status": str(refusal.status), "error": refusal.sentence},
        )
        self._outgoing.write(_as_answer(refusal, self.server_state.default_headers))
        self._outgoing.linger()

    # Time

    def _look(self) -> None:
        """Look whether the client sends and reads as it should, and when to look again."""
        now = self.loop.time()
        wait_s = min(self.listener.look_s, self._look_at_coming(now), self._look_at_going(now))
        self._timer = self.loop.call_later(wait_s, self._look)

    def _look_at_coming(self, now: float) -> float:
        """Cut off a client that sends too slowly; returns seconds until it would be."""
        lingers_since = self._outgoing.lingers_since
        if lingers_since is not None:
            due = lingers_since + self._http.body_silent_s
        elif self._due is None or self._refusal is not None or self._socket.is_closing():
            return math.inf
        else:
            if self.flow.read_paused:
                # It is we who do not read.
                self._due = now + self._http.header_timeout_s
            due = self._due
        if now < due:
            return due - now
        if lingers_since is None and self._stage is _HEAD:
            self._refuse(
                _Refused(
                    408,
                    f"the headers: expected all of them within {self._http.header_timeout_s:g} s "
                    "(http.header_timeout_s), got a part",
                )
            )
        else:
            self._socket.close()
        return math.inf

    def _look_at_going(self, now: float) -> float:
        """Cut off a client that does not take its answer; returns seconds until it would be."""
        buffered = self._socket.get_write_buffer_size()
        if not buffered:
            self._taken = -1
            return math.inf
        taken = self._outgoing.written - buffered - _unacknowledged(self._socket)
        if taken != self._taken:
            self._taken, self._taken_at = taken, now
        due = self._taken_at + self._http.send_silent_s
        if now < due:
            return due - now
        self._cut_off(
            f"the client took nothing of its answer for {self._http.send_silent_s:g} s "
            "(http.send_silent_s)"
        )
        return math.inf

    def _cut_off(self, why: str) -> None:
        _log.info("cut off", extra={"protocol": "http", "error": why})
        # Or the system would hold the rest of the answer for minutes, in case the client reads on.
        self._socket.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self._socket.abort()


async def _until_ended(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, and end in order where the connection has cancelled it: uvicorn takes any exception
    for a failure to log and to tell the client."""
    try:
        await app(scope, receive, send)
    except asyncio.CancelledError:
        if ENDED_AS not in scope:
            raise


def body_length(version: str, headers: Headers) -> int | None:
    """Bytes of the body that follows `headers`; None where only the body itself tells.

    The parser has seen to it that Content-Length is one number, and alone. What it lets pass and is
    refused here: two servers in a row could take it for different requests (RFC 9112, 11.2).

    Args:
        version: of HTTP, such as 1.1.
        headers: names in lower case, and values.
    """
    names = [name for name, _ in headers]
    if version not in ("1.1", "1.0"):
        raise _Refused(505, f"the request line: expected HTTP/1.1 or HTTP/1.0, got HTTP/{version}")
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version == "1.1"):
        raise _Refused(400, f"the headers: expected one Host, got {hosts or 'none'}")
    if b"transfer-encoding" in names:
        value = headers[names.index(b"transfer-encoding")][1]
        if version == "1.0":
            raise _Refused(400, "Transfer-Encoding: expected none with HTTP/1.0, got one")
        if value.strip().lower() != b"chunked":
            raise _Refused(501, f"Transfer-Encoding: expected chunked alone, got {_quoted(value)}")
        return None
    if b"content-length" in names:
        return int(headers[names.index(b"content-length")][1])
    return 0


def _check_target(method: bytes, target: bytes) -> None:
    # The absolute form is for proxies, but servers must take it, too (RFC 9112, 3.2.2).
    if not target.startswith((b"http://", b"https://")) or method == b"CONNECT":
        raise _Refused(400, f"the request line: expected a path, got {_quoted(target)}")


def _as_refusal(error: httptools.HttpParserError) -> _Refused:
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
        # uvicorn parses the target once more, which may have no path or too large a port.
        cause,
        httptools.HttpParserInvalidURLError | AttributeError,
    ):
        raise error
    reason = "Invalid target" if isinstance(error, httptools.HttpParserCallbackError) else error
    return _Refused(400, f"the request: expected HTTP/1.1, got what is not: {reason}")


def _as_answer(refusal: _Refused, default_headers: Headers) -> bytes:
    """`refusal` as a whole HTTP answer. Which protocol the client speaks is not known, so that the
    sentence is told under the names of both, as `error` and as `detail`."""
    body = orjson.dumps({"error": refusal.sentence, "detail": refusal.sentence})
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if refusal.status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    lines = [b"%s: %s\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body])


def _without_upgrade(method: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    lines = [b"%s %s HTTP/%s\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept = b", ".join(option for option in options if option.lower() != b"upgrade")
            if kept:
                lines.append(b"connection: %s\r\n" % kept)
        elif name != b"upgrade":
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the system holds for the client: a slow one takes from them for long before there
    is room for more."""
    try:
        count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int(struct.unpack("i", count)[0])


def _quoted(text: bytes) -> str:
    return repr(text[:_LONGEST_QUOTE].decode("latin-1"))
