"""The generate extension over HTTP: one answer as JSON, or any number as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from tidegate_gateway import generate, v2_json
from tidegate_gateway.access import Access
from tidegate_gateway.asgi import (
    STICKY_PARAMETER,
    Timeout,
    access_of,
    answer,
    priority_of,
    route_class,
    sticky_key,
    whole_body,
)
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import InvalidInput, RequestError
from tidegate_gateway.inference import Admission, Inference
from tidegate_gateway.requests import ENGINES_CHOICE
from tidegate_gateway.settings import Settings

_EVENTS = "text/event-stream"

_SCHEMA = {
    "parameters": [STICKY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": {"INPUT_BYTES": "three short words"},
            }
        },
    },
}
_STREAM_SCHEMA = _SCHEMA | {
    "responses": {"200": {"content": {_EVENTS: {"schema": {"type": "string"}}}}}
}


def router(inference: Inference, settings: Settings) -> APIRouter:
    """The routes, answered by `inference`."""
    routes = APIRouter(prefix="/v2/models", tags=["generate"], route_class=route_class(_refusal))
    _add_generate_routes(routes, inference, settings)
    _add_stream_routes(routes, inference, settings)
    return routes


def _add_generate_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    generating = _Generating(inference, settings)

    @routes.post("/{model}/generate", openapi_extra=_SCHEMA, summary="Generate")
    @routes.post(
        "/{model}/versions/{version}/generate",
        openapi_extra=_SCHEMA,
        summary="Generate with a version",
    )
    async def one(
        request: Request, model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """The one answer of a model to a JSON object with a member an input."""
        until = _soon(timeout, settings)
        answers = generating.answers(request, model, version, soon=until, until=until)
        async with aclosing(answers):
            only = await anext(answers, None)
            if only is None or await anext(answers, None) is not None:
                raise InvalidInput(
                    f"model {model!r}: expected one answer, got "
                    f"{'none' if only is None else 'several'}; ask with generate_stream"
                )
        return await answer(request, settings.http, only)


def _add_stream_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    generating = _Generating(inference, settings)

    @routes.post(
        "/{model}/generate_stream",
        openapi_extra=_STREAM_SCHEMA,
        response_class=Response,
        summary="Generate a stream",
    )
    @routes.post(
        "/{model}/versions/{version}/generate_stream",
        openapi_extra=_STREAM_SCHEMA,
        response_class=Response,
        summary="Generate a stream with a version",
    )
    async def stream(
        request: Request, model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """All answers of a model, each as a server-sent event when it comes. A failure after the
        first one is an event with the member `error`."""
        most = settings.stream.max_s
        until = Deadline.requested(timeout, default=most, most=most)
        soon = _soon(timeout, settings)
        answers = generating.answers(request, model, version, soon=soon, until=until)
        # What fails before anything has come is a status.
        first = await anext(answers, None)
        return _Events(first, answers, access_of(request))


def _soon(timeout: str | None, settings: Settings) -> Deadline:
    limits = settings.deadline
    return Deadline.requested(timeout, default=limits.v2_s, most=limits.max_s)


class _Generating:
    """Answers requests of both kinds."""

    def __init__(self, inference: Inference, settings: Settings) -> None:
        self._inference = inference
        self._settings = settings

    async def answers(
        self, request: Request, model: str, version: str, *, soon: Deadline, until: Deadline
    ) -> AsyncGenerator[bytes, None]:
        """The answers to `request` as JSON. It has its place until the last one.

        Args:
            soon: when the request must be here and have its place, and a model that answers once
                has answered.
            until: when a decoupled model has given all its answers.

        Raises:
            RequestError: any of the domain's errors.
        """
        access, key, priority = access_of(request), sticky_key(request), priority_of(request)
        admitted = self._inference.admitted(model, version, key, access.engines, priority, soon)
        async with admitted as admission:
            known = await self._inference.model(admission, soon)
            access.model = known.name
            asked = generate.read_request(await self._document(request, admission, soon), known)
            deadline = until if known.decoupled else soon
            async with aclosing(self._inference.stream(admission, asked, deadline)) as answers:
                async for each in answers:
                    # One without outputs only says that it is the last.
                    if each.outputs:
                        access.version = each.version
                        yield v2_json.dump(generate.write_response(each))

    async def _document(
        self, request: Request, admission: Admission, until: Deadline
    ) -> dict[str, Any]:
        settings = self._settings
        body = await whole_body(request, settings.http, until, admission.slot.hold)
        return v2_json.parse(body, max_values=settings.limits.max_json_values)


def _refusal(error: RequestError) -> dict[str, str]:
    return {"error": error.message}


class _Events(Response):
    """Answers as server-sent events, each sent as it comes.

    Not Starlette's own response for streams: that one listens for the client's leaving in a task
    beside, and here the connection itself cancels what is done for a client that has left.
    """

    def __init__(
        self, first: bytes | None, others: AsyncGenerator[bytes, None], access: Access
    ) -> None:
        super().__init__(media_type=_EVENTS, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._others = others
        self._access = access

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002
        receive: Receive,  # noqa: ARG002
        send: Send,
    ) -> None:
        """Send them all."""
        async with aclosing(self._others) as others:
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            try:
                if self._first is not None:
                    await self._send(send, self._first)
                    async for each in others:
                        await self._send(send, each)
            except RequestError as error:
                self._access.error = error
                await self._send(send, v2_json.dump(_refusal(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    async def _send(send: Send, document: bytes) -> None:
        event = b"data: " + document + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})
