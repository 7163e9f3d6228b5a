"""The binary tensor extension: raw bytes behind JSON, both ways, and every lie about them."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.local import LocalEngine
from tidegate_gateway.tensors import Datatype, to_array
from tidegate_gateway.tensors import Tensor as Raw

pytestmark = pytest.mark.needs("engine")

LENGTH = "Inference-Header-Content-Length"
IDENTITY = "/v2/models/identity/infer"


def infer(
    client: httpx.Client,
    document: object,
    tail: bytes = b"",
    *,
    path: str = IDENTITY,
    length: str | None = "right",
) -> httpx.Response:
    head = json.dumps(document).encode()
    said = str(len(head)) if length == "right" else length
    headers = {} if said is None else {LENGTH: said}
    return client.post(path, content=head + tail, headers=headers)


def tensor(name: str, datatype: str, shape: list[int], **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **members}


def binary(name: str, datatype: str, shape: list[int], size: object) -> dict[str, Any]:
    return tensor(name, datatype, shape, parameters={"binary_data_size": size})


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """The outputs by name: their elements where they are JSON, else their bytes."""
    assert answer.status_code == 200, answer.text
    end = int(answer.headers.get(LENGTH, len(answer.content)))
    document, tail = json.loads(answer.content[:end]), answer.content[end:]
    found = {}
    for output in document["outputs"]:
        if "data" in output:
            found[output["name"]] = output["data"]
        else:
            size = output["parameters"]["binary_data_size"]
            found[output["name"]], tail = tail[:size], tail[size:]
    assert tail == b""
    expected = "application/octet-stream" if LENGTH in answer.headers else "application/json"
    assert answer.headers["content-type"] == expected
    return found


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"])


@pytest.fixture(scope="module")
def triton(engine: LocalEngine) -> Iterator[httpx.Client]:
    """HTTP to the engine itself."""
    with httpx.Client(base_url=f"http://{engine.http_address}", timeout=60) as direct:
        yield direct


FP32 = struct.pack("<2f", 1.5, -2)


# Whatever Triton takes, with the answer that it gives.
SAME = {
    "in": ({"inputs": [binary("INPUT_FP32", "FP32", [2], 8)]}, FP32),
    "all out": (
        {
            "inputs": [tensor("INPUT_FP32", "FP32", [2], data=[1.5, -2])],
            "parameters": {"binary_data_output": True},
        },
        b"",
    ),
    "one of two out": (
        {
            "inputs": [
                tensor("INPUT_FP32", "FP32", [2], data=[1.5, -2]),
                tensor("INPUT_INT8", "INT8", [1], data=[3]),
            ],
            "outputs": [
                {"name": "OUTPUT_FP32", "parameters": {"binary_data": True}},
                {"name": "OUTPUT_INT8"},
            ],
        },
        b"",
    ),
    "those that are named, whatever is said of all": (
        {
            "inputs": [
                tensor("INPUT_FP32", "FP32", [2], data=[1.5, -2]),
                tensor("INPUT_INT8", "INT8", [1], data=[3]),
            ],
            "outputs": [
                {"name": "OUTPUT_FP32", "parameters": {"binary_data": False}},
                {"name": "OUTPUT_INT8"},
            ],
            "parameters": {"binary_data_output": True},
        },
        b"",
    ),
    "mixed in": (
        {
            "inputs": [
                binary("INPUT_FP32", "FP32", [2], 8),
                tensor("INPUT_BOOL", "BOOL", [1], data=[True]),
                binary("INPUT_BYTES", "BYTES", [1], 7),
            ],
            "parameters": {"binary_data_output": True},
        },
        FP32 + b"\x03\x00\x00\x00\xff\x00a",
    ),
    "halves, which JSON does not carry there": (
        {
            "inputs": [
                binary("INPUT_FP16", "FP16", [2], 4),
                binary("INPUT_BF16", "BF16", [2], 4),
            ],
            "parameters": {"binary_data_output": True},
        },
        b"\x00\x00\x00<\x80?\x80?",
    ),
    "nothing": (
        {
            "inputs": [binary("INPUT_FP32", "FP32", [0], 0)],
            "parameters": {"binary_data_output": True},
        },
        b"",
    ),
    "an id and parameters": (
        {
            "id": "mine",
            "inputs": [binary("INPUT_FP32", "FP32", [2], 8)],
            "parameters": {"priority": 1, "own": "x"},
        },
        FP32,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_triton_answers_is_what_we_answer(
    client: httpx.Client, triton: httpx.Client, name: str
) -> None:
    document, tail = SAME[name]
    ours, theirs = infer(client, document, tail), infer(triton, document, tail)
    assert outputs(ours) == outputs(theirs)
    assert ours.headers.get(LENGTH) == theirs.headers.get(LENGTH)
    end = int(ours.headers.get(LENGTH, len(ours.content)))
    assert json.loads(ours.content[:end]) == json.loads(theirs.content[:end])
    assert ours.content[end:] == theirs.content[end:]


@pytest.mark.parametrize("is_binary", [True, False])
def test_classes_are_those_that_triton_finds(
    client: httpx.Client, triton: httpx.Client, is_binary: bool
) -> None:
    values = np.random.default_rng(1).normal(size=(2, 3, 224, 224)).astype("<f4").tobytes()
    document = {
        "inputs": [binary("input", "FP32", [2, 3, 224, 224], len(values))],
        "outputs": [
            {"name": "logits", "parameters": {"classification": 3, "binary_data": is_binary}}
        ],
    }
    path = "/v2/models/image_classifier/infer"
    ours, theirs = (outputs(infer(each, document, values, path=path)) for each in (client, triton))
    assert ours == theirs
    if not is_binary:
        assert len(ours["logits"]) == 6
        assert all(len(each.split(":")) == 3 for each in ours["logits"])


def test_a_body_of_raw_bytes_alone_is_the_only_input(
    client: httpx.Client, triton: httpx.Client
) -> None:
    values = np.zeros((3, 224, 224), "<f4").tobytes()
    path, headers = "/v2/models/image_classifier/infer", {LENGTH: "0"}
    ours, theirs = (
        outputs(each.post(path, content=values, headers=headers)) for each in (client, triton)
    )
    assert ours == theirs
    assert len(ours["logits"]) == 4000

    answer = client.post(IDENTITY, content=FP32, headers=headers)
    assert refusal(answer) == (
        f"model 'identity': expected JSON ({LENGTH} above 0), since a body of raw bytes alone "
        "needs a model with one input, and it has 14"
    )


LIES = [
    (
        {"inputs": [binary("INPUT_FP32", "FP32", [2], 8)]},
        FP32[:5],
        "input 'INPUT_FP32': expected 8 bytes behind the JSON (binary_data_size), got 5",
    ),
    (
        {"inputs": [binary("INPUT_FP32", "FP32", [2], 8)]},
        FP32 + b"xx",
        "the body: expected 8 bytes behind the JSON, the sum of all binary_data_size, got 10",
    ),
    (
        {"inputs": [binary("INPUT_FP32", "FP32", [3], 8)]},
        FP32,
        "model 'identity': input 'INPUT_FP32': expected 12 bytes for FP32 [3], got 8",
    ),
    (
        {"inputs": [binary("INPUT_BYTES", "BYTES", [1], 8)]},
        b"\x05\x00\x00\x00abcd",
        "model 'identity': input 'INPUT_BYTES': expected 5 bytes after the length at byte 0 of "
        "BYTES, got 4",
    ),
    (
        {"inputs": [binary("INPUT_BYTES", "BYTES", [2], 5)]},
        b"\x01\x00\x00\x00a",
        "model 'identity': input 'INPUT_BYTES': expected 2 BYTES elements for shape [2], got 1",
    ),
    (
        {
            "inputs": [
                {**binary("INPUT_FP32", "FP32", [2], 8), "data": [1, 2]},
            ]
        },
        FP32,
        "input 'INPUT_FP32': expected member 'data' or parameter 'binary_data_size', got both",
    ),
    *(
        (
            {"inputs": [binary("INPUT_FP32", "FP32", [2], size)]},
            FP32,
            "input 'INPUT_FP32': expected parameter 'binary_data_size' as a whole number of 0 or "
            f"more, got {got}",
        )
        for size, got in [
            (-8, "-8"),
            (8.0, "8.0"),
            ("8", "a string"),
            (True, "true"),
            (None, "null"),
        ]
    ),
    (
        {"inputs": [binary("INPUT_FP32", "FP32", [2], 2**62)]},
        FP32,
        f"input 'INPUT_FP32': expected {2**62} bytes behind the JSON (binary_data_size), got 8",
    ),
    (
        {
            "inputs": [binary("INPUT_FP32", "FP33", [2], 8), binary("INPUT_INT8", "INT8", [1], 3)],
        },
        FP32 + b"1",
        "input 'INPUT_FP32': expected a datatype of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, "
        "INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES, got 'FP33'; input 'INPUT_INT8': "
        "expected 3 bytes behind the JSON (binary_data_size), got 1",
    ),
    (
        {"inputs": [], "parameters": {"binary_data_output": 1}},
        b"",
        "parameter 'binary_data_output': expected true or false, got 1",
    ),
    (
        {"inputs": [], "outputs": [{"name": "OUTPUT_FP32", "parameters": {"binary_data": "yes"}}]},
        b"",
        "output 'OUTPUT_FP32': parameter 'binary_data': expected true or false, got a string",
    ),
]


@pytest.mark.parametrize(("document", "tail", "sentence"), LIES)
def test_a_lie_is_told_exactly(
    client: httpx.Client, document: object, tail: bytes, sentence: str
) -> None:
    assert refusal(infer(client, document, tail)) == sentence


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e3", "0x10", "10000", "9" * 30])
def test_a_length_of_the_json_that_is_none_is_refused(client: httpx.Client, length: str) -> None:
    document = {"inputs": [binary("INPUT_FP32", "FP32", [2], 8)]}
    size = len(json.dumps(document)) + len(FP32)
    assert refusal(infer(client, document, FP32, length=length)) == (
        f"{LENGTH}: expected a whole number of 0 to {size}, the size of the body, got {length!r}"
    )


def test_no_lie_reaches_the_engine(client: httpx.Client, triton: httpx.Client) -> None:
    def requests() -> int:
        (stats,) = triton.get("/v2/models/identity/stats").json()["model_stats"]
        inference = stats["inference_stats"]
        return int(inference["success"]["count"]) + int(inference["fail"]["count"])

    before = requests()
    for document, tail, _ in LIES:
        assert infer(client, document, tail).status_code == 400
    assert requests() == before
    assert infer(client, *SAME["in"]).status_code == 200
    assert requests() == before + 1


ELEMENTS: dict[Datatype, Any] = {
    Datatype.BOOL: st.booleans(),
    Datatype.BYTES: st.binary(max_size=20),
    Datatype.BF16: st.floats(width=16, allow_nan=False, allow_infinity=False),
    **{
        each: st.integers(int(np.iinfo(each.value).min), int(np.iinfo(each.value).max))
        for each in Datatype
        if isinstance(each.value, np.dtype) and each.value.kind in "iu"
    },
    Datatype.FP16: st.floats(width=16),
    Datatype.FP32: st.floats(width=32),
    Datatype.FP64: st.floats(),
}


def raw_bytes(datatype: Datatype, values: list[Any]) -> bytes:
    if datatype is Datatype.BYTES:
        return b"".join(struct.pack("<I", len(each)) + each for each in values)
    if datatype is Datatype.BF16:
        return np.array(values, "<f4").view("<u2")[1::2].tobytes()
    return np.array(values, datatype.value).tobytes()


@settings(max_examples=120, deadline=None, database=None)
@given(
    data=st.data(),
    datatype=st.sampled_from([*Datatype]),
    ways=st.tuples(st.booleans(), st.booleans()),
)
def test_a_tensor_of_any_kind_comes_back_by_every_way(
    client: httpx.Client, data: st.DataObject, datatype: Datatype, ways: tuple[bool, bool]
) -> None:
    values = data.draw(st.lists(ELEMENTS[datatype], max_size=5))
    raw = raw_bytes(datatype, values)
    name, shape = datatype.name, [len(values)]
    binary_in, binary_out = ways
    if datatype is Datatype.BYTES and not (binary_in and binary_out):
        values = [each.hex() for each in values]
        raw = raw_bytes(datatype, [each.encode() for each in values])
    elements = to_array(Raw("x", datatype, tuple(shape), raw))
    sent = (
        binary(f"INPUT_{name}", name, shape, len(raw))
        if binary_in
        else tensor(f"INPUT_{name}", name, shape, data=values)
    )
    document = {
        "inputs": [sent],
        "outputs": [{"name": f"OUTPUT_{name}", "parameters": {"binary_data": binary_out}}],
    }
    found = outputs(infer(client, document, raw if binary_in else b""))[f"OUTPUT_{name}"]
    if binary_out:
        # NaN has many forms, of which JSON has one.
        got = to_array(Raw("x", datatype, tuple(shape), found))
    elif datatype is Datatype.BYTES:
        got = np.array([each.encode() for each in found] + [None], dtype=object)[:-1]
    else:
        got = np.array(found, elements.dtype)
    assert all(
        one == other or (one != one and other != other)  # noqa: PLR0124
        for one, other in zip(elements, got, strict=True)
    )
