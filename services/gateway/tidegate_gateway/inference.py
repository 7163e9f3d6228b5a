"""The heart: what it means to answer a request.

    admitted   route
    infer      validate → attempt → answer
    classify   validate → decode → attempt → score

Everything is said here in the domain's words. Which protocol a request came by, and which one the
engine speaks, is known only to the modules on either side; `Upstream` is all that is asked of one
engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tidegate_gateway import images
from tidegate_gateway.attempts import Attempts
from tidegate_gateway.catalogue import Catalogue
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import EngineFailed, EngineUnavailable, InvalidInput, ModelNotFound
from tidegate_gateway.images import ImageContract, ImageDecoder
from tidegate_gateway.models import Model, TensorSpec, check_inputs, check_outputs
from tidegate_gateway.routing import Route
from tidegate_gateway.table import Routes
from tidegate_gateway.tensors import Tensor, to_array
from tidegate_table.document import is_version

Parameter = bool | int | str | float

ENGINES_CHOICE = ""
"""The version of a request that leaves it to the routing table, and without one to the engine."""

STICKY_HEADER = "tidegate-sticky-key"
"""HTTP header and gRPC metadata with a key: requests of one key get one version."""

# Characters. What clients may choose freely is looked up, remembered and logged.
_LONGEST_NAME = 256
_LONGEST_SEQUENCE = 128

LONGEST_KEY = 256
"""Characters of a sticky key. It is hashed, not kept; a longer one is a mistake."""


@dataclass(frozen=True, slots=True)
class Request:
    """One inference.

    Attributes:
        version: the version wanted, or ENGINES_CHOICE.
        inputs: the tensors sent.
        outputs: names of the tensors wanted; all of them when empty.
        id: the client's own name for the request; the answer carries it.
        parameters: passed on to the engine.
    """

    model: str
    inputs: Sequence[Tensor]
    version: str = ENGINES_CHOICE
    outputs: Sequence[str] = ()
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a Request; `version` is the one that answered ("" where the engine's protocol
    does not say)."""

    model: str
    version: str
    outputs: Sequence[Tensor]
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One class that an image may show.

    Attributes:
        index: its place in the model's output.
        label: its name, or None where the model has no labels.
        score: as the model's parameter `scores` says: softmax, or as it is.
    """

    index: int
    label: str | None
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """What an image shows.

    Attributes:
        version: as in Response.
        predictions: the whole output tensor, batch first.
        top: the best candidates, best first.
    """

    model: str
    version: str
    predictions: npt.NDArray[Any]
    top: Sequence[Candidate]


def check_tensor_parameters(tensor: str, parameters: Mapping[str, object]) -> None:
    """Check that nothing is asked of a single input or output.

    An engine would answer with something else than its tensor (its best classes, say), or take it
    from elsewhere than the request.

    Args:
        tensor: what it is called in messages.
        parameters: those of that tensor; those of the whole request are in `Request`.

    Raises:
        InvalidInput: there is one; `binary_data` may be there with False, which asks for nothing.
    """
    for key, value in parameters.items():
        if key != "binary_data" or value is not False:
            raise InvalidInput(f"{tensor}: parameter {key!r} is not offered")


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has been let in.

    Attributes:
        key: the client's sticky key, or None.
        route: where it goes.
        tried: the endpoints that it has been tried on, in order.
    """

    key: str | None
    route: Route
    tried: list[str]


class Upstream(Protocol):
    """What is asked of one engine. Every method raises the domain's errors, and none other."""

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        """Run `request`, which has been validated."""
        ...

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        """What the engine says of a model."""
        ...

    async def labels(
        self, request: Request, output: TensorSpec, deadline: Deadline
    ) -> Sequence[str | None]:
        """The label of each class of `output`, by index. `request` is one that the model answers:
        some engines tell their labels only with an answer."""
        ...

    async def server_ready(self, deadline: Deadline) -> bool:
        """Whether an engine takes requests."""
        ...

    async def model_ready(self, model: str, version: str, deadline: Deadline) -> bool:
        """Whether an engine serves that version of that model."""
        ...


class Inference:
    """Answers requests by `attempts`, with the versions that `routes` choose.

    Args:
        description_ttl_s: seconds for which descriptions and labels are remembered.
        description_timeout_s: seconds that engines have to describe a model.
    """

    def __init__(
        self,
        routes: Routes,
        attempts: Attempts[Upstream],
        decoder: ImageDecoder,
        *,
        description_ttl_s: float,
        description_timeout_s: float,
    ) -> None:
        self._routes = routes
        self._attempts = attempts
        self._decoder = decoder
        self._models: Catalogue[tuple[str, str], Model] = Catalogue(
            self._describe, ttl_s=description_ttl_s, timeout_s=description_timeout_s
        )
        # By model and version, each with the outputs that it is for.
        self._labels: dict[tuple[str, str], tuple[Sequence[TensorSpec], Sequence[str | None]]] = {}

    async def close(self) -> None:
        """End what this has begun on its own."""
        await self._models.close()

    @contextmanager
    def admitted(
        self, name: str, pin: str, key: str | None, tried: list[str]
    ) -> Iterator[Admission]:
        """Let a request in, and hold the versions that it may go to until it has ended.

        Args:
            name: the model, or an alias of it.
            pin: the version that the client wants, or ENGINES_CHOICE.
            key: its sticky key, or None.
            tried: gets the names of the endpoints that the request is tried on.

        Raises:
            ModelNotFound: the table has no such model, or the version gets no traffic.
            InvalidInput: the key is too long.
        """
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            raise InvalidInput(
                f"{STICKY_HEADER}: expected 1 to {LONGEST_KEY} characters, got {len(key)}"
            )
        with self._routes.in_use(name):
            yield Admission(key, self._route(name, pin, key), tried)

    async def model(self, admission: Admission, deadline: Deadline) -> Model:
        """What is known of the model; raises ModelNotFound and whatever the engines do."""
        route = admission.route
        try:
            return await self._models.get((route.model, route.version), deadline)
        except (EngineUnavailable, EngineFailed, ModelNotFound):
            if not route.fallback:
                raise
            return await self._models.get((route.model, route.fallback), deadline)

    async def server_ready(self, deadline: Deadline) -> bool:
        """Whether an engine can be reached and takes requests."""

        async def ready(engine: Upstream, _: str, until: Deadline) -> bool:
            return _or_elsewhere(await engine.server_ready(until))

        try:
            return await self._attempts.ask(_question("", ""), ready, deadline)
        except (EngineUnavailable, ModelNotFound):
            return False

    async def model_ready(self, name: str, version: str, deadline: Deadline) -> bool:
        """Whether an engine can be reached and serves that version of that model."""
        try:
            route = self._route(name, version, None)
        except ModelNotFound:
            return False
        # Of two versions it is the stable one that says how a model is.
        key = route.model, route.fallback or route.version

        async def ready(engine: Upstream, asked: str, until: Deadline) -> bool:
            return _or_elsewhere(await engine.model_ready(route.model, asked, until))

        try:
            return await self._attempts.ask(_question(*key), ready, deadline)
        except (EngineUnavailable, ModelNotFound):
            # Not every engine has been asked just now; one of the others may be known to serve it.
            return self._attempts.endpoints.serves(*key)

    async def infer(self, admission: Admission, request: Request, deadline: Deadline) -> Response:
        """The answer to `request`.

        Raises:
            RequestError: any of the domain's errors.
        """
        model = await self.model(admission, deadline)
        check_inputs(model, request.inputs)
        check_outputs(model, request.outputs)
        return await self._attempt(admission, request, deadline)

    async def classify(
        self, admission: Admission, file: bytes, top: int, deadline: Deadline
    ) -> Classification:
        """What the image in `file` shows, by the contract that the model states.

        Args:
            top: how many candidates are wanted.

        Raises:
            RequestError: any of the domain's errors.
        """
        model = await self.model(admission, deadline)
        contract = images.contract_of(model)
        output = _scores_output(model)
        tensor = await deadline.wait_for(self._decoder.decode(file, contract))
        request = Request(model=model.name, inputs=[tensor], outputs=[output.name])
        response = await self._attempt(admission, request, deadline)
        predictions = _batch_of_one(response, output, contract)
        labels = await self._labels_of(model, output, request, response.version, deadline)
        return Classification(
            model=response.model,
            version=response.version,
            predictions=predictions,
            top=_best(_scores(model, predictions[0]), labels, top),
        )

    async def _attempt(
        self, admission: Admission, request: Request, deadline: Deadline
    ) -> Response:
        sequence = _sequence(request)
        route = admission.route
        if sequence and not route.pinned and admission.key is None:
            # All of a sequence goes to one version, or its state would be lost on the way. By the
            # model's own name: that is what the admission holds, whatever an alias means by now.
            route = self._route(route.model, ENGINES_CHOICE, sequence)
        try:
            return await self._attempts.run(
                route,
                lambda engine, version, until: engine.infer(
                    replace(request, model=route.model, version=version), until
                ),
                deadline,
                admission.tried,
                sequence=sequence,
            )
        except (InvalidInput, ModelNotFound):
            # It passed our checks and the engine thinks otherwise: what we remember is out of date.
            self._models.forget((route.model, route.version))
            raise
        finally:
            if sequence and request.parameters.get("sequence_end"):
                self._attempts.endpoints.forget_sequence((route.model, route.version), sequence)

    def _route(self, name: str, pin: str, key: str | None) -> Route:
        if len(name) > _LONGEST_NAME:
            raise ModelNotFound(
                f"a model's name: expected at most {_LONGEST_NAME} characters, got {len(name)}"
            )
        if pin != ENGINES_CHOICE and not is_version(pin):
            raise ModelNotFound(f"no engine has model {name!r} in version {pin!r}")
        return self._routes.route(name, pin, key, self._attempts.endpoints.serves)

    async def _describe(self, key: tuple[str, str], deadline: Deadline) -> Model:
        return await self._attempts.ask(
            # What the table has is not unknown because no engine has it now.
            replace(_question(*key), revision=self._routes.revision),
            lambda engine, version, until: engine.describe(key[0], version, until),
            deadline,
        )

    async def _labels_of(
        self, model: Model, output: TensorSpec, request: Request, version: str, deadline: Deadline
    ) -> Sequence[str | None]:
        if not output.labelled:
            return ()
        # By the version that answered, which may be another than the one that was asked.
        key = (model.name, version)
        known = self._labels.get(key)
        if known is None or known[0] != model.outputs:
            asked = replace(request, version=version)
            labels = await self._attempts.ask(
                _question(*key),
                lambda engine, _, until: engine.labels(asked, output, until),
                deadline,
            )
            known = self._labels[key] = (model.outputs, labels)
        return known[1]


def _question(model: str, version: str) -> Route:
    return Route(model, version, revision=0, pinned=True, fallback="")


def _sequence(request: Request) -> str:
    """What names the sequence that `request` is part of; "" for none, as Triton has it.

    Raises:
        InvalidInput: it is too long.
    """
    name = request.parameters.get("sequence_id", 0)
    if isinstance(name, str) and len(name) > _LONGEST_SEQUENCE:
        raise InvalidInput(
            f"parameter 'sequence_id': expected at most {_LONGEST_SEQUENCE} characters, "
            f"got {len(name)}"
        )
    return "" if name in (0, "") else str(name)


def _or_elsewhere(is_so: bool) -> bool:
    """Have another engine asked, if there is one, where this one says no."""
    if not is_so:
        raise ModelNotFound("the engine says that it is not ready")
    return is_so


def _scores_output(model: Model) -> TensorSpec:
    if len(model.outputs) != 1:
        raise InvalidInput(
            f"model {model.name!r} does not classify: expected one output, got "
            f"{[spec.name for spec in model.outputs]}"
        )
    return model.outputs[0]


def _batch_of_one(
    response: Response, output: TensorSpec, contract: ImageContract
) -> npt.NDArray[Any]:
    tensor = next((t for t in response.outputs if t.name == output.name), None)
    if tensor is None:
        raise EngineFailed(f"the engine's answer has no output {output.name!r}")
    array = to_array(tensor)
    if not contract.batched:
        array = array[np.newaxis]
    if array.ndim < 2 or array.shape[0] != 1 or array.size == 0 or array.dtype.kind not in "fiu":
        raise EngineFailed(
            f"the engine's output {output.name!r}: expected scores of shape [1, classes], got "
            f"{tensor.datatype.name} {list(tensor.shape)}"
        )
    return array


def _scores(model: Model, output: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    scores: npt.NDArray[np.float64] = output.reshape(-1).astype(np.float64)
    match model.parameters.get("scores", "as_is"):
        case "as_is":
            return scores
        case "softmax":
            exponentials: npt.NDArray[np.float64] = np.exp(scores - scores.max())
            shares: npt.NDArray[np.float64] = exponentials / exponentials.sum()
            return shares
        case other:
            raise EngineFailed(
                f"model {model.name!r}: expected its parameter scores of softmax, as_is, "
                f"got {other!r}"
            )


def _best(
    scores: npt.NDArray[np.float64], labels: Sequence[str | None], top: int
) -> list[Candidate]:
    order = np.argsort(-scores, kind="stable")[:top]
    return [
        Candidate(
            index=int(index),
            label=labels[index] if index < len(labels) else None,
            score=float(scores[index]),
        )
        for index in order
    ]
