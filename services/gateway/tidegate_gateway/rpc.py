"""gRPC for clients: KServe v2, the original design's InferenceService, health and reflection."""

from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tidegate_gateway import __version__, kserve_v2
from tidegate_gateway.errors import InvalidInput, NotOffered
from tidegate_gateway.grpc_calls import Calls, Context, Received, reader
from tidegate_gateway.grpc_streams import InferStream
from tidegate_gateway.inference import Inference, Upstream
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.models import Model
from tidegate_gateway.offers import EXTENSIONS, NO_MEMORY, NO_MODELS, NO_SETTINGS, not_offered
from tidegate_gateway.requests import ENGINES_CHOICE, Request
from tidegate_gateway.settings import GrpcSettings, Settings
from tidegate_gateway.streams import Streams
from tidegate_gateway.tensors import Tensor
from tidegate_proto import inference_pb2, kserve_v2_pb2, model_config_pb2

# Milliseconds. Clients may test an idle connection this often; gRPC's own default, 300 s, cuts off
# clients that must notice a dead peer sooner.
_MIN_PING_INTERVAL_MS = 5000

_FOR_EVER_MS = 2**31 - 1

_COMPRESSIONS = {
    "none": grpc.Compression.NoCompression,
    "deflate": grpc.Compression.Deflate,
    "gzip": grpc.Compression.Gzip,
}

_KSERVE = kserve_v2_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_ORIGINAL = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
SERVICES = (_KSERVE.full_name, _ORIGINAL.full_name)
"""The services for inference; what their health is called, too."""


def server(
    inference: Inference,
    streams: Streams[Upstream],
    health_of: health.aio.HealthServicer,
    settings: Settings,
    metrics: Metrics,
) -> grpc.aio.Server:
    """A gRPC server of all services, answered by `inference`; it has no port yet."""
    made = grpc.aio.server(
        options=_options(settings.grpc, settings.engine.max_message_bytes),
        compression=_COMPRESSIONS[settings.grpc.compression],
    )
    calls = Calls(settings, metrics)
    kserve = GRPCInferenceService(inference, streams, settings, calls)
    _add(made, _KSERVE, kserve)
    _add(made, _ORIGINAL, InferenceService(inference, calls))
    health_pb2_grpc.add_HealthServicer_to_server(health_of, made)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, made)
    return made


async def tell_health(health_of: health.aio.HealthServicer, *, is_serving: bool) -> None:
    """Have the health of all services be so from now on."""
    statuses = health_pb2.HealthCheckResponse
    status = statuses.SERVING if is_serving else statuses.NOT_SERVING
    for name in ("", *SERVICES):
        await health_of.set(name, status)


def _options(grpc_settings: GrpcSettings, max_answer_bytes: int) -> list[tuple[str, Any]]:
    age = grpc_settings.max_connection_age_s
    return [
        ("grpc.max_receive_message_length", grpc_settings.max_message_bytes),
        ("grpc.max_send_message_length", max_answer_bytes),
        # The first is from where on gRPC begins to refuse by chance, unless both are one.
        ("grpc.max_metadata_size", grpc_settings.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", grpc_settings.max_metadata_bytes),
        ("grpc.max_concurrent_streams", grpc_settings.max_concurrent_streams),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # The only GOAWAY of gRPC's that loses no call: `Server.stop` cancels those that are on
        # their way. With it, the connections of a gateway that drains have moved on by then.
        ("grpc.max_connection_age_ms", round(age * 1000) if age else _FOR_EVER_MS),
        # A taken port is an error, not a second listener that gets half of the connections.
        ("grpc.so_reuseport", 0),
    ]


def _add(made: grpc.aio.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Have `servicer` answer the calls of `service`, with messages that are read by `reader`."""
    handlers = {method.name: _handler(method, servicer) for method in service.methods}
    made.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )


def _handler(method: MethodDescriptor, servicer: object) -> "grpc.RpcMethodHandler[Any, Any]":
    answer: Callable[..., Any] = getattr(servicer, method.name)
    make = (
        grpc.stream_stream_rpc_method_handler
        if method.client_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return make(
        answer,
        request_deserializer=reader(message_factory.GetMessageClass(method.input_type)),
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )


class GRPCInferenceService:
    """KServe v2; the calls that are not here are refused, see below."""

    def __init__(
        self,
        inference: Inference,
        streams: Streams[Upstream],
        settings: Settings,
        calls: Calls,
    ) -> None:
        self._inference = inference
        self._streams = streams
        self._settings = settings
        self._calls = calls

    async def ServerLive(
        self, received: Received[kserve_v2_pb2.ServerLiveRequest], context: Context
    ) -> kserve_v2_pb2.ServerLiveResponse:
        """The gateway answers."""
        async with self._calls.answering("ServerLive", context):
            received.read()
            return kserve_v2_pb2.ServerLiveResponse(live=True)

    async def ServerReady(
        self, received: Received[kserve_v2_pb2.ServerReadyRequest], context: Context
    ) -> kserve_v2_pb2.ServerReadyResponse:
        """The gateway reaches an engine that takes requests."""
        async with self._calls.answering("ServerReady", context) as call:
            received.read()
            ready = await self._inference.server_ready(call.deadline)
            return kserve_v2_pb2.ServerReadyResponse(ready=ready)

    async def ModelReady(
        self, received: Received[kserve_v2_pb2.ModelReadyRequest], context: Context
    ) -> kserve_v2_pb2.ModelReadyResponse:
        """An engine serves the model."""
        async with self._calls.answering("ModelReady", context) as call:
            asked = received.read()
            ready = await self._inference.model_ready(asked.name, asked.version, call.deadline)
            return kserve_v2_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, received: Received[kserve_v2_pb2.ServerMetadataRequest], context: Context
    ) -> kserve_v2_pb2.ServerMetadataResponse:
        """Who answers, and which extensions of the protocol it speaks."""
        async with self._calls.answering("ServerMetadata", context):
            received.read()
            return kserve_v2_pb2.ServerMetadataResponse(
                name="tidegate", version=__version__, extensions=EXTENSIONS
            )

    async def ModelMetadata(
        self, received: Received[kserve_v2_pb2.ModelMetadataRequest], context: Context
    ) -> kserve_v2_pb2.ModelMetadataResponse:
        """The model's versions and the tensors that it takes and gives."""
        async with self._calls.answering("ModelMetadata", context) as call:
            asked = received.read()
            model = await self._inference.described(asked.name, asked.version, call.deadline)
            return kserve_v2.write_metadata(model)

    async def ModelConfig(
        self, received: Received[kserve_v2_pb2.ModelConfigRequest], context: Context
    ) -> kserve_v2_pb2.ModelConfigResponse:
        """The model's configuration, as its engine has it."""
        async with self._calls.answering("ModelConfig", context) as call:
            asked = received.read()
            model = await self._inference.described(asked.name, asked.version, call.deadline)
            return kserve_v2_pb2.ModelConfigResponse(
                config=model_config_pb2.ModelConfig.FromString(model.config)
            )

    async def ModelStatistics(
        self, received: Received[kserve_v2_pb2.ModelStatisticsRequest], context: Context
    ) -> kserve_v2_pb2.ModelStatisticsResponse:
        """What the engines have counted, each figure the sum over all of them."""
        async with self._calls.answering("ModelStatistics", context) as call:
            asked = received.read()
            parts = await self._inference.statistics(asked.name, asked.version, call.deadline)
            return kserve_v2.merged_statistics(parts)

    async def RepositoryIndex(
        self, received: Received[kserve_v2_pb2.RepositoryIndexRequest], context: Context
    ) -> kserve_v2_pb2.RepositoryIndexResponse:
        """The versions that get traffic, and whether an engine serves them."""
        async with self._calls.answering("RepositoryIndex", context):
            listed = await self._inference.index(ready_only=received.read().ready)
            return kserve_v2_pb2.RepositoryIndexResponse(
                models=[
                    kserve_v2_pb2.RepositoryIndexResponse.ModelIndex(
                        name=each.name,
                        version=each.version,
                        state=each.state.value,
                        reason=each.reason,
                    )
                    for each in listed
                ]
            )

    async def ModelInfer(
        self, received: Received[kserve_v2_pb2.ModelInferRequest], context: Context
    ) -> kserve_v2_pb2.ModelInferResponse:
        """One inference."""
        async with self._calls.answering("ModelInfer", context) as call:
            message, access, until = received.read(), call.access, call.deadline
            async with self._inference.admitted(
                message.model_name,
                message.model_version,
                call.key,
                access.engines,
                call.priority,
                until,
            ) as admission:
                admission.slot.hold(received.size)
                access.model = (await self._inference.model(admission, until)).name
                response = await self._inference.infer(
                    admission, kserve_v2.read_request(message), until
                )
            access.version = response.version
            return kserve_v2.write_response(response)

    async def ModelStreamInfer(self, _: object, context: Context) -> None:
        """Many inferences, any number of answers to each."""
        async with self._calls.answering("ModelStreamInfer", context) as call:
            settings = self._settings.stream
            await InferStream(
                self._inference, self._streams, settings, self._calls, call, context
            ).run()


def _why_not(method: str) -> str:
    if method.startswith("RepositoryModel"):
        return NO_MODELS
    return NO_MEMORY if "SharedMemory" in method else NO_SETTINGS


def _not_offered(method: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def refuse(self: GRPCInferenceService, _: object, context: Context) -> None:
        async with self._calls.answering(method, context):
            raise NotOffered(not_offered(method, _why_not(method)))

    return refuse


for _method in _KSERVE.methods:
    if _method.name not in vars(GRPCInferenceService):
        setattr(GRPCInferenceService, _method.name, _not_offered(_method.name))


class InferenceService:
    """The original design's service: the datatypes are the model's own."""

    def __init__(self, inference: Inference, calls: Calls) -> None:
        self._inference = inference
        self._calls = calls

    async def ModelInfer(
        self, received: Received[inference_pb2.InferRequest], context: Context
    ) -> inference_pb2.InferResponse:
        """One inference."""
        async with self._calls.answering("InferenceService/ModelInfer", context) as call:
            message, access, until = received.read(), call.access, call.deadline
            async with self._inference.admitted(
                message.model_name, ENGINES_CHOICE, call.key, access.engines, call.priority, until
            ) as admission:
                admission.slot.hold(received.size)
                model = await self._inference.model(admission, until)
                access.model = model.name
                inputs = [_typed(model, tensor) for tensor in message.inputs]
                response = await self._inference.infer(
                    admission, Request(model=message.model_name, inputs=inputs), until
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
