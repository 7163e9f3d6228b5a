"""POST /predict and POST /predict/v2: the gateway's own two routes for web clients."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from tidegate_gateway import v2_json
from tidegate_gateway.asgi import (
    STICKY_PARAMETER,
    Timeout,
    access_of,
    answer,
    limited_body,
    priority_of,
    route_class,
    sticky_key,
    whole_body,
)
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    ClientError,
    DeadlineExceeded,
    EngineUnavailable,
    InvalidInput,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)
from tidegate_gateway.inference import Inference
from tidegate_gateway.requests import ENGINES_CHOICE, Classification
from tidegate_gateway.settings import Settings
from tidegate_gateway.tensors import json_kind

# Bytes beyond the file itself: boundaries, headers of parts, and small fields beside it.
_MULTIPART_OVERHEAD = 64 * 1024
_FIELD = "file"

_UPLOAD_SCHEMA = {
    "parameters": [STICKY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FIELD],
                    "properties": {_FIELD: {"type": "string", "format": "binary"}},
                }
            }
        },
    },
}
_TENSORS_SCHEMA = {
    "parameters": [STICKY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "example": {
                    "model_name": "identity_fp32",
                    "inputs": [
                        {"name": "INPUT", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}
                    ],
                }
            }
        },
    },
}


def router(inference: Inference, settings: Settings) -> APIRouter:
    """The routes, answered by `inference`."""
    routes = APIRouter(tags=["predict"], route_class=route_class(_refusal))

    def deadline(timeout: str | None) -> Deadline:
        limits = settings.deadline
        return Deadline.requested(timeout, default=limits.predict_s, most=limits.max_s)

    @routes.post("/predict", openapi_extra=_UPLOAD_SCHEMA, summary="Classify an image")
    async def predict(
        request: Request,
        model: Annotated[str, Query(min_length=1)] = settings.default_model,
        top: Annotated[int, Query(ge=1, le=1000)] = 5,
        timeout: Timeout = None,
    ) -> Response:
        """Upload one image in the form field `file`; the model's own settings say how it is
        preprocessed. `predictions` is the model's whole output, `top` its best classes."""
        until = deadline(timeout)
        access, key = access_of(request), sticky_key(request)
        async with inference.admitted(
            model, ENGINES_CHOICE, key, access.engines, priority_of(request), until
        ) as admission:
            access.model = (await inference.model(admission, until)).name
            file = await _uploaded_file(request, settings, until, admission.slot.hold)
            found = await inference.classify(admission, file, top, until)
        access.version = found.version
        return await answer(request, settings.http, v2_json.dump(_classification(found)))

    @routes.post("/predict/v2", openapi_extra=_TENSORS_SCHEMA, summary="Infer from JSON tensors")
    async def predict_tensors(request: Request, timeout: Timeout = None) -> Response:
        """Tensors in the JSON form of KServe v2; the model may be named in the body."""
        until = deadline(timeout)
        # The model is named in the body, so that it is here before anything is admitted.
        body = await whole_body(request, settings.http, until, _uncounted)
        document = v2_json.parse(body, max_values=settings.limits.max_json_values)
        model = document.get("model_name", settings.default_model)
        if not isinstance(model, str) or not model:
            raise InvalidInput(
                "the request: expected member 'model_name' as a string, "
                f"got {json_kind(model) if model != '' else 'an empty one'}"
            )
        access, key = access_of(request), sticky_key(request)
        async with inference.admitted(
            model, ENGINES_CHOICE, key, access.engines, priority_of(request), until
        ) as admission:
            admission.slot.hold(len(body))
            access.model = (await inference.model(admission, until)).name
            response = await inference.infer(
                admission, v2_json.read_request(document, model, ENGINES_CHOICE), until
            )
        access.version = response.version
        told = {"status": "success", "data": v2_json.write_response(response)}
        return await answer(request, settings.http, v2_json.dump(told))

    return routes


def _refusal(error: RequestError) -> dict[str, Any]:
    match error:
        case DeadlineExceeded():
            detail = "Inference server timeout"
        case EngineUnavailable():
            detail = "Inference server offline"
        case ClientError() | Overloaded():
            detail = error.message
        case _:
            detail = "Internal inference error"
    return {"detail": detail}


def _classification(found: Classification) -> dict[str, Any]:
    return {
        "model_name": found.model,
        "model_version": found.version,
        "predictions": found.predictions,
        "top": [
            {"index": candidate.index, "label": candidate.label, "score": candidate.score}
            for candidate in found.top
        ],
    }


class _WholeFormParser(MultiPartParser):
    """Parses a form in memory, and takes one that was cut off for what it is."""

    # Starlette writes larger parts to a temporary file; our root file system is read-only, the size
    # is bounded already, and the image is decoded from memory anyway.
    spool_max_size = 2**31

    _ended = False

    def on_end(self) -> None:
        """The closing boundary has come."""
        self._ended = True

    async def parse(self) -> FormData:
        """The form; raises MultiPartException for a broken one."""
        form = await super().parse()
        if not self._ended:
            await form.close()
            raise MultiPartException("no closing boundary")
        return form


def _uncounted(_: int) -> None:
    """Count no bytes yet."""


async def _uploaded_file(
    request: Request, settings: Settings, until: Deadline, hold: Callable[[int], None]
) -> bytes:
    """The one file in the field `file` of a multipart body.

    Raises:
        UnsupportedMedia: the body is no multipart/form-data.
        InvalidInput: it is broken, or does not have exactly one file in that field.
        PayloadTooLarge: the file is over images.max_upload_bytes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise UnsupportedMedia(
            f"the body: expected multipart/form-data with a file in the field {_FIELD!r}, "
            f"got {kind or 'no content type'!r}"
        )
    limit, setting = settings.images.max_upload_bytes, "images.max_upload_bytes"
    pieces = limited_body(
        request,
        limit,
        setting,
        until,
        silent_s=settings.http.body_silent_s,
        hold=hold,
        overhead=_MULTIPART_OVERHEAD,
    )
    try:
        form = await _WholeFormParser(request.headers, pieces).parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidInput("the body is no whole multipart/form-data", detail=repr(error)) from None
    try:
        files = [value for key, value in form.multi_items() if key == _FIELD]
        if len(files) != 1 or not isinstance(files[0], UploadFile):
            raise InvalidInput(
                f"expected one file in the form field {_FIELD!r}, got "
                f"{_what_came(form.multi_items())}"
            )
        file = await files[0].read()
    finally:
        await form.close()
    if len(file) > limit:
        raise PayloadTooLarge(
            f"the file: expected at most {limit} bytes ({setting}), got {len(file)}"
        )
    return file


def _what_came(items: list[tuple[str, UploadFile | str]]) -> str:
    if not items:
        return "an empty form"
    return ", ".join(
        f"{'a file' if isinstance(value, UploadFile) else 'text'} in {key!r}"
        for key, value in items[:5]
    ) + (" and more" if len(items) > 5 else "")
