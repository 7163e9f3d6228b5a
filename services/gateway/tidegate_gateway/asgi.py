"""What every HTTP route shares: the record of the request, its body, its refusal."""

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Annotated, Any

from fastapi import Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_gateway import statuses
from tidegate_gateway.access import REQUEST_ID_HEADER, Access, recorded
from tidegate_gateway.deadline import TIMEOUT_HEADER, Deadline
from tidegate_gateway.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidInput,
    PayloadTooLarge,
    RequestError,
)
from tidegate_gateway.inference import LONGEST_KEY, STICKY_HEADER
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import AnswerSettings
from tidegate_gateway.v2_json import dump

Timeout = Annotated[
    str | None,
    Header(alias=TIMEOUT_HEADER, description="Seconds to wait for the answer, such as 2.5"),
]
"""The parameter of a route whose client may say how long it waits."""

STICKY_PARAMETER = {
    "name": STICKY_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
    "description": "Requests with one key get one version of the model",
}
"""How the documentation has the sticky key; see `sticky_key`."""

_log = logging.getLogger(__name__)

# Written to the log alone, as nginx has it: the client left before its answer.
_CLIENT_GONE = "499"


class AccessMiddleware:
    """Keeps the record of each request and gives its id back with the answer.

    Outermost of all, so that nothing is answered without it, and nothing that goes wrong below it
    reaches the client in its own words. While `is_leaving`, answers close their connections.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        is_leaving: Callable[[], bool],
        answers: AnswerSettings,
    ) -> None:
        self._app = app
        self._answers = answers
        self._metrics = metrics
        self._is_leaving = is_leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get(REQUEST_ID_HEADER)
        with recorded("http", sent_id, self._metrics, self._answers) as access:
            scope.setdefault("state", {})["access"] = access
            try:
                await self._app(scope, receive, self._recording(send, access))
            except ClientDisconnect:
                access.status = _CLIENT_GONE
            except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
                _log.exception("the gateway failed to answer")
                access.error = EngineFailed("the gateway failed; its log says more by request id")
                if not access.status:
                    await _plain_refusal(access.error)(
                        scope, receive, self._recording(send, access)
                    )
            finally:
                route = scope.get("route")
                access.route = getattr(route, "path", access.route)
                access.status = access.status or _CLIENT_GONE

    def _recording(self, send: Send, access: Access) -> Send:
        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = str(message["status"])
                headers = MutableHeaders(scope=message)
                headers.update(dict(access.headers()))
                if self._is_leaving():
                    # The client connects anew for its next request, to a gateway that stays.
                    headers["connection"] = "close"
            await send(message)

        return send_recorded


def _plain_refusal(error: RequestError) -> Response:
    return Response(
        dump({"detail": error.message, "error": error.message}),
        status_code=500,
        media_type="application/json",
    )


def route_class(document: Callable[[RequestError], dict[str, Any]]) -> type[APIRoute]:
    """Routes whose refusals carry `document(error)` as JSON, with the status of the error."""

    class RefusingRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def answer_or_refuse(request: Request) -> Response:
                try:
                    return await answer(request)
                except RequestValidationError as fault:
                    error: RequestError = InvalidInput(_sentence(fault))
                except RequestError as fault:
                    error = fault
                access_of(request).error = error
                return Response(
                    dump(document(error)),
                    status_code=statuses.http_status(error),
                    headers=statuses.http_headers(error),
                    media_type="application/json",
                )

            return answer_or_refuse

    return RefusingRoute


def access_of(request: Request) -> Access:
    """The record of `request`."""
    access: Access = request.state.access
    return access


def sticky_key(request: Request) -> str | None:
    """The client's sticky key, if any. Read here and not as a parameter, which would cost each
    request as much again as all of the gateway's own choices."""
    return request.headers.get(STICKY_HEADER)


async def limited_body(
    request: Request, limit: int, setting: str, until: Deadline, *, overhead: int = 0
) -> AsyncGenerator[bytes, None]:
    """The body of `request` in the pieces in which it comes.

    Args:
        limit: bytes, the value of `setting`.
        until: when all of it must be here.
        overhead: bytes beyond it that what `limit` is about may be wrapped in.

    Raises:
        PayloadTooLarge: it is larger, or says that it is.
        InvalidInput: it is not here in time.
    """
    too_large = PayloadTooLarge(f"the body: expected at most {limit} bytes ({setting}), got more")
    # uvicorn has refused a Content-Length that is no number.
    if int(request.headers.get("content-length", 0)) > limit + overhead:
        raise too_large
    size = 0
    pieces = request.stream()
    while (piece := await _next_piece(pieces, until)) is not None:
        size += len(piece)
        if size > limit + overhead:
            raise too_large
        yield piece


async def _next_piece(pieces: AsyncGenerator[bytes, None], until: Deadline) -> bytes | None:
    try:
        return await until.wait_for(anext(pieces, None))
    except DeadlineExceeded:
        raise InvalidInput(
            f"the body did not arrive within the deadline of {until.given:g} s"
        ) from None


async def whole_body(request: Request, limit: int, setting: str, until: Deadline) -> bytes:
    """The body of `request`; raises what `limited_body` raises."""
    return b"".join([piece async for piece in limited_body(request, limit, setting, until)])


async def refuse_unrouted(request: Request, error: HTTPException) -> Response:
    """The answer for a path or method that does not exist, in the form of its protocol."""
    member = "error" if request.url.path.startswith("/v2") else "detail"
    sentence = f"{error.detail}: there is no {request.method} {request.url.path}"
    return Response(
        dump({member: sentence}),
        status_code=error.status_code,
        headers=error.headers,
        media_type="application/json",
    )


def json_response(document: dict[str, Any], status: int = 200) -> Response:
    """`document` as the answer."""
    return Response(dump(document), status_code=status, media_type="application/json")


def _sentence(fault: RequestValidationError) -> str:
    return "; ".join(
        f"{error['loc'][0]} parameter {error['loc'][-1]!r}: {error['msg']}, got {error['input']!r}"
        for error in fault.errors()
    )
