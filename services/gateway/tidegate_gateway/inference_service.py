"""The engine as any server of `inference.InferenceService`, in whatever language.

That protocol has one call and no way to ask about models, so their descriptions come from a folder
in the form of a Triton model repository: <model>/config.pbtxt, and the label files it names.
"""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf import text_format

from tidegate_gateway import model_configs
from tidegate_gateway.channels import translated
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import EngineFailed, ModelNotFound, NotOffered
from tidegate_gateway.models import Model, TensorSpec
from tidegate_gateway.requests import Request, Response
from tidegate_gateway.tensors import Tensor
from tidegate_proto import inference_pb2 as pb
from tidegate_proto import inference_pb2_grpc as rpc
from tidegate_proto import model_config_pb2

_READY = grpc.ChannelConnectivity.READY
_FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE

# The protocol knows no versions; this is what answers call the one that each model has.
_ONLY_VERSION = "1"


class InvalidModelConfigs(Exception):
    """The folder of model configurations cannot be used; the message says why."""


class ModelConfigs:
    """What a folder says of the models of engines that cannot say it themselves.

    Args:
        folder: holds <model>/config.pbtxt; read once, here.

    Raises:
        InvalidModelConfigs: a configuration cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._configs = _read_configs(folder)
        self._labels = {
            (name, output.name): _read_labels(folder / name / output.label_filename)
            for name, config in self._configs.items()
            for output in config.output
            if output.label_filename
        }

    def model(self, name: str, version: str) -> Model:
        """The model; raises ModelNotFound when the folder has none of that name and version."""
        config = self._configs.get(name)
        if config is None or version not in ("", _ONLY_VERSION):
            what = f"model {name!r}" + (f" in version {version}" if config else "")
            raise ModelNotFound(f"no engine has {what}")
        return model_configs.to_model(config, version=version, versions=[_ONLY_VERSION])

    def labels(self, model: str, output: str) -> Sequence[str | None]:
        """The label of each class of an output, from its file."""
        return self._labels[model, output]


class InferenceServiceEngine:
    """A client of the engine behind `channel`, which stays the caller's to close."""

    def __init__(self, channel: grpc.aio.Channel, configs: ModelConfigs) -> None:
        self._channel = channel
        self._stub = rpc.InferenceServiceStub(channel)
        self._configs = configs

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        """Run `request`, which has been validated."""
        if any(wanted.classes for wanted in request.outputs):
            raise NotOffered(
                "classification is not offered: the engine's protocol, inference.InferenceService, "
                "gives tensors alone"
            )
        model = self._configs.model(request.model, request.version)
        message = pb.InferRequest(
            model_name=request.model,
            inputs=[
                pb.InferRequest.Tensor(
                    name=tensor.name, shape=tensor.shape, tensor_content=bytes(tensor.data)
                )
                for tensor in request.inputs
            ],
        )
        with translated(request.model, deadline):
            answer = await self._stub.ModelInfer(message, timeout=deadline.remaining())
        outputs = [_output(model, tensor) for tensor in answer.outputs]
        wanted = {each.name for each in request.outputs}
        return Response(
            model=answer.model_name,
            version=_ONLY_VERSION,
            id=request.id,
            outputs=[t for t in outputs if not wanted or t.name in wanted],
        )

    async def stream(
        self,
        request: Request,
        deadline: Deadline,
    ) -> AsyncGenerator[Response, None]:
        """The one answer that its protocol has; a decoupled model cannot be asked by it."""
        if self._configs.model(request.model, request.version).decoupled:
            raise NotOffered(
                f"model {request.model!r} is decoupled, and the engine's protocol, "
                "inference.InferenceService, has one answer to a request"
            )
        yield await self.infer(request, deadline)

    async def statistics(self, model: str, version: str, deadline: Deadline) -> bytes:  # noqa: ARG002
        """Never tells: its protocol has no statistics."""
        raise NotOffered(
            "statistics are not offered: the engine's protocol, inference.InferenceService, has "
            "none"
        )

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:  # noqa: ARG002
        """What the folder says of a model; raises ModelNotFound when it says nothing."""
        return self._configs.model(model, version)

    async def labels(
        self,
        request: Request,
        output: TensorSpec,
        deadline: Deadline,  # noqa: ARG002
    ) -> Sequence[str | None]:
        """The label of each class of `output`, from its file."""
        return self._configs.labels(request.model, output.name)

    async def server_ready(self, deadline: Deadline) -> bool:
        """Whether the engine can be reached, which is all that its protocol tells."""
        state = self._channel.get_state(try_to_connect=True)
        while state not in (_READY, _FAILED):
            await deadline.wait_for(self._channel.wait_for_state_change(state))
            state = self._channel.get_state(try_to_connect=True)
        return state is _READY

    async def model_ready(self, model: str, version: str, deadline: Deadline) -> bool:
        """Whether the engine can be reached and the model is described."""
        self._configs.model(model, version)
        return await self.server_ready(deadline)


def _output(model: Model, tensor: pb.InferResponse.Tensor) -> Tensor:
    spec = next((spec for spec in model.outputs if spec.name == tensor.name), None)
    if spec is None:
        raise EngineFailed(
            f"the engine's answer: expected outputs of {[spec.name for spec in model.outputs]}, "
            f"got {tensor.name!r}"
        )
    return Tensor(tensor.name, spec.datatype, tuple(tensor.shape), tensor.tensor_content)


def _read_configs(folder: Path) -> dict[str, model_config_pb2.ModelConfig]:
    configs = {}
    for path in sorted(folder.glob("*/config.pbtxt")):
        name = path.parent.name
        try:
            config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        except (text_format.ParseError, OSError, UnicodeDecodeError) as error:
            raise InvalidModelConfigs(f"{path}: {error}") from None
        config.name = config.name or name
        if config.name != name:
            raise InvalidModelConfigs(
                f"{path}: expected name {name!r}, its folder's, got {config.name!r}"
            )
        configs[name] = config
    if not configs:
        raise InvalidModelConfigs(f"{folder}: expected <model>/config.pbtxt, got none")
    return configs


def _read_labels(path: Path) -> list[str | None]:
    try:
        return list(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelConfigs(f"{path}: {error}") from None
