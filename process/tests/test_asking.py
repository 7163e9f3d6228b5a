"""Asking pods: an object of JSON, or silence with a reason, and never a wait without an end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidegate_process.asking import Asking, NoAnswer

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(write: Write, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A pod that answers as `write` does; gives its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await write(writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, host, port) as served:
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
        with pytest.raises(NoAnswer, match=r"^ConnectError: "):
            await asking.ask("127.0.0.1", 1, "/status")
        with pytest.raises(NoAnswer, match="the pod has no address"):
            await asking.ask("", 8003, "/status")
        with pytest.raises(NoAnswer, match="expected the IP address of a pod"):
            await asking.ask("evil.example/", 8003, "/status")
    finally:
        await asking.close()


async def test_many_pods_that_do_not_answer_keep_no_other_from_being_asked() -> None:
    async def never(_writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    asking = Asking(timeout_s=60, max_bytes=1000)
    try:
        async with server(answering(b"{}")) as port, server(never, "127.0.0.2", port):
            # More than a client of HTTP connects to by default.
            stuck = [asyncio.create_task(asking.ask("127.0.0.2", port, "/")) for _ in range(150)]
            await asyncio.sleep(0)
            assert await asking.ask("127.0.0.1", port, "/") == {}
            for task in stuck:
                task.cancel()
            await asyncio.wait(stuck)
    finally:
        await asking.close()


async def test_every_question_has_a_connection_of_its_own_and_wants_plain_bytes() -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(2**16):
            seen.put_nowait(head)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        seen.put_nowait(b"ended")
        writer.close()

    asking = Asking(timeout_s=60, max_bytes=1000)
    async with await asyncio.start_server(connected, "127.0.0.1", 0) as served:
        port = served.sockets[0].getsockname()[1]
        for _ in range(2):
            assert await asking.ask("127.0.0.1", port, "/status") == {}
            assert b"\r\naccept-encoding: identity\r\n" in (await seen.get()).lower()
            assert await asyncio.wait_for(seen.get(), 60) == b"ended"
    await asking.close()
