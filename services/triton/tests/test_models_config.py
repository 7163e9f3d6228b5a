"""What the committed models say of themselves, read as Triton reads it."""

import re

import pytest
from google.protobuf import text_format

from tidegate_engine.artefacts import model_names
from tidegate_engine.artefacts.repository import MODELS
from tidegate_proto.model_config_pb2 import DataType, ModelConfig, ModelInput

NUMBERS = re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?,\d+(\.\d+)?)?")


def config(name: str) -> ModelConfig:
    return text_format.Parse((MODELS / name / "config.pbtxt").read_text(), ModelConfig())


@pytest.mark.parametrize("name", model_names())
def test_each_config_is_of_its_folder_and_of_the_python_backend(name: str) -> None:
    parsed = config(name)
    assert parsed.name == name
    assert parsed.backend == "python"
    assert parsed.input
    assert parsed.output


@pytest.mark.parametrize("name", ["image_classifier", "resnet50_cpp"])
def test_an_image_model_carries_its_contract(name: str) -> None:
    parsed = config(name)
    (image,) = parsed.input
    (scores,) = parsed.output
    assert image.format == ModelInput.FORMAT_NCHW
    assert list(image.dims) == [3, 224, 224]
    assert (list(scores.dims), scores.label_filename) == ([1000], "labels.txt")
    contract = {key: value.string_value for key, value in parsed.parameters.items()}
    assert contract.keys() == {
        "image.color",
        "image.crop",
        "image.resample",
        "image.mean",
        "image.std",
        "scores",
    }
    assert contract["image.color"] in {"RGB", "BGR", "GRAY"}
    assert 0 < float(contract["image.crop"]) <= 1
    assert contract["image.resample"] in {"bicubic", "bilinear", "lanczos", "nearest"}
    assert NUMBERS.fullmatch(contract["image.mean"])
    assert NUMBERS.fullmatch(contract["image.std"])
    assert contract["scores"] in {"softmax", "as_is"}


def test_loaded_plainly_the_classifier_serves_its_first_version_alone() -> None:
    assert list(config("image_classifier").version_policy.specific.versions) == [1]


def test_the_names_of_the_original_design_are_kept() -> None:
    parsed = config("resnet50_cpp")
    assert [tensor.name for tensor in parsed.input] == ["input_tensor"]
    assert [tensor.name for tensor in parsed.output] == ["output_tensor"]


def test_identity_has_a_pair_for_every_datatype() -> None:
    parsed = config("identity")
    datatypes = [value for value in DataType.values() if value != DataType.TYPE_INVALID]
    assert sorted(tensor.data_type for tensor in parsed.input) == sorted(datatypes)
    for given, returned in zip(parsed.input, parsed.output, strict=True):
        datatype = DataType.Name(given.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        assert (given.name, returned.name) == (f"INPUT_{datatype}", f"OUTPUT_{datatype}")
        assert given.data_type == returned.data_type
        assert given.optional
