"""What is quiet for three minutes is not cut off: keepalive agrees with how Triton is started.

It takes these three minutes, so `make soak` has it and `make test` has not (`conftest.py`).
"""

import asyncio
import struct
from collections.abc import Callable, Iterator

import grpc
import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.channels import open_channel
from tidegate_gateway.local import LocalGateway
from tidegate_gateway.settings import EngineSettings
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

QUIET_S = 180
# By then Triton has cut off who pings too often: at the third ping that comes too soon.
CUT_OFF_S = 120
# What the chart and the demo set together with Triton's arguments, and the gateway's default.
OFTEN_S, SELDOM_S = 10.0, 310.0
# Triton's own defaults, which LocalEngine sets otherwise.
TRITONS_DEFAULTS = (
    "--grpc-http2-min-recv-ping-interval-without-data=300000",
    "--grpc-keepalive-permit-without-calls=0",
)
MODELS = ("paced",)

pytestmark = pytest.mark.needs("engine")


@pytest.fixture
def permissive() -> Iterator[LocalEngine]:
    """Triton as the chart starts it."""
    with LocalEngine(MODELS) as engine:
        yield engine


@pytest.fixture
def strict() -> Iterator[LocalEngine]:
    """Triton with its own defaults."""
    with LocalEngine(MODELS, triton_args=TRITONS_DEFAULTS) as engine:
        yield engine


async def test_a_call_and_a_stream_outlive_three_quiet_minutes(
    gateway_to: Callable[..., LocalGateway], permissive: LocalEngine, strict: LocalEngine
) -> None:
    often = gateway_to((permissive,), f"--engine.keepalive_s={OFTEN_S:g}")
    seldom = gateway_to((strict,))
    assert EngineSettings().keepalive_s == SELDOM_S
    *survivors, cut_off = await asyncio.gather(
        long_call(often),
        long_call(seldom),
        quiet_stream(permissive, OFTEN_S),
        quiet_stream(strict, SELDOM_S),
        # Proof that the others could have failed.
        quiet_stream(strict, OFTEN_S, CUT_OFF_S),
    )
    assert survivors == ["answered"] * 4
    assert cut_off.startswith("UNAVAILABLE: Too many pings"), cut_off


async def long_call(gateway: LocalGateway) -> str:
    """A call of three minutes through the gateway: what came of it."""
    document = {
        "inputs": [
            {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]},
            {"name": "delay_ms", "datatype": "INT32", "shape": [1], "data": [QUIET_S * 1000]},
        ]
    }
    async with httpx.AsyncClient(timeout=QUIET_S + 60) as client:
        answer = await client.post(
            f"{gateway.http_url}/v2/models/paced/infer",
            json=document,
            headers={"tidegate-timeout": str(QUIET_S + 60)},
        )
    return "answered" if answer.status_code == 200 else answer.text


async def quiet_stream(engine: LocalEngine, keepalive_s: float, quiet_s: int = QUIET_S) -> str:
    """A stream over the gateway's own channel on which nothing comes for `quiet_s`: what came of
    it. The gateway has no streams yet."""
    message = pb.ModelInferRequest(model_name="paced")
    message.inputs.add(name="input", datatype="FP32", shape=[1])
    message.inputs.add(name="delay_ms", datatype="INT32", shape=[1])
    message.raw_input_contents.extend((struct.pack("<f", 1), struct.pack("<i", quiet_s * 1000)))
    settings = EngineSettings(keepalive_s=keepalive_s)
    async with open_channel(engine.grpc_address, settings) as channel:
        call = rpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(timeout=quiet_s + 60)
        await call.write(message)
        try:
            async for answer in call:
                return answer.error_message or "answered"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "ended"
