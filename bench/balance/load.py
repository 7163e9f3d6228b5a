"""Requests to the model `paced`: so many at a time, or so many a second."""

import asyncio
import itertools
import struct
import time
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Self

import grpc.aio

from bench.balance.figures import Load
from tidegate_proto.kserve_v2_pb2 import ModelInferRequest

MODEL = "paced"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
ENGINES_HEADER = "tidegate-engine"

DELAY_S = 0.2
"""Seconds that an engine at full speed takes: two and a half such engines, each with 16 requests at
a time, answer 200 a second, which two cores carry together with the clients and the gateway."""
TIMEOUT_S = 30.0
SETTLE_S = 1.5
"""Seconds of load before anything is counted, in which queues become as long as they stay."""

_Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class Client:
    """Sends requests over one connection to each of `addresses`, in turn.

    Messages are bytes, made once and not looked at, so that the client costs little. A request that
    fails raises grpc.aio.AioRpcError, and ends the benchmark.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._message = _message()
        self._channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for address in addresses
        ]
        methods: list[_Method] = [channel.unary_unary(METHOD) for channel in self._channels]
        self._turns = itertools.cycle(zip(addresses, methods, strict=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for channel in self._channels:
            await channel.close()

    async def send(self) -> Sequence[str]:
        """Send a request; returns the engines that it was tried on."""
        address, method = next(self._turns)
        call = method(self._message, timeout=TIMEOUT_S)
        await call
        told = dict(await call.trailing_metadata()).get(ENGINES_HEADER, address)
        return str(told).split(",")

    async def saturate(self, in_flight: int, seconds: float) -> Load:
        """A closed loop: always so many requests in flight.

        Counted are the answers that come within `seconds`, after SETTLE_S. The first requests are
        sent one after the other: a burst of them would go on as bursts of answers, of which now one
        more and now one less falls into the time that counts.
        """
        load = Load(seconds)
        since = time.monotonic() + SETTLE_S
        until = since + seconds

        async def repeat(number: int) -> None:
            await asyncio.sleep(SETTLE_S / 2 * number / in_flight)
            while (sent := time.monotonic()) < until:
                engines = await self.send()
                now = time.monotonic()
                if since <= now < until:
                    load.count(now - sent, engines)

        async with asyncio.TaskGroup() as group:
            for number in range(in_flight):
                group.create_task(repeat(number))
        return load

    async def arrive(self, rate: float, seconds: float, seed: int) -> Load:
        """An open loop: `rate` requests a second at random times, as from many clients (a Poisson
        process; the same `seed` is the same times).

        Counted are those that are due within `seconds`, after SETTLE_S, and from the time that they
        are due on.
        """
        load = Load(seconds)
        chance = Random(seed)  # noqa: S311 - nothing secret
        due = time.monotonic()
        since = due + SETTLE_S

        async def once(due: float) -> None:
            engines = await self.send()
            if due >= since:
                load.count(time.monotonic() - due, engines)

        async with asyncio.TaskGroup() as group:
            while (due := due + chance.expovariate(rate)) < since + seconds:
                await asyncio.sleep(due - time.monotonic())
                group.create_task(once(due))
        return load


def _message() -> bytes:
    message = ModelInferRequest(model_name=MODEL)
    for name, datatype, content in (
        ("input", "FP32", struct.pack("<f", 1.0)),
        ("delay_ms", "INT32", struct.pack("<i", round(DELAY_S * 1000))),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_input_contents.append(content)
    return message.SerializeToString()
