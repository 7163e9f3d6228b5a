"""Requests over HTTP/1.1: photos to POST /predict, tensors in KServe v2's JSON.

aiohttp sends a POST once: it repeats only idempotent methods on a connection that turns out dead.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from tidegate_traffic import payloads
from tidegate_traffic.outcomes import (
    ENGINE_HEADER,
    GATEWAY_HEADER,
    Answer,
    Origin,
    Outcome,
    origin,
)
from tidegate_traffic.payloads import Constant, Echo
from tidegate_traffic.plan import Photo, Plan, Route
from tidegate_traffic.verdicts import ok, refused, told_otherwise, unlike_model, wrong

# Seconds. Below uvicorn's 5 s: a client that keeps idle connections for longer than its server
# sends into one that the server is just closing, and would count that as the server's fault.
_IDLE_S = 2.0
_PIECES = 20
# Of a score between 0 and 1: far more than processors differ by, and less than versions do.
_SCORE_TOLERANCE = 0.004
_BOUNDARY = "tidegate-traffic-b7f3c0d9"

# Request number → path, headers and body.
Compose = Callable[[int], "_Request"]
# Request number and the JSON document that came → what it is worth.
Judge = Callable[[int, Any, Origin], Answer]


@dataclass(frozen=True)
class _Request:
    path: str
    content_type: str
    body: bytes


class HttpSender:
    """Connections of their own to the plan's HTTP target, kept while they are in use."""

    def __init__(self, plan: Plan, route: Route, compose: Compose, judge: Judge) -> None:
        self._base = plan.http
        self._upload_s = route.upload_s
        self._headers = route.headers
        self._compose = compose
        self._judge = judge
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=route.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def send(self, number: int, request_id: str) -> Answer:
        """Send request `number`, once, and judge what comes."""
        request = self._compose(number)
        headers = {
            **self._headers,
            "Content-Type": request.content_type,
            "Content-Length": str(len(request.body)),
            "x-request-id": request_id,
        }
        body = _slowly(request.body, self._upload_s) if self._upload_s else request.body
        try:
            async with self._session.post(
                self._base + request.path, data=body, headers=headers, allow_redirects=False
            ) as response:
                content = await response.read()
        except TimeoutError:
            return Answer(Outcome.TIMEOUT, sentence="no answer within the route's timeout")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(Outcome.CONNECTION, _fault(error), f"{type(error).__name__}: {error}")
        came_from = origin(
            response.headers.get(ENGINE_HEADER, ""), response.headers.get(GATEWAY_HEADER, "")
        )
        if response.status != 200:
            said = content[:300].decode(errors="replace")
            return refused(str(response.status), said, came_from)
        try:
            document = json.loads(content)
        except ValueError:
            return wrong("form", f"expected JSON, got {content[:80]!r}", came_from)
        return self._judge(number, document, came_from)

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()


def photo_sender(plan: Plan, route: Route) -> HttpSender:
    """A sender of `route`, of kind PHOTO."""
    path = "/predict?" + urlencode({"model": route.model})
    requests = [
        _Request(path, f"multipart/form-data; boundary={_BOUNDARY}", _form(photo))
        for photo in route.photos
    ]

    def compose(number: int) -> _Request:
        return requests[number % len(requests)]

    def judge(number: int, document: Any, came_from: Origin) -> Answer:
        return _judge_photo(route, route.photos[number % len(requests)], document, came_from)

    return HttpSender(plan, route, compose, judge)


def _form(photo: Photo) -> bytes:
    head = (
        f"--{_BOUNDARY}\r\n"
        'Content-Disposition: form-data; name="file"; filename="photo"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + photo.content + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _judge_photo(route: Route, photo: Photo, document: Any, came_from: Origin) -> Answer:
    try:
        model, version = document["model_name"], document["model_version"]
        best = document["top"][0]
        label, index, score = best["label"], best["index"], float(best["score"])
    except (TypeError, ValueError, KeyError, IndexError):
        return wrong("form", f"expected a classification, got {document!r:.200}", came_from)
    if answer := unlike_model(route, model, version, came_from):
        return answer
    if photo.label not in (None, label) or photo.index not in (None, index):
        return wrong(
            "label",
            f"{photo.name}: expected {photo.label!r}, index {photo.index}, got {label!r}, "
            f"index {index}",
            came_from,
            version,
        )
    expected = photo.scores.get(version, score)
    if abs(score - expected) > _SCORE_TOLERANCE:
        sentence = f"{photo.name}: expected score {expected:g} of version {version}, got {score:g}"
        return wrong("score", sentence, came_from, version)
    return ok(came_from, version)


def json_sender(plan: Plan, route: Route, echo: Echo) -> HttpSender:
    """A sender of `route`, of kind V2_JSON."""
    path = f"/v2/models/{quote(route.model, safe='')}/infer"
    constants = [_json_constant(constant) for constant in echo.constants]

    def compose(number: int) -> _Request:
        varying = {
            "name": echo.input,
            "shape": [echo.elements],
            "datatype": echo.datatype,
            "data": payloads.values(number, echo.elements),
        }
        body = json.dumps({"inputs": [varying, *constants]}).encode()
        return _Request(path, "application/json", body)

    def judge(number: int, document: Any, came_from: Origin) -> Answer:
        return _judge_json(route, echo, number, document, came_from)

    return HttpSender(plan, route, compose, judge)


def _json_constant(constant: Constant) -> Mapping[str, object]:
    return {
        "name": constant.name,
        "shape": [len(constant.values)],
        "datatype": constant.datatype,
        "data": list(constant.values),
    }


def _judge_json(route: Route, echo: Echo, number: int, document: Any, came_from: Origin) -> Answer:
    try:
        model, version = document["model_name"], document["model_version"]
        outputs = {item["name"]: item for item in document["outputs"]}
        output = outputs[echo.output]
        datatype, shape, data = output["datatype"], output["shape"], list(output["data"])
        told = outputs[echo.version_output]["data"] if echo.version_output else None
    except (TypeError, KeyError):
        return wrong(
            "form",
            f"expected an answer with output {echo.output!r}, got {document!r:.200}",
            came_from,
        )
    if answer := unlike_model(route, model, version, came_from):
        return answer
    if (datatype, shape) != (echo.datatype, [echo.elements]):
        difference = (
            f"expected {echo.datatype} of shape {[echo.elements]}, got {datatype} of shape {shape}"
        )
    else:
        difference = payloads.difference(payloads.values(number, echo.elements), data)
    if difference:
        return wrong("content", difference, came_from, version)
    if told is not None and told != [int(version)]:
        return wrong("told version", told_otherwise(version, told), came_from, version)
    return ok(came_from, version)


async def _slowly(body: bytes, seconds: float) -> AsyncIterator[bytes]:
    size = -(-len(body) // _PIECES)
    for begin in range(0, len(body), size):
        await asyncio.sleep(seconds / _PIECES)
        yield body[begin : begin + size]


def _fault(error: aiohttp.ClientError | OSError) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "name resolution"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "refused"
        case aiohttp.ClientConnectorError():
            return "connect"
        case aiohttp.ServerDisconnectedError():
            return "closed"
        case aiohttp.ClientPayloadError():
            return "cut off"
        case ConnectionResetError() | BrokenPipeError() | aiohttp.ClientOSError():
            return "reset"
        case _:
            return "broken"
