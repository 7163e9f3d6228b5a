"""What the loader tells: whether its engine may get traffic, and what it has loaded."""

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tidegate_engine.loader.bookkeeping import Bookkeeping


def application(book: Bookkeeping) -> Starlette:
    """The ASGI application of the loader's port."""

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = book.unready()
        return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)

    async def status(_: Request) -> Response:
        return Response(orjson.dumps(book.report()), media_type="application/json")

    return Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/status", status)]
    )
