"""When a gateway says that it is ready. The source of engines is a fake: a real one cannot be kept
from answering for as long as a test likes."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from tidegate_gateway import app
from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.settings import RoutingSettings, Settings
from tidegate_table.api_server import ApiServer
from tidegate_table.document import ModelRoutes, Table
from tidegate_table.following import Store

WAIT_S = 20


class Source:
    """Tells what the test puts into `told`."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[Endpoint, ...]] = asyncio.Queue()

    async def snapshots(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        while True:
            yield await self.told.get()


@pytest.mark.parametrize(
    "told", [(), (Endpoint("127.0.0.1:1", "away"),)], ids=["no engines", "an engine that is away"]
)
async def test_a_gateway_is_ready_once_it_has_heard_which_engines_there_are(
    told: tuple[Endpoint, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    monkeypatch.setattr(app, "_source", lambda _: source)
    async with app.opened(Settings()) as gateway:
        transport = httpx.ASGITransport(gateway.admin)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
            assert (await readyz(admin)) == (503, "the listeners are not open yet\n")
            gateway.readiness.change(listening=True)
            unheard = "it has not been told yet which engines there are\n"
            assert (await readyz(admin)) == (503, unheard)
            source.told.put_nowait(told)
            async with asyncio.timeout(WAIT_S):
                while not gateway.readiness.discovered:  # noqa: ASYNC110 - it is no event
                    await asyncio.sleep(0)
            assert (await readyz(admin)) == (200, "ok\n")
            gateway.readiness.change(draining=True)
            assert (await readyz(admin)) == (503, "draining\n")


async def test_a_gateway_that_follows_a_config_map_is_ready_once_a_table_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a table stands for the API server, which is away."""
    source = Source()
    monkeypatch.setattr(app, "_source", lambda _: source)
    away = ApiServer("http://127.0.0.1:1", namespace="own")
    monkeypatch.setattr(app, "in_cluster", lambda _: away)
    routing = RoutingSettings(config_map="tidegate-routing", folder=tmp_path, silent_s=0.1)
    for has_copy in (False, True):
        source.told.put_nowait(())
        if has_copy:
            Store(tmp_path).save(Table(7, {"m": ModelRoutes("1", {"1": 100})}))
        async with app.opened(Settings(routing=routing)) as gateway:
            gateway.readiness.change(listening=True)
            transport = httpx.ASGITransport(gateway.admin)
            async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
                assert (await readyz(admin)) == (503, "no routing table is applied yet\n")
                clients = httpx.ASGITransport(gateway.http)
                async with httpx.AsyncClient(transport=clients, base_url="http://g") as client:
                    refused = await client.get("/v2/models/m")
                    assert refused.status_code == 503
                    assert "no routing table yet" in refused.text
                if not has_copy:
                    continue
                async with asyncio.timeout(WAIT_S):
                    while not gateway.readiness.routed:  # noqa: ASYNC110 - it is no event
                        await asyncio.sleep(0.01)
                assert (await readyz(admin)) == (200, "ok\n")
                told = (await admin.get("/routing")).json()
                assert (told["revision"], told["oldestInUse"]) == (7, {"m": 7})
                assert told["table"]["models"]["m"]["stable"] == "1"


async def readyz(admin: httpx.AsyncClient) -> tuple[int, str]:
    answer = await admin.get("/readyz")
    return answer.status_code, answer.text
