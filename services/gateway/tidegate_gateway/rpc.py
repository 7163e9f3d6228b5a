"""gRPC for clients: KServe v2, and the original design's InferenceService."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from tidegate_gateway import __version__, kserve_v2, statuses
from tidegate_gateway.access import REQUEST_ID_HEADER, Access, recorded
from tidegate_gateway.deadline import TIMEOUT_HEADER, Deadline
from tidegate_gateway.errors import (
    EngineFailed,
    InvalidInput,
    NotOffered,
    RequestError,
)
from tidegate_gateway.inference import ENGINES_CHOICE, STICKY_HEADER, Inference, Request
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.models import Model
from tidegate_gateway.settings import Settings
from tidegate_gateway.tensors import Tensor
from tidegate_proto import inference_pb2, inference_pb2_grpc, kserve_v2_pb2, kserve_v2_pb2_grpc

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

# Milliseconds. Clients may test an idle connection this often; gRPC's own default, 300 s, cuts off
# clients that must notice a dead peer sooner.
_MIN_PING_INTERVAL_MS = 5000


_FOR_EVER_MS = 2**31 - 1


def server(inference: Inference, settings: Settings, metrics: Metrics) -> grpc.aio.Server:
    """A gRPC server of both services, answered by `inference`; it has no port yet."""
    age = settings.grpc.max_connection_age_s
    made = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.grpc.max_message_bytes),
            ("grpc.max_send_message_length", settings.engine.max_message_bytes),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            # The only GOAWAY of gRPC's that loses no call: `Server.stop` cancels those that are on
            # their way. With it, the connections of a gateway that drains have moved on by then.
            ("grpc.max_connection_age_ms", round(age * 1000) if age else _FOR_EVER_MS),
            # A taken port is an error, not a second listener that gets half of the connections.
            ("grpc.so_reuseport", 0),
        ]
    )
    calls = _Calls(settings, metrics)
    kserve_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        GRPCInferenceService(inference, calls), made
    )
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        InferenceService(inference, calls), made
    )
    return made


class _Calls:
    """What every call shares: its record, its deadline, its refusal."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._limits = settings.deadline
        self._answers = settings.answers
        self._metrics = metrics

    @asynccontextmanager
    async def answering(
        self, method: str, context: Context
    ) -> AsyncIterator[tuple[Access, Deadline, str | None]]:
        """Keep the record of a call; what the body raises becomes the call's status.

        Yields:
            The record, the deadline, and the client's sticky key or None.
        """
        metadata = dict(context.invocation_metadata() or ())
        sent_id = _text(metadata.get(REQUEST_ID_HEADER))
        with recorded("grpc", sent_id, self._metrics, self._answers) as access:
            access.route = method
            try:
                deadline = Deadline.requested(
                    _text(metadata.get(TIMEOUT_HEADER)),
                    default=self._limits.v2_s,
                    most=self._limits.max_s,
                )
                key = _text(metadata.get(STICKY_HEADER))
                yield access, deadline.earlier(context.time_remaining()), key
                context.set_trailing_metadata(tuple(access.headers()))
                access.status = grpc.StatusCode.OK.name
            except RequestError as error:
                await _refuse(context, access, error)
            except asyncio.CancelledError:
                access.status = grpc.StatusCode.CANCELLED.name
                raise
            except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
                _log.exception("the gateway failed to answer")
                await _refuse(
                    context,
                    access,
                    EngineFailed("the gateway failed; its log says more by request id"),
                )


async def _refuse(context: Context, access: Access, error: RequestError) -> None:
    access.error = error
    access.status = statuses.grpc_code(error).name
    context.set_trailing_metadata(tuple(access.headers()))
    await context.abort(statuses.grpc_code(error), error.message)


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class GRPCInferenceService(kserve_v2_pb2_grpc.GRPCInferenceServiceServicer):
    """KServe v2; the calls that are not here are refused, see below."""

    def __init__(self, inference: Inference, calls: _Calls) -> None:
        self._inference = inference
        self._calls = calls

    async def ServerLive(
        self, request: kserve_v2_pb2.ServerLiveRequest, context: Context
    ) -> kserve_v2_pb2.ServerLiveResponse:
        """The gateway answers."""
        async with self._calls.answering("ServerLive", context):
            return kserve_v2_pb2.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: kserve_v2_pb2.ServerReadyRequest, context: Context
    ) -> kserve_v2_pb2.ServerReadyResponse:
        """The gateway reaches an engine that takes requests."""
        async with self._calls.answering("ServerReady", context) as (_, deadline, _key):
            ready = await self._inference.server_ready(deadline)
            return kserve_v2_pb2.ServerReadyResponse(ready=ready)

    async def ModelReady(
        self, request: kserve_v2_pb2.ModelReadyRequest, context: Context
    ) -> kserve_v2_pb2.ModelReadyResponse:
        """An engine serves the model."""
        async with self._calls.answering("ModelReady", context) as (_, deadline, _key):
            ready = await self._inference.model_ready(request.name, request.version, deadline)
            return kserve_v2_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, request: kserve_v2_pb2.ServerMetadataRequest, context: Context
    ) -> kserve_v2_pb2.ServerMetadataResponse:
        """Who answers, and which extensions of the protocol it speaks."""
        async with self._calls.answering("ServerMetadata", context):
            return kserve_v2_pb2.ServerMetadataResponse(name="tidegate", version=__version__)

    async def ModelMetadata(
        self, request: kserve_v2_pb2.ModelMetadataRequest, context: Context
    ) -> kserve_v2_pb2.ModelMetadataResponse:
        """The model's versions and the tensors that it takes and gives."""
        async with self._calls.answering("ModelMetadata", context) as (_, deadline, _key):
            with self._inference.admitted(request.name, request.version, None, []) as admission:
                model = await self._inference.model(admission, deadline)
            return kserve_v2.write_metadata(model)

    async def ModelInfer(
        self, request: kserve_v2_pb2.ModelInferRequest, context: Context
    ) -> kserve_v2_pb2.ModelInferResponse:
        """One inference."""
        async with self._calls.answering("ModelInfer", context) as (access, deadline, key):
            with self._inference.admitted(
                request.model_name, request.model_version, key, access.engines
            ) as admission:
                access.model = (await self._inference.model(admission, deadline)).name
                response = await self._inference.infer(
                    admission, kserve_v2.read_request(request), deadline
                )
            access.version = response.version
            return kserve_v2.write_response(response)


def _not_offered(method: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def refuse(self: GRPCInferenceService, _: object, context: Context) -> None:
        async with self._calls.answering(method, context):
            raise NotOffered(f"Tidegate does not offer {method}")

    return refuse


for _method in kserve_v2_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
    if _method.name not in vars(GRPCInferenceService):
        setattr(GRPCInferenceService, _method.name, _not_offered(_method.name))


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """The original design's service: the datatypes are the model's own."""

    def __init__(self, inference: Inference, calls: _Calls) -> None:
        self._inference = inference
        self._calls = calls

    async def ModelInfer(
        self, request: inference_pb2.InferRequest, context: Context
    ) -> inference_pb2.InferResponse:
        """One inference."""
        async with self._calls.answering("InferenceService/ModelInfer", context) as (
            access,
            deadline,
            key,
        ):
            with self._inference.admitted(
                request.model_name, ENGINES_CHOICE, key, access.engines
            ) as admission:
                model = await self._inference.model(admission, deadline)
                access.model = model.name
                response = await self._inference.infer(
                    admission,
                    Request(
                        model=request.model_name,
                        inputs=[_typed(model, tensor) for tensor in request.inputs],
                    ),
                    deadline,
                )
            access.version = response.version
            return inference_pb2.InferResponse(
                model_name=response.model,
                outputs=[
                    inference_pb2.InferResponse.Tensor(
                        name=tensor.name, shape=tensor.shape, tensor_content=bytes(tensor.data)
                    )
                    for tensor in response.outputs
                ],
            )


def _typed(model: Model, tensor: inference_pb2.InferRequest.Tensor) -> Tensor:
    for spec in model.inputs:
        if spec.name == tensor.name:
            return Tensor(tensor.name, spec.datatype, tuple(tensor.shape), tensor.tensor_content)
    raise InvalidInput(
        f"model {model.name!r}: expected inputs of {[spec.name for spec in model.inputs]}, "
        f"got {tensor.name!r}"
    )
