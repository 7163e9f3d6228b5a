"""Requests that are broken on purpose: each is refused, and none of them crashes the gateway,
hangs, leaks its insides or reaches the engine."""

import json
import re
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb

pytestmark = pytest.mark.needs("engine")

SLOW = "/v2/models/slow/infer"
GOOD: dict[str, Any] = {
    "id": "1",
    "inputs": [{"name": "input", "datatype": "FP32", "shape": [1], "data": [1.5]}],
    "outputs": [{"name": "output"}],
    "parameters": {"own": 1},
}

# A path, a file of Python, an address, or Python's way to tell of an exception.
INTERNALS = re.compile(r"/\w+/\w+|\.py\b|Traceback|\d+\.\d+\.\d+\.\d+|0x[0-9a-f]{6}")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalGateway, LocalEngine]]:
    """A gateway and an engine that have nothing else to do."""
    log = tmp_path_factory.mktemp("malformed") / "gateway.log"
    with LocalEngine(("slow",)) as engine, LocalGateway(engine.grpc_address, log) as gateway:
        yield gateway, engine
        exceptions = [r["exception"] for r in gateway.log_records() if "exception" in r]
        assert exceptions == []


@pytest.fixture(scope="module")
def http(own: tuple[LocalGateway, LocalEngine]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=own[0].http_url, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def infer_bytes(own: tuple[LocalGateway, LocalEngine]) -> Iterator[Any]:
    """Calls ModelInfer with whatever bytes."""
    with grpc.insecure_channel(own[0].grpc_address) as channel:
        yield channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")


@pytest.fixture(autouse=True)
def nothing_reaches_the_engine(own: tuple[LocalGateway, LocalEngine]) -> Iterator[None]:
    gateway, engine = own

    def requests() -> int:
        url = f"http://{engine.http_address}/v2/models/slow/stats"
        inference = httpx.get(url).json()["model_stats"][0]["inference_stats"]
        return int(inference["success"]["count"]) + int(inference["fail"]["count"])

    assert httpx.post(f"{gateway.http_url}{SLOW}", json=GOOD).status_code == 200
    before = requests()
    yield
    assert requests() == before
    assert httpx.post(f"{gateway.http_url}{SLOW}", json=GOOD).status_code == 200


def refused(answer: httpx.Response) -> str:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    told = answer.json()
    assert set(told) == {"error"}
    assert told["error"]
    assert not INTERNALS.search(told["error"]), told["error"]
    assert len(told["error"]) <= 1001
    return str(told["error"])


@settings(max_examples=150, deadline=None, database=None)
@given(body=st.binary(max_size=300))
def test_any_bytes(http: httpx.Client, body: bytes) -> None:
    refused(http.post(SLOW, content=body))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, database=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_json_in_the_place_of_any_member(
    http: httpx.Client, data: st.DataObject, seed: int
) -> None:
    document = json.loads(json.dumps(GOOD))
    where = Random(seed).choice(
        [
            (document, "inputs"),
            (document["inputs"], 0),
            *((document["inputs"][0], name) for name in ("name", "datatype", "shape", "data")),
            (document, "outputs"),
            (document["outputs"], 0),
            (document["outputs"][0], "name"),
        ]
    )
    value = data.draw(JSON)
    where[0][where[1]] = value
    if where[1] == "data" and _is_one_number(value):
        return  # That is another good request.
    if where == (document, "outputs") and value in (None, []):
        return
    refused(http.post(SLOW, content=json.dumps(document)))


def _is_one_number(value: object) -> bool:
    return isinstance(value, list) and len(value) == 1 and type(value[0]) in (int, float)


def one_input(name: bytes, shape: bytes, data: bytes) -> bytes:
    return b'{"inputs": [{%b, "datatype": "FP32", "shape": %b, "data": %b}]}' % (name, shape, data)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"inputs":' * 100_000,
        b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}",
        one_input(b'"name": "input"', b"[1]", b"9" * 100_000),
        one_input(b'"name": "input"', b"[1]", b"[1e400]"),
        one_input(b'"name": "input"', b"[1, 18446744073709551616]", b"[1]"),
        one_input(b'"name": "input"', b"[1099511627776]", b"[1]"),
        one_input(b'"name": "input", "name": "input"', b"[1]", b"[1]"),
        one_input(b'"name": "in\xffput"', b"[1]", b"[1]"),
        one_input(b'"name": "in\\ud800put"', b"[1]", b"[1]"),
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
        json.dumps(GOOD).encode("utf-16"),
        json.dumps(GOOD).encode() + b"{}",
        json.dumps(GOOD).encode()[:-1],
        json.dumps(GOOD | {"id": "x" * 100_000, "inputs": []}).encode(),
        json.dumps(GOOD | {"parameters": {"timeout": -1}}).encode(),
        json.dumps(GOOD | {"parameters": {f"triton_{i}": 1 for i in range(1000)}}).encode(),
        json.dumps(GOOD | {"inputs": GOOD["inputs"] * 1000}).encode(),
    ],
    ids=range(18),
)
def test_json_of_a_hostile_kind(http: httpx.Client, body: bytes) -> None:
    refused(http.post(SLOW, content=body))


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/slow%00/infer",
        "/v2/models/" + "x" * 5000 + "/infer",
        "/v2/models/..%2f..%2fetc%2fpasswd/infer",
        "/v2/models/slow/versions/-1/infer",
        "/v2/models/slow/versions/99999999999999999999999/infer",
        "/v2/models/slow/versions/1.0/infer",
        "/v2/models/%ff%fe/infer",
        "/v2/models//infer",
    ],
)
def test_paths_of_a_hostile_kind(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json=GOOD)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error"}


def good_message() -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name="slow",
        inputs=[pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1])],
        raw_input_contents=[struct.pack("<f", 1.5)],
    )


def grpc_refused(infer_bytes: Any, data: bytes) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        infer_bytes(data, timeout=20)
    error: grpc.Call = failed.value  # type: ignore[assignment]
    assert error.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ), error
    assert not INTERNALS.search(error.details() or ""), error.details()


@settings(max_examples=150, deadline=None, database=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_over_grpc(infer_bytes: Any, data: bytes) -> None:
    grpc_refused(infer_bytes, data)


@settings(max_examples=150, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_message_that_was_cut_or_whose_bits_have_flipped(infer_bytes: Any, seed: int) -> None:
    chance = Random(seed)
    good = good_message().SerializeToString()
    data = bytearray(good)
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    message = pb.ModelInferRequest()
    try:
        message.ParseFromString(bytes(data))
    except Exception:  # noqa: BLE001 - protobuf's own error, which is what is to be refused
        grpc_refused(infer_bytes, bytes(data))
        return
    # What still is the same request, with another number in it or a field that nobody knows, is
    # answered; it is not sent, since it would reach the engine.
    same = good_message()
    known = (
        message.model_name,
        message.model_version,
        list(message.inputs),
        len(message.raw_input_contents),
    )
    if known == ("slow", "", list(same.inputs), 1) and len(message.raw_input_contents[0]) == 4:
        return
    grpc_refused(infer_bytes, bytes(data))


def hostile(**changes: Any) -> pb.ModelInferRequest:
    message = good_message()
    for name, value in changes.items():
        if name == "shape":
            message.inputs[0].shape[:] = value
        else:
            message.raw_input_contents[:] = value
    return message


@pytest.mark.parametrize(
    "message",
    [
        hostile(shape=[2**62], raw=[b""]),
        hostile(shape=[2**32 + 1], raw=[bytes(4)]),
        hostile(shape=[-(2**62)], raw=[b""]),
        hostile(shape=[2**31, 2**31, 2**31], raw=[b""]),
        hostile(shape=[1] * 10_000),
        hostile(shape=[2**62] * 100_000),
        hostile(raw=[]),
        hostile(raw=[bytes(4)] * 1000),
        hostile(raw=[bytes(5)]),
    ],
    ids=range(9),
)
def test_messages_of_a_hostile_kind(infer_bytes: Any, message: pb.ModelInferRequest) -> None:
    grpc_refused(infer_bytes, message.SerializeToString())
