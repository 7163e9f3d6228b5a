"""Good, bad and abandoned traffic for SOAK_S seconds (20): the gateway does not grow by it.

In ten minutes (`make soak`) ten thousand different photos come by, too.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2_grpc as rpc

from .conftest import GatewayFactory
from .mixed_traffic import CLIENTS, GONE, Traffic, a_photo

pytestmark = pytest.mark.needs("engine")

SOAK_S = float(os.environ.get("SOAK_S") or 20)
SEED = int(os.environ.get("SOAK_SEED") or random.SystemRandom().getrandbits(32))
PHOTOS = round(10_000 * SOAK_S / 600)
WORKERS = 6

# Megabytes by which memory may grow from the first third on: allocators do not give all back.
GROWTH_MB = 40


@dataclass(frozen=True)
class Size:
    """What a process holds."""

    memory_mb: float
    files: int
    threads: int
    tasks: int

    @classmethod
    def of(cls, gateway: LocalGateway) -> "Size":
        process = Path("/proc") / str(gateway.pid)
        status = dict(
            line.split(":", 1)
            for line in (process / "status").read_text().splitlines()
            if ":" in line
        )
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
        (tasks,) = [
            line.split()[1] for line in metrics if line.startswith("tidegate_gateway_tasks ")
        ]
        return cls(
            memory_mb=int(status["VmRSS"].split()[0]) / 1024,
            files=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            tasks=round(float(tasks)),
        )


async def mixed(gateway: LocalGateway, seconds: float) -> Traffic:
    """Clients of all kinds for so long."""
    end = time.monotonic() + seconds
    async with (
        httpx.AsyncClient(base_url=gateway.http_url, timeout=60) as http,
        grpc.aio.insecure_channel(gateway.grpc_address) as channel,
    ):
        stub = rpc.GRPCInferenceServiceStub(channel)
        traffic = Traffic(gateway, http, stub, random.Random(SEED))
        names = [*CLIENTS]
        workers = (traffic.run(names, lambda: time.monotonic() > end) for _ in range(WORKERS))
        await asyncio.gather(*workers)
        return traffic


async def photos(gateway: LocalGateway, count: int) -> Traffic:
    """So many photos, each another one."""
    async with (
        httpx.AsyncClient(base_url=gateway.http_url, timeout=60) as http,
        grpc.aio.insecure_channel(gateway.grpc_address) as channel,
    ):
        stub = rpc.GRPCInferenceServiceStub(channel)
        traffic = Traffic(gateway, http, stub, random.Random(SEED + 1))

        def done() -> bool:
            return sum(traffic.ended.values()) + len(traffic.wrong) >= count

        await asyncio.gather(*(traffic.run([a_photo.__name__], done) for _ in range(WORKERS)))
        return traffic


def settled(gateway: LocalGateway, eventually: Callable[[Callable[[], bool], str], None]) -> Size:
    """Its size once nothing is left to do."""

    def is_idle() -> bool:
        lines = httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
        begun = "tidegate_gateway_requests_in_flight{"
        return all(line.split()[1] == "0.0" for line in lines if line.startswith(begun))

    eventually(is_idle, "nothing is in flight")
    # Connections of clients that have left, and gRPC's own work, end a moment later.
    time.sleep(2)
    return Size.of(gateway)


def test_it_does_not_grow(
    engine: LocalEngine,
    new_gateway: GatewayFactory,
    eventually: Callable[[Callable[[], bool], str], None],
) -> None:
    gateway = new_gateway(engine.grpc_address, "--deadline.predict_s=30")
    print(f"{SOAK_S:g} s, SOAK_SEED={SEED}, {PHOTOS} photos")
    asyncio.run(mixed(gateway, SOAK_S / 3))
    before = settled(gateway, eventually)
    traffic = asyncio.run(mixed(gateway, SOAK_S * 2 / 3))
    between = settled(gateway, eventually)
    seen = asyncio.run(photos(gateway, PHOTOS))
    after = settled(gateway, eventually)
    for name, count in sorted(traffic.ended.items()):
        print(f"{name:16} {count:6}")
    print(f"photos           {sum(seen.ended.values()):6}\n{before}\n{between}\n{after}")

    assert traffic.wrong + seen.wrong == []
    assert set(traffic.ended) == set(CLIENTS)
    assert sum(traffic.ended[client.__name__] for client in GONE) > 20
    assert sum(seen.ended.values()) >= PHOTOS
    for later in (between, after):
        assert later.memory_mb - before.memory_mb < GROWTH_MB
        assert later.files <= before.files + 2
        assert later.threads <= before.threads + 2
        assert later.tasks <= before.tasks + 2
    exceptions = {r["exception"] for r in gateway.log_records() if "exception" in r}
    assert exceptions == set(), "\n".join(exceptions)
