"""What Triton is sent, and what its failures in a stream mean.

The engine here is a gRPC server of our own, since a real one does not tell what it was sent, nor
fails with whatever words a test wants.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.requests import Request
from tidegate_gateway.triton import Triton
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

REQUEST = Request(model="m", version="1", inputs=[])


class Engine(rpc.GRPCInferenceServiceServicer):
    """Keeps what it is sent; in a stream it gives `answers`, and then fails with `status`."""

    def __init__(self) -> None:
        self.sent: list[pb.ModelInferRequest] = []
        self.left: list[float] = []
        self.answers: list[pb.ModelStreamInferResponse] = []
        self.status: tuple[grpc.StatusCode, str] | None = None

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, context: Any
    ) -> pb.ModelInferResponse:
        self.sent.append(request)
        self.left.append(context.time_remaining())
        return pb.ModelInferResponse(model_name="m", model_version="1")

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Any
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        async for request in requests:
            self.sent.append(request)
            self.left.append(context.time_remaining())
        for answer in self.answers:
            yield answer
        if self.status is not None:
            await context.abort(*self.status)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def triton(engine: Engine) -> AsyncIterator[Triton]:
    server = grpc.aio.server()
    rpc.add_GRPCInferenceServiceServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Triton(channel)
    await server.stop(None)


async def infer(triton: Triton, request: Request, deadline: Deadline) -> None:
    await triton.infer(request, deadline)


async def stream(triton: Triton, request: Request, deadline: Deadline) -> None:
    async for _ in triton.stream(request, deadline):
        pass


@pytest.mark.parametrize("ask", [infer, stream])
async def test_the_deadline_is_that_of_the_call_and_of_the_engines_queue(
    engine: Engine, triton: Triton, ask: Callable[..., Any]
) -> None:
    await ask(triton, REQUEST, Deadline.after(60))

    (sent,), (left,) = engine.sent, engine.left
    assert 50 < left <= 60
    assert 50e6 < sent.parameters["timeout"].int64_param <= 60e6


@pytest.mark.parametrize("ask", [infer, stream])
@pytest.mark.parametrize(
    ("own", "least", "most"), [(1_000_000, 1e6, 1e6), (90_000_000, 50e6, 60e6), (0, 50e6, 60e6)]
)
async def test_a_clients_own_limit_is_never_lengthened(  # noqa: PLR0917
    engine: Engine, triton: Triton, ask: Callable[..., Any], own: int, least: float, most: float
) -> None:
    request = Request(model="m", version="1", inputs=[], parameters={"timeout": own})
    await ask(triton, request, Deadline.after(60))

    assert least <= engine.sent[0].parameters["timeout"].int64_param <= most


@pytest.mark.parametrize("ask", [infer, stream])
async def test_what_has_expired_is_not_sent(
    engine: Engine, triton: Triton, ask: Callable[..., Any]
) -> None:
    with pytest.raises(DeadlineExceeded):
        await ask(triton, REQUEST, Deadline.after(0))

    assert engine.sent == []


def failed(text: str, model: str = "") -> pb.ModelStreamInferResponse:
    return pb.ModelStreamInferResponse(
        error_message=text, infer_response=pb.ModelInferResponse(model_name=model)
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failed("Request for unknown model: 'm' is not found"), ModelNotFound),
        (failed("Request for unknown model: 'm' version 1 is not at ready state"), VersionUnready),
        (failed("Request for unknown model: 'm' has no available versions"), VersionUnready),
        (failed("[request id: x] inference input 'a' data-type is 'FP64'"), InvalidInput),
        (failed("Exceeds maximum queue size"), Overloaded),
        (failed("Request timeout expired"), DeadlineExceeded),
        (failed("Failed to process the request(s) for model 'm'", model="m"), EngineFailed),
    ],
)
async def test_a_failure_that_is_told_in_the_stream_is_understood(
    engine: Engine, triton: Triton, answer: pb.ModelStreamInferResponse, error: type[RequestError]
) -> None:
    good = pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(model_name="m"))
    engine.answers = [good, answer, good]
    found = []
    with pytest.raises(error):
        async for each in triton.stream(REQUEST, Deadline.after(60)):
            found.append(each)  # noqa: PERF401  those before the error count

    assert len(found) == 1


async def test_a_failure_that_is_a_status_is_understood(engine: Engine, triton: Triton) -> None:
    engine.status = grpc.StatusCode.INTERNAL, "in /opt/model.py"
    with pytest.raises(EngineFailed) as raised:
        await stream(triton, REQUEST, Deadline.after(60))

    assert raised.value.message == "model 'm' failed in the engine"
