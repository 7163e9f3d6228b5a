"""The port for Kubernetes, Prometheus and those on call: health, metrics, what is applied.

Readiness is about this gateway alone. Were it to fall with the engines, an outage of theirs would
take every gateway out of its Service, and clients would get connection errors in place of a 503
that says when to try again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tidegate_gateway.metrics import CONTENT_TYPE, Metrics


@dataclass(slots=True)
class Readiness:
    """Whether clients should be sent here.

    Attributes:
        listening: the listeners for clients are open.
        routed: there is a routing table, or none is to come.
        discovered: it has been heard which engines there are, be it none. Until then every request
            would be refused, while the gateways that this one is to replace may know.
        draining: this gateway is about to leave.
    """

    listening: bool = False
    routed: bool = True
    discovered: bool = False
    draining: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, **flags: bool) -> None:
        """Set the attributes of these names, and tell whoever waits for it."""
        for name, value in flags.items():
            setattr(self, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def reason_against(self) -> str:
        """Why not, or ""."""
        if self.draining:
            return "draining"
        if not self.listening:
            return "the listeners are not open yet"
        if not self.routed:
            return "no routing table is applied yet"
        return "" if self.discovered else "it has not been told yet which engines there are"


def admin_app(
    readiness: Readiness,
    metrics: Metrics,
    routing: Callable[[], Any],
    endpoints: Callable[[], Any],
) -> Starlette:
    """The ASGI application of the admin port.

    Args:
        routing: what GET /routing answers.
        endpoints: what GET /endpoints answers.
    """

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = readiness.reason_against()
        return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)

    async def exposition(_: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    async def applied(_: Request) -> Response:
        return JSONResponse(routing())

    async def known(_: Request) -> Response:
        return JSONResponse(endpoints())

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", exposition),
            Route("/routing", applied),
            Route("/endpoints", known),
        ]
    )
