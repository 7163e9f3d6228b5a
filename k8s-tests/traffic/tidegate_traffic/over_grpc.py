"""Requests over gRPC: KServe v2 ModelInfer with raw contents, and inference.InferenceService."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from tidegate_proto import inference_pb2, inference_pb2_grpc, kserve_v2_pb2, kserve_v2_pb2_grpc
from tidegate_traffic import payloads
from tidegate_traffic.outcomes import (
    ENGINE_HEADER,
    GATEWAY_HEADER,
    Answer,
    Origin,
    Outcome,
    origin,
)
from tidegate_traffic.payloads import Echo
from tidegate_traffic.plan import Plan, Route
from tidegate_traffic.verdicts import ok, refused, told_otherwise, unlike_model, wrong

# Trailing metadata of every answer that a gateway gave, errors included. An error without it was
# made by the client's own gRPC library, or by the server's while it went down: no answer came.
_ANSWERED = "x-request-id"

_OPTIONS: Sequence[tuple[str, Any]] = (
    # No retry policy, so nothing is asked twice. What gRPC does by itself in every client stays on:
    # a call that meets a GOAWAY, which the server has never seen, goes over the next connection.
    # Otherwise channels to one address share one connection, and a new one would not be new.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # Milliseconds. Its defaults, 1 s growing to 120 s, would go on failing long after the server
    # is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

# What the library says of a connection that failed → our word. The first that fits.
_FAULTS = (
    ("onnection refused", "refused"),
    ("onnection reset", "reset"),
    ("roken pipe", "reset"),
    ("GOAWAY", "closed"),
    ("ocket closed", "closed"),
    ("End of TCP stream", "closed"),
    ("DNS", "name resolution"),
    ("resolution", "name resolution"),
)

# What a call came to: an answer that was made of its failure, or its response and where from.
_Result = tuple[Any, Origin] | Answer


class V2Sender:
    """One connection, for KServe v2's ModelInfer."""

    def __init__(self, plan: Plan, route: Route, echo: Echo) -> None:
        self._route = route
        self._echo = echo
        self._channel = grpc.aio.insecure_channel(plan.grpc, options=_OPTIONS)
        self._infer = kserve_v2_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer

    async def send(self, number: int, request_id: str) -> Answer:
        """Send request `number`, once, and judge what comes."""
        tensor = kserve_v2_pb2.ModelInferRequest.InferInputTensor
        sent = _content(self._echo, number)
        request = kserve_v2_pb2.ModelInferRequest(
            model_name=self._route.model,
            id=request_id,
            inputs=[
                tensor(name=name, datatype=datatype, shape=[length])
                for name, datatype, length, _ in _inputs(self._echo, sent)
            ],
            raw_input_contents=[content for *_, content in _inputs(self._echo, sent)],
        )
        result = await _call(self._infer, request, self._route, request_id)
        if isinstance(result, Answer):
            return result
        response, came_from = result
        if answer := unlike_model(
            self._route, response.model_name, response.model_version, came_from
        ):
            return answer
        version = response.model_version
        if difference := self._difference(sent, response):
            return wrong("content", difference, came_from, version)
        if told := self._told_otherwise(response):
            return wrong("told version", told, came_from, version)
        return ok(came_from, version)

    def _difference(self, sent: bytes, response: kserve_v2_pb2.ModelInferResponse) -> str:
        # Raw contents are those of the outputs in their order.
        if len(response.outputs) != len(response.raw_output_contents):
            return (
                f"expected raw contents of {len(response.outputs)} outputs, "
                f"got {len(response.raw_output_contents)}"
            )
        names = [output.name for output in response.outputs]
        for wanted in filter(None, (self._echo.output, self._echo.version_output)):
            if wanted not in names:
                return f"expected output {wanted!r}, got {names}"
        at = names.index(self._echo.output)
        output, content = response.outputs[at], response.raw_output_contents[at]
        if output.datatype != self._echo.datatype:
            return f"expected {self._echo.datatype}, got {output.datatype}"
        return _difference(self._echo, sent, output.shape, content)

    def _told_otherwise(self, response: kserve_v2_pb2.ModelInferResponse) -> str:
        if not self._echo.version_output:
            return ""
        names = [output.name for output in response.outputs]
        told = response.raw_output_contents[names.index(self._echo.version_output)]
        version = response.model_version
        if told == payloads.packed("INT32", [int(version)]):
            return ""
        return told_otherwise(version, int.from_bytes(told, "little", signed=True))

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


class InferenceServiceSender:
    """One connection, for inference.InferenceService; its answers tell no version."""

    def __init__(self, plan: Plan, route: Route, echo: Echo) -> None:
        self._route = route
        self._echo = echo
        self._channel = grpc.aio.insecure_channel(plan.grpc, options=_OPTIONS)
        self._infer = inference_pb2_grpc.InferenceServiceStub(self._channel).ModelInfer

    async def send(self, number: int, request_id: str) -> Answer:
        """Send request `number`, once, and judge what comes."""
        sent = _content(self._echo, number)
        request = inference_pb2.InferRequest(
            model_name=self._route.model,
            inputs=[
                inference_pb2.InferRequest.Tensor(name=name, shape=[length], tensor_content=content)
                for name, _, length, content in _inputs(self._echo, sent)
            ],
        )
        result = await _call(self._infer, request, self._route, request_id)
        if isinstance(result, Answer):
            return result
        response, came_from = result
        if answer := unlike_model(self._route, response.model_name, "", came_from):
            return answer
        difference = self._difference(sent, response)
        return wrong("content", difference, came_from) if difference else ok(came_from)

    def _difference(self, sent: bytes, response: inference_pb2.InferResponse) -> str:
        for output in response.outputs:
            if output.name == self._echo.output:
                return _difference(self._echo, sent, output.shape, output.tensor_content)
        return f"expected output {self._echo.output!r}, got {[o.name for o in response.outputs]}"

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _content(echo: Echo, number: int) -> bytes:
    return payloads.packed(echo.datatype, payloads.values(number, echo.elements))


def _inputs(echo: Echo, content: bytes) -> list[tuple[str, str, int, bytes]]:
    """Name, datatype, length and content of each input, the varying one first."""
    return [
        (echo.input, echo.datatype, echo.elements, content),
        *(
            (constant.name, constant.datatype, len(constant.values), constant.content())
            for constant in echo.constants
        ),
    ]


def _difference(echo: Echo, sent: bytes, shape: Sequence[int], came: bytes) -> str:
    if list(shape) != [echo.elements]:
        return f"expected shape {[echo.elements]}, got {list(shape)}"
    return payloads.difference(sent, came)


async def _call(method: Any, request: Any, route: Route, request_id: str) -> _Result:
    metadata = ((_ANSWERED, request_id), *route.headers.items())
    call = method(request, timeout=route.timeout_s, metadata=metadata)
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return _failure(error)
    return response, _origin(await call.trailing_metadata())


def _failure(error: grpc.aio.AioRpcError) -> Answer:
    metadata = error.trailing_metadata()
    said = error.details() or ""
    if metadata is not None and _ANSWERED in metadata:
        return refused(error.code().name, said, _origin(metadata))
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Answer(Outcome.TIMEOUT, sentence="no answer within the route's timeout")
    # What it tells a client and what it keeps for a log: now this says more, now that.
    whole = f"{said} {error.debug_error_string()}"
    fault = next((word for text, word in _FAULTS if text in whole), error.code().name)
    return Answer(Outcome.CONNECTION, fault, f"{error.code().name}: {said}")


def _origin(metadata: Any) -> Origin:
    found = {key: value for key, value in metadata or () if isinstance(value, str)}
    return origin(found.get(ENGINE_HEADER, ""), found.get(GATEWAY_HEADER, ""))
