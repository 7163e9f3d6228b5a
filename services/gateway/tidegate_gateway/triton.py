"""The engine as Triton: KServe v2 over gRPC."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from tidegate_gateway import channels, kserve_v2, model_configs
from tidegate_gateway.channels import translate, translated
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import EngineFailed, InvalidInput, ModelNotFound
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import Request, Response
from tidegate_gateway.tensors import to_array
from tidegate_proto import kserve_v2_pb2 as pb
from tidegate_proto import kserve_v2_pb2_grpc as rpc

# Seconds without an answer after which a stream is cancelled, and at the latest.
_QUIET_S, _QUIET_MOST_S = 0.01, 0.5


class Triton:
    """A client of the Triton behind `channel`, which stays the caller's to close.

    Every method raises the domain's errors alone.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.GRPCInferenceServiceStub(channel)
        self._leaving: set[asyncio.Task[None]] = set()

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        """Run `request`, which has been validated."""
        return kserve_v2.read_response(
            await self._infer(kserve_v2.write_request(request), deadline)
        )

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[Response, None]:
        """All answers to `request`, in a stream of its own, so that its end is the answers' end."""
        message = kserve_v2.write_request(request)
        _limit_queueing(message, deadline)
        # Not with the metadata triton_grpc_error, for a stream that fails with a status: it crashes
        # Triton 2.51 now and then, when a model fails.
        call = self._stub.ModelStreamInfer(timeout=deadline.remaining())
        reading: asyncio.Future[Any] | None = None
        try:
            with translated(request.model, deadline):
                await call.write(message)
                await call.done_writing()
                while True:
                    reading = asyncio.ensure_future(call.read())
                    # Shielded, since a call whose reader is cancelled is cancelled at once.
                    answer = await asyncio.shield(reading)
                    if answer is grpc.aio.EOF:
                        return
                    if answer.error_message:
                        raise translate(
                            _code_in_band(answer), answer.error_message, request.model, deadline
                        )
                    yield kserve_v2.read_response(answer.infer_response)
        finally:
            if not call.done():
                leaving = asyncio.create_task(_leave(call, reading))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        """What Triton says of a model; raises ModelNotFound when it has none of that name."""
        config, metadata = await asyncio.gather(
            self._config(model, version, deadline), self._metadata(model, version, deadline)
        )
        described = model_configs.to_model(
            config.config, version=version, versions=metadata.versions
        )
        return replace(described, platform=metadata.platform)

    async def statistics(self, model: str, version: str, deadline: Deadline) -> bytes:
        """What Triton has counted of a model, or of all: a serialized ModelStatisticsResponse."""
        try:
            with translated(model, deadline):
                answer = await self._stub.ModelStatistics(
                    pb.ModelStatisticsRequest(name=model, version=version),
                    timeout=deadline.remaining(),
                )
        except InvalidInput as refused:
            # So Triton says here that it has no such model.
            what = f"model {model!r}" + (f" in version {version}" if version else "")
            raise ModelNotFound(f"no engine has {what}", detail=refused.detail) from None
        return answer.SerializeToString()

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
        _limit_queueing(message, deadline)
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


async def _leave(call: Any, reading: "asyncio.Future[Any] | None") -> None:
    """Cancel a stream between two of its answers, or let it end by itself where it does at once.

    Triton up to 2.58 may crash where a stream is cancelled while it answers (server #7368, #8034).
    With 15 to 100 ms between answers 2.51 did within 12 to 250 times; in this way not in 1000.
    """
    until = time.monotonic() + _QUIET_MOST_S
    try:
        while reading is not None and time.monotonic() < until:
            done, _ = await asyncio.wait({reading}, timeout=_QUIET_S)
            if not done or reading.result() is grpc.aio.EOF:
                break
            reading = asyncio.ensure_future(call.read())
    except grpc.aio.AioRpcError:
        return
    finally:
        call.cancel()
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)


def _limit_queueing(message: pb.ModelInferRequest, deadline: Deadline) -> None:
    """Have Triton drop the request from its queues at the deadline: of a gRPC deadline it learns
    only that the call is cancelled. A client's own, shorter limit stays.

    Raises:
        DeadlineExceeded: there is no time left.
    """
    left_us = int(deadline.remaining() * 1_000_000)
    if left_us <= 0:
        raise deadline.exceeded()
    given = message.parameters["timeout"]
    own = given.uint64_param or given.int64_param
    given.int64_param = min(own, left_us) if own > 0 else left_us


def _code_in_band(answer: pb.ModelStreamInferResponse) -> grpc.StatusCode:
    """The status that Triton would have given a failure that it tells in the stream. Where the
    model has run, its name is there."""
    if answer.infer_response.model_name:
        return grpc.StatusCode.INTERNAL
    if "is not found" in answer.error_message:
        return grpc.StatusCode.NOT_FOUND
    if channels.is_unavailable(answer.error_message):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INVALID_ARGUMENT
