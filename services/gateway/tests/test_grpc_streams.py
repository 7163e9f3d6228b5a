"""ModelStreamInfer on a real Triton: order, failures in the stream, sequences, many at once."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

from .conftest import GatewayFactory
from .test_leaving_clients import repeat_message

pytestmark = pytest.mark.needs("engine")


def slow(
    value: float, delay_ms: int = 0, *, name: str = "", **parameters: object
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(
        model_name="slow",
        id=name,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1]),
            pb.ModelInferRequest.InferInputTensor(name="delay_ms", datatype="INT32", shape=[1]),
        ],
        raw_input_contents=[struct.pack("<f", value), struct.pack("<i", delay_ms)],
    )
    for key, each in parameters.items():
        if isinstance(each, bool):
            message.parameters[key].bool_param = each
        elif isinstance(each, int):
            message.parameters[key].int64_param = each
    return message


def repeat(
    count: int, delay_ms: int = 0, *, name: str = "", empty_final: bool = False
) -> pb.ModelInferRequest:
    message = repeat_message(count, delay_ms)
    message.id = name
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def raising(*, name: str) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name="raising",
        id=name,
        inputs=[pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1])],
        raw_input_contents=[bytes(4)],
    )


def wrong(*, name: str) -> pb.ModelInferRequest:
    message = slow(1, name=name)
    message.inputs[0].datatype = "FP64"
    return message


@pytest.fixture
def stub(gateway: LocalGateway) -> Iterator[rpc.GRPCInferenceServiceStub]:
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        yield rpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def direct(engine: LocalEngine) -> Iterator[rpc.GRPCInferenceServiceStub]:
    """The engine itself."""
    with grpc.insecure_channel(engine.grpc_address) as channel:
        yield rpc.GRPCInferenceServiceStub(channel)


def answers(
    stub: rpc.GRPCInferenceServiceStub, *messages: pb.ModelInferRequest
) -> list[pb.ModelStreamInferResponse]:
    return list(stub.ModelStreamInfer(iter(messages), timeout=60))


def told(
    stub: rpc.GRPCInferenceServiceStub, *messages: pb.ModelInferRequest
) -> list[tuple[str, object]]:
    """The id of each answer, and its value, or "failed"."""
    return [
        (
            each.infer_response.id,
            "failed" if each.error_message else b"".join(each.infer_response.raw_output_contents),
        )
        for each in answers(stub, *messages)
    ]


def value(number: float) -> bytes:
    return struct.pack("<f", number)


def count(number: int) -> bytes:
    return struct.pack("<i", number)


def test_answers_come_in_the_order_of_the_requests(stub: rpc.GRPCInferenceServiceStub) -> None:
    assert told(stub, slow(1, 300, name="a"), slow(2, name="b"), slow(3, 100, name="c")) == [
        ("a", value(1)),
        ("b", value(2)),
        ("c", value(3)),
    ]


def test_a_decoupled_model_waits_for_nobody(stub: rpc.GRPCInferenceServiceStub) -> None:
    found = told(stub, slow(1, 1500, name="a"), repeat(3, 10, name="r"), slow(2, name="b"))
    assert found[:3] == [("r", count(0)), ("r", count(1)), ("r", count(2))]
    assert found[3:] == [("a", value(1)), ("b", value(2))]


@pytest.mark.parametrize(
    "message",
    [
        slow(1, name="a"),
        repeat(2, name="r"),
        repeat(0, name="none"),
        repeat(2, name="f", empty_final=True),
        repeat(0, name="g", empty_final=True),
        slow(1, name="h", triton_enable_empty_final_response=True),
        slow(1, name="p", priority=1, own=2),
    ],
    ids=lambda message: message.id,
)
def test_each_answer_is_the_one_that_triton_gives(
    stub: rpc.GRPCInferenceServiceStub,
    direct: rpc.GRPCInferenceServiceStub,
    message: pb.ModelInferRequest,
) -> None:
    assert answers(stub, message) == answers(direct, message)


def test_what_fails_is_told_in_its_place_and_the_stream_goes_on(
    stub: rpc.GRPCInferenceServiceStub,
) -> None:
    nobody = pb.ModelInferRequest(model_name="nobody", id="n")
    found = answers(
        stub, nobody, slow(1, name="a"), wrong(name="w"), raising(name="r"), slow(2, name="b")
    )
    assert [(each.infer_response.id, each.error_message) for each in found] == [
        ("n", "no engine has model 'nobody'"),
        ("a", ""),
        ("w", "model 'slow': input 'input': expected datatype FP32, got FP64; input 'input': "
         "expected 8 bytes for FP64 [1], got 4"),
        ("r", "model 'raising' failed in the engine"),
        ("b", ""),
    ]  # fmt: skip
    assert all(each.infer_response.parameters["triton_final_response"].bool_param for each in found)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (wrong(name="w"), grpc.StatusCode.INVALID_ARGUMENT),
        (raising(name="r"), grpc.StatusCode.INTERNAL),
        (pb.ModelInferRequest(model_name="nobody"), grpc.StatusCode.NOT_FOUND),
    ],
)
def test_who_wants_a_status_gets_the_first_ones(
    stub: rpc.GRPCInferenceServiceStub, message: pb.ModelInferRequest, code: grpc.StatusCode
) -> None:
    metadata = (("triton_grpc_error", "true"),)
    call = stub.ModelStreamInfer(iter([slow(1), message]), metadata=metadata, timeout=60)
    assert next(call).error_message == ""
    with pytest.raises(grpc.RpcError) as failed:
        next(call)
    assert failed.value.code() is code


def test_bytes_that_are_no_message_are_told_in_the_stream(gateway: LocalGateway) -> None:
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=lambda data: data,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        messages = [b"\xff\xff\xff", slow(1, name="a").SerializeToString()]
        found = list(call(iter(messages), timeout=60))
    assert [each.error_message for each in found] == [
        "the message: expected inference.ModelInferRequest as protobuf, got 3 bytes that are not",
        "",
    ]


async def test_a_sequence_is_answered_one_by_one_by_one_engine(
    new_gateway: GatewayFactory, engine: LocalEngine
) -> None:
    """Each of its requests begins when the one before has ended, whatever else is on the stream."""
    gateway = new_gateway(engine.grpc_address)
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)

        async def messages() -> AsyncIterator[pb.ModelInferRequest]:
            for number in range(3):
                yield slow(number, 300, name=f"s{number}", sequence_id=7)
            yield slow(9, name="other")

        loop = asyncio.get_running_loop()
        began = loop.time()
        found = [each async for each in stub.ModelStreamInfer(messages(), timeout=60)]
        assert loop.time() - began > 0.9
    assert [each.infer_response.id for each in found] == ["s0", "s1", "s2", "other"]


async def test_many_streams_at_once_get_their_own_answers(gateway: LocalGateway) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)

        async def one(number: int) -> list[str]:
            async def messages() -> AsyncIterator[pb.ModelInferRequest]:
                for each in range(40):
                    yield repeat(1, name=f"{number}.{each}")

            found = stub.ModelStreamInfer(messages(), timeout=60)
            return sorted([each.infer_response.id async for each in found])

        told = await asyncio.gather(*(one(number) for number in range(10)))
    for number, ids in enumerate(told):
        assert ids == sorted(f"{number}.{each}" for each in range(40))


async def test_who_does_not_read_holds_the_engine_back(
    new_gateway: GatewayFactory, engine: LocalEngine
) -> None:
    """What is not read waits in the engine, and not in the gateway's memory."""
    gateway = new_gateway(engine.grpc_address, "--stream.max_in_flight=2")
    asked = 0
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        large = pb.ModelInferRequest(
            model_name="identity",
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name="INPUT_INT8", datatype="INT8", shape=[2_000_000]
                )
            ],
            raw_input_contents=[bytes(2_000_000)],
        )

        async def messages() -> AsyncIterator[pb.ModelInferRequest]:
            nonlocal asked
            for _ in range(60):
                asked += 1
                yield large

        call = stub.ModelStreamInfer(messages(), timeout=60)
        await asyncio.sleep(3)
        assert asked < 40
        found = [each async for each in call]
    assert len(found) == 60


def test_a_stream_leaves_one_line_in_the_log(
    new_gateway: GatewayFactory, engine: LocalEngine
) -> None:
    gateway = new_gateway(engine.grpc_address)
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        answers(stub, slow(1), repeat(3), wrong(name="w"))
    (line,) = [
        record
        for record in gateway.log_records()
        if record.get("message") == "answered" and record.get("route") == "ModelStreamInfer"
    ]
    assert {key: line[key] for key in ("requests", "answers", "errors", "status")} == {
        "requests": 3,
        "answers": 5,
        "errors": 1,
        "status": "OK",
    }
