"""The engine as Triton: KServe v2 over gRPC."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import grpc
import grpc.aio

from tidegate_gateway import kserve_v2, model_configs
from tidegate_gateway.channels import translated
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import EngineFailed
from tidegate_gateway.inference import Request, Response
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import to_array
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc


class Triton:
    """A client of the Triton behind `channel`, which stays the caller's to close.

    Every method raises the domain's errors alone.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.GRPCInferenceServiceStub(channel)

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        """Run `request`, which has been validated."""
        return kserve_v2.read_response(
            await self._infer(kserve_v2.write_request(request), deadline)
        )

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        """What Triton says of a model; raises ModelNotFound when it has none of that name."""
        config, metadata = await asyncio.gather(
            self._config(model, version, deadline), self._metadata(model, version, deadline)
        )
        described = model_configs.to_model(
            config.config, version=version, versions=metadata.versions
        )
        return replace(described, platform=metadata.platform)

    async def labels(
        self, request: Request, output: TensorSpec, deadline: Deadline
    ) -> Sequence[str | None]:
        """The label of each class of `output`.

        Triton keeps label files to itself, but tells labels with the classification extension:
        asked for as many classes as there are, it tells them all.
        """
        classes = output.shape[-1]
        if classes == ANY:
            return ()
        message = kserve_v2.write_request(request)
        del message.outputs[:]
        wanted = message.outputs.add(name=output.name)
        wanted.parameters["classification"].int64_param = classes
        response = kserve_v2.read_response(await self._infer(message, deadline))
        labels: list[str | None] = [None] * classes
        for element in to_array(response.outputs[0]).reshape(-1):
            # Triton's form is score:index or score:index:label, and a label may hold colons.
            parts = element.decode(errors="replace").split(":", 2)
            if len(parts) < 2 or not parts[1].isdecimal() or int(parts[1]) >= classes:
                raise EngineFailed(
                    f"the engine's classes of {output.name!r}: expected score:index:label, "
                    f"got {element!r}"
                )
            labels[int(parts[1])] = parts[2] if len(parts) == 3 else None
        return labels

    async def server_ready(self, deadline: Deadline) -> bool:
        """Whether Triton takes requests."""
        with translated("", deadline):
            answer = await self._stub.ServerReady(
                pb.ServerReadyRequest(), timeout=deadline.remaining()
            )
        return answer.ready

    async def model_ready(self, model: str, version: str, deadline: Deadline) -> bool:
        """Whether Triton serves that version of that model; False for one that it does not know."""
        with translated(model, deadline):
            answer = await self._stub.ModelReady(
                pb.ModelReadyRequest(name=model, version=version), timeout=deadline.remaining()
            )
        return answer.ready

    async def _infer(
        self, message: pb.ModelInferRequest, deadline: Deadline
    ) -> pb.ModelInferResponse:
        with translated(message.model_name, deadline):
            return await self._stub.ModelInfer(message, timeout=deadline.remaining())

    async def _config(self, model: str, version: str, deadline: Deadline) -> pb.ModelConfigResponse:
        with translated(model, deadline):
            return await self._stub.ModelConfig(
                pb.ModelConfigRequest(name=model, version=version), timeout=deadline.remaining()
            )

    async def _metadata(
        self, model: str, version: str, deadline: Deadline
    ) -> pb.ModelMetadataResponse:
        with translated(model, deadline):
            return await self._stub.ModelMetadata(
                pb.ModelMetadataRequest(name=model, version=version), timeout=deadline.remaining()
            )
