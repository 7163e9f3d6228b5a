"""Clients of every kind, good, bad and gone: each does one thing, and says how it ended."""

import asyncio
import io
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
from PIL import Image

from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb


@dataclass
class Traffic:
    """What clients use, and what has come of them.

    Attributes:
        ended: by what a client did, how often it ended as it should.
        wrong: what else has happened.
        stub: for gRPC, asynchronous.
    """

    gateway: LocalGateway
    http: httpx.AsyncClient
    stub: Any
    chance: Random
    ended: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    async def run(self, names: list[str], done: Callable[[], bool]) -> None:
        """Do one thing after another, until `done`."""
        while not done():
            name = self.chance.choice(names)
            try:
                await asyncio.wait_for(CLIENTS[name](self), timeout=60)
            except AssertionError as error:
                self.wrong.append(f"{name}: {error}")
            except Exception as error:  # noqa: BLE001 - reported, and the test fails
                self.wrong.append(f"{name}: {error!r}")
            else:
                self.ended[name] = self.ended.get(name, 0) + 1


def tensor(name: str, datatype: str, shape: list[int], **members: object) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, **members}


def expect(answer: httpx.Response, status: int, word: str = "") -> None:
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:200]}"
    assert word in answer.text, answer.text[:200]


async def json_tensor(t: Traffic) -> None:
    values = [t.chance.random() for _ in range(t.chance.choice((1, 100, 20_000)))]
    sent = tensor("INPUT_FP64", "FP64", [len(values)], data=values)
    answer = await t.http.post("/v2/models/identity/infer", json={"inputs": [sent]})
    expect(answer, 200)
    assert answer.json()["outputs"][0]["data"] == values


async def binary_tensor(t: Traffic) -> None:
    raw = t.chance.randbytes(t.chance.choice((4, 4000, 600_000)))
    sent = tensor("INPUT_UINT8", "UINT8", [len(raw)], parameters={"binary_data_size": len(raw)})
    head = json.dumps({"inputs": [sent], "parameters": {"binary_data_output": True}}).encode()
    answer = await t.http.post(
        "/v2/models/identity/infer",
        content=head + raw,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    expect(answer, 200)
    assert answer.content.endswith(raw)


def photo(chance: Random) -> bytes:
    """A picture that no other one is like."""
    noise = np.frombuffer(chance.randbytes(48 * 48 * 3), np.uint8).reshape(48, 48, 3)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, chance.choice(("PNG", "JPEG")))
    return file.getvalue()


async def a_photo(t: Traffic) -> None:
    answer = await t.http.post("/predict", files={"file": photo(t.chance)})
    expect(answer, 200, "label")


async def generated(t: Traffic) -> None:
    expect(await t.http.post("/v2/models/slow/generate", json={"input": 1}), 200, "output")


async def events(t: Traffic) -> None:
    asked = {"count": 5, "delay_ms": 2}
    answer = await t.http.post("/v2/models/repeat/generate_stream", json=asked)
    expect(answer, 200)
    assert answer.text.count("data: ") == 5, answer.text[:200]


async def events_left(t: Traffic) -> None:
    # With less between two answers Triton 2.51 may crash by it, see docs/design.
    asked = {"count": 5, "delay_ms": 100}
    url = "/v2/models/repeat/generate_stream"
    async with t.http.stream("POST", url, json=asked) as answer:
        async for _ in answer.aiter_bytes():
            return


def slow_message(value: float, delay_ms: int) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name="slow",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1]),
            pb.ModelInferRequest.InferInputTensor(name="delay_ms", datatype="INT32", shape=[1]),
        ],
        raw_input_contents=[struct.pack("<f", value), struct.pack("<i", delay_ms)],
    )


async def unary(t: Traffic) -> None:
    answer = await t.stub.ModelInfer(slow_message(7, 0), timeout=30)
    assert answer.raw_output_contents[0] == struct.pack("<f", 7)


async def unary_left(t: Traffic) -> None:
    call = t.stub.ModelInfer(slow_message(7, 20), timeout=30)
    await asyncio.sleep(0.005)
    call.cancel()


async def unary_late(t: Traffic) -> None:
    try:
        await t.stub.ModelInfer(slow_message(7, 30), timeout=0.01)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
    else:
        raise AssertionError("it was in time")


async def streamed(t: Traffic) -> None:
    async def messages() -> AsyncIterator[pb.ModelInferRequest]:
        for number in range(10):
            yield slow_message(number, 0)

    found = [each async for each in t.stub.ModelStreamInfer(messages(), timeout=30)]
    values = [each.infer_response.raw_output_contents[0] for each in found]
    assert values == [struct.pack("<f", number) for number in range(10)]


async def streamed_left(t: Traffic) -> None:
    async def messages() -> AsyncIterator[pb.ModelInferRequest]:
        while True:
            yield slow_message(1, 0)
            await asyncio.sleep(0.005)

    call = t.stub.ModelStreamInfer(messages(), timeout=30)
    async for _ in call:
        break
    call.cancel()


async def no_json(t: Traffic) -> None:
    body = t.chance.randbytes(200)
    expect(await t.http.post("/v2/models/slow/infer", content=body), 400, "error")


async def wrong_shape(t: Traffic) -> None:
    sent = tensor("input", "FP32", [1, 1], data=[1])
    answer = await t.http.post("/v2/models/slow/infer", json={"inputs": [sent]})
    expect(answer, 400, "expected shape")


async def unknown_model(t: Traffic) -> None:
    name = f"nobody{t.chance.getrandbits(64)}"
    expect(await t.http.post(f"/v2/models/{name}/infer", json={}), 404, "no engine has")


async def raising(t: Traffic) -> None:
    sent = tensor("input", "FP32", [1], data=[1])
    answer = await t.http.post("/v2/models/raising/infer", json={"inputs": [sent]})
    expect(answer, 500, "failed in the engine")


async def no_picture(t: Traffic) -> None:
    answer = await t.http.post("/predict", files={"file": t.chance.randbytes(1000)})
    assert answer.status_code in (400, 415), answer.text


async def no_message(t: Traffic) -> None:
    async with grpc.aio.insecure_channel(t.gateway.grpc_address) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            await call(b"\xff\xff", timeout=30)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
        else:
            raise AssertionError("it was taken")


async def half_sent(t: Traffic) -> None:
    host, _, port = t.gateway.http_url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    heads = (
        b"GET /v2/health/live HTTP/1.1\r\nHost",
        b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        b"\x16\x03\x01",
        b"",
    )
    writer.write(t.chance.choice(heads))
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.close()
    await writer.wait_closed()


async def answer_left(t: Traffic) -> None:
    host, _, port = t.gateway.http_url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(
        {
            "inputs": [
                tensor("input", "FP32", [1], data=[1]),
                tensor("delay_ms", "INT32", [1], data=[20]),
            ]
        }
    ).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await asyncio.sleep(0.005)
    writer.transport.abort()


GOOD = (json_tensor, binary_tensor, a_photo, generated, events, unary, streamed)
BAD = (no_json, wrong_shape, unknown_model, raising, no_picture, no_message, unary_late)
GONE = (events_left, unary_left, streamed_left, half_sent, answer_left)

CLIENTS: dict[str, Callable[[Traffic], Awaitable[None]]] = {
    client.__name__: client for client in (*GOOD, *BAD, *GONE)
}
