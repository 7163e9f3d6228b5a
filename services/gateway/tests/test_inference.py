"""The heart with an engine whose answers do not fit, which no real one can be made to give."""

import io
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from PIL import Image

from tidegate_gateway.attempts import Deadline
from tidegate_gateway.errors import EngineFailed, ModelNotFound
from tidegate_gateway.images import ImageDecoder
from tidegate_gateway.inference import Inference, Request, Response
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype, Tensor

CLASSIFIER = Model(
    name="m",
    version="",
    versions=("1",),
    platform="",
    max_batch_size=8,
    inputs=(TensorSpec("input", Datatype.FP32, (ANY, 3, 8, 8)),),
    outputs=(TensorSpec("output", Datatype.FP32, (ANY, ANY)),),
    parameters={"image.crop": "1", "scores": "softmax"},
)
UNBATCHED = replace(
    CLASSIFIER,
    max_batch_size=0,
    inputs=(TensorSpec("input", Datatype.FP32, (3, 8, 8)),),
    outputs=(TensorSpec("output", Datatype.FP32, (ANY,)),),
)


class Engine:
    """Describes every model as `model`, and answers with `output`; counts what it is asked."""

    def __init__(self) -> None:
        self.model = CLASSIFIER
        self.output = output(Datatype.FP32, 1, 2)
        self.described: list[tuple[str, str]] = []

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        return Response(model=request.model, version="1", outputs=[self.output])

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        self.described.append((model, version))
        return self.model

    async def labels(
        self, request: Request, output: TensorSpec, deadline: Deadline
    ) -> Sequence[str | None]:
        raise AssertionError("its outputs have no labels")

    async def server_ready(self, deadline: Deadline) -> bool:
        return True

    async def model_ready(self, model: str, version: str, deadline: Deadline) -> bool:
        return True


def output(datatype: Datatype, *shape: int) -> Tensor:
    """An output of that shape whose elements are all 0."""
    count = 1
    for size in shape:
        count *= size
    element = struct.pack("<I", 0) if datatype is Datatype.BYTES else bytes(datatype.itemsize or 0)
    return Tensor("output", datatype, shape, element * count)


def photo() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def inference(engine: Engine) -> AsyncIterator[Inference]:
    decoder = ImageDecoder(threads=1, max_waiting=1, max_pixels=100)
    made = Inference(engine, decoder, description_ttl_s=30, description_timeout_s=5)
    yield made
    await made.close()
    decoder.close()


@pytest.mark.parametrize(
    ("model", "answer", "got"),
    [
        (CLASSIFIER, output(Datatype.FP32), "FP32 []"),
        (CLASSIFIER, output(Datatype.FP32, 1), "FP32 [1]"),
        (CLASSIFIER, output(Datatype.FP32, 0), "FP32 [0]"),
        (CLASSIFIER, output(Datatype.FP32, 1, 0), "FP32 [1, 0]"),
        (CLASSIFIER, output(Datatype.FP32, 0, 5), "FP32 [0, 5]"),
        (CLASSIFIER, output(Datatype.FP32, 2, 5), "FP32 [2, 5]"),
        (CLASSIFIER, output(Datatype.BOOL, 1, 5), "BOOL [1, 5]"),
        (CLASSIFIER, output(Datatype.BYTES, 1, 5), "BYTES [1, 5]"),
        (UNBATCHED, output(Datatype.FP32), "FP32 []"),
        (UNBATCHED, output(Datatype.FP32, 0), "FP32 [0]"),
    ],
)
async def test_an_output_that_is_no_scores_is_the_engines_failure(
    engine: Engine, inference: Inference, model: Model, answer: Tensor, got: str
) -> None:
    engine.model, engine.output = model, answer

    with pytest.raises(EngineFailed) as failed:
        await inference.classify("m", "", photo(), 5, Deadline.after(20))

    assert failed.value.message == (
        f"the engine's output 'output': expected scores of shape [1, classes], got {got}"
    )


@pytest.mark.parametrize(
    ("model", "shape"), [(CLASSIFIER, (1, 2)), (CLASSIFIER, (1, 2, 1, 1)), (UNBATCHED, (2,))]
)
async def test_scores_of_one_image_are_taken(
    engine: Engine, inference: Inference, model: Model, shape: tuple[int, ...]
) -> None:
    engine.model, engine.output = model, output(Datatype.FP32, *shape)

    found = await inference.classify("m", "", photo(), 5, Deadline.after(20))

    assert [(candidate.index, candidate.score) for candidate in found.top] == [(0, 0.5), (1, 0.5)]


@pytest.mark.parametrize("version", ["", "1", "10", "9" * 19])
async def test_the_engine_is_asked_for_a_version(
    engine: Engine, inference: Inference, version: str
) -> None:
    assert await inference.model("m", version, Deadline.after(20)) is CLASSIFIER
    assert engine.described == [("m", version)]


@pytest.mark.parametrize(
    "version", ["0", "01", "+1", "-1", " 1", "1 ", "1\n", "1.0", "1_0", "one", "9" * 20, "\u0661"]
)
async def test_the_engine_is_not_asked_for_what_is_no_version(
    engine: Engine, inference: Inference, version: str
) -> None:
    """An engine that reads "01" as 1 would have it remembered once for each way to write it."""
    with pytest.raises(ModelNotFound) as refused:
        await inference.model("m", version, Deadline.after(20))

    assert refused.value.message == f"no engine has model 'm' in version {version!r}"
    assert engine.described == []
