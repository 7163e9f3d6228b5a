"""KServe v2 (the Open Inference Protocol) over HTTP."""

from typing import Any

from fastapi import APIRouter, Request, Response

from tidegate_gateway import __version__, kserve_v2, v2_binary, v2_json
from tidegate_gateway.asgi import (
    STICKY_PARAMETER,
    Timeout,
    access_of,
    answer,
    json_response,
    priority_of,
    route_class,
    sticky_key,
    whole_body,
)
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import InvalidInput, NotOffered, RequestError
from tidegate_gateway.inference import Inference
from tidegate_gateway.models import Model
from tidegate_gateway.offers import EXTENSIONS, NO_MEMORY, NO_MODELS, NO_SETTINGS, not_offered
from tidegate_gateway.requests import ENGINES_CHOICE
from tidegate_gateway.requests import Request as Inferring
from tidegate_gateway.requests import Response as Inferred
from tidegate_gateway.settings import Settings
from tidegate_gateway.tensors import json_kind
from tidegate_gateway.v2_json import Form
from tidegate_proto import model_config_pb2

_INFER_SCHEMA = {
    "parameters": [STICKY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "example": {
                    "inputs": [
                        {"name": "INPUT", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}
                    ]
                }
            }
        },
    },
}

# What Triton has besides, by the beginnings of its paths.
_NOT_OFFERED = {
    "/repository/models/{rest:path}": NO_MODELS,
    "/systemsharedmemory/{rest:path}": NO_MEMORY,
    "/cudasharedmemory/{rest:path}": NO_MEMORY,
    "/trace/setting": NO_SETTINGS,
    "/models/{rest}/trace/setting": NO_SETTINGS,
    "/logging": NO_SETTINGS,
}


def router(inference: Inference, settings: Settings) -> APIRouter:
    """The routes, answered by `inference`."""
    routes = APIRouter(prefix="/v2", tags=["KServe v2"], route_class=route_class(refusal))
    _add_server_routes(routes, inference, settings)
    _add_statistics_routes(routes, inference, settings)
    _add_model_routes(routes, inference, settings)
    _add_infer_routes(routes, inference, settings)
    for path, why in _NOT_OFFERED.items():
        _refuse(routes, path, why)
    return routes


def deadline(timeout: str | None, settings: Settings) -> Deadline:
    """The deadline of a request with that header, or without it."""
    limits = settings.deadline
    return Deadline.requested(timeout, default=limits.v2_s, most=limits.max_s)


def refusal(error: RequestError) -> dict[str, Any]:
    """The document that tells of `error`."""
    return {"error": error.message}


def _add_server_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.get("", summary="Server metadata")
    async def server_metadata() -> Response:
        """Who answers, and which extensions of the protocol it speaks."""
        return json_response({"name": "tidegate", "version": __version__, "extensions": EXTENSIONS})

    @routes.get("/health/live", summary="Server liveness")
    async def live() -> Response:
        """The gateway answers."""
        return json_response({"live": True})

    @routes.get("/health/ready", summary="Server readiness")
    async def ready(timeout: Timeout = None) -> Response:
        """The gateway reaches an engine that takes requests; 503 otherwise."""
        is_ready = await inference.server_ready(deadline(timeout, settings))
        return json_response({"ready": is_ready}, status=200 if is_ready else 503)

    @routes.post("/repository/index", summary="Index of models")
    async def index(request: Request, timeout: Timeout = None) -> Response:
        """The versions that get traffic, and whether an engine serves them. The body may be
        `{"ready": true}`: those that are served alone."""
        until = deadline(timeout, settings)
        body = await whole_body(request, settings.http, until, _uncounted)
        ready_only = v2_json.parse(body).get("ready", False) if body else False
        if not isinstance(ready_only, bool):
            raise InvalidInput(
                "the request: expected member 'ready' as true or false, got "
                f"{json_kind(ready_only)}"
            )
        listed = await inference.index(ready_only=ready_only)
        return json_response(
            [
                {"name": each.name, "version": each.version, "state": each.state.value}
                | ({"reason": each.reason} if each.reason else {})
                for each in listed
            ]
        )


def _uncounted(_: int) -> None:
    """Count no bytes."""


def _add_statistics_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.get("/models/stats", summary="Statistics of all models")
    @routes.get("/models/{model}/stats", summary="Model statistics")
    @routes.get("/models/{model}/versions/{version}/stats", summary="Version statistics")
    async def statistics(
        model: str = "", version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """What the engines have counted, each figure the sum over all of them."""
        parts = await inference.statistics(model, version, deadline(timeout, settings))
        return json_response(kserve_v2.as_document(kserve_v2.merged_statistics(parts)))


def _add_model_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.get("/models/{model}", summary="Model metadata")
    @routes.get("/models/{model}/versions/{version}", summary="Version metadata")
    async def metadata(
        model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """The model's versions and the tensors that it takes and gives."""
        described = await inference.described(model, version, deadline(timeout, settings))
        return json_response(v2_json.write_metadata(described))

    @routes.get("/models/{model}/config", summary="Model configuration")
    @routes.get("/models/{model}/versions/{version}/config", summary="Version configuration")
    async def model_config(
        model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """The model's configuration, as its engine has it."""
        described = await inference.described(model, version, deadline(timeout, settings))
        config = model_config_pb2.ModelConfig.FromString(described.config)
        return json_response(kserve_v2.as_document(config))

    @routes.get("/models/{model}/ready", summary="Model readiness")
    @routes.get("/models/{model}/versions/{version}/ready", summary="Version readiness")
    async def model_ready(
        model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """An engine serves the model; 503 otherwise."""
        is_ready = await inference.model_ready(model, version, deadline(timeout, settings))
        return json_response({"name": model, "ready": is_ready}, status=200 if is_ready else 503)


def _add_infer_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.post("/models/{model}/infer", openapi_extra=_INFER_SCHEMA, summary="Infer")
    @routes.post(
        "/models/{model}/versions/{version}/infer",
        openapi_extra=_INFER_SCHEMA,
        summary="Infer with a version",
    )
    async def infer(
        request: Request, model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """One inference with tensors as JSON, or as raw bytes behind it (binary tensor
        extension)."""
        until = deadline(timeout, settings)
        access, key, priority = access_of(request), sticky_key(request), priority_of(request)
        async with inference.admitted(
            model, version, key, access.engines, priority, until
        ) as admission:
            known = await inference.model(admission, until)
            access.model = known.name
            body = await whole_body(request, settings.http, until, admission.slot.hold)
            asked, form = _read(request.headers.get(v2_binary.LENGTH_HEADER), body, known, settings)
            response = await inference.infer(admission, asked, until)
        access.version = response.version
        return await _answer(request, settings, response, form)


def _read(
    json_length: str | None, body: bytes, model: Model, settings: Settings
) -> tuple[Inferring, Form]:
    """The request for `model` in `body`, and in which form it wants its answer."""
    end = len(body) if json_length is None else v2_binary.json_length(json_length, body)
    if json_length is not None and end == 0:
        return v2_binary.raw_request(body, model), Form(all_binary=True)
    view = memoryview(body)
    document = v2_json.parse(view[:end], max_values=settings.limits.max_json_values)
    asked = v2_json.read_request(document, model.name, ENGINES_CHOICE, v2_binary.Tail(view[end:]))
    return asked, v2_json.read_form(document)


async def _answer(request: Request, settings: Settings, response: Inferred, form: Form) -> Response:
    binary = form.binary(response)
    document = v2_json.dump(v2_json.write_response(response, binary=binary))
    body = v2_binary.join(document, response, binary) if binary else document
    if len(body) == len(document):
        return await answer(request, settings.http, document)
    return await answer(
        request,
        settings.http,
        body,
        media_type=v2_binary.MEDIA_TYPE,
        headers={v2_binary.LENGTH_HEADER: str(len(document))},
    )


def _refuse(routes: APIRouter, path: str, why: str) -> None:
    @routes.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def refuse(request: Request) -> Response:
        """Not a part of Tidegate."""
        raise NotOffered(not_offered(request.url.path, why))
