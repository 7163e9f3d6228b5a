"""The gateway in front of a real C++ server of inference.InferenceService."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from PIL import Image

from tidegate_gateway.local import GatewayError, LocalGateway
from tidegate_proto import inference_pb2 as pb
from tidegate_proto import inference_pb2_grpc as rpc

pytestmark = pytest.mark.needs("cpp-grpc")

RESNET = """
max_batch_size: 8
input { name: "input_tensor" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, 224, 224] }
output { name: "output_tensor" data_type: TYPE_FP32 dims: [1000] label_filename: "labels.txt" }
parameters { key: "image.mean" value { string_value: "127" } }
parameters { key: "image.std" value { string_value: "128" } }
"""
ECHO = """
input { name: "text" data_type: TYPE_STRING dims: [-1] }
output { name: "text" data_type: TYPE_STRING dims: [-1] }
"""
RAISING = """
input { name: "input" data_type: TYPE_FP32 dims: [1] }
output { name: "output" data_type: TYPE_FP32 dims: [1] }
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name, config in {"resnet50_cpp": RESNET, "identity": ECHO, "raising": RAISING}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "resnet50_cpp" / "labels.txt").write_text(
        "\n".join(f"class {index}" for index in range(1000))
    )
    return folder


@pytest.fixture
def cpp_gateway(
    cpp_engine: str, configs: Path, new_gateway: Callable[..., LocalGateway]
) -> LocalGateway:
    return new_gateway(
        cpp_engine,
        "--engine.protocol=inference-service",
        f"--engine.model_configs={configs}",
        "--default_model=resnet50_cpp",
    )


@pytest.fixture
def client(cpp_gateway: LocalGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cpp_gateway.http_url, timeout=30) as client:
        yield client


def test_an_image_reaches_the_engine_unchanged(client: httpx.Client) -> None:
    # The engine's score of class k is the mean of every 1000th value from the k-th on, so one wrong
    # value shows; the picture has the model's size, so nothing is resized.
    pixels = np.random.default_rng(7).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    answer = client.post("/predict", files={"file": file.getvalue()}, params={"top": 1}).json()
    flat = ((pixels.astype(np.float32) - 127) / 128).transpose(2, 0, 1).reshape(-1)
    expected = [flat[k::1000].astype(np.float64).mean() for k in range(1000)]
    np.testing.assert_allclose(answer["predictions"][0], expected, rtol=0, atol=1e-6)
    best = int(np.argmax(expected))
    assert (answer["model_name"], answer["model_version"]) == ("resnet50_cpp", "1")
    assert answer["top"][0]["label"] == f"class {best}"
    assert answer["top"][0]["score"] == pytest.approx(expected[best], abs=1e-6)


def test_tensors_through_http_and_both_grpc_services(
    client: httpx.Client, cpp_gateway: LocalGateway
) -> None:
    texts = ["wave", "größer", ""]
    response = client.post(
        "/v2/models/identity/infer",
        json={"inputs": [{"name": "text", "datatype": "BYTES", "shape": [3], "data": texts}]},
    )
    assert response.json()["outputs"][0]["data"] == texts
    raw = b"\x02\x00\x00\x00hi"
    with grpc.insecure_channel(cpp_gateway.grpc_address) as channel:
        answer = rpc.InferenceServiceStub(channel).ModelInfer(
            pb.InferRequest(
                model_name="identity",
                inputs=[pb.InferRequest.Tensor(name="text", shape=[1], tensor_content=raw)],
            )
        )
    assert answer.outputs[0].tensor_content == raw


def test_metadata_comes_from_the_folder(client: httpx.Client) -> None:
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/resnet50_cpp/ready").json()["ready"]
    metadata = client.get("/v2/models/resnet50_cpp").json()
    assert (metadata["versions"], metadata["inputs"][0]["shape"]) == (["1"], [-1, 3, 224, 224])
    for path in ("nobody", "identity/versions/2"):
        assert client.get(f"/v2/models/{path}").status_code == 404


def test_its_failures_tell_nothing_of_it(client: httpx.Client) -> None:
    one = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1]}
    response = client.post("/v2/models/raising/infer", json={"inputs": [one]})
    assert (response.status_code, response.json()) == (
        500,
        {"error": "model 'raising' failed in the engine"},
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("input {", "resnet50_cpp/config.pbtxt: "),
        ('name: "other"', "expected name 'resnet50_cpp', its folder's, got 'other'"),
        (
            'output { name: "o" data_type: TYPE_FP32 dims: 1 label_filename: "no" }',
            "resnet50_cpp/no",
        ),
    ],
)
def test_a_bad_folder_stops_the_start(
    configs: Path, new_gateway: Callable[..., LocalGateway], config: str, message: str
) -> None:
    (configs / "resnet50_cpp" / "config.pbtxt").write_text(config)
    with pytest.raises(GatewayError) as caught:
        new_gateway(
            "127.0.0.1:1",
            "--engine.protocol=inference-service",
            f"--engine.model_configs={configs}",
        )
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_engine_that_is_away_is_not_ready_at_once(
    configs: Path, new_gateway: Callable[..., LocalGateway]
) -> None:
    gateway = new_gateway(
        "127.0.0.1:1", "--engine.protocol=inference-service", f"--engine.model_configs={configs}"
    )
    began = time.monotonic()
    ready = httpx.get(f"{gateway.http_url}/v2/health/ready", timeout=60)
    assert (ready.status_code, ready.json()) == (503, {"ready": False})
    model = httpx.get(f"{gateway.http_url}/v2/models/resnet50_cpp/ready", timeout=60)
    assert (model.status_code, model.json()["ready"]) == (503, False)
    # The deadline, had it waited for that, is 30 s.
    assert time.monotonic() - began < 20
