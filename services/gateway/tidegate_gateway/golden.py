"""What engines are asked beside requests: whether they serve a version, and its golden request.

A golden request shows that a model answers, where readiness only says that it is loaded. A model
may bring its own, as the parameter `golden_request` of its config.pbtxt: the body of a KServe v2
infer request as JSON. Any failure of that one counts, but for a full queue: that is no sign of
death. Where there is none, zeros are sent in the smallest shape that the model takes; it may well
refuse these, which shows just as well that it is alive.
"""

import math

from tidegate_gateway import v2_json
from tidegate_gateway.balancing import Key
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    BackendDead,
    ClientError,
    EngineFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
)
from tidegate_gateway.inference import Upstream
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.requests import Request
from tidegate_gateway.tensors import Tensor

PARAMETER = "golden_request"
"""The parameter of a model's configuration that has its own."""


class EngineQuestions:
    """Asks one engine after the other; see `endpoints.Questions`."""

    async def serves(self, engine: Upstream, key: Key, deadline: Deadline) -> bool:
        """Whether it serves that version."""
        return await engine.model_ready(*key, deadline)

    async def probe(self, engine: Upstream, key: Key, deadline: Deadline) -> None:
        """Send the golden request of that version.

        Raises:
            RequestError: the model does not answer as it should.
        """
        model = await engine.describe(*key, deadline)
        own = model.parameters.get(PARAMETER)
        try:
            await engine.infer(zeros(model) if own is None else golden(model, own), deadline)
        except Overloaded:
            return
        except (ClientError, EngineFailed) as error:
            if own is not None or isinstance(error, BackendDead | ModelNotFound):
                raise


def golden(model: Model, text: str) -> Request:
    """The golden request that `model` brings as `text`.

    Raises:
        EngineFailed: it is none.
    """
    try:
        return v2_json.read_request(v2_json.parse(text.encode()), model.name, model.version)
    except InvalidInput as fault:
        raise EngineFailed(f"model {model.name!r}: its {PARAMETER}: {fault.message}") from None


def zeros(model: Model) -> Request:
    """A request with zeros, or empty strings, for each input that `model` needs."""
    return Request(
        model=model.name,
        version=model.version,
        inputs=[_zeros(spec) for spec in model.inputs if not spec.optional],
    )


def _zeros(spec: TensorSpec) -> Tensor:
    shape = tuple(1 if size == ANY else size for size in spec.shape)
    # BYTES: each element is its length, in 4 bytes, and as many bytes.
    size = spec.datatype.itemsize or 4
    return Tensor(spec.name, spec.datatype, shape, bytes(math.prod(shape) * size))
