"""Every way in which an answer can fail, from a server that fails so on purpose: a real gateway
does not."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web

from tidegate_proto import inference_pb2, inference_pb2_grpc, kserve_v2_pb2, kserve_v2_pb2_grpc
from tidegate_traffic import plan
from tidegate_traffic.generator import Generator
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report

Document = dict[str, Any]
Answerer = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUESTS = 5
TENSORS: Document = {
    "name": "route",
    "model": "identity",
    "rate": 100,
    "duration_s": 1,
    "input": "INPUT",
    "output": "OUTPUT",
    "versions": ["1"],
    "elements": 4,
}
PHOTOS: Document = {
    "name": "route",
    "kind": "photo",
    "model": "image_classifier",
    "rate": 100,
    "photos": [{"file": "photo.png", "label": "espresso", "index": 967}],
}


async def run(
    target: str, route: Document, directory: Path, *, max_in_flight: int = 1000
) -> Report:
    (directory / "photo.png").write_bytes(b"photo" * 100)
    route = {name: value for name, value in route.items() if name != "duration_s"}
    document = {
        "http": f"http://{target}",
        "grpc": target,
        "duration_s": REQUESTS / route["rate"],
        "max_in_flight": max_in_flight,
        "routes": [route],
    }
    generator = Generator(plan.parse(document, directory))
    generator.start()
    await generator.run()
    return generator.report()


def outcomes(report: Report) -> set[tuple[Outcome, str]]:
    assert report.state == "ended"
    assert report.in_flight == 0
    assert report.ok + report.failed == report.routes["route"].scheduled == REQUESTS
    return {(cell.outcome, cell.detail) for cell in report.cells}


@asynccontextmanager
async def http_server(answer: Answerer) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(request: web.Request) -> Document:
    document = await request.json()
    (tensor,) = document["inputs"]
    return {
        "model_name": "identity",
        "model_version": "1",
        "outputs": [tensor | {"name": "OUTPUT"}],
    }


async def well(request: web.Request) -> web.StreamResponse:
    headers = {"tidegate-engine": "engine-0, engine-1", "tidegate-gateway": "gateway-0"}
    return web.json_response(await echo(request), headers=headers)


async def another_version(request: web.Request) -> web.StreamResponse:
    return web.json_response(await echo(request) | {"model_version": "2"})


async def another_model(request: web.Request) -> web.StreamResponse:
    return web.json_response(await echo(request) | {"model_name": "slow"})


def telling(version: object) -> Answerer:
    async def answer(request: web.Request) -> web.StreamResponse:
        document = await echo(request)
        told = {"name": "version", "datatype": "INT32", "shape": [1], "data": [version]}
        document["outputs"].append(told)
        return web.json_response(document)

    return answer


@pytest.mark.parametrize(
    ("answer", "outcome", "detail"),
    [
        (telling(1), Outcome.OK, ""),
        (telling(2), Outcome.WRONG, "told version"),
        (well, Outcome.WRONG, "form"),
    ],
)
async def test_http_that_is_to_tell_its_version(
    answer: Answerer, outcome: Outcome, detail: str, tmp_path: Path
) -> None:
    async with http_server(answer) as target:
        route = TENSORS | {"kind": "v2_json", "version_output": "version"}
        report = await run(target, route, tmp_path)
    assert outcomes(report) == {(outcome, detail)}


async def no_outputs(request: web.Request) -> web.StreamResponse:
    return web.json_response(await echo(request) | {"outputs": []})


async def a_changed_value(request: web.Request) -> web.StreamResponse:
    document = await echo(request)
    document["outputs"][0]["data"][2] += 1
    return web.json_response(document)


async def another_shape(request: web.Request) -> web.StreamResponse:
    document = await echo(request)
    document["outputs"][0]["shape"] = [2, 2]
    return web.json_response(document)


async def no_json(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


async def unavailable(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "Inference server offline"}, status=503)


async def redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def closing(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def cutting_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.close()
    return response


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("answer", "outcome", "detail"),
    [
        (well, Outcome.OK, ""),
        (another_version, Outcome.WRONG, "version"),
        (another_model, Outcome.WRONG, "model"),
        (no_outputs, Outcome.WRONG, "form"),
        (a_changed_value, Outcome.WRONG, "content"),
        (another_shape, Outcome.WRONG, "content"),
        (no_json, Outcome.WRONG, "form"),
        (unavailable, Outcome.STATUS, "503"),
        (redirect, Outcome.STATUS, "302"),
        (closing, Outcome.CONNECTION, "closed"),
        (cutting_off, Outcome.CONNECTION, "cut off"),
        (never, Outcome.TIMEOUT, ""),
    ],
)
async def test_http(answer: Answerer, outcome: Outcome, detail: str, tmp_path: Path) -> None:
    served = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal served
        served += 1
        return await answer(request)

    timeout_s = 0.2 if answer is never else 10
    async with http_server(counted) as target:
        report = await run(target, TENSORS | {"kind": "v2_json", "timeout_s": timeout_s}, tmp_path)
    assert outcomes(report) == {(outcome, detail)}
    assert served == REQUESTS  # nothing is repeated


async def test_who_answered_is_told_by_headers(tmp_path: Path) -> None:
    async with http_server(well) as target:
        report = await run(target, TENSORS | {"kind": "v2_json"}, tmp_path)
    assert {(cell.version, cell.engine, cell.gateway) for cell in report.cells} == {
        ("1", "engine-1", "gateway-0")
    }


@pytest.mark.parametrize("kind", ["v2_json", "v2_grpc"])
async def test_nobody_listens(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    report = await run(f"127.0.0.1:{port}", TENSORS | {"kind": kind}, tmp_path)
    assert outcomes(report) == {(Outcome.CONNECTION, "refused")}


async def test_what_is_too_much_is_counted_as_not_sent(tmp_path: Path) -> None:
    async with http_server(never) as target:
        route = TENSORS | {"kind": "v2_json", "timeout_s": 0.5}
        report = await run(target, route, tmp_path, max_in_flight=2)
    assert outcomes(report) == {(Outcome.TIMEOUT, ""), (Outcome.NOT_SENT, "")}
    assert report.peak_in_flight == 2
    assert sum(c.count for c in report.cells if c.outcome is Outcome.NOT_SENT) == REQUESTS - 2


def classification(label: str) -> Answerer:
    async def answer(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        photo = form["file"]
        assert isinstance(photo, web.FileField)
        assert photo.file.read() == b"photo" * 100
        top = [{"index": 967, "label": label, "score": 0.9}]
        return web.json_response(
            {"model_name": "image_classifier", "model_version": "1", "top": top}
        )

    return answer


@pytest.mark.parametrize(
    ("label", "outcome", "detail"),
    [("espresso", Outcome.OK, ""), ("tripod", Outcome.WRONG, "label")],
)
@pytest.mark.parametrize("upload_s", [0, 0.2])
async def test_photos(
    label: str, outcome: Outcome, detail: str, upload_s: float, tmp_path: Path
) -> None:
    async with http_server(classification(label)) as target:
        report = await run(target, PHOTOS | {"upload_s": upload_s}, tmp_path)
    assert outcomes(report) == {(outcome, detail)}
    if upload_s and outcome is Outcome.OK:
        assert report.routes["route"].latency.p50_ms >= upload_s * 1000


@pytest.mark.parametrize(
    ("scores", "outcome", "detail"),
    [
        ({"1": 0.9, "2": 0.8}, Outcome.OK, ""),
        ({"2": 0.8}, Outcome.OK, ""),
        ({"1": 0.8}, Outcome.WRONG, "score"),
    ],
)
async def test_photos_whose_scores_tell_the_version(
    scores: Document, outcome: Outcome, detail: str, tmp_path: Path
) -> None:
    (photo,) = PHOTOS["photos"]
    async with http_server(classification("espresso")) as target:
        report = await run(target, PHOTOS | {"photos": [photo | {"scores": scores}]}, tmp_path)
    assert outcomes(report) == {(outcome, detail)}


@pytest.mark.parametrize(("each", "connections"), [(0, 1), (1, REQUESTS)])
async def test_new_connections_when_they_are_wanted(
    each: int, connections: int, tmp_path: Path
) -> None:
    peers = set()

    async def noting(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await well(request)

    # Slow enough that a kept connection is free again for the next request.
    route = TENSORS | {"kind": "v2_json", "requests_per_connection": each, "rate": 5}
    async with http_server(noting) as target:
        report = await run(target, route, tmp_path)
    assert outcomes(report) == {(Outcome.OK, "")}
    assert len(peers) == connections


class Engine(kserve_v2_pb2_grpc.GRPCInferenceServiceServicer):
    """Echoes, but for what `fault` says."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.peers: set[str] = set()

    async def ModelInfer(  # noqa: N802
        self, request: kserve_v2_pb2.ModelInferRequest, context: Any
    ) -> kserve_v2_pb2.ModelInferResponse:
        self.peers.add(context.peer())
        metadata = dict(context.invocation_metadata())
        if self.fault != "unmarked":
            context.set_trailing_metadata(
                (
                    ("x-request-id", metadata["x-request-id"]),
                    ("tidegate-engine", "engine-0, engine-1"),
                    ("tidegate-gateway", "gateway-0"),
                )
            )
        if self.fault == "never":
            await asyncio.Event().wait()
        if self.fault in ("unavailable", "unmarked"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Inference server offline")
        content = request.raw_input_contents[0]
        if self.fault == "content":
            content = content[::-1]
        output = kserve_v2_pb2.ModelInferResponse.InferOutputTensor(
            name="OUTPUT" if self.fault != "name" else "INPUT", datatype="FP32", shape=[4]
        )
        told = kserve_v2_pb2.ModelInferResponse.InferOutputTensor(
            name="version", datatype="INT32", shape=[1]
        )
        return kserve_v2_pb2.ModelInferResponse(
            model_name="identity",
            model_version="2" if self.fault == "version" else "1",
            outputs=[told, output],
            raw_output_contents=[(2 if self.fault == "told" else 1).to_bytes(4, "little"), content],
        )


class Service(inference_pb2_grpc.InferenceServiceServicer):
    """Echoes; or not, as `fault` says."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    async def ModelInfer(  # noqa: N802
        self, request: inference_pb2.InferRequest, context: Any
    ) -> inference_pb2.InferResponse:
        (tensor,) = request.inputs
        content = tensor.tensor_content[:-1] if self.fault else tensor.tensor_content
        output = inference_pb2.InferResponse.Tensor(
            name="OUTPUT", shape=tensor.shape, tensor_content=content
        )
        return inference_pb2.InferResponse(model_name=request.model_name, outputs=[output])


@asynccontextmanager
async def grpc_server(engine: Engine, service: Service | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    kserve_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(engine, server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service or Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("", Outcome.OK, ""),
        ("version", Outcome.WRONG, "version"),
        ("content", Outcome.WRONG, "content"),
        ("name", Outcome.WRONG, "content"),
        ("told", Outcome.WRONG, "told version"),
        ("unavailable", Outcome.STATUS, "UNAVAILABLE"),
        ("unmarked", Outcome.CONNECTION, "UNAVAILABLE"),
        ("never", Outcome.TIMEOUT, ""),
    ],
)
async def test_grpc(fault: str, outcome: Outcome, detail: str, tmp_path: Path) -> None:
    timeout_s = 0.3 if fault == "never" else 10
    route = TENSORS | {"kind": "v2_grpc", "timeout_s": timeout_s, "version_output": "version"}
    async with grpc_server(Engine(fault)) as target:
        report = await run(target, route, tmp_path)
    assert outcomes(report) == {(outcome, detail)}
    told = {(cell.engine, cell.gateway) for cell in report.cells}
    answered = fault not in ("unmarked", "never")
    assert told == {("engine-1", "gateway-0") if answered else ("", "")}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("", (Outcome.OK, "")), ("torn", (Outcome.WRONG, "content"))],
)
async def test_inference_service(fault: str, expected: tuple[Outcome, str], tmp_path: Path) -> None:
    route = TENSORS | {"kind": "inference_service", "versions": []}
    async with grpc_server(Engine(), Service(fault)) as target:
        report = await run(target, route, tmp_path)
    assert outcomes(report) == {expected}


@pytest.mark.parametrize(("each", "connections"), [(0, 1), (1, REQUESTS)])
async def test_new_grpc_connections_when_they_are_wanted(
    each: int, connections: int, tmp_path: Path
) -> None:
    engine = Engine()
    route = TENSORS | {"kind": "v2_grpc", "requests_per_connection": each}
    async with grpc_server(engine) as target:
        report = await run(target, route, tmp_path)
    assert outcomes(report) == {(Outcome.OK, "")}
    assert len(engine.peers) == connections


async def test_a_failure_names_the_request_and_what_came(tmp_path: Path) -> None:
    async with http_server(unavailable) as target:
        report = await run(target, TENSORS | {"kind": "v2_json"}, tmp_path)
    first = report.failures[0]
    assert first.request_id == f"{report.run}-0"
    assert json.loads(first.sentence) == {"error": "Inference server offline"}
