"""KServe v2 over HTTP on a real Triton."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

from .conftest import GatewayFactory

pytestmark = pytest.mark.needs("engine")

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 2**16 - 1],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [0.5, -2.0],
    "BF16": [0.5, -2.0],
    "FP32": [1.25, -3.5],
    "FP64": [0.1, 1e300],
    "BYTES": ["wave", "größer"],
}


def tensor(datatype: str, shape: list[int], data: Any, name: str = "input") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def error(response: httpx.Response) -> str:
    assert set(response.json()) == {"error"}, response.text
    return str(response.json()["error"])


def infer(client: httpx.Client, model: str, *inputs: Any, **members: Any) -> httpx.Response:
    return client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **members})


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_comes_back(client: httpx.Client, datatype: str) -> None:
    values = VALUES[datatype]
    response = infer(client, "identity", tensor(datatype, [2], values, f"INPUT_{datatype}"))
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    assert output == tensor(datatype, [2], values, f"OUTPUT_{datatype}")


def test_a_photo_as_json(
    client: httpx.Client, photo_tensor: tuple[npt.NDArray[np.float32], set[int]]
) -> None:
    values, shown = photo_tensor
    response = infer(client, "image_classifier", tensor("FP32", [1, 3, 224, 224], values.tolist()))
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    assert output["shape"] == [1, 1000]
    assert int(np.argmax(output["data"])) in shown


def test_id_version_and_wanted_outputs(client: httpx.Client) -> None:
    response = client.post(
        "/v2/models/slow/versions/1/infer",
        json={
            "id": "mine",
            "inputs": [tensor("FP32", [1], [7])],
            "outputs": [{"name": "output"}],
        },
    )
    assert response.json() == {
        "model_name": "slow",
        "model_version": "1",
        "id": "mine",
        "outputs": [tensor("FP32", [1], [7.0], "output")],
    }


def test_metadata_and_health(client: httpx.Client) -> None:
    assert client.get("/v2").json()["name"] == "tidegate"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/slow/ready").json() == {"name": "slow", "ready": True}
    expected = {
        "name": "slow",
        "versions": ["1"],
        "platform": "python",
        "inputs": [
            {"name": "input", "datatype": "FP32", "shape": [-1]},
            {"name": "delay_ms", "datatype": "INT32", "shape": [1]},
        ],
        "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1]}],
    }
    assert client.get("/v2/models/slow").json() == expected
    assert client.get("/v2/models/slow/versions/1").json() == expected


def test_what_is_not_there(client: httpx.Client) -> None:
    for path, message in {
        "/v2/models/nobody": "no engine has model 'nobody'",
        "/v2/models/slow/versions/9": "no engine has model 'slow' in version 9",
        "/v2/models/slow/versions/01": "no engine has model 'slow' in version '01'",
    }.items():
        response = client.get(path)
        assert (response.status_code, error(response)) == (404, message)
    response = client.get("/v2/models/nobody/ready")
    assert (response.status_code, response.json()) == (503, {"name": "nobody", "ready": False})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [tensor("FP64", [1], [1.0])],
            "model 'slow': input 'input': expected datatype FP32, got FP64",
        ),
        (
            [tensor("FP32", [1, 1], [1.0])],
            "model 'slow': input 'input': expected shape [-1], got [1, 1]",
        ),
        (
            [tensor("FP32", [2], [1.0])],
            "input 'input': expected 2 elements for shape [2], got 1",
        ),
        (
            [tensor("FP32", [1], [1.0]), tensor("INT32", [2], [1, 2], "delay_ms")],
            "model 'slow': input 'delay_ms': expected shape [1], got [2]",
        ),
        (
            [tensor("FP32", [1], [1.0], "other")],
            "model 'slow': expected inputs of ['input', 'delay_ms'], got 'other'; "
            "input 'input' (FP32 [-1]) is missing",
        ),
        ([], "model 'slow': input 'input' (FP32 [-1]) is missing"),
        (
            [tensor("FLOAT", [1], [1.0])],
            "input 'input': expected a datatype of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, "
            "INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES, got 'FLOAT'",
        ),
        (
            [tensor("FP32", [1], ["one"])],
            "input 'input': expected a number for FP32 at element 0, got a string",
        ),
        (
            [tensor("FP32", [-1], [1.0])],
            "input 'input': expected 'shape' to hold whole numbers of 0 to 2147483647, got -1",
        ),
        (
            [{"name": "input", "shape": [1], "datatype": "FP32"}],
            "input 'input': expected member 'data' or parameter 'binary_data_size', got none",
        ),
        (["input"], "input 0: expected an object, got a string"),
        (
            [
                {
                    "name": "input",
                    "shape": [1],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 4},
                }
            ],
            "input 'input': expected 4 bytes behind the JSON (binary_data_size), got 0",
        ),
    ],
)
def test_bad_tensors_are_refused_exactly(
    client: httpx.Client, inputs: list[Any], message: str
) -> None:
    response = infer(client, "slow", *inputs)
    assert (response.status_code, error(response)) == (400, message)


def test_an_unknown_output_is_refused(client: httpx.Client) -> None:
    response = infer(client, "slow", tensor("FP32", [1], [1]), outputs=[{"name": "nothing"}])
    assert (response.status_code, error(response)) == (
        400,
        "model 'slow': expected outputs of ['output'], got 'nothing'",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON: "),
        (b"{", "the body is not JSON: "),
        (b"[]", "the body: expected a JSON object, got a list"),
        (b"{}", "the request: expected member 'inputs' as a list, got none"),
        (b'{"inputs": {}}', "the request: expected member 'inputs' as a list, got an object"),
        (b'{"inputs": [], "id": 3}', "the request: expected member 'id' as a string, got 3"),
        (
            b'{"inputs": [], "parameters": {"a": []}}',
            "parameter 'a': expected a string, number or boolean, got a list",
        ),
    ],
)
def test_bad_documents_are_refused_exactly(client: httpx.Client, body: bytes, message: str) -> None:
    response = client.post("/v2/models/slow/infer", content=body)
    assert response.status_code == 400
    assert error(response).startswith(message)


def test_a_body_over_the_limit_is_refused(client: httpx.Client) -> None:
    response = client.post("/v2/models/slow/infer", content=bytes(64 * 2**20 + 1))
    assert (response.status_code, error(response)) == (
        413,
        "the body: expected at most 67108864 bytes (http.max_body_bytes), got more",
    )


def test_a_decoupled_model_cannot_be_asked_for_one_answer(client: httpx.Client) -> None:
    response = infer(client, "repeat", tensor("INT32", [1], [1], "count"))
    assert (response.status_code, error(response)) == (
        501,
        "model 'repeat' is decoupled: it answers a request any number of times; ask it with "
        "ModelStreamInfer, generate or generate_stream",
    )


def test_a_batch_over_the_models_limit_is_refused(client: httpx.Client) -> None:
    response = infer(client, "batching", tensor("FP32", [9, 1], [0.0] * 9))
    assert (response.status_code, error(response)) == (
        400,
        "model 'batching': input 'input': expected a batch of at most 8, got 9",
    )


def test_the_request_id_comes_back(client: httpx.Client) -> None:
    assert client.get("/v2", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    own = client.get("/v2").headers["x-request-id"]
    assert len(own) == 32
    refused = client.get("/nowhere", headers={"x-request-id": "two words"})
    assert (refused.status_code, len(refused.headers["x-request-id"])) == (404, 32)


def test_the_documentation_is_there(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {"/predict", "/predict/v2", "/v2/models/{model}/infer"} <= set(document["paths"])
    assert client.get("/docs").status_code == 200


def test_what_is_no_route_says_so_in_the_form_of_its_protocol(client: httpx.Client) -> None:
    for method, path, status, document in (
        ("GET", "/v2/nope", 404, {"error": "Not Found: there is no GET /v2/nope"}),
        ("POST", "/v2", 405, {"error": "Method Not Allowed: there is no POST /v2"}),
        ("GET", "/v2/", 404, {"error": "Not Found: there is no GET /v2/"}),
        ("GET", "/predict", 405, {"detail": "Method Not Allowed: there is no GET /predict"}),
    ):
        response = client.request(method, path)
        assert (response.status_code, response.json()) == (status, document)


@pytest.mark.parametrize("path", ["/v2/models/slow/infer", "/predict/v2", "/predict"])
def test_a_body_that_does_not_arrive_in_time_is_refused(gateway: LocalGateway, path: str) -> None:
    host, _, port = gateway.http_url.removeprefix("http://").partition(":")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\ntidegate-timeout: 0.5\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n-"
    )
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"}"):
            piece = connection.recv(65536)
            assert piece, f"it ended after {answer!r}"
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body did not arrive within the deadline of 0.5 s" in answer


# Beside inference


def test_the_configuration_is_the_one_that_triton_tells(
    client: httpx.Client, engine: LocalEngine
) -> None:
    for model in ("slow", "image_classifier", "batching", "repeat", "identity"):
        theirs = httpx.get(f"http://{engine.http_address}/v2/models/{model}/config").json()
        assert client.get(f"/v2/models/{model}/config").json() == theirs
        assert client.get(f"/v2/models/{model}/versions/1/config").json() == theirs


def test_statistics_are_those_of_the_engine(client: httpx.Client, engine: LocalEngine) -> None:
    infer(client, "slow", tensor("FP32", [1], [7]))
    for path in ("/v2/models/slow/stats", "/v2/models/slow/versions/1/stats", "/v2/models/stats"):
        ours = client.get(path).json()
        theirs = httpx.get(f"http://{engine.http_address}{path}").json()
        assert {each["name"]: each for each in ours["model_stats"]} == {
            each["name"]: each for each in theirs["model_stats"]
        }
    response = client.get("/v2/models/nobody/stats")
    assert (response.status_code, error(response)) == (404, "no engine has model 'nobody'")


def test_statistics_are_added_up_over_engines(new_gateway: GatewayFactory) -> None:
    with LocalEngine(("slow",)) as one, LocalEngine(("slow",)) as other:
        gateway = new_gateway(f"{one.grpc_address},{other.grpc_address}")
        with httpx.Client(base_url=gateway.http_url, timeout=60) as both:
            for _ in range(20):
                assert infer(both, "slow", tensor("FP32", [1], [7])).status_code == 200
            (stats,) = both.get("/v2/models/slow/stats").json()["model_stats"]
        each = [
            httpx.get(f"http://{engine.http_address}/v2/models/slow/stats").json()
            for engine in (one, other)
        ]
    counts = [told["model_stats"][0]["inference_count"] for told in each]
    assert min(counts) > 0
    assert stats["inference_count"] == sum(counts) >= 20


def test_the_index_needs_a_routing_table_and_is_made_from_it(
    client: httpx.Client, engine: LocalEngine, new_gateway: GatewayFactory, tmp_path: Path
) -> None:
    response = client.post("/v2/repository/index")
    assert (response.status_code, error(response)) == (
        501,
        "the index of models is made from a routing table; there is none here",
    )

    table = tmp_path / "table.json"
    models = {name: {"stable": "1", "weights": {"1": 100}} for name in ("slow", "missing")}
    table.write_text(json.dumps({"schema": 1, "revision": 1, "models": models}))
    gateway = new_gateway(engine.grpc_address, f"--routing.table={table}")
    ready = {"name": "slow", "version": "1", "state": "READY"}
    missing = {
        "name": "missing",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "no engine serves it now",
    }
    url = f"{gateway.http_url}/v2/repository/index"
    deadline = time.monotonic() + 20
    while httpx.post(url).json() != [missing, ready]:
        assert time.monotonic() < deadline, httpx.post(url).json()
        time.sleep(0.1)
    assert httpx.post(url, json={"ready": True}).json() == [ready]
    response = httpx.post(url, json={"ready": 1})
    assert (response.status_code, error(response)) == (
        400,
        "the request: expected member 'ready' as true or false, got 1",
    )


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (
            "/v2/repository/models/slow/load",
            "models are loaded and unloaded by the operator, or by the engines' own configuration",
        ),
        (
            "/v2/repository/models/slow/unload",
            "models are loaded and unloaded by the operator, or by the engines' own configuration",
        ),
        (
            "/v2/systemsharedmemory/region/a/register",
            "clients and engines share no machine; send the tensors themselves",
        ),
        (
            "/v2/cudasharedmemory/status",
            "clients and engines share no machine; send the tensors themselves",
        ),
        (
            "/v2/trace/setting",
            "the engines' logs and traces are set where the engines are installed",
        ),
        (
            "/v2/models/slow/trace/setting",
            "the engines' logs and traces are set where the engines are installed",
        ),
        ("/v2/logging", "the engines' logs and traces are set where the engines are installed"),
    ],
)
def test_what_is_not_offered_says_why(client: httpx.Client, path: str, why: str) -> None:
    for method in ("GET", "POST"):
        response = client.request(method, path)
        assert (response.status_code, error(response)) == (
            501,
            f"Tidegate does not offer {path}: {why}",
        )


def test_a_priority_has_a_name(client: httpx.Client) -> None:
    body = {"inputs": [tensor("FP32", [1], [7])]}
    for priority, status in (("high", 200), ("low", 200), ("urgent", 400)):
        response = client.post(
            "/v2/models/slow/infer", json=body, headers={"tidegate-priority": priority}
        )
        assert response.status_code == status
    assert error(response) == "tidegate-priority: expected high, normal or low, got 'urgent'"


def test_json_has_so_many_values_and_no_more(
    engine: LocalEngine, new_gateway: GatewayFactory
) -> None:
    gateway = new_gateway(engine.grpc_address, "--limits.max_json_values=100")
    with httpx.Client(base_url=gateway.http_url) as limited:
        assert infer(limited, "slow", tensor("FP32", [50], [1.0] * 50)).status_code == 200
        response = infer(limited, "slow", tensor("FP32", [200], [1.0] * 200))
    assert response.status_code == 413
    assert error(response).startswith(
        "the body: expected JSON of at most 100 values (limits.max_json_values), got "
    )
