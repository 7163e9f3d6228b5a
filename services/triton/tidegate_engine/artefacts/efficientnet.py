"""EfficientNet-Lite0 as an ONNX graph, from the weights of its PyTorch checkpoint.

The architecture is that of the TensorFlow TPU repository (models/official/efficientnet/lite):
EfficientNet-B0 without squeeze-and-excitation, with ReLU6, and with TensorFlow's SAME padding,
which puts the odd pixel of a stride of 2 at the bottom and the right. Batch normalisation is
folded into the convolutions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx  # type: ignore[import-not-found]  # only in the engine's environment
from onnx import TensorProto, helper, numpy_helper

from tidegate_engine.artefacts.errors import CheckpointError
from tidegate_engine.artefacts.quantisation import quantise_weight

IMAGE_SIZE = 224
CLASSES = 1000
# `batch_norm_epsilon` of the original's efficientnet_lite_builder.py.
BATCH_NORM_EPSILON = 1e-3
# DequantizeLinear with a scale for each channel came with opset 13; IR 8 is the format of its time.
OPSET = 13
IR_VERSION = 8

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Stage:
    """A run of blocks, of which the first has the stride and changes the number of channels."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


# `blocks_args` of the original: r1_k3_s11_e1_i32_o16 and so on.
STAGES = (
    Stage(repeats=1, kernel=3, stride=1, expansion=1, channels=16),
    Stage(repeats=2, kernel=3, stride=2, expansion=6, channels=24),
    Stage(repeats=2, kernel=5, stride=2, expansion=6, channels=40),
    Stage(repeats=3, kernel=3, stride=2, expansion=6, channels=80),
    Stage(repeats=3, kernel=5, stride=1, expansion=6, channels=112),
    Stage(repeats=4, kernel=5, stride=2, expansion=6, channels=192),
    Stage(repeats=1, kernel=3, stride=1, expansion=6, channels=320),
)


@dataclass(frozen=True)
class Normalisation:
    """How pixels became the tensor, by colour channel: (pixel − mean) / std, pixels in 0–255."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


# What the network was trained with.
NATIVE = Normalisation(mean=(127, 127, 127), std=(128, 128, 128))
# What most ImageNet classifiers are trained with, ResNet-50 among them.
IMAGENET = Normalisation(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))


def build_efficientnet(
    weights: Mapping[str, npt.NDArray[Any]],
    *,
    precision: Literal["float32", "int8"] = "float32",
    normalisation: Normalisation = NATIVE,
    input_name: str = "input",
    output_name: str = "logits",
) -> bytes:
    """The serialised ONNX model: float32 [N, 3, 224, 224] in, float32 logits [N, 1000] out.

    The same arguments give the same bytes on every machine.

    Args:
        weights: The checkpoint's tensors by their names in it.
        precision: How the weights are kept. With int8 the graph dequantises them; activations
            and biases are float32 either way.
        normalisation: What the caller applies to the pixels; another than the network's own is
            converted by the graph's first two nodes.
        input_name: The input tensor's name.
        output_name: The output tensor's name.

    Raises:
        CheckpointError: A weight is missing.
    """
    network = _Network(weights, quantised=precision == "int8")
    features = network.normalise(input_name, normalisation)
    features = network.features(features)
    network.classify(features, output_name)
    graph = helper.make_graph(
        network.nodes,
        "efficientnet_lite0",
        [_value(input_name, ["N", 3, IMAGE_SIZE, IMAGE_SIZE])],
        [_value(output_name, ["N", CLASSES])],
        network.initializers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding of one axis: pixels before and after it."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class _Network:
    """Collects the nodes and initializers of the graph; each method returns its tensor's name."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], *, quantised: bool) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._weights = weights
        self._quantised = quantised
        self._constant("relu6.min", np.float32(0))
        self._constant("relu6.max", np.float32(6))

    def normalise(self, source: str, given: Normalisation) -> str:
        if given == NATIVE:
            return source
        mean, std, native_mean, native_std = (
            np.array(values, np.float64).reshape(1, 3, 1, 1)
            for values in (given.mean, given.std, NATIVE.mean, NATIVE.std)
        )
        factor = self._constant("normalisation.factor", std / native_std)
        term = self._constant("normalisation.term", (mean - native_mean) / native_std)
        return self._node("Add", [self._node("Mul", [source, factor]), term])

    def features(self, source: str) -> str:
        size = IMAGE_SIZE
        x = self._convolve(source, "_conv_stem", "_bn0", size=size, stride=2)
        size, channels, index = size // 2, 32, 0
        for stage in STAGES:
            for repeat in range(stage.repeats):
                stride = stage.stride if repeat == 0 else 1
                y = self._block(x, f"_blocks.{index}", stage.expansion, size=size, stride=stride)
                keeps_shape = stride == 1 and channels == stage.channels
                x = self._node("Add", [y, x]) if keeps_shape else y
                size, channels, index = size // stride, stage.channels, index + 1
        return self._convolve(x, "_conv_head", "_bn1", size=size)

    def classify(self, source: str, output: str) -> None:
        pooled = self._node("Flatten", [self._node("GlobalAveragePool", [source])], axis=1)
        weight = self._weight("_fc.weight", _tensor(self._weights, "_fc.weight"))
        bias = self._constant("_fc.bias", _tensor(self._weights, "_fc.bias"))
        self._node("Gemm", [pooled, weight, bias], output=output, transB=1)

    def _block(self, x: str, name: str, expansion: int, *, size: int, stride: int) -> str:
        """Expand the channels, convolve each of them alone, project to fewer channels."""
        if expansion != 1:
            x = self._convolve(x, f"{name}._expand_conv", f"{name}._bn0", size=size)
        x = self._convolve(
            x, f"{name}._depthwise_conv", f"{name}._bn1", size=size, stride=stride, depthwise=True
        )
        return self._convolve(x, f"{name}._project_conv", f"{name}._bn2", size=size, relu6=False)

    def _convolve(  # noqa: PLR0913 -- what a convolution is
        self,
        x: str,
        name: str,
        batch_norm: str,
        *,
        size: int,
        stride: int = 1,
        depthwise: bool = False,
        relu6: bool = True,
    ) -> str:
        weight, bias = _fold_batch_norm(self._weights, f"{name}.weight", batch_norm)
        kernel = weight.shape[-1]
        before, after = same_padding(size, kernel, stride)
        y = self._node(
            "Conv",
            [x, self._weight(f"{name}.weight", weight), self._constant(f"{name}.bias", bias)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=len(weight) if depthwise else 1,
        )
        return self._node("Clip", [y, "relu6.min", "relu6.max"]) if relu6 else y

    def _weight(self, name: str, value: Float32) -> str:
        if not self._quantised:
            return self._constant(name, value)
        steps, scale = quantise_weight(value)
        self.initializers.append(numpy_helper.from_array(steps, f"{name}.int8"))
        inputs = [f"{name}.int8", self._constant(f"{name}.scale", scale)]
        return self._node("DequantizeLinear", inputs, output=name, axis=0)

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def _node(
        self, operator: str, inputs: list[str], output: str = "", **attributes: object
    ) -> str:
        output = output or f"{operator.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output


def _fold_batch_norm(
    weights: Mapping[str, npt.NDArray[Any]], convolution: str, batch_norm: str
) -> tuple[Float32, Float32]:
    """A convolution's weight and bias that include the normalisation that follows it."""
    weight, gamma, beta, mean, variance = (
        _tensor(weights, name).astype(np.float64)
        for name in (
            convolution,
            f"{batch_norm}.weight",
            f"{batch_norm}.bias",
            f"{batch_norm}.running_mean",
            f"{batch_norm}.running_var",
        )
    )
    factor = gamma / np.sqrt(variance + BATCH_NORM_EPSILON)
    folded = weight * factor.reshape(-1, 1, 1, 1)
    return folded.astype(np.float32), (beta - mean * factor).astype(np.float32)


def _tensor(weights: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    try:
        return weights[name]
    except KeyError:
        raise CheckpointError(f"The checkpoint lacks the tensor {name}.") from None


def _value(name: str, shape: list[int | str]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
