"""Serving HTTP in a process that decides itself when it leaves. Needs the extra `serving`."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process, which may have others."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def server(
    application: Any,
    *,
    connections: Literal["auto"] | type[asyncio.Protocol] = "auto",
    keepalive_s: int = 5,
    grace_s: int | None = None,
) -> Server:
    """A server that says nothing of itself, in answers or in the log.

    Args:
        application: of ASGI.
        connections: what each of them is; auto: uvicorn's own, with the fastest parser that is
            installed.
        keepalive_s: seconds for which a connection without requests is kept.
        grace_s: seconds that requests in flight have once it is to leave; None: all they need.
    """
    return Server(
        uvicorn.Config(
            application,
            lifespan="off",
            timeout_keep_alive=keepalive_s,
            timeout_graceful_shutdown=grace_s,
            log_config=None,
            access_log=False,
            http=connections,
            ws="none",
            # Who asks, by whatever a proxy tells, is of no use here, and costs each request.
            proxy_headers=False,
            server_header=False,
        )
    )


def told_to_leave() -> asyncio.Event:
    """An event that is set by the first SIGTERM or SIGINT; the second ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if stop.is_set():
            # Not by the signal itself: in a container we are process 1, which the kernel spares.
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    return stop
