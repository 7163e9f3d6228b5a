"""Golden requests: what is sent, what of the answer counts, and what real engines say to it."""

import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.channels import open_channel
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    BackendDead,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.golden import PARAMETER, EngineQuestions, golden, zeros
from tidegate_gateway.inference import Upstream
from tidegate_gateway.models import ANY, Model, TensorSpec, check_request
from tidegate_gateway.requests import Request, Response, Wanted
from tidegate_gateway.settings import EngineSettings
from tidegate_gateway.tensors import Datatype, Tensor, to_array
from tidegate_gateway.triton import Triton

MODELS = Path(__file__).parents[2] / "triton" / "models"
PATIENT_S = 20.0

ONE = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}
DIE = {"name": "die", "datatype": "BOOL", "shape": [1], "data": [True]}


def a_model(*inputs: TensorSpec, **parameters: str) -> Model:
    return Model(
        name="m",
        version="3",
        versions=("3",),
        platform="",
        max_batch_size=0,
        inputs=inputs,
        outputs=(TensorSpec("output", Datatype.FP32, (ANY,)),),
        parameters=parameters,
    )


def document(*inputs: object) -> str:
    return json.dumps({"inputs": inputs})


# What is sent


@pytest.mark.parametrize("shape", [(), (3,), (ANY,), (ANY, 2, ANY), (0, 4)], ids=str)
@pytest.mark.parametrize("datatype", Datatype)
def test_zeros_are_what_the_model_takes(datatype: Datatype, shape: tuple[int, ...]) -> None:
    model = a_model(TensorSpec("input", datatype, shape))

    request = zeros(model)

    check_request(model, request)
    (tensor,) = request.inputs
    assert tensor.shape == tuple(1 if size == ANY else size for size in shape)
    assert not any(element for element in to_array(tensor).reshape(-1))
    assert (request.model, request.version) == ("m", "3")


def test_zeros_leave_out_what_may_be_left_out() -> None:
    wanted = TensorSpec("wanted", Datatype.FP32, (1,))
    other = TensorSpec("other", Datatype.FP32, (1,), optional=True)

    request = zeros(a_model(wanted, other))

    assert [tensor.name for tensor in request.inputs] == ["wanted"]


def test_a_golden_request_of_the_models_own_is_read_as_it_would_come_over_http() -> None:
    text = json.dumps({"id": "golden", "inputs": [ONE], "outputs": [{"name": "output"}]})

    request = golden(a_model(), text)

    assert request == Request(
        model="m",
        version="3",
        id="golden",
        inputs=[Tensor("input", Datatype.FP32, (1,), b"\x00\x00\x80\x3f")],
        outputs=[Wanted("output")],
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "expected a JSON object, got a list"),
        ("{}", "inputs"),
        (document({**ONE, "data": ["x"]}), "expected a number"),
    ],
)
def test_a_golden_request_that_is_none_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(EngineFailed) as failed:
        golden(a_model(), text)

    assert failed.value.message.startswith("model 'm': its golden_request: ")
    assert why in failed.value.message


# What counts


@dataclass
class Refusing:
    """An engine that refuses with `error`, which no real one does on demand."""

    model: Model
    error: RequestError | None
    sent: Request | None = None

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        self.sent = request
        if self.error is not None:
            raise self.error
        return Response(model=request.model, version=request.version, outputs=[])

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        return self.model

    async def labels(
        self, request: Request, output: TensorSpec, deadline: Deadline
    ) -> Sequence[str | None]:
        raise AssertionError("a probe needs no labels")

    async def server_ready(self, deadline: Deadline) -> bool:
        raise AssertionError("a probe is of a model")

    async def model_ready(self, model: str, version: str, deadline: Deadline) -> bool:
        raise AssertionError("a probe does not rely on it")

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[Response, None]:
        if self.sent is not None:
            yield Response(model=request.model, version=request.version, outputs=[])
        raise AssertionError("a probe has one answer")

    async def statistics(self, model: str, version: str, deadline: Deadline) -> bytes:
        raise AssertionError("a probe needs no statistics")


WITHOUT = a_model(TensorSpec("input", Datatype.FP32, (1,)))
WITH = replace(WITHOUT, parameters={PARAMETER: document(ONE)})

ALIVE = [
    None,
    InvalidInput("these zeros make no sense"),
    PayloadTooLarge("so many"),
    EngineFailed("division by zero"),
    Overloaded("the queue is full"),
]
NOT_WELL = [
    BackendDead("dead"),
    ModelNotFound("no"),
    VersionUnready("no"),
    EngineUnavailable("no"),
    DeadlineExceeded("no"),
]


async def probe(engine: Upstream, model: str = "m", version: str = "3") -> None:
    await EngineQuestions().probe(engine, (model, version), Deadline.after(PATIENT_S))


@pytest.mark.parametrize("error", ALIVE, ids=repr)
async def test_who_refuses_zeros_is_alive(error: RequestError | None) -> None:
    engine = Refusing(WITHOUT, error)

    await probe(engine)

    assert engine.sent == zeros(WITHOUT)


@pytest.mark.parametrize("error", NOT_WELL, ids=repr)
async def test_who_does_not_answer_zeros_is_not_well(error: RequestError) -> None:
    with pytest.raises(type(error)) as raised:
        await probe(Refusing(WITHOUT, error))

    assert raised.value is error


@pytest.mark.parametrize(
    "error", [*(e for e in ALIVE[1:] if not isinstance(e, Overloaded)), *NOT_WELL], ids=repr
)
async def test_whatever_fails_in_the_models_own_request_is_not_well(error: RequestError) -> None:
    engine = Refusing(WITH, error)

    with pytest.raises(type(error)) as raised:
        await probe(engine)

    assert raised.value is error
    assert engine.sent == golden(WITH, document(ONE))


async def test_who_answers_the_models_own_request_is_well() -> None:
    engine = Refusing(WITH, None)

    await probe(engine)

    assert engine.sent == golden(WITH, document(ONE))


# Real engines


@asynccontextmanager
async def triton(engine: LocalEngine) -> AsyncIterator[Triton]:
    """A client of `engine`."""
    channel = open_channel(engine.grpc_address, EngineSettings())
    try:
        yield Triton(channel)
    finally:
        await channel.close()


@pytest.mark.needs("engine")
@pytest.mark.parametrize(
    "model",
    ["image_classifier", "resnet50_cpp", "identity", "slow", "raising", "batching", "repeat"],
)
async def test_every_model_of_a_real_triton_is_alive(engine: LocalEngine, model: str) -> None:
    # `raising` raises at whatever it is sent, and `repeat` cannot be asked in this way.
    async with triton(engine) as client:
        questions, until = EngineQuestions(), Deadline.after(PATIENT_S)
        assert await questions.serves(client, (model, "1"), until)
        await probe(client, model, "1")


@pytest.mark.needs("engine")
async def test_a_real_triton_knows_zeros_of_every_datatype(engine: LocalEngine) -> None:
    async with triton(engine) as client:
        until = Deadline.after(PATIENT_S)
        identity = await client.describe("identity", "1", until)
        needed = tuple(replace(spec, optional=False) for spec in identity.inputs)
        request = zeros(replace(identity, inputs=needed))
        assert {tensor.datatype for tensor in request.inputs} == {*Datatype}
        answer = await client.infer(request, until)

    sent = {tensor.datatype: tensor.data for tensor in request.inputs}
    assert {tensor.datatype: bytes(tensor.data) for tensor in answer.outputs} == sent


@pytest.mark.needs("engine")
async def test_a_version_that_is_not_there_is_not_served(engine: LocalEngine) -> None:
    async with triton(engine) as client:
        until = Deadline.after(PATIENT_S)
        assert not await EngineQuestions().serves(client, ("identity", "9"), until)
        with pytest.raises(ModelNotFound):
            await probe(client, "identity", "9")


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[LocalEngine]:
    """A Triton that the test may break, with `fragile` as it is and with golden requests of its
    own: a good one, and one that it refuses."""
    for name, request in {
        "fragile": None,
        "golden": document(ONE),
        "refused": document(ONE, {**ONE, "name": "unknown"}),
    }.items():
        shutil.copytree(MODELS / "fragile", tmp_path / name)
        path = tmp_path / name / "config.pbtxt"
        config = path.read_text().replace('"fragile"', f'"{name}"')
        if request is not None:
            value = f"value: {{ string_value: {json.dumps(request)} }}"
            config += f'\nparameters {{ key: "{PARAMETER}" {value} }}\n'
        path.write_text(config)
    with LocalEngine(["fragile", "golden", "refused"], repository=tmp_path) as running:
        yield running


@pytest.mark.needs("engine")
async def test_a_probe_finds_the_dead_backend_that_triton_calls_ready(
    own_engine: LocalEngine,
) -> None:
    async with triton(own_engine) as client:
        for model in ("fragile", "golden"):
            await probe(client, model, "1")
            until = Deadline.after(PATIENT_S)
            with pytest.raises(EngineFailed):
                await client.infer(
                    golden(replace(WITHOUT, name=model, version="1"), document(ONE, DIE)), until
                )

            assert await EngineQuestions().serves(client, (model, "1"), until)
            with pytest.raises(BackendDead):
                await probe(client, model, "1")


@pytest.mark.needs("engine")
async def test_a_model_that_refuses_its_own_request_is_not_well(own_engine: LocalEngine) -> None:
    async with triton(own_engine) as client:
        with pytest.raises(InvalidInput, match="unknown"):
            await probe(client, "refused", "1")
