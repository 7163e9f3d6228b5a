"""Serving: a server that leaves when it is told to, and a process that is told by signals."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidegate_process import serving
from tidegate_process.listening import bind

WAIT_S = 60
PROCESS = """
import asyncio
from tidegate_process.serving import told_to_leave

async def main():
    stop = told_to_leave()
    print("up", flush=True)
    await stop.wait()
    print("told", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def plain(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def endless(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok", "more_body": True})
    await asyncio.Event().wait()


@asynccontextmanager
async def asked(server: serving.Server) -> AsyncIterator[tuple[asyncio.Task[None], bytes]]:
    """The server as it runs, and how it began to answer a request."""
    before = signal.getsignal(signal.SIGTERM)
    listener = bind("http", "127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        answer = await reader.readuntil(b"ok")
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        yield task, answer
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_server_says_nothing_of_itself_and_leaves_when_told_to() -> None:
    server = serving.server(plain, keepalive_s=600)
    async with asked(server) as (task, answer), asyncio.timeout(WAIT_S):
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nserver:" not in answer.lower()
        server.should_exit = True
        await task


async def test_a_request_that_does_not_end_has_the_grace_and_no_more() -> None:
    server = serving.server(endless, grace_s=1)
    async with asked(server) as (task, _), asyncio.timeout(WAIT_S):
        server.should_exit = True
        await task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_tells_and_the_second_ends_at_once(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROCESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            process.send_signal(number)
            assert process.stdout.readline() == "told\n"
            assert process.poll() is None
            process.send_signal(number)
            assert process.wait(WAIT_S) == 128 + number
        finally:
            process.kill()
