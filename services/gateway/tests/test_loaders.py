"""What loaders tell, over real HTTP: a report, or silence with a reason."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from tidegate_engine.loader.bookkeeping import Bookkeeping, Rules, Verdict
from tidegate_engine.loader.plan import Listed, State
from tidegate_gateway import loaders
from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.loaders import Loaders, Said, read
from tidegate_process.asking import NoAnswer
from tidegate_table.document import Loads, ModelRoutes, Table

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
STATUS: dict[str, Any] = {
    "schema": 1,
    "revision": 42,
    "table": None,
    "models": {
        "m": {
            "versions": {
                "1": {"wanted": True, "proven": True, "digest": DIGEST, "later": "says more"},
                "2": {"wanted": True, "proven": False, "digest": ""},
                "3": {"wanted": False, "proven": True, "digest": DIGEST},
            }
        },
        "n": {"versions": {}},
    },
}
REPORT = {
    ("m", "1"): Said(is_proven=True, digest=DIGEST),
    ("m", "2"): Said(is_proven=False, digest=""),
    ("m", "3"): Said(is_proven=False, digest=DIGEST),
}


def answer(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@asynccontextmanager
async def serving(said: bytes, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a server that says so, whatever it is asked, and nothing more."""
    asked: list[bytes] = []
    ended = asyncio.Event()
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        running.add(this)
        with suppress(asyncio.IncompleteReadError):
            asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
            writer.write(said)
            await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
        assert {line.split()[1] for line in asked} <= {b"/status"}
    finally:
        ended.set()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*running)


@asynccontextmanager
async def asking(port: int, timeout_s: float = 20.0) -> AsyncIterator[Loaders]:
    made = Loaders(port, timeout_s=timeout_s)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_loader_is_asked_at_its_engines_address(host: str) -> None:
    address = f"[{host}]:8001" if ":" in host else f"{host}:8001"
    async with serving(answer(json.dumps(STATUS).encode()), host) as port, asking(port) as all_:
        assert await all_.ask(Endpoint(address, "engine-0")) == REPORT


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(b"{}", 503), "expected status 200, got 503"),
        (answer(b"<html>"), "expected JSON: "),
        (answer(b"[]"), "expected a JSON object, got list"),
        (answer(json.dumps(STATUS | {"models": 5}).encode()), "loader's status: AttributeError"),
        (answer(json.dumps(STATUS | {"models": {"m": {}}}).encode()), "KeyError: 'versions'"),
        # A loader that has just started: nothing is wanted, whatever the engine still has.
        (answer(json.dumps(STATUS | {"revision": 0}).encode()), "it has no routing table yet"),
    ],
    ids=lambda value: repr(value)[-30:],
)
async def test_what_cannot_be_used_is_silence(said: bytes, why: str) -> None:
    async with serving(said) as port, asking(port) as all_:
        with pytest.raises(NoAnswer, match=why):
            await all_.ask(Endpoint("127.0.0.1:8001", "engine-0"))


async def test_a_loader_that_does_not_come_to_an_end_is_silent() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{"
    async with serving(half) as port, asking(port, timeout_s=0.2) as all_:
        with pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"):
            await all_.ask(Endpoint("127.0.0.1:8001", "engine-0"))


async def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "MAX_STATUS_BYTES", 100)
    async with serving(answer(json.dumps(STATUS).encode())) as port, asking(port) as all_:
        with pytest.raises(NoAnswer, match="expected at most 100 bytes, got more"):
            await all_.ask(Endpoint("127.0.0.1:8001", "engine-0"))


def test_what_the_shipped_loader_tells_is_understood() -> None:
    book = Bookkeeping(Rules())
    with pytest.raises(NoAnswer):
        read(orjson.loads(orjson.dumps(book.report())))

    loads = {"m": Loads("", {"1": "", "2": ""})}
    book.applied(Table(42, {"m": ModelRoutes("1", {"1": 100})}, loads=loads))
    book.started(1)
    book.listed({"m": {"1": Listed(State.READY)}}, 0.0)
    for prove in book.due_proofs(0.0):
        book.asked(prove)
        book.answered(prove, Verdict.GOOD, "", 0.0)

    assert read(orjson.loads(orjson.dumps(book.report()))) == {
        ("m", "1"): Said(is_proven=True, digest=""),
        ("m", "2"): Said(is_proven=False, digest=""),
    }


def test_only_what_is_wanted_and_proven_is_served() -> None:
    assert read(STATUS) == REPORT


@pytest.mark.parametrize(
    ("proven", "theirs", "ours", "serves"),
    [
        (True, DIGEST, DIGEST, True),
        (True, DIGEST, OTHER, False),
        (True, DIGEST, "", True),
        (True, "", DIGEST, True),
        (False, DIGEST, DIGEST, False),
    ],
)
def test_a_proof_is_one_of_the_files_that_are_wanted(
    proven: bool, theirs: str, ours: str, serves: bool
) -> None:
    assert Said(is_proven=proven, digest=theirs).serves(ours) is serves
