"""The heart with an engine whose answers do not fit, which no real one can be made to give."""

import asyncio
import io
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from PIL import Image

from tidegate_gateway.admission import Admissions, Priority
from tidegate_gateway.attempts import Attempts
from tidegate_gateway.balancing import Pool, Rules
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.endpoints import Connection, Endpoints
from tidegate_gateway.errors import (
    EngineFailed,
    InvalidInput,
    ModelNotFound,
    NotOffered,
    PayloadTooLarge,
)
from tidegate_gateway.golden import EngineQuestions
from tidegate_gateway.images import ImageDecoder
from tidegate_gateway.inference import Admission, Inference, State, Upstream
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import FINAL, Request, Response, Wanted
from tidegate_gateway.settings import (
    AdmissionSettings,
    AttemptSettings,
    HealthSettings,
    LimitSettings,
    StreamSettings,
)
from tidegate_gateway.streams import Streams
from tidegate_gateway.table import Routes
from tidegate_gateway.tensors import Datatype, Tensor
from tidegate_table.document import Table, parse

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
        self.answers, self.then_sleeps_s = 2, 0.0
        self.described: list[tuple[str, str]] = []
        self.inferred: list[tuple[str, str]] = []

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        self.inferred.append((request.model, request.version))
        return Response(model=request.model, version=request.version, outputs=[self.output])

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[Response, None]:
        self.inferred.append((request.model, request.version))
        for _ in range(self.answers):
            yield Response(model=request.model, version=request.version, outputs=[self.output])
        await asyncio.sleep(self.then_sleeps_s)

    async def statistics(self, model: str, version: str, deadline: Deadline) -> bytes:
        return f"{model} {version}".encode()

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


class Link:
    """A connection to an engine that is in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def connections(self) -> AsyncIterator[Connection]:
        yield Connection.UP
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def one_endpoint() -> AsyncIterator[tuple[Endpoint, ...]]:
    yield (Endpoint("127.0.0.1:1", "engine-0"),)
    await asyncio.Event().wait()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def routes() -> Routes:
    return Routes(Random(1))


@pytest.fixture
async def inference(engine: Engine, routes: Routes) -> AsyncIterator[Inference]:
    decoder = ImageDecoder(threads=1, max_waiting=1, max_pixels=100)
    metrics, chance = Metrics(), Random(1)
    endpoints = Endpoints[Upstream](
        Pool(Rules(), chance),
        open_link=lambda _: Link(engine),
        questions=EngineQuestions(),
        routing=routes,
        health=HealthSettings(),
        metrics=metrics,
        random=chance,
        identity="gateway-0",
        most=0,
        first_connection_s=20,
        close_after_s=1,
    )
    attempts = Attempts(endpoints, AttemptSettings(), metrics)
    made = Inference(
        routes,
        attempts,
        Admissions(AdmissionSettings()),
        Streams(attempts, routes, StreamSettings(max_after_roll_s=0.3)),
        decoder,
        limits=LimitSettings(max_tensors=2, max_elements=384),
        description_ttl_s=30,
        description_timeout_s=5,
    )
    following = asyncio.create_task(endpoints.follow(one_endpoint()))
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await made.close()
    await endpoints.close()
    decoder.close()


@asynccontextmanager
async def admitted(
    inference: Inference, version: str = "", *, name: str = "m", key: str | None = None
) -> AsyncIterator[Admission]:
    until = Deadline.after(20)
    async with inference.admitted(name, version, key, [], Priority.NORMAL, until) as admission:
        yield admission


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
        async with admitted(inference) as admission:
            await inference.classify(admission, photo(), 5, Deadline.after(20))

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

    async with admitted(inference) as admission:
        found = await inference.classify(admission, photo(), 5, Deadline.after(20))

    assert [(candidate.index, candidate.score) for candidate in found.top] == [(0, 0.5), (1, 0.5)]


@pytest.mark.parametrize("version", ["", "1", "10", "9" * 19])
async def test_the_engine_is_asked_for_a_version(
    engine: Engine, inference: Inference, version: str
) -> None:
    async with admitted(inference, version) as admission:
        assert await inference.model(admission, Deadline.after(20)) is CLASSIFIER
    assert engine.described == [("m", version)]


@pytest.mark.parametrize(
    "version", ["0", "01", "+1", "-1", " 1", "1 ", "1\n", "1.0", "1_0", "one", "9" * 20, "\u0661"]
)
async def test_the_engine_is_not_asked_for_what_is_no_version(
    engine: Engine, inference: Inference, version: str
) -> None:
    """An engine that reads "01" as 1 would have it remembered once for each way to write it."""
    with pytest.raises(ModelNotFound) as refused:
        async with admitted(inference, version):
            pass

    assert refused.value.message == f"no engine has model 'm' in version {version!r}"
    assert engine.described == []


# With a routing table

TABLE = parse(
    {
        "schema": 1,
        "revision": 3,
        "models": {"m": {"stable": "1", "weights": {"1": 50, "2": 50}}},
        "aliases": {"other": "m"},
    }
)
PIXELS = Tensor("input", Datatype.FP32, (1, 3, 8, 8), bytes(768))


async def test_the_engine_is_always_asked_for_the_version_that_the_table_chose(
    engine: Engine, inference: Inference, routes: Routes
) -> None:
    routes.apply(TABLE)
    for name in ("m", "other"):
        for _ in range(20):
            async with admitted(inference, name=name) as admission:
                request = Request(model=name, inputs=[PIXELS])
                response = await inference.infer(admission, request, Deadline.after(20))
            assert response.model == "m"
            assert response.version == admission.route.version

    assert set(engine.inferred) == {("m", "1"), ("m", "2")}


async def test_a_sequence_keeps_its_version_and_a_pin_is_kept_as_well(
    engine: Engine, inference: Inference, routes: Routes
) -> None:
    routes.apply(TABLE)
    for sequence in range(1, 9):
        engine.inferred.clear()
        for _ in range(8):
            async with admitted(inference) as admission:
                request = Request("m", [PIXELS], parameters={"sequence_id": sequence})
                await inference.infer(admission, request, Deadline.after(20))
        assert len(set(engine.inferred)) == 1

    engine.inferred.clear()
    for version in ("1", "2"):
        async with admitted(inference, version) as admission:
            request = Request("m", [PIXELS], parameters={"sequence_id": 1})
            await inference.infer(admission, request, Deadline.after(20))
    assert engine.inferred == [("m", "1"), ("m", "2")]


async def test_a_request_holds_the_revision_that_it_came_in_by(
    inference: Inference, routes: Routes
) -> None:
    routes.apply(TABLE)
    async with admitted(inference, name="other"):
        routes.apply(replace(TABLE, revision=4))
        assert routes.oldest_in_use() == {"m": 3}
    assert routes.oldest_in_use() == {"m": 4}


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_a_sticky_key_of_another_length_is_refused(inference: Inference, key: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        async with admitted(inference, key=key):
            pass

    assert refused.value.message == (
        f"tidegate-sticky-key: expected 1 to 256 characters, got {len(key)}"
    )


async def test_what_clients_name_has_a_bound(engine: Engine, inference: Inference) -> None:
    with pytest.raises(ModelNotFound) as unknown:
        async with admitted(inference, name="m" * 257):
            pass
    assert unknown.value.message == "a model's name: expected at most 256 characters, got 257"

    for name in ("m\x00", "m\n", "\x00"):
        with pytest.raises(ModelNotFound) as unknown:
            async with admitted(inference, name=name):
                pass
        assert unknown.value.message == f"no engine has model {name!r}"

    async with admitted(inference) as admission:
        request = Request("m", [PIXELS], parameters={"sequence_id": "s" * 129})
        with pytest.raises(InvalidInput) as refused:
            await inference.infer(admission, request, Deadline.after(20))
    assert refused.value.message == (
        f"model 'm': parameter 'sequence_id': expected at most 128 characters, got '{'s' * 129}'"
    )
    assert engine.inferred == []


# Limits


async def test_a_request_holds_so_much_and_no_more(engine: Engine, inference: Inference) -> None:
    two = replace(PIXELS, shape=(2, 3, 8, 8), data=bytes(1536))
    three = replace(PIXELS, shape=(3, 3, 8, 8), data=bytes(2304))
    too_large = [
        (Request("m", [PIXELS] * 3), "2 inputs (limits.max_tensors), got 3"),
        (
            Request("m", [PIXELS], outputs=[Wanted("output")] * 3),
            "2 outputs (limits.max_tensors), got 3",
        ),
        (Request("m", [three]), "384 elements (limits.max_elements), got 576"),
    ]
    async with admitted(inference) as admission:
        await inference.infer(admission, Request("m", [two]), Deadline.after(20))
        for request, sentence in too_large:
            with pytest.raises(PayloadTooLarge) as refused:
                await inference.infer(admission, request, Deadline.after(20))
            assert refused.value.message == f"the request: expected at most {sentence}"
    assert len(engine.inferred) == 1


# Streams

DECOUPLED = replace(CLASSIFIER, decoupled=True)


async def streamed(inference: Inference, request: Request) -> list[Response]:
    async with admitted(inference) as admission:
        answers = inference.stream(admission, request, Deadline.after(20))
        return [answer async for answer in answers]


async def test_a_model_that_answers_once_may_be_streamed_too(inference: Inference) -> None:
    (answer,) = await streamed(inference, Request("m", [PIXELS]))
    assert answer.parameters == {FINAL: True}


async def test_a_decoupled_model_gives_all_its_answers_and_is_not_asked_for_one(
    engine: Engine, inference: Inference
) -> None:
    engine.model = DECOUPLED
    assert len(await streamed(inference, Request("m", [PIXELS]))) == 2

    engine.inferred.clear()
    with pytest.raises(NotOffered) as refused:
        async with admitted(inference) as admission:
            await inference.infer(admission, Request("m", [PIXELS]), Deadline.after(20))
    assert refused.value.message == (
        "model 'm' is decoupled: it answers a request any number of times; ask it with "
        "ModelStreamInfer, generate or generate_stream"
    )
    assert engine.inferred == []


async def test_what_does_not_fit_is_not_streamed(engine: Engine, inference: Inference) -> None:
    engine.model = DECOUPLED
    with pytest.raises(InvalidInput) as refused:
        await streamed(inference, Request("m", []))
    assert refused.value.message == "model 'm': input 'input' (FP32 [-1, 3, 8, 8]) is missing"
    assert engine.inferred == []


# What is known of models


async def test_what_is_remembered_of_a_version_goes_when_its_files_change(
    engine: Engine, inference: Inference, routes: Routes
) -> None:
    def table(revision: int, digest: str) -> Table:
        return parse(
            {
                "schema": 1,
                "revision": revision,
                "models": {"m": {"stable": "1", "weights": {"1": 100}}},
                "loads": {"m": {"versions": {"1": {"digest": digest}}}},
            }
        )

    async def ask_twice() -> int:
        for _ in range(2):
            await inference.described("m", "", Deadline.after(20))
        return len(engine.described)

    routes.apply(table(1, "sha256:" + "a" * 64))
    assert await ask_twice() == 1
    routes.apply(table(2, "sha256:" + "a" * 64))
    assert await ask_twice() == 1
    routes.apply(table(3, "sha256:" + "b" * 64))
    assert await ask_twice() == 2


async def test_statistics_are_those_of_each_engine_by_the_models_own_name(
    inference: Inference, routes: Routes
) -> None:
    routes.apply(TABLE)
    async with admitted(inference) as admission:
        await inference.model(admission, Deadline.after(20))
    assert await inference.statistics("other", "2", Deadline.after(20)) == [b"m 2"]
    assert await inference.statistics("", "", Deadline.after(20)) == [b" "]
    with pytest.raises(ModelNotFound):
        await inference.statistics("m", "3", Deadline.after(20))


async def test_the_index_is_the_tables(inference: Inference, routes: Routes) -> None:
    with pytest.raises(NotOffered) as refused:
        await inference.index(ready_only=False)
    assert refused.value.message == (
        "the index of models is made from a routing table; there is none here"
    )

    routes.apply(TABLE)
    listed = await inference.index(ready_only=False)
    assert [(each.name, each.version) for each in listed] == [("m", "1"), ("m", "2")]
    assert {(each.state, each.reason) for each in listed} <= {
        (State.READY, ""),
        (State.UNAVAILABLE, "no engine serves it now"),
    }
