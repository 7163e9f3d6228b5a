"""What a connection may cost: headers, slowness, numbers, and requests that are not quite HTTP.

The second half has an application of its own behind the connections, in this process: what that
sees, and whether it is cancelled, no client can tell.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.local import LocalEngine
from tidegate_gateway.connections import body_length, protocol
from tidegate_gateway.local import LocalGateway
from tidegate_gateway.settings import HttpSettings
from tidegate_process import serving
from tidegate_process.listening import bind

from .conftest import GatewayFactory

PATIENCE_S = 20.0
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
INFER = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n"
CHUNKED = INFER + b"Transfer-Encoding: chunked\r\n\r\n"

Eventually = Callable[[Callable[[], bool], str], None]


@contextlib.contextmanager
def connected(gateway: LocalGateway) -> Iterator[socket.socket]:
    host, _, port = gateway.http_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All that comes; fails when the other side does not close."""
    told = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            told += piece
    return told


def until_answered(connection: socket.socket, piece: bytes, *, pause_s: float) -> bytes:
    """Sends `piece` again and again; returns how the answer begins."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        connection.sendall(piece)
        connection.settimeout(pause_s)
        try:
            return connection.recv(65536)
        except TimeoutError:
            continue
        finally:
            connection.settimeout(PATIENCE_S)
    pytest.fail("there is no answer")


def told(answer: bytes) -> tuple[int, str]:
    """The status and the sentence of an answer that closes its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head, answer
    document = json.loads(body)
    assert document == {"error": document["error"], "detail": document["error"]}
    return int(head.split()[1]), document["error"]


def refused(answer: bytes) -> tuple[int, str]:
    """The same of an answer that a route gave."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head, answer
    return int(head.split()[1]), json.loads(body)["error"]


def exchange(gateway: LocalGateway, request: bytes) -> bytes:
    with connected(gateway) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request)
        return until_closed(connection)


def is_well(gateway: LocalGateway) -> bool:
    return httpx.get(f"{gateway.http_url}/v2/health/live").status_code == 200


def is_live(connection: socket.socket) -> bool:
    """Whether it is answered on `connection`, too."""
    connection.sendall(LIVE + b"\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        piece = connection.recv(65536)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200 ")


def slow_request(milliseconds: int) -> bytes:
    one = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}
    delay = {"name": "delay_ms", "datatype": "INT32", "shape": [1], "data": [milliseconds]}
    body = json.dumps({"inputs": [one, delay]}).encode()
    return INFER + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def record_of(gateway: LocalGateway, **fields: str) -> dict[str, Any] | None:
    for record in gateway.log_records():
        if fields.items() <= record.items():
            return record
    return None


@pytest.fixture(scope="module")
def small(engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    """A gateway that takes next to nothing; it must be as well after the tests."""
    arguments = [
        "--http.max_header_bytes=2048",
        "--http.header_timeout_s=1",
        "--http.body_silent_s=1",
        "--http.send_silent_s=1",
        "--http.max_connections=5",
    ]
    log = tmp_path_factory.mktemp("small") / "gateway.log"
    with LocalGateway(engine.grpc_address, log, arguments=arguments) as running:
        yield running
        assert is_well(running)
        assert running.stop() == 0
        assert [r for r in running.log_records() if "exception" in r] == []


# Bounds

TOO_LARGE = (431, "the headers: expected at most 2048 bytes (http.max_header_bytes), got more")
TOO_MUCH_FRAMING = (
    400,
    "the body: expected at most 2048 bytes of chunk extensions or trailers "
    "(http.max_header_bytes), got more",
)


@pytest.mark.needs("engine")
@pytest.mark.parametrize(
    "request_bytes",
    [
        LIVE + b"a: " + b"x" * 3000 + b"\r\n\r\n",
        LIVE + b"a: b\r\n" * 1000 + b"\r\n",
        LIVE + b"a: " + b"x" * 3000,
        b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 1500,
    ],
    ids=["one header", "many", "one without an end", "the target", "empty lines before"],
)
def test_headers_have_a_bound(small: LocalGateway, request_bytes: bytes) -> None:
    assert told(exchange(small, request_bytes)) == TOO_LARGE


@pytest.mark.needs("engine")
def test_endless_headers_end_the_connection(small: LocalGateway) -> None:
    began = time.monotonic()
    answer = exchange(small, LIVE + b"a: " + b"x" * 60_000_000)
    # A client that goes on sending may find the connection reset before it has read the answer.
    assert not answer or told(answer) == TOO_LARGE
    assert time.monotonic() - began < PATIENCE_S
    assert is_well(small)


@pytest.mark.needs("engine")
@pytest.mark.parametrize("excess", [0, 1])
def test_the_bound_of_headers_is_exact(small: LocalGateway, excess: int) -> None:
    head = LIVE + b"Connection: close\r\na: "
    head += b"x" * (2048 + excess - len(head) - 4) + b"\r\n\r\n"
    answer = exchange(small, head)
    if excess:
        assert told(answer) == TOO_LARGE
    else:
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.needs("engine")
@pytest.mark.parametrize(
    ("first", "more"),
    [(b"1\r\n{\r\n0\r\n", b"a: b\r\n"), (b"1;", b"x"), (b"0", b"0")],
    ids=["trailers", "a chunk extension", "zeros before a chunk size"],
)
def test_what_frames_a_body_has_the_same_bound(
    small: LocalGateway, first: bytes, more: bytes
) -> None:
    with connected(small) as connection:
        connection.sendall(CHUNKED + first)
        answer = until_answered(connection, more * 500, pause_s=0.02)
        assert told(answer + until_closed(connection)) == TOO_MUCH_FRAMING


@pytest.mark.needs("engine")
@pytest.mark.parametrize("piece", [b"a: b\r\n", b"\r\n"], ids=["headers", "empty lines"])
def test_who_trickles_headers_is_cut_off(small: LocalGateway, piece: bytes) -> None:
    with connected(small) as connection:
        connection.sendall(piece if piece == b"\r\n" else LIVE)
        began = time.monotonic()
        answer = until_answered(connection, piece, pause_s=0.1)
        assert time.monotonic() - began > 0.9
        assert told(answer + until_closed(connection)) == (
            408,
            "the headers: expected all of them within 1 s (http.header_timeout_s), got a part",
        )


@pytest.mark.needs("engine")
def test_who_says_nothing_is_cut_off_without_a_word(small: LocalGateway) -> None:
    with connected(small) as connection:
        began = time.monotonic()
        assert until_closed(connection) == b""
        assert 0.9 < time.monotonic() - began < PATIENCE_S


@pytest.mark.needs("engine")
def test_a_kept_connection_may_be_quiet_between_requests(small: LocalGateway) -> None:
    with connected(small) as connection, connected(small) as silent:
        assert is_live(connection)
        # For longer than one may be that has sent nothing yet.
        assert until_closed(silent) == b""
        with connected(small) as another:
            assert until_closed(another) == b""
        assert is_live(connection)


@pytest.mark.needs("engine")
@pytest.mark.parametrize("path", ["/v2/models/slow/infer", "/v2/repository/index"])
def test_who_trickles_a_body_is_cut_off(small: LocalGateway, path: str) -> None:
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{"
    assert refused(exchange(small, request.encode())) == (
        400,
        "the body: nothing of it came for 1 s (http.body_silent_s)",
    )


@pytest.mark.needs("engine")
@pytest.mark.parametrize("framing", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked"])
def test_the_rest_of_a_body_that_is_too_large_is_not_read_without_end(
    engine: LocalEngine, new_gateway: GatewayFactory, framing: bytes
) -> None:
    gateway = new_gateway(
        engine.grpc_address, "--http.max_body_bytes=1000", "--http.body_silent_s=1"
    )
    with connected(gateway) as connection:
        connection.sendall(INFER + framing + b"\r\n\r\n")
        if framing.startswith(b"T"):
            connection.sendall(b"ffffff\r\n")
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|pipe"):
            while time.monotonic() - began < PATIENCE_S:
                connection.sendall(bytes(500))
                time.sleep(0.01)
        # What came before the reset is there to be read.
        answer = until_closed(connection)
    assert refused(answer) == (
        413,
        "the body: expected at most 1000 bytes (http.max_body_bytes), got more",
    )


@pytest.mark.needs("engine")
def test_who_does_not_read_the_answer_is_cut_off(
    small: LocalGateway, eventually: Eventually
) -> None:
    count = 4_000_000
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT_INT8",
                    "datatype": "INT8",
                    "shape": [count],
                    "parameters": {"binary_data_size": count},
                }
            ],
        }
    ).encode()
    with connected(small) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (len(head), len(head) + count)
            + head
        )
        connection.sendall(bytes(count))
        cut_off = {
            "message": "cut off",
            "error": "the client took nothing of its answer for 1 s (http.send_silent_s)",
        }
        eventually(lambda: record_of(small, **cut_off) is not None, "it is cut off")
        # The rest of what the system holds, and then the end of it: not the whole answer.
        assert len(until_closed(connection)) < 2 * count


@pytest.mark.needs("engine")
def test_connections_have_a_number(small: LocalGateway, eventually: Eventually) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            connection = stack.enter_context(connected(small))
            assert is_live(connection)
        answer = exchange(small, LIVE + b"\r\n")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert told(answer) == (
            503,
            "the gateway: expected at most 5 connections at a time (http.max_connections), "
            "got one more",
        )
        # Those that are there already are not disturbed.
        assert is_live(connection)
    eventually(lambda: is_well(small), "their places are free again")


# Requests that are not quite HTTP

NO_HTTP = "the request: expected HTTP/1.1, got what is not: "
NOT_QUITE_HTTP = {
    "length and chunked": (
        INFER + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        NO_HTTP + "Transfer-Encoding can't be present with Content-Length",
    ),
    "chunked and length": (
        INFER + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        400,
        NO_HTTP + "Content-Length can't be present with Transfer-Encoding",
    ),
    "a length behind the body": (
        CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 4\r\n\r\n",
        400,
        NO_HTTP + "Content-Length can't be present with Transfer-Encoding",
    ),
    "two lengths": (
        INFER + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        400,
        NO_HTTP + "Duplicate Content-Length",
    ),
    "a list of lengths": (
        INFER + b"Content-Length: 2, 3\r\n\r\n{}",
        400,
        NO_HTTP + "Invalid character in Content-Length",
    ),
    "a length with a sign": (
        INFER + b"Content-Length: +2\r\n\r\n{}",
        400,
        NO_HTTP + "Invalid character in Content-Length",
    ),
    "a huge length": (
        INFER + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        400,
        NO_HTTP + "Content-Length overflow",
    ),
    "chunked is not last": (
        INFER + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        400,
        NO_HTTP + "Invalid `Transfer-Encoding` header value",
    ),
    "chunked twice": (
        INFER + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        NO_HTTP + "Invalid `Transfer-Encoding` header value",
    ),
    "chunked is not alone": (
        INFER + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
        "Transfer-Encoding: expected chunked alone, got 'gzip, chunked'",
    ),
    "an unknown coding": (
        INFER + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        501,
        "Transfer-Encoding: expected chunked alone, got 'xchunked'",
    ),
    "chunked in HTTP/1.0": (
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
        400,
        "Transfer-Encoding: expected none with HTTP/1.0, got one",
    ),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400, "the headers: expected one Host, got none"),
    "two hosts": (LIVE + b"Host: y\r\n\r\n", 400, "the headers: expected one Host, got 2"),
    "bare line feeds": (
        b"GET / HTTP/1.1\nHost: x\n\n",
        400,
        NO_HTTP + "Expected CRLF after version",
    ),
    "a bare line feed": (
        b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        400,
        NO_HTTP + "Missing expected CR after header value",
    ),
    "a bare carriage return": (
        LIVE + b"a: b\rc: d\r\n\r\n",
        400,
        NO_HTTP + "Missing expected LF after header value",
    ),
    "a folded header": (
        LIVE + b"a: b\r\n c: d\r\n\r\n",
        400,
        NO_HTTP + "Unexpected whitespace after header value",
    ),
    "space before the colon": (
        INFER + b"Content-Length : 2\r\n\r\n{}",
        400,
        NO_HTTP + "Invalid header field char",
    ),
    "a zero in a header": (LIVE + b"a: \x00\r\n\r\n", 400, NO_HTTP + "Invalid header value char"),
    "a zero in a name": (LIVE + b"a\x00: b\r\n\r\n", 400, NO_HTTP + "Invalid header token"),
    "a chunk size that is none": (
        CHUNKED + b"xyz\r\n",
        400,
        NO_HTTP + "Invalid character in chunk size",
    ),
    "a negative chunk": (CHUNKED + b"-1\r\n", 400, NO_HTTP + "Invalid character in chunk size"),
    "a huge chunk": (CHUNKED + b"f" * 17 + b"\r\n", 400, NO_HTTP + "Chunk size overflow"),
    "a chunk that ends with a line feed": (
        CHUNKED + b"2\r\n{}\n0\r\n\r\n",
        400,
        NO_HTTP + "Missing expected CR after chunk data",
    ),
    "a chunk longer than it says": (
        CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
        400,
        NO_HTTP + "Expected LF after chunk data",
    ),
    "HTTP/0.9": (
        b"GET /v2/health/live\r\n\r\n",
        505,
        "the request line: expected HTTP/1.1 or HTTP/1.0, got HTTP/0.9",
    ),
    "HTTP/2 by its name": (
        LIVE.replace(b"/1.1", b"/2.0") + b"\r\n",
        505,
        "the request line: expected HTTP/1.1 or HTTP/1.0, got HTTP/2.0",
    ),
    "HTTP/2 itself": (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        400,
        NO_HTTP + "Pause on PRI/Upgrade",
    ),
    "HTTP/7.3": (LIVE.replace(b"/1.1", b"/7.3") + b"\r\n", 400, NO_HTTP + "Invalid HTTP version"),
    "TLS": (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        400,
        NO_HTTP + "Invalid method encountered",
    ),
    "a method that is none": (
        b"G<T / HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        NO_HTTP + "Invalid method encountered",
    ),
    "a space in the target": (
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        NO_HTTP + "Expected HTTP/, RTSP/ or ICE/",
    ),
    "a zero in the target": (
        b"GET /a\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        NO_HTTP + "Invalid char in url path",
    ),
    "a target that is no path": (
        b"GET http://x:999999/ HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        NO_HTTP + "Invalid target",
    ),
    "a target without a path": (
        b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        NO_HTTP + "Invalid target",
    ),
    "a target for proxies": (
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        "the request line: expected a path, got 'x:80'",
    ),
    "no target": (
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        "the request line: expected a path, got '*'",
    ),
}


@pytest.mark.needs("engine")
@pytest.mark.parametrize("name", NOT_QUITE_HTTP)
def test_what_is_not_quite_http_is_refused(small: LocalGateway, name: str) -> None:
    request, status, sentence = NOT_QUITE_HTTP[name]
    marked = request.replace(b"Host: x\r\n", b"Host: x\r\nx-request-id: broken\r\n", 1)
    # What follows must not be taken for a request of its own.
    smuggled = slow_request(0).replace(b"Host: x", b"Host: x\r\nx-request-id: smuggled")
    assert told(exchange(small, marked + smuggled)) == (status, sentence)
    assert is_well(small)
    assert record_of(small, request_id="smuggled") is None
    # One whose body is broken has begun, but no engine has been asked.
    begun = [r for r in small.log_records() if r.get("request_id") == "broken"]
    assert {(r["status"], "engines" in r) for r in begun} <= {("400", False)}


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.sampled_from(["0.9", "1.0", "1.1", "2.0"]),
    st.lists(
        st.sampled_from(
            [
                (b"host", b"a"),
                (b"content-length", b"7"),
                (b"transfer-encoding", b"Chunked "),
                (b"transfer-encoding", b"gzip, chunked"),
                (b"x", b"y"),
            ]
        ),
        max_size=5,
        unique_by=lambda header: header[0] if header[0] != b"host" else object(),
    ),
)
def test_a_body_has_one_length_or_the_request_is_refused(
    version: str, headers: list[tuple[bytes, bytes]]
) -> None:
    values: dict[bytes, bytes] = dict(headers)
    coding = values.get(b"transfer-encoding")
    hosts = [name for name, _ in headers].count(b"host")
    fits = (
        version in ("1.0", "1.1")
        and (hosts == 1 or (hosts == 0 and version == "1.0"))
        and (coding is None or (version == "1.1" and coding == b"Chunked "))
    )
    if not fits:
        with pytest.raises(Exception, match="expected"):
            body_length(version, headers)
        return
    length = 7 if b"content-length" in values else 0
    assert body_length(version, headers) == (length if coding is None else None)


# Leaving


@pytest.mark.needs("engine")
def test_a_client_that_leaves_ends_its_request_at_once(
    engine: LocalEngine, new_gateway: GatewayFactory, eventually: Eventually
) -> None:
    gateway = new_gateway(engine.grpc_address)
    metrics = f"{gateway.admin_url}/metrics"
    in_flight = 'tidegate_gateway_requests_in_flight{protocol="http"} '
    with connected(gateway) as connection:
        connection.sendall(slow_request(20_000))
        eventually(lambda: f"{in_flight}1.0" in httpx.get(metrics).text, "it is in flight")
        left = time.monotonic()
    eventually(lambda: f"{in_flight}0.0" in httpx.get(metrics).text, "it has ended")
    assert time.monotonic() - left < 2
    eventually(lambda: record_of(gateway, status="499") is not None, "it is recorded")
    record = record_of(gateway, status="499")
    assert record is not None
    assert (record["model"], record["level"]) == ("slow", "info")
    assert record["route"] == "/v2/models/{model}/infer"
    assert gateway.stop() == 0
    assert [r for r in gateway.log_records() if r["level"] == "error"] == []


@pytest.mark.needs("engine")
def test_a_request_that_outlasts_the_grace_is_told_so(
    engine: LocalEngine, new_gateway: GatewayFactory, eventually: Eventually
) -> None:
    gateway = new_gateway(engine.grpc_address, "--drain.grace_s=1")
    answers: list[bytes] = []
    asking = threading.Thread(
        target=lambda: answers.append(exchange(gateway, slow_request(20_000)))
    )
    asking.start()
    metrics = f"{gateway.admin_url}/metrics"
    in_flight = 'tidegate_gateway_requests_in_flight{protocol="http"} 1.0'
    eventually(lambda: in_flight in httpx.get(metrics).text, "the request is in flight")
    os.kill(gateway.pid, signal.SIGTERM)
    asking.join(PATIENCE_S)
    assert told(answers[0]) == (503, "the gateway leaves, and drain.grace_s is over")
    eventually(lambda: gateway.poll() == 0, "it has left")
    assert [r for r in gateway.log_records() if "exception" in r] == []


# An application of our own


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked, once it is whole."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message.get("more_body", False)
    await say(send, [scope["method"], scope["path"], body.decode(), sorted(names(scope))])


async def hasty(scope: Any, _receive: Any, send: Any) -> None:
    """Answers without the body."""
    await say(send, [scope["method"], scope["path"]])


async def say(send: Any, document: object) -> None:
    body = json.dumps(document).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def names(scope: Any) -> set[str]:
    return {name.decode() for name, _ in scope["headers"]}


async def until(check: Callable[[], bool]) -> None:
    while not check():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)


class Waiting:
    """Reads its request, begins to answer if it is told to, and never ends."""

    def __init__(self, *, begins: bool = False) -> None:
        self.begins = begins
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if self.begins:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"a", "more_body": True})
            self.asked.set()
            while (await receive()).get("more_body"):
                pass
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Client:
    """A connection to such an application."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, set[str], Any]:
        """Status, header lines and document of the next answer."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode().strip().lower().split("\r\n")
        length = next(int(line.split()[1]) for line in lines if line.startswith("content-length"))
        return (
            int(status.split()[1]),
            set(lines),
            json.loads(await self._reader.readexactly(length)),
        )

    async def rest(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return await self._reader.read()
        return b""


class Server:
    """What runs it, and where."""

    def __init__(self, server: serving.Server, address: tuple[str, int], connections: Any) -> None:
        self.state = server.server_state
        self.address = address
        self._connections = connections

    def turned_away(self) -> int:
        """How many are still there that were turned away."""
        count: int = self._connections.listener.turned_away
        return count

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def served(application: Any, **http: float) -> AsyncIterator[Server]:
    connections = protocol(HttpSettings.model_validate(http))
    server = serving.server(application, connections=connections, keepalive_s=60, grace_s=1)
    listener = bind("http", "127.0.0.1", 0)
    address = listener.getsockname()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(3 * PATIENCE_S):
            yield Server(server, address, connections)
    finally:
        server.should_exit = True
        await task


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = ["Host: x", f"Content-Length: {len(body) if length is None else length}", *headers]
    return f"POST {path} HTTP/1.1\r\n".encode() + "\r\n".join([*lines, "\r\n"]).encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_answers_come_in_order_and_a_refusal_after_them() -> None:
    async with served(echo) as server, server.client() as client:
        client.send(get("/a") + post("/b", b"two") + get("/c") + b"nonsense\r\n\r\n" + get("/d"))
        assert (await client.answer())[2][:2] == ["GET", "/a"]
        assert (await client.answer())[2][:3] == ["POST", "/b", "two"]
        assert (await client.answer())[2][:2] == ["GET", "/c"]
        status, lines, document = await client.answer()
        assert (status, document["error"]) == (400, NO_HTTP + "Invalid method encountered")
        assert "connection: close" in lines
        assert await client.rest() == b""


async def test_a_broken_body_takes_its_own_request_along_and_not_the_one_before() -> None:
    async with served(echo) as server, server.client() as client:
        client.send(get("/a") + CHUNKED + b"1\r\nx\r\nnonsense\r\n")
        assert (await client.answer())[2][:2] == ["GET", "/a"]
        status, _, document = await client.answer()
        assert (status, document["error"]) == (400, NO_HTTP + "Invalid character in chunk size")
        assert await client.rest() == b""


async def test_requests_that_wait_for_others_have_a_number() -> None:
    async with served(echo) as server, server.client() as client:
        client.send(get("/a") * 1000)
        for _ in range(33):
            assert (await client.answer())[0] == 200
        status, _, document = await client.answer()
        assert (status, document["error"]) == (
            400,
            "the connection: expected at most 32 requests that wait for others, got more",
        )
        assert await client.rest() == b""


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "apart"])
async def test_an_offer_of_another_protocol_is_ignored(apart: bool) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x")
    async with served(echo) as server, server.client() as client:
        for _ in range(3):
            request = post("/a", b"body", *offer)
            client.send(request[:-4] if apart else request)
            if apart:
                # The headers are read before the body comes.
                await asyncio.sleep(0)
                await client.writer.drain()
                client.send(request[-4:])
            told_names = ["connection", "content-length", "host", "http2-settings"]
            status, lines, document = await client.answer()
            assert (status, document) == (200, ["POST", "/a", "body", told_names])
            assert "connection: close" not in lines
        client.send(post("/b", b"", "Connection: upgrade, close", "Upgrade: websocket"))
        assert "connection: close" in (await client.answer())[1]
        assert await client.rest() == b""


async def test_trailers_are_no_headers() -> None:
    async with served(echo) as server, server.client() as client:
        client.send(CHUNKED + b"2;ext=1\r\nab\r\n0\r\nx-request-id: 1\r\n\r\n" + get("/b"))
        _, _, document = await client.answer()
        assert document[2:] == ["ab", ["host", "transfer-encoding"]]
        assert (await client.answer())[2][:2] == ["GET", "/b"]


@pytest.mark.parametrize("begins", [False, True], ids=["before", "during"])
@pytest.mark.parametrize("size", [0, 1_000_000], ids=["no body", "a large body"])
async def test_a_client_that_leaves_cancels_its_own_request_alone(
    begins: bool, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    stays, leaves = Waiting(), Waiting(begins=begins)

    async def either(scope: Any, receive: Any, send: Any) -> None:
        await (leaves if scope["path"] == "/leaves" else stays)(scope, receive, send)

    async with served(either) as server, server.client() as other:
        other.send(get("/stays"))
        await stays.asked.wait()
        async with server.client() as client:
            client.send(post("/leaves", bytes(size)))
            await client.writer.drain()
            await leaves.asked.wait()
        await leaves.cancelled.wait()
        assert not stays.cancelled.is_set()
        await until(lambda: len(server.state.tasks) == 1)
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []


async def test_half_closing_is_leaving() -> None:
    application = Waiting()
    async with served(application) as server, server.client() as client:
        client.send(get("/"))
        await application.asked.wait()
        client.writer.write_eof()
        await application.cancelled.wait()
        assert await client.rest() == b""


async def test_an_answer_that_was_whole_before_the_client_left_goes_on_behind_it() -> None:
    done = asyncio.Event()

    async def afterwards(scope: Any, receive: Any, send: Any) -> None:
        await hasty(scope, receive, send)
        await until(lambda: not server.state.connections)
        done.set()

    async with served(afterwards) as server:
        async with server.client() as client:
            client.send(get("/"))
            await client.answer()
        await done.wait()


async def test_a_broken_body_cancels_who_waits_for_it() -> None:
    application = Waiting()
    async with served(application) as server, server.client() as client:
        client.send(CHUNKED + b"1\r\nx\r\n")
        await application.asked.wait()
        client.send(b"nonsense\r\n")
        status, lines, document = await client.answer()
        assert (status, document["error"]) == (400, NO_HTTP + "Invalid character in chunk size")
        assert "connection: close" in lines
        await application.cancelled.wait()
        assert await client.rest() == b""


async def test_a_broken_body_cuts_an_answer_off_that_has_begun() -> None:
    application = Waiting(begins=True)
    async with served(application) as server, server.client() as client:
        client.send(CHUNKED + b"1\r\nx\r\n")
        await application.asked.wait()
        client.send(b"nonsense\r\n")
        await application.cancelled.wait()
        # No end of the chunks, and no second answer that could be taken for one of another request.
        assert (await client.rest()).count(b"HTTP/1.1") < 2


async def test_after_an_early_answer_the_little_that_is_left_is_dropped() -> None:
    async with served(hasty) as server, server.client() as client:
        for path in ("/a", "/b"):
            client.send(post(path, b"", length=1000))
            status, lines, document = await client.answer()
            assert (status, document) == (200, ["POST", path])
            assert "connection: close" not in lines
            client.send(get("/smuggled") + bytes(1000 - len(get("/smuggled"))))


async def test_after_an_early_answer_the_rest_must_come_in_time() -> None:
    async with served(hasty, body_silent_s=1) as server, server.client() as client:
        client.send(post("/a", b"", length=1000))
        await client.answer()
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/a", b"some of it", length=300_000),
        post("/a", b"", "Expect: 100-continue", length=10),
        CHUNKED + b"1\r\nx\r\n",
    ],
    ids=["much", "who waits to be asked for it", "who knows how much"],
)
async def test_after_an_early_answer_a_connection_ends_where_more_may_come(
    request_bytes: bytes,
) -> None:
    async with served(hasty) as server, server.client() as client:
        client.send(request_bytes)
        status, lines, _ = await client.answer()
        assert status == 200
        assert "connection: close" in lines
        client.send(get("/smuggled"))
        # Before the client has closed its own end: it is told that no more comes.
        assert await client.rest() == b""


async def test_a_connection_that_ends_is_read_on_for_a_moment() -> None:
    async with served(hasty) as server, server.client() as client:
        client.send(post("/a", b"some of it", length=300_000))
        await client.answer()
        assert await client.rest() == b""
        # The client has been told the end of the answers. What it still sends would meet a reset if
        # the socket were closed, and it is not.
        assert len(server.state.connections) == 1
        client.send(bytes(100_000))
        await client.writer.drain()
        client.writer.close()
        await until(lambda: not server.state.connections)


async def test_a_body_that_is_asked_for_keeps_its_connection() -> None:
    async with served(echo) as server, server.client() as client:
        for _ in range(2):
            client.send(post("/a", b"", "Expect: 100-continue", length=4))
            assert await client._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"body")
            status, lines, document = await client.answer()
            assert (status, document[2]) == (200, "body")
            assert "connection: close" not in lines


async def test_those_who_are_turned_away_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_gateway.connections._MOST_TURNED_AWAY", 2)
    async with served(echo, max_connections=1) as server, server.client() as first:
        first.send(get("/a"))
        await first.answer()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(5):
                client = await stack.enter_async_context(server.client())
                assert (await client.answer())[0] == 503
                assert await client.rest() == b""
            # They have been told, and have not closed their own ends.
            await until(lambda: server.turned_away() == 2)
        await until(lambda: server.turned_away() == 0)
        assert len(server.state.connections) == 1


async def test_a_stream_that_nobody_reads_is_cut_off() -> None:
    cancelled = asyncio.Event()

    async def endless(_scope: Any, _receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(9999), "more_body": True})
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with served(endless, send_silent_s=1) as server, server.client() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/a"))
        await cancelled.wait()
        await until(lambda: not server.state.connections)


async def test_who_reads_slowly_gets_all_of_it() -> None:
    size = 3_000_000

    async def large(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % size), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    def read_slowly() -> int:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(PATIENCE_S)
            connection.connect(server.address)
            connection.sendall(get("/a"))
            got = 0
            for _ in range(25):
                got += len(connection.recv(4096))
                time.sleep(0.2)
            # A larger window, so that the rest does not take as long.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
            return got + len(until_closed(connection))

    async with served(large, send_silent_s=2) as server:
        assert await asyncio.to_thread(read_slowly) > size


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize("last", [b"", b"POST /unfinished"], ids=["idle", "in a request"])
async def test_nothing_is_left_of_a_connection(resets: bool, last: bytes) -> None:
    async with served(echo, header_timeout_s=300, send_silent_s=300, body_silent_s=300) as server:
        async with server.client() as client:
            client.send(post("/a", b"body") + last)
            await client.answer()
            (connection,) = map(weakref.ref, server.state.connections)
            if resets:
                client.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        await until(lambda: not server.state.connections and not server.state.tasks)
        gc.collect()
        assert connection() is None
        # A cancelled timer keeps its handle for a while, but not what it would have called.
        timers = [str(timer) for timer in asyncio.get_running_loop()._scheduled]  # type: ignore[attr-defined]
        assert [timer for timer in timers if "_look" in timer or "keep_alive" in timer] == []


WHOLE = (
    get("/a")
    + post("/b", b"one" * 50)
    + CHUNKED
    + b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nt: u\r\n\r\n"
    + post("/c", b"four", "Connection: upgrade", "Upgrade: h2c")
    + get("/d")
)


@settings(max_examples=30, deadline=None, database=None)
@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12).map(lambda cuts: sorted(set(cuts))))
def test_how_requests_are_cut_into_pieces_does_not_matter(cuts: list[int]) -> None:
    async def asked() -> list[Any]:
        async with served(echo, max_header_bytes=1024) as server, server.client() as client:
            for start, end in zip([0, *cuts], [*cuts, len(WHOLE)], strict=True):
                client.send(WHOLE[start:end])
                await client.writer.drain()
                await asyncio.sleep(0)
            return [(await client.answer())[2][:3] for _ in range(5)]

    assert asyncio.run(asked()) == [
        ["GET", "/a", ""],
        ["POST", "/b", "one" * 50],
        ["POST", "/v2/models/slow/infer", "abcde"],
        ["POST", "/c", "four"],
        ["GET", "/d", ""],
    ]
