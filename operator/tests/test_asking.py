"""What pods answer: read strictly, and never waited for without an end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidegate_operator import gateways, loaders
from tidegate_operator.answers import Asking
from tidegate_operator.errors import NoAnswer
from tidegate_operator.resources import PodSeen
from tidegate_operator.situation import VersionSeen

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
VERSION = {"digest": "d", "loaded": True, "proven": True, "failed": False, "error": "",
           "requests": 12}  # fmt: skip
MODEL = {"config": "c", "configError": "", "versions": {"1": VERSION}}
STATUS = {"schema": 1, "revision": 4, "table": {"revision": 4}, "models": {"m": MODEL},
          "engine": {"gpuMemory": {"usedBytes": 3, "totalBytes": 10}}}  # fmt: skip
ROUTING = {"revision": 4, "table": None, "oldestInUse": {"m": 3}}
POD = PodSeen("p", "u", "10.0.0.1", True, True)


@asynccontextmanager
async def server(write: Write, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A pod that answers as `write` does; gives its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await write(writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, host, 0) as served:
        yield served.sockets[0].getsockname()[1]


def answering(body: bytes, status: str = "200 OK") -> Write:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return write


async def asked(write: Write, host: str = "127.0.0.1", timeout_s: float = 5) -> Any:
    asking = Asking(timeout_s=timeout_s, max_bytes=1000)
    try:
        async with server(write, host) as port:
            return await asking.ask(host, port, "/status")
    finally:
        await asking.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_answer_is_a_json_object(host: str) -> None:
    assert await asked(answering(b'{"a": [1]}'), host) == {"a": [1]}


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (answering(b"{}", "503 Service Unavailable"), "expected status 200, got 503"),
        (answering(b"{}", "302 Found"), "expected status 200, got 302"),
        (answering(b"<html>"), "expected JSON"),
        (answering(b"[1]"), "expected a JSON object, got list"),
        (answering(b"[" * 900), "expected JSON"),
        (answering(b'"' + b"x" * 1000 + b'"'), "expected at most 1000 bytes, got more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_all_else_is_silence_with_a_reason(write: Write, why: str) -> None:
    with pytest.raises(NoAnswer) as silence:
        await asked(write)
    assert why in str(silence.value)


async def test_an_answer_that_never_ends_is_given_up() -> None:
    async def dribble(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    with pytest.raises(NoAnswer, match="no answer within"):
        await asked(dribble, timeout_s=0.5)


async def test_a_pod_without_a_port_or_address_is_silent() -> None:
    asking = Asking(timeout_s=5, max_bytes=1000)
    try:
        with pytest.raises(NoAnswer):
            await asking.ask("127.0.0.1", 1, "/status")
        with pytest.raises(NoAnswer, match="the pod has no address"):
            await asking.ask("", 8003, "/status")
        with pytest.raises(NoAnswer, match="expected the IP address of a pod"):
            await asking.ask("evil.example/", 8003, "/status")
    finally:
        await asking.close()


# What it says


def test_a_loaders_status() -> None:
    status = loaders.read(STATUS)

    assert (status.revision, status.free_memory) == (4, 7)
    seen = loaders.seen(POD, status, "m")
    assert (seen.name, seen.ready, seen.revision, seen.config) == ("p", True, 4, "c")
    assert seen.versions == {
        "1": VersionSeen(digest="d", loaded=True, proven=True, requests=12),
    }
    assert loaders.seen(POD, status, "other").versions == {}
    assert loaders.seen(POD, None, "m").revision is None


def test_a_loader_that_tells_of_no_gpu_has_no_free_memory() -> None:
    assert loaders.read({**STATUS, "engine": {"gpuMemory": None}}).free_memory is None


def test_members_of_a_later_release_are_ignored() -> None:
    later = {**STATUS, "later": 1, "models": {"m": {**MODEL, "later": 1}}}
    assert loaders.read(later) == loaders.read(STATUS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema: expected 1, got 2"),
        ({"revision": "4"}, "revision: expected a whole number from 0, got '4'"),
        ({"revision": True}, "revision: expected a whole number"),
        ({"revision": -1}, "revision: expected a whole number"),
        ({"models": []}, "models: expected an object"),
        ({"models": {"m": {**MODEL, "config": None}}}, "config: expected a text"),
        ({"models": {"m": {**MODEL, "versions": {"1": {**VERSION, "proven": 1}}}}},
         "proven: expected true or false, got 1"),
        ({"models": {"m": {**MODEL, "versions": {"1": {}}}}}, "digest: expected a text"),
        ({"engine": {"gpuMemory": {"usedBytes": 1}}}, "totalBytes: expected a whole number"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_status_that_cannot_be_read_is_silence(change: dict[str, Any], why: str) -> None:
    with pytest.raises(NoAnswer) as silence:
        loaders.read({**STATUS, **change})
    assert why in str(silence.value)


def test_a_gateways_routing() -> None:
    routing = gateways.read(ROUTING)

    assert routing.revision == 4
    assert gateways.seen(POD, routing, "m").oldest_in_use == 3
    assert gateways.seen(POD, routing, "other").oldest_in_use is None
    assert gateways.seen(POD, None, "m").revision is None


@pytest.mark.parametrize(
    "change", [{"revision": None}, {"oldestInUse": [3]}, {"oldestInUse": {"m": ""}}]
)
def test_a_routing_that_cannot_be_read_is_silence(change: dict[str, Any]) -> None:
    with pytest.raises(NoAnswer):
        gateways.read({**ROUTING, **change})
