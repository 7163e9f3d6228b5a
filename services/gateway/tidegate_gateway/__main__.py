"""`python -m tidegate_gateway`: settings in, servers up, and away in order after SIGTERM."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator

import grpc.aio
import uvicorn
import uvloop
from starlette.types import ASGIApp

from tidegate_gateway import app, logs, settings
from tidegate_gateway.dns import InvalidAddresses
from tidegate_gateway.inference_service import InvalidModelConfigs
from tidegate_gateway.settings import InvalidSettings, Settings
from tidegate_table.api_server import NotInCluster
from tidegate_table.document import InvalidTable

_log = logging.getLogger("tidegate_gateway")

# Linux keeps this many connections that are not accepted yet; more than uvicorn's own default
# would be cut to it anyway.
_BACKLOG = 2048


class CannotListen(Exception):
    """A port cannot be had; the message names its setting."""


# What whoever starts a gateway can put right; each message says what.
_CANNOT_START = (
    InvalidSettings,
    InvalidModelConfigs,
    InvalidTable,
    InvalidAddresses,
    NotInCluster,
    CannotListen,
)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us, since there are three servers in this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    """Run the gateway; returns the exit status."""
    try:
        given = settings.load(sys.argv[1:])
        logs.configure(given.log.level)
        whole = uvloop.run(_serve(given))
    except _CANNOT_START as error:
        sys.stderr.write(f"tidegate_gateway cannot start:\n{error}\n")
        return 1
    return 0 if whole else 1


async def _serve(given: Settings) -> bool:
    """Serve until told to leave; returns False if a part of the gateway ended by itself."""
    stop = _signals()
    async with app.opened(given) as gateway:
        # Every port is taken before any is served: a gateway starts whole or not at all.
        admin_socket = _bind("admin", given.admin.host, given.admin.port)
        http_socket = _bind("http", given.http.host, given.http.port)
        grpc_port = _bind_grpc(gateway.grpc, given.grpc.host, given.grpc.port)

        keepalive_s = round(given.http.keepalive_s)
        admin = _server(gateway.admin, keepalive_s)
        http = _server(gateway.http, keepalive_s)
        admin_task = asyncio.create_task(admin.serve(sockets=[admin_socket]))
        http_task = asyncio.create_task(http.serve(sockets=[http_socket]))
        await gateway.grpc.start()
        gateway.readiness.listening = True
        _log.info(
            "listening",
            extra={
                "http_port": http_socket.getsockname()[1],
                "grpc_port": grpc_port,
                "admin_port": admin_socket.getsockname()[1],
            },
        )

        stopping = asyncio.create_task(stop.wait())
        # What ends by itself is a reason to leave, too.
        ends = {stopping, http_task, admin_task, *gateway.watches}
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        gateway.readiness.draining = True
        for task in ended - {stopping}:
            _log.error("a part of the gateway has ended", exc_info=task.exception())
        _log.info("draining", extra={"delay_s": given.drain.delay_s})
        await asyncio.sleep(given.drain.delay_s)

        http.config.timeout_graceful_shutdown = math.ceil(given.drain.grace_s)
        http.should_exit = True
        await asyncio.gather(http_task, gateway.grpc.stop(given.drain.grace_s))
        admin.should_exit = True
        await admin_task
        _log.info("gone")
        return ended == {stopping}


def _signals() -> asyncio.Event:
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


def _server(application: ASGIApp, keepalive_s: int) -> _Server:
    return _Server(
        uvicorn.Config(
            application,
            lifespan="off",
            timeout_keep_alive=keepalive_s,
            log_config=None,
            access_log=False,
            http="httptools",
            ws="none",
            server_header=False,
        )
    )


def _bind(name: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _cannot_listen(name, host, port, error.strerror or str(error)) from None


def _bind_grpc(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        return server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError:
        raise _cannot_listen("grpc", host, port, "the address is in use or not ours") from None


def _cannot_listen(name: str, host: str, port: int, why: str) -> CannotListen:
    return CannotListen(
        f"{name}.port: cannot listen on {host} port {port}: {why}; "
        f"stop what listens there or set {name}.port"
    )


if __name__ == "__main__":
    sys.exit(main())
