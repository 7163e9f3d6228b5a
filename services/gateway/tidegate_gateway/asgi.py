"""What every HTTP route shares: the record of the request, its body, its refusal."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
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
from tidegate_gateway.admission import PRIORITY_HEADER, Priority
from tidegate_gateway.compression import accepted, compressed, decompressed
from tidegate_gateway.connections import CLIENT_GONE, ENDED_AS
from tidegate_gateway.deadline import TIMEOUT_HEADER, Deadline
from tidegate_gateway.errors import (
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    PayloadTooLarge,
    RequestError,
)
from tidegate_gateway.inference import LONGEST_KEY, STICKY_HEADER
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import AnswerSettings, HttpSettings
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

# In the state of a request whose body is not read to its end.
_GIVEN_UP = "body_given_up"


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
                await self._app(scope, receive, self._recording(send, access, scope))
            except ClientDisconnect:
                access.status = CLIENT_GONE
            except asyncio.CancelledError:
                if ENDED_AS in scope:
                    access.status = scope[ENDED_AS]
                    raise
                # Else it is the server, which leaves and waits for no request any longer.
                access.error = EngineUnavailable("the gateway leaves, and drain.grace_s is over")
                if access.status:
                    raise
                await _plain_refusal(access.error)(
                    scope, receive, self._recording(send, access, scope)
                )
            except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
                _log.exception("the gateway failed to answer")
                access.error = EngineFailed("the gateway failed; its log says more by request id")
                if not access.status:
                    await _plain_refusal(access.error)(
                        scope, receive, self._recording(send, access, scope)
                    )
            finally:
                route = scope.get("route")
                access.route = getattr(route, "path", access.route)
                access.status = access.status or CLIENT_GONE

    def _recording(self, send: Send, access: Access, scope: Scope) -> Send:
        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = str(message["status"])
                headers = MutableHeaders(scope=message)
                headers.update(dict(access.headers()))
                if _GIVEN_UP in scope["state"] or self._is_leaving():
                    # The client connects anew for its next request, to a gateway that stays.
                    headers["connection"] = "close"
            await send(message)

        return send_recorded


def _plain_refusal(error: RequestError) -> Response:
    return Response(
        dump({"detail": error.message, "error": error.message}),
        status_code=statuses.http_status(error),
        headers=statuses.http_headers(error),
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


def priority_of(request: Request) -> Priority:
    """The client's priority; raises InvalidInput for one that there is not."""
    return Priority.parse(request.headers.get(PRIORITY_HEADER))


async def limited_body(  # noqa: PLR0913  keywords
    request: Request,
    limit: int,
    setting: str,
    until: Deadline,
    *,
    silent_s: float,
    hold: Callable[[int], None],
    overhead: int = 0,
) -> AsyncGenerator[bytes, None]:
    """The body of `request` in the pieces in which it comes.

    Args:
        limit: bytes, the value of `setting`.
        until: when all of it must be here.
        silent_s: seconds without a byte after which it is given up: http.body_silent_s.
        hold: told of the size of each piece.
        overhead: bytes beyond it that what `limit` is about may be wrapped in.

    Raises:
        PayloadTooLarge: it is larger, or says that it is.
        InvalidInput: it is not here in time.
        Overloaded: `hold` raised it.
        Each of them ends the connection: the rest of the body is not read.
    """
    too_large = PayloadTooLarge(f"the body: expected at most {limit} bytes ({setting}), got more")
    try:
        # A Content-Length that is no number has been refused before.
        if int(request.headers.get("content-length", 0)) > limit + overhead:
            raise too_large
        size = 0
        pieces = request.stream()
        while (piece := await _next_piece(pieces, until, silent_s)) is not None:
            size += len(piece)
            hold(len(piece))
            if size > limit + overhead:
                raise too_large
            yield piece
    except RequestError:
        request.scope["state"][_GIVEN_UP] = True
        raise


async def _next_piece(
    pieces: AsyncGenerator[bytes, None], until: Deadline, silent_s: float
) -> bytes | None:
    patience = until.earlier(silent_s)
    try:
        return await patience.wait_for(anext(pieces, None))
    except DeadlineExceeded:
        if patience is not until:
            raise InvalidInput(
                f"the body: nothing of it came for {silent_s:g} s (http.body_silent_s)"
            ) from None
        raise InvalidInput(
            f"the body did not arrive within the deadline of {until.given:g} s"
        ) from None


async def whole_body(
    request: Request, http: HttpSettings, until: Deadline, hold: Callable[[int], None]
) -> bytes:
    """The body of `request`, decompressed; raises what `limited_body` and `decompressed` raise."""
    limit, setting = http.max_body_bytes, "http.max_body_bytes"
    pieces = limited_body(request, limit, setting, until, silent_s=http.body_silent_s, hold=hold)
    body = b"".join([piece async for piece in pieces])
    coding = request.headers.get("content-encoding")
    if coding is None:
        return body
    plain = await decompressed(body, coding, limit=limit, setting=setting)
    hold(max(0, len(plain) - len(body)))
    return plain


async def answer(
    request: Request,
    http: HttpSettings,
    body: bytes,
    *,
    media_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer to an inference, compressed if the client and the settings want it."""
    headers = dict(headers or {})
    wanted = request.headers.get("accept-encoding")
    if wanted is not None and http.compression_level and len(body) >= http.compression_least_bytes:
        headers["Vary"] = "Accept-Encoding"
        coding = accepted(wanted)
        if coding:
            headers["Content-Encoding"] = coding
            body = await compressed(body, coding, http.compression_level)
    return Response(body, headers=headers, media_type=media_type)


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


def json_response(document: object, status: int = 200) -> Response:
    """`document` as the answer."""
    return Response(dump(document), status_code=status, media_type="application/json")


def _sentence(fault: RequestValidationError) -> str:
    return "; ".join(
        f"{error['loc'][0]} parameter {error['loc'][-1]!r}: {error['msg']}, got {error['input']!r}"
        for error in fault.errors()
    )
