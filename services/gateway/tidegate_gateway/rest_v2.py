"""KServe v2 (the Open Inference Protocol) over HTTP."""

from typing import Any

from fastapi import APIRouter, Request, Response

from tidegate_gateway import __version__, v2_json
from tidegate_gateway.asgi import (
    STICKY_PARAMETER,
    Timeout,
    access_of,
    json_response,
    route_class,
    sticky_key,
    whole_body,
)
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import RequestError
from tidegate_gateway.inference import ENGINES_CHOICE, Inference
from tidegate_gateway.settings import Settings

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


def router(inference: Inference, settings: Settings) -> APIRouter:
    """The routes, answered by `inference`."""
    routes = APIRouter(prefix="/v2", tags=["KServe v2"], route_class=route_class(_refusal))
    _add_server_routes(routes, inference, settings)
    _add_model_routes(routes, inference, settings)
    return routes


def _add_server_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.get("", summary="Server metadata")
    async def server_metadata() -> Response:
        """Who answers, and which extensions of the protocol it speaks."""
        return json_response({"name": "tidegate", "version": __version__, "extensions": []})

    @routes.get("/health/live", summary="Server liveness")
    async def live() -> Response:
        """The gateway answers."""
        return json_response({"live": True})

    @routes.get("/health/ready", summary="Server readiness")
    async def ready(timeout: Timeout = None) -> Response:
        """The gateway reaches an engine that takes requests; 503 otherwise."""
        is_ready = await inference.server_ready(_deadline(timeout, settings))
        return json_response({"ready": is_ready}, status=200 if is_ready else 503)


def _add_model_routes(routes: APIRouter, inference: Inference, settings: Settings) -> None:
    @routes.get("/models/{model}", summary="Model metadata")
    @routes.get("/models/{model}/versions/{version}", summary="Version metadata")
    async def metadata(
        model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """The model's versions and the tensors that it takes and gives."""
        until = _deadline(timeout, settings)
        with inference.admitted(model, version, None, []) as admission:
            described = await inference.model(admission, until)
        return json_response(v2_json.write_metadata(described))

    @routes.get("/models/{model}/ready", summary="Model readiness")
    @routes.get("/models/{model}/versions/{version}/ready", summary="Version readiness")
    async def model_ready(
        model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """An engine serves the model; 503 otherwise."""
        until = _deadline(timeout, settings)
        is_ready = await inference.model_ready(model, version, until)
        return json_response({"name": model, "ready": is_ready}, status=200 if is_ready else 503)

    @routes.post("/models/{model}/infer", openapi_extra=_INFER_SCHEMA, summary="Infer")
    @routes.post(
        "/models/{model}/versions/{version}/infer",
        openapi_extra=_INFER_SCHEMA,
        summary="Infer with a version",
    )
    async def infer(
        request: Request, model: str, version: str = ENGINES_CHOICE, timeout: Timeout = None
    ) -> Response:
        """One inference with tensors as JSON."""
        until = _deadline(timeout, settings)
        access, key = access_of(request), sticky_key(request)
        with inference.admitted(model, version, key, access.engines) as admission:
            access.model = (await inference.model(admission, until)).name
            limit = settings.http.max_body_bytes
            body = await whole_body(request, limit, "http.max_body_bytes", until)
            response = await inference.infer(
                admission, v2_json.read_request(v2_json.parse(body), model, version), until
            )
        access.version = response.version
        return json_response(v2_json.write_response(response))


def _deadline(timeout: str | None, settings: Settings) -> Deadline:
    limits = settings.deadline
    return Deadline.requested(timeout, default=limits.v2_s, most=limits.max_s)


def _refusal(error: RequestError) -> dict[str, Any]:
    return {"error": error.message}
