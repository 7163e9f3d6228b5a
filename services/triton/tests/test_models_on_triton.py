"""The project's models on a real Triton: each loads, and does what its config says."""

import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tidegate_engine.artefacts import model_names
from tidegate_engine.local import LocalEngine
from tidegate_proto import kserve_v2_pb2 as v2
from tidegate_proto.kserve_v2_pb2_grpc import GRPCInferenceServiceStub

pytestmark = pytest.mark.needs("engine")

# A bound on each call, and no speed: far more than any takes.
LIMIT_S = 60

Tensor = tuple[str, str, list[int], bytes]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(model_names()) as running:
        yield running


@pytest.fixture(scope="module")
def triton(engine: LocalEngine) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(engine.grpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


def test_serving_a_photo_model_reports_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ONNX Runtime keeps the identifier that it reports under in the user's cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with LocalEngine(["image_classifier"]) as engine:
        assert len(engine.stub_pids("image_classifier")) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["tidegate"]


def request(model: str, *tensors: Tensor, version: str = "") -> v2.ModelInferRequest:
    message = v2.ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape, content in tensors:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    return message


def infer(
    triton: GRPCInferenceServiceStub, model: str, *tensors: Tensor, version: str = ""
) -> dict[str, Tensor]:
    """The outputs by name."""
    message = request(model, *tensors, version=version)
    answer = triton.ModelInfer(message, timeout=LIMIT_S)
    return {
        output.name: (output.name, output.datatype, [*output.shape], content)
        for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def fp32(name: str, *values: float) -> Tensor:
    return name, "FP32", [len(values)], struct.pack(f"<{len(values)}f", *values)


def int32(name: str, value: int) -> Tensor:
    return name, "INT32", [1], struct.pack("<i", value)


# Two elements of each datatype: the extremes, and what is easily mistaken.
ELEMENTS = {
    "BOOL": b"\x01\x00",
    "UINT8": b"\x00\xff",
    "UINT16": b"\x00\x00\xff\xff",
    "UINT32": struct.pack("<2I", 0, 2**32 - 1),
    "UINT64": struct.pack("<2Q", 0, 2**64 - 1),
    "INT8": b"\x80\x7f",
    "INT16": struct.pack("<2h", -(2**15), 2**15 - 1),
    "INT32": struct.pack("<2i", -(2**31), 2**31 - 1),
    "INT64": struct.pack("<2q", -(2**63), 2**63 - 1),
    "FP16": struct.pack("<2e", -0.0, float("nan")),
    "BF16": b"\x00\x80\xc0\x7f",
    "FP32": struct.pack("<2f", -0.0, float("nan")),
    "FP64": struct.pack("<2d", 0.1, float("-inf")),
    "BYTES": struct.pack("<I", 0) + struct.pack("<I", 3) + b"\x00\xff\n",
}


@pytest.mark.parametrize("datatype", ELEMENTS)
def test_identity_returns_each_datatype_to_the_bit(
    triton: GRPCInferenceServiceStub, datatype: str
) -> None:
    for shape, content in (([2], ELEMENTS[datatype]), ([0], b"")):
        outputs = infer(triton, "identity", (f"INPUT_{datatype}", datatype, shape, content))
        name = f"OUTPUT_{datatype}"
        assert outputs == {name: (name, datatype, shape, content)}


def test_identity_returns_all_datatypes_at_once(triton: GRPCInferenceServiceStub) -> None:
    given = [(f"INPUT_{datatype}", datatype, [2], ELEMENTS[datatype]) for datatype in ELEMENTS]
    outputs = infer(triton, "identity", *given)
    assert sorted(outputs.values()) == sorted(
        (f"OUTPUT_{datatype}", datatype, [2], ELEMENTS[datatype]) for datatype in ELEMENTS
    )


@pytest.mark.parametrize(
    ("model", "given", "returned"),
    [("image_classifier", "input", "logits"), ("resnet50_cpp", "input_tensor", "output_tensor")],
)
def test_a_classifier_names_the_labels_of_each_image(
    triton: GRPCInferenceServiceStub, model: str, given: str, returned: str
) -> None:
    images = np.random.default_rng(7).normal(size=(2, 3, 224, 224)).astype(np.float32)
    tensor = (given, "FP32", [2, 3, 224, 224], images.tobytes())
    logits = np.frombuffer(infer(triton, model, tensor)[returned][3], np.float32).reshape(2, 1000)
    message = request(model, tensor)
    message.outputs.add(name=returned).parameters["classification"].int64_param = 3
    (content,) = triton.ModelInfer(message, timeout=LIMIT_S).raw_output_contents
    texts = []
    while content:
        length = int.from_bytes(content[:4], "little")
        texts.append(content[4 : 4 + length].decode())
        content = content[4 + length :]
    classes = [text.split(":")[1:] for text in texts]
    best = (-logits).argsort(axis=1)[:, :3].ravel()
    assert [int(index) for index, _ in classes] == best.tolist()
    assert all(label for _, label in classes)


def test_images_batched_by_triton_get_their_own_answers(triton: GRPCInferenceServiceStub) -> None:
    images = np.random.default_rng(8).normal(size=(12, 3, 224, 224)).astype(np.float32)

    def classify(image: bytes) -> npt.NDArray[np.float32]:
        tensor = ("input", "FP32", [1, 3, 224, 224], image)
        return np.frombuffer(infer(triton, "image_classifier", tensor)["logits"][3], np.float32)

    alone = np.stack([classify(image.tobytes()) for image in images])
    assert np.abs(alone - np.roll(alone, 1, axis=0)).max(axis=1).min() > 0.01
    with ThreadPoolExecutor(len(images)) as clients:
        together = list(clients.map(classify, [image.tobytes() for image in images]))
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_the_classifier_serves_its_first_version_until_told_otherwise(
    triton: GRPCInferenceServiceStub,
) -> None:
    ready = triton.ModelReady(v2.ModelReadyRequest(name="image_classifier", version="1"))
    assert ready.ready
    tensor = ("input", "FP32", [1, 3, 224, 224], bytes(3 * 224 * 224 * 4))
    with pytest.raises(grpc.RpcError):
        infer(triton, "image_classifier", tensor, version="2")


def test_slow_echoes_and_a_cancelled_request_frees_it(triton: GRPCInferenceServiceStub) -> None:
    echoed = infer(triton, "slow", fp32("input", 1, 2), int32("delay_ms", 20))
    assert echoed["output"] == fp32("output", 1, 2)
    endless = request("slow", fp32("input", 1), int32("delay_ms", 2 * 1000 * LIMIT_S))
    with pytest.raises(grpc.RpcError) as late:
        triton.ModelInfer(endless, timeout=0.2)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    # It would be past its limit, were it to wait for the other.
    assert infer(triton, "slow", fp32("input", 3))["output"] == fp32("output", 3)


def test_paced_answers_many_at_a_time(triton: GRPCInferenceServiceStub) -> None:
    def echo(value: float) -> Tensor:
        return infer(triton, "paced", fp32("input", value), int32("delay_ms", 500))["output"]

    began = time.monotonic()
    with ThreadPoolExecutor(16) as clients:
        assert list(clients.map(echo, range(16))) == [fp32("output", n) for n in range(16)]
    assert 0.5 <= time.monotonic() - began < 16 * 0.5 / 2


def test_paced_has_two_versions(triton: GRPCInferenceServiceStub) -> None:
    for version in ("1", "2"):
        answer = triton.ModelInfer(
            request("paced", fp32("input", 1), version=version), timeout=LIMIT_S
        )
        assert answer.model_version == version


def test_paced_is_slowed_down_while_a_request_is_in_it_and_frees_it_when_cancelled(
    engine: LocalEngine, triton: GRPCInferenceServiceStub
) -> None:
    delayed = request("paced", fp32("input", 1), int32("delay_ms", 1000))
    began = time.monotonic()
    slowed = triton.ModelInfer.future(delayed, timeout=LIMIT_S)
    engine.slow_down(1000)
    try:
        endless = [triton.ModelInfer.future(delayed, timeout=1.5) for _ in range(15)]
        assert {call.code() for call in endless} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert not slowed.done()
        engine.slow_down(1.5)
        assert slowed.result().model_version == "2"
        assert time.monotonic() - began >= 1.5
    finally:
        engine.slow_down(1)
    assert infer(triton, "paced", fp32("input", 2))["output"] == fp32("output", 2)


def test_raising_is_an_internal_error_with_a_traceback(triton: GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        infer(triton, "raising", fp32("input", 1))
    assert raised.value.code() == grpc.StatusCode.INTERNAL
    said = raised.value.details() or ""
    assert "ValueError: raised on purpose" in said
    assert "raising/1/model.py" in said


@pytest.mark.parametrize("count", [0, 1, 3])
def test_repeat_streams_as_many_responses_as_it_is_asked_for(
    triton: GRPCInferenceServiceStub, count: int
) -> None:
    message = request("repeat", int32("count", count), int32("delay_ms", 1))
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    answers = []
    for answer in triton.ModelStreamInfer(iter([message]), timeout=LIMIT_S):
        assert not answer.error_message
        answers.append(answer.infer_response)
    *responses, final = answers
    assert final.parameters["triton_final_response"].bool_param
    assert not final.outputs
    assert [struct.unpack("<i", *r.raw_output_contents)[0] for r in responses] == [*range(count)]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, [b"three", b" short", b"  w\xc3\xb6rds"]),
        ({"max_tokens": 2, "delay_ms": 1}, [b"three", b" short"]),
        ({"fail_after": 1}, [b"three", None]),
        ({"fail_after": 0}, [None]),
        ({"token_bytes": 15}, [b"three short  w\xc3", b"\xb6rds"]),
        ({"max_tokens": 0}, []),
    ],
)
def test_text_stream_answers_in_pieces_and_raises_where_it_is_told_to(
    triton: GRPCInferenceServiceStub, options: dict[str, int], tokens: list[bytes | None]
) -> None:
    text = "three short  wörds".encode()
    message = request(
        "text_stream",
        ("text_input", "BYTES", [1], struct.pack("<I", len(text)) + text),
        *(int32(name, value) for name, value in options.items()),
    )
    answers = list(triton.ModelStreamInfer(iter([message]), timeout=LIMIT_S))
    contents = [answer.infer_response.raw_output_contents for answer in answers]
    assert [content[0][4:] if content else None for content in contents] == tokens
    failures = ["raised on purpose" in answer.error_message for answer in answers]
    assert failures == [token is None for token in tokens]


def test_batching_says_how_many_were_executed_together(triton: GRPCInferenceServiceStub) -> None:
    def batch_size(rows: int) -> list[int]:
        tensor = ("input", "FP32", [rows, 1], bytes(4 * rows))
        return [*struct.unpack(f"<{rows}i", infer(triton, "batching", tensor)["batch_size"][3])]

    assert batch_size(3) == [3, 3, 3]
    with ThreadPoolExecutor(8) as clients:
        sizes = [size for rows in clients.map(batch_size, [1] * 8) for size in rows]
    assert len(sizes) == 8
    assert 1 < max(sizes) <= 8


def test_fragile_dies_when_asked_and_stays_dead(triton: GRPCInferenceServiceStub) -> None:
    def echo(die: bytes) -> dict[str, Tensor]:
        return infer(triton, "fragile", fp32("input", 1), ("die", "BOOL", [1], die))

    assert echo(b"\x00")["output"] == fp32("output", 1)
    for die in (b"\x01", b"\x00"):
        with pytest.raises(grpc.RpcError, match="is not healthy") as dead:
            echo(die)
        assert dead.value.code() == grpc.StatusCode.INTERNAL
