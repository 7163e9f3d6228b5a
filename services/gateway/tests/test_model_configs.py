"""From a ModelConfig, as Triton sends it or as it lies in a folder, to a Model."""

from dataclasses import replace

import pytest
from google.protobuf import text_format

from tidegate_gateway import model_configs
from tidegate_gateway.errors import EngineFailed
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype
from tidegate_proto import model_config_pb2 as pb


def model(text: str) -> Model:
    """The model, without its configuration as it came."""
    config = text_format.Parse(text, pb.ModelConfig())
    made = model_configs.to_model(config, version="2", versions=["1", "2"])
    return replace(made, config=b"")


def test_a_config_is_read_whole() -> None:
    assert model(
        """
        name: "image_classifier"
        platform: "onnxruntime_onnx"
        backend: "onnxruntime"
        max_batch_size: 16
        input [
          { name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, 224, 224] },
          { name: "mask" data_type: TYPE_BOOL dims: [-1] optional: true }
        ]
        output [
          { name: "scores" data_type: TYPE_FP16 dims: [1000] label_filename: "labels.txt" },
          { name: "text" data_type: TYPE_STRING dims: [1] }
        ]
        parameters { key: "image.crop" value { string_value: "0.875" } }
        parameters { key: "scores" value { string_value: "softmax" } }
        """
    ) == Model(
        name="image_classifier",
        version="2",
        versions=("1", "2"),
        platform="onnxruntime_onnx",
        max_batch_size=16,
        inputs=(
            TensorSpec("image", Datatype.FP32, (ANY, 3, 224, 224), channels_first=True),
            TensorSpec("mask", Datatype.BOOL, (ANY, ANY), optional=True),
        ),
        outputs=(
            TensorSpec("scores", Datatype.FP16, (ANY, 1000), labelled=True),
            TensorSpec("text", Datatype.BYTES, (ANY, 1)),
        ),
        parameters={"image.crop": "0.875", "scores": "softmax"},
    )


def test_a_decoupled_model_is_one_and_its_config_goes_on_as_it_came() -> None:
    text = """
        name: "m" backend: "python" model_transaction_policy { decoupled: true }
        input [{ name: "x" data_type: TYPE_INT8 dims: [5] }]
        """
    described = model_configs.to_model(
        text_format.Parse(text, pb.ModelConfig()), version="1", versions=["1"]
    )

    assert described.decoupled
    assert text_format.Parse(text, pb.ModelConfig()) == pb.ModelConfig.FromString(described.config)


@pytest.mark.parametrize("size", [0, -1])
def test_without_a_batch_the_dims_are_the_shape(size: int) -> None:
    described = model(
        f"""
        name: "m" backend: "python" max_batch_size: {size}
        input [{{ name: "x" data_type: TYPE_INT8 dims: [5] }}]
        """
    )

    assert described.max_batch_size == 0
    assert described.inputs[0].shape == (5,)
    assert described.platform == "python"


@pytest.mark.parametrize(
    ("image_format", "channels_first"),
    [("FORMAT_NCHW", True), ("FORMAT_NHWC", False), ("FORMAT_NONE", None)],
)
def test_where_the_channels_are(image_format: str, channels_first: bool | None) -> None:
    described = model(
        f"""
        name: "m"
        input [{{ name: "x" data_type: TYPE_UINT8 dims: [3, 8, 8] format: {image_format} }}]
        """
    )

    assert described.inputs[0].channels_first is channels_first


def test_each_datatype_has_its_own() -> None:
    names = [name for name in pb.DataType.keys() if name != "TYPE_INVALID"]  # noqa: SIM118
    inputs = "".join(f'input {{ name: "{name}" data_type: {name} dims: [1] }}' for name in names)

    found = {spec.name: spec.datatype for spec in model(f'name: "m" {inputs}').inputs}

    assert found == {"TYPE_STRING": Datatype.BYTES} | {
        f"TYPE_{datatype.name}": datatype for datatype in Datatype if datatype != Datatype.BYTES
    }


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_tensor_without_a_datatype_is_refused(side: str) -> None:
    with pytest.raises(EngineFailed) as failed:
        model(f'name: "m" {side} {{ name: "x" dims: [1] }}')

    assert failed.value.message == "model 'm' gives no datatype for 'x'"
