"""The control port: asks a run how it goes, and gives it orders.

GET  /livez                200 while it runs
POST /start                begin to send (where the run waits for it)
GET  /in-flight            {"state", "now_s", "in_flight", "by_route"}
GET  /report               the report so far
POST /faults/NAME          a fault is about to be done
POST /faults/NAME/end      it is done
POST /stop                 nothing more is due; the last report, when all have ended
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tidegate_traffic.errors import TrafficError
from tidegate_traffic.generator import Generator
from tidegate_traffic.report import Report


@asynccontextmanager
async def listening(generator: Generator, host: str, port: int) -> AsyncIterator[str]:
    """Serve `generator`'s control port; yields its URL. Port 0 takes a free one.

    Raises:
        TrafficError: the port is taken.
    """
    runner = web.AppRunner(_application(generator), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise TrafficError(
                f"the control port {host}:{port} cannot be opened: {error}"
            ) from None
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        # Lets answers that are being written, that of /stop above all, reach their end.
        await runner.cleanup()


def _application(generator: Generator) -> web.Application:
    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def start(_: web.Request) -> web.Response:
        generator.start()
        return web.json_response({})

    async def in_flight(_: web.Request) -> web.Response:
        return web.json_response(
            {
                "state": generator.state,
                "now_s": round(generator.now_s, 3),
                "in_flight": generator.ledger.in_flight,
                "by_route": generator.ledger.in_flight_by_route(),
            }
        )

    async def report(_: web.Request) -> web.Response:
        return _answer(generator.report())

    async def begin_fault(request: web.Request) -> web.Response:
        return _noted(generator, generator.ledger.begin_fault, request.match_info["name"])

    async def end_fault(request: web.Request) -> web.Response:
        return _noted(generator, generator.ledger.end_fault, request.match_info["name"])

    async def stop(_: web.Request) -> web.Response:
        generator.stop()
        return _answer(await generator.ended())

    application = web.Application()
    application.add_routes(
        [
            web.get("/livez", livez),
            web.post("/start", start),
            web.get("/in-flight", in_flight),
            web.get("/report", report),
            web.post("/faults/{name}", begin_fault),
            web.post("/faults/{name}/end", end_fault),
            web.post("/stop", stop),
        ]
    )
    return application


def _answer(report: Report) -> web.Response:
    return web.Response(text=report.to_json(), content_type="application/json")


def _noted(generator: Generator, note: Callable[[str, float], None], name: str) -> web.Response:
    try:
        note(name, generator.now_s)
    except TrafficError as error:
        return web.json_response({"error": str(error)}, status=409)
    return web.json_response(
        {"now_s": round(generator.now_s, 3), "in_flight": generator.ledger.in_flight}
    )
