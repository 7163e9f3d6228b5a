"""`python -m tidegate_gateway`: settings in, servers up, and away in order after SIGTERM."""

import asyncio
import logging
import math
import sys

import grpc.aio
import uvloop

from tidegate_gateway import app, connections, logs, settings
from tidegate_gateway.dns import InvalidAddresses
from tidegate_gateway.inference_service import InvalidModelConfigs
from tidegate_gateway.settings import Settings
from tidegate_process import serving
from tidegate_process.listening import CannotListen, bind, in_brackets
from tidegate_process.settings import InvalidSettings
from tidegate_table.api_server import NotInCluster
from tidegate_table.document import InvalidTable

_log = logging.getLogger("tidegate_gateway")

# What whoever starts a gateway can put right; each message says what.
_CANNOT_START = (
    InvalidSettings,
    InvalidModelConfigs,
    InvalidTable,
    InvalidAddresses,
    NotInCluster,
    CannotListen,
)


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
    stop = serving.told_to_leave()
    async with app.opened(given) as gateway:
        # Every port is taken before any is served: a gateway starts whole or not at all.
        admin_socket = bind("admin", given.admin.host, given.admin.port)
        http_socket = bind("http", given.http.host, given.http.port)
        grpc_port = _bind_grpc(gateway.grpc, given.grpc.host, given.grpc.port)

        keepalive_s = round(given.http.keepalive_s)
        admin = serving.server(gateway.admin, keepalive_s=keepalive_s)
        http = serving.server(
            gateway.http, connections=connections.protocol(given.http), keepalive_s=keepalive_s
        )
        admin_task = asyncio.create_task(admin.serve(sockets=[admin_socket]))
        http_task = asyncio.create_task(http.serve(sockets=[http_socket]))
        await gateway.grpc.start()
        gateway.readiness.change(listening=True)
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
        gateway.readiness.change(draining=True)
        for task in ended - {stopping}:
            _log.error("a part of the gateway has ended", exc_info=task.exception())
        _log.info("draining", extra={"delay_s": given.drain.delay_s})
        await asyncio.sleep(given.drain.delay_s)

        http.config.timeout_graceful_shutdown = math.ceil(given.drain.grace_s)
        http.should_exit = True
        gateway.streams.leaving.set()
        notice_s = max(0.0, given.drain.grace_s - given.drain.stream_notice_s)
        notice = asyncio.get_running_loop().call_later(notice_s, gateway.streams.end_all)
        await asyncio.gather(http_task, gateway.grpc.stop(given.drain.grace_s))
        notice.cancel()
        admin.should_exit = True
        await admin_task
        _log.info("gone")
        return ended == {stopping}


def _bind_grpc(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        return server.add_insecure_port(f"{in_brackets(host)}:{port}")
    except RuntimeError:
        raise CannotListen("grpc", host, port, "the address is in use or not ours") from None


if __name__ == "__main__":
    sys.exit(main())
