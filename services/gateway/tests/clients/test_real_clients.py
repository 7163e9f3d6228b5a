"""Clients that others have written, each in its own environment, against Triton and the gateway.

Each makes the calls of its plan twice, against the engine itself and against the gateway in front
of it. What it makes of the answers is compared record by record: tensors byte for byte, the rest of
an answer member by member, errors by their status (their words are Tidegate's own).
"""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

from ..conftest import SHOWN, GatewayFactory
from . import plan
from .records import Record

ROOT = Path(__file__).parents[4]
PATIENCE_S = 240


@dataclass(frozen=True)
class Client:
    """A client: its program, the environment of it, what it speaks, and its areas."""

    program: str
    environment: str
    url: Callable[[LocalEngine | LocalGateway], str]
    areas: Mapping[str, plan.Area]


def http_address(server: LocalEngine | LocalGateway) -> str:
    if isinstance(server, LocalEngine):
        return server.http_address
    return server.http_url.removeprefix("http://")


def http_url(server: LocalEngine | LocalGateway) -> str:
    return f"http://{http_address(server)}"


def grpc_address(server: LocalEngine | LocalGateway) -> str:
    return server.grpc_address


CLIENTS = {
    "triton-http": Client("triton_http", "tritonclient", http_address, plan.HTTP),
    "triton-http-aio": Client("triton_http_aio", "tritonclient", http_address, plan.HTTP),
    "triton-grpc": Client("triton_grpc", "tritonclient", grpc_address, plan.GRPC),
    "triton-grpc-aio": Client("triton_grpc_aio", "tritonclient", grpc_address, plan.GRPC),
    "kserve-rest": Client("kserve_client", "kserve", http_url, plan.KSERVE_REST),
    "kserve-grpc": Client("kserve_client", "kserve", grpc_address, plan.KSERVE_GRPC),
}
OF_TRITON = [name for name in CLIENTS if name.startswith("triton")]
Records = dict[str, Record]


def marked(name: str, *values: str) -> Any:
    needs = pytest.mark.needs("engine", CLIENTS[name].environment)
    return pytest.param(name, *values, marks=needs, id="-".join((name, *values)))


class Runs:
    """What clients have got from the engine and from the gateway; each runs once for all areas."""

    def __init__(self, photos: plan.Photos, plans: Path) -> None:
        self._photos = photos
        self._plans = plans
        self._done: dict[tuple[str, str, frozenset[str] | None], dict[str, Records]] = {}

    def records(
        self, name: str, server: LocalEngine | LocalGateway, areas: frozenset[str] | None = None
    ) -> dict[str, Records]:
        """The records of a client by area and call; `areas`: of these alone."""
        run = name, CLIENTS[name].url(server), areas
        if run not in self._done:
            self._done[run] = self._run(CLIENTS[name], run[1], areas)
        return self._done[run]

    def _run(self, client: Client, url: str, areas: frozenset[str] | None) -> dict[str, Records]:
        calls = [
            {**call, "name": [area, call["name"]]}
            for area, made in client.areas.items()
            if areas is None or area in areas
            for call in made(self._photos)
        ]
        path = self._plans / f"{client.program}.json"
        path.write_text(json.dumps(calls))
        python = ROOT / ".venvs" / client.environment / "bin" / "python"
        ended = subprocess.run(
            [python, "-W", "ignore", "-m", f"clients.{client.program}", url, path],
            cwd=Path(__file__).parents[1],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        records: dict[str, Records] = defaultdict(dict)
        for line in ended.stdout.splitlines():
            told = json.loads(line)
            area, call = told["call"]
            assert call not in records[area], f"two calls of one name: {area}, {call}"
            records[area][call] = told["record"]
        assert sum(map(len, records.values())) == len(calls)
        return records


def _environment() -> dict[str, str]:
    # Compiled code of the clients is kept: to compile KServe's takes seconds each time.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYTHONPYCACHEPREFIX": str(ROOT / ".run" / "pycache")}


@pytest.fixture(scope="module")
def two_photos(photos: Mapping[str, bytes]) -> plan.Photos:
    """Two photos as `image_classifier` wants them, [2, 3, 224, 224]."""
    pixels = [
        np.asarray(Image.open(BytesIO(photos[name])).convert("RGB").resize((224, 224)))
        for name in ("chelsea.png", "coffee.png")
    ]
    return ((np.stack(pixels).transpose(0, 3, 1, 2) - 127.0) / 128).astype(np.float32)


@pytest.fixture(scope="module")
def runs(two_photos: plan.Photos, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(two_photos, tmp_path_factory.mktemp("plans"))


def told(record: Any) -> Any:
    """A record with errors by their status alone; how they say it is up to each."""
    if isinstance(record, list):
        return [told(each) for each in record]
    if not isinstance(record, dict):
        return record
    if "error" in record and isinstance(record["error"], dict):
        assert record["error"]["text"], record
        return {"error": record["error"]["status"]}
    return {name: told(value) for name, value in record.items()}


ALIKE = {"datatypes", "JSON", "classification", "options", "compression", "questions", "streams"}


@pytest.mark.parametrize(
    ("name", "area"),
    [marked(n, area) for n, client in CLIENTS.items() for area in client.areas if area in ALIKE],
)
def test_what_a_client_gets_from_triton_it_gets_from_us(
    name: str, area: str, runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    theirs = runs.records(name, engine)[area]
    ours = runs.records(name, gateway)[area]
    assert theirs.keys() == ours.keys()
    for call, record in theirs.items():
        assert told(ours[call]) == told(record), call
    # Or nothing would be shown by their being alike.
    refused = {call for call, record in theirs.items() if "error" in record}
    assert refused <= {"unknown metadata", "unknown config"}


@pytest.mark.parametrize("name", [marked(n) for n in CLIENTS])
def test_what_triton_refuses_we_refuse_with_the_same_status(
    name: str, runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    theirs = runs.records(name, engine)["errors"]
    ours = runs.records(name, gateway)["errors"]
    assert told(ours) == told(theirs)
    assert all("error" in record or "answers" in record for record in theirs.values())


# The status of an error, as the client tells it.
Told = str | None
UNTOLD = "an answer"
OVER_HTTP: dict[str, tuple[Told, Told]] = {
    # Triton's own tensors of 16 bits are binary alone.
    "FP16 as JSON": ("400", UNTOLD),
    # Triton has the model fail.
    "missing input": ("500", "400"),
    # Made from a routing table, and this gateway has none.
    "index": (UNTOLD, "501"),
    **dict.fromkeys(plan.NOT_OFFERED, (UNTOLD, "501")),
}
OVER_GRPC: dict[str, tuple[Told, Told]] = {
    "missing input": ("StatusCode.INTERNAL", "StatusCode.INVALID_ARGUMENT"),
    "index": (UNTOLD, "StatusCode.UNIMPLEMENTED"),
    **dict.fromkeys(plan.NOT_OFFERED, (UNTOLD, "StatusCode.UNIMPLEMENTED")),
}


def status(record: Record) -> Told:
    return record["error"]["status"] if "error" in record else UNTOLD


@pytest.mark.parametrize("name", [marked(n) for n in OF_TRITON])
def test_where_we_differ_it_is_in_this_way(
    name: str, runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    theirs = runs.records(name, engine)["differences"]
    ours = runs.records(name, gateway)["differences"]
    server = theirs.pop("server")["answer"], ours.pop("server")["answer"]
    found = {call: (status(theirs[call]), status(ours[call])) for call in theirs}
    assert found == (OVER_HTTP if "http" in name else OVER_GRPC)
    assert [each["name"] for each in server] == [server[0]["name"], "tidegate"]
    missing = set(server[0]["extensions"]) - set(server[1]["extensions"])
    assert missing == {
        "model_repository(unload_dependents)",
        "system_shared_memory",
        "cuda_shared_memory",
        "trace",
        "logging",
    }


@pytest.mark.needs("engine", "kserve")
def test_kserves_client_can_ask_for_our_health(
    runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    """It reads a member of the answer; Triton's have no body at all."""
    theirs = runs.records("kserve-rest", engine)["health"]
    assert ["JSONDecodeError" in each["error"]["text"] for each in theirs.values()] == [True, True]
    ours = runs.records("kserve-rest", gateway)["health"]
    assert ours == {"live": {"answer": True}, "ready": {"answer": True}}


def by_id(answers: list[Record]) -> dict[str, list[Record]]:
    sorted_out: dict[str, list[Record]] = defaultdict(list)
    for answer in answers:
        sorted_out[answer["response"]["id"]].append(answer)
    return sorted_out


@pytest.mark.parametrize("name", [marked(n) for n in OF_TRITON if "grpc" in n])
def test_each_of_several_decoupled_requests_gets_its_answers_in_order(
    name: str, runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    theirs = runs.records(name, engine)["decoupled streams"]
    ours = runs.records(name, gateway)["decoupled streams"]
    assert theirs.keys() == ours.keys()
    for call, record in theirs.items():
        assert by_id(ours[call]["answers"]) == by_id(record["answers"]), call
    assert len(ours["several"]["answers"]) == 6


def shape(told_of: Any) -> Any:
    """What a document says, without how often and how long."""
    if isinstance(told_of, dict):
        return {key: shape(value) for key, value in told_of.items() if key != "batch_stats"}
    if isinstance(told_of, list):
        return [shape(each) for each in told_of]
    # int64 is text in the JSON of protobuf.
    return told_of if isinstance(told_of, str) and not told_of.isdigit() else type(told_of)


def counted(answer: Any) -> int:
    [model] = answer["model_stats"]
    return int(model["inference_count"])


@pytest.mark.parametrize("name", [marked(n) for n in OF_TRITON])
def test_statistics_have_what_tritons_have(
    name: str, runs: Runs, engine: LocalEngine, gateway: LocalGateway
) -> None:
    theirs = runs.records(name, engine)["statistics"]
    ours = runs.records(name, gateway)["statistics"]
    for call in ("of a model", "of a version"):
        assert shape(ours[call]["answer"]) == shape(theirs[call]["answer"])
        # The gateway's were asked for later, and it has but this engine.
        assert counted(ours[call]["answer"]) > counted(theirs[call]["answer"])


TABLED = ("identity", "slow")


@pytest.fixture
def gateway_with_table(
    engine: LocalEngine,
    new_gateway: GatewayFactory,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool], str], None],
) -> LocalGateway:
    """A gateway with two of the models in its routing table."""
    table = tmp_path / "table.json"
    models = {model: {"stable": "1", "weights": {"1": 100}} for model in TABLED}
    table.write_text(json.dumps({"schema": 1, "revision": 1, "models": models}))
    gateway = new_gateway(engine.grpc_address, f"--routing.table={table}")

    def is_ready() -> bool:
        index = httpx.post(f"{gateway.http_url}/v2/repository/index").json()
        return all(model["state"] == "READY" for model in index)

    eventually(is_ready, "the models of the table are ready")
    return gateway


@pytest.mark.parametrize("name", [marked("triton-http"), marked("triton-grpc")])
def test_the_index_has_the_models_of_the_routing_table(
    name: str, runs: Runs, engine: LocalEngine, gateway_with_table: LocalGateway
) -> None:
    theirs = runs.records(name, engine)["differences"]["index"]
    asked = runs.records(name, gateway_with_table, frozenset({"differences"}))
    ours = asked["differences"]["index"]
    assert models_of(ours["answer"]) == [
        each for each in models_of(theirs["answer"]) if each["name"] in TABLED
    ]


def models_of(index: Any) -> list[dict[str, str]]:
    models = index["models"] if isinstance(index, dict) else index
    return sorted(models, key=lambda model: model["name"])


@pytest.mark.parametrize(
    ("name", "coding"), [marked("triton-grpc", "gzip"), marked("triton-grpc-aio", "deflate")]
)
def test_compressed_answers_are_the_same(
    name: str, coding: str, runs: Runs, engine: LocalEngine, new_gateway: GatewayFactory
) -> None:
    areas = frozenset({"compression", "streams"})
    gateway = new_gateway(engine.grpc_address, f"--grpc.compression={coding}")
    ours = runs.records(name, gateway, areas)
    theirs = runs.records(name, engine)
    assert {area: told(ours[area]) for area in areas} == {
        area: told(theirs[area]) for area in areas
    }


@pytest.mark.needs("engine", "kserve")
def test_photos_show_to_a_client_what_they_show(runs: Runs, gateway: LocalGateway) -> None:
    """So that the comparisons are not of two empty answers."""
    classes = runs.records("kserve-grpc", gateway)["classification"]["batch"]
    [tensor] = classes["tensors"]
    assert (tensor["datatype"], tensor["shape"]) == ("BYTES", [2, 5])
    # The first element after its length: score, class, label.
    [_, first, *_] = bytes.fromhex(tensor["begins"])[4:].split(b":")
    assert int(first) in SHOWN["chelsea.png"]
