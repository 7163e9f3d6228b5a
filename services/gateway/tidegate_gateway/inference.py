"""The heart: what it means to answer a request.

    admitted   wait for a place → route
    infer      validate → attempt → answer
    stream     validate → attempt → answers
    classify   validate → decode → attempt → score

Everything is said here in the domain's words. Which protocol a request came by, and which one the
engine speaks, is known only to the modules on either side; `Upstream` is all that is asked of one
engine.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tidegate_gateway import images
from tidegate_gateway.admission import Admissions, Priority, Slot
from tidegate_gateway.attempts import Attempts
from tidegate_gateway.catalogue import Catalogue
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    NotOffered,
    PayloadTooLarge,
)
from tidegate_gateway.images import ImageContract, ImageDecoder
from tidegate_gateway.models import Model, TensorSpec, check_request
from tidegate_gateway.requests import (
    ENGINES_CHOICE,
    FINAL,
    Candidate,
    Classification,
    Request,
    Response,
    Wanted,
)
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import LimitSettings
from tidegate_gateway.streams import Streams
from tidegate_gateway.table import Routes
from tidegate_gateway.tensors import to_array
from tidegate_table.document import Table, is_version

STICKY_HEADER = "tidegate-sticky-key"
"""HTTP header and gRPC metadata with a key: requests of one key get one version."""

# Characters. What clients may choose freely is looked up, remembered and logged.
_LONGEST_NAME = 256

LONGEST_KEY = 256
"""Characters of a sticky key. It is hashed, not kept; a longer one is a mistake."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has been let in.

    Attributes:
        key: the client's sticky key, or None.
        route: where it goes.
        tried: the endpoints that it has been tried on, in order.
        slot: its place among those that are worked on; it counts the bytes that it holds.
    """

    key: str | None
    route: Route
    tried: list[str]
    slot: Slot


class State(StrEnum):
    """How a version is, in the words of the repository extension."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Listed:
    """A version in the index of models; `reason` says why it is not ready, "" where it is."""

    name: str
    version: str
    state: State
    reason: str


class Upstream(Protocol):
    """What is asked of one engine. Every method raises the domain's errors, and none other."""

    async def infer(self, request: Request, deadline: Deadline) -> Response:
        """Run `request`, which has been validated."""
        ...

    def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[Response, None]:
        """Run `request`, which has been validated, on a model that is decoupled: all its answers,
        as they come. To close the generator early cancels it in the engine."""
        ...

    async def describe(self, model: str, version: str, deadline: Deadline) -> Model:
        """What the engine says of a model."""
        ...

    async def statistics(self, model: str, version: str, deadline: Deadline) -> bytes:
        """What the engine has counted of a model, or of all ("") its models, as its protocol has
        it; it goes to clients that ask for it, unread."""
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

    def __init__(  # noqa: PLR0913  the parts that it is made of
        self,
        routes: Routes,
        attempts: Attempts[Upstream],
        admissions: Admissions,
        streams: Streams[Upstream],
        decoder: ImageDecoder,
        *,
        limits: LimitSettings,
        description_ttl_s: float,
        description_timeout_s: float,
    ) -> None:
        self._routes = routes
        self._attempts = attempts
        self._admissions = admissions
        self._streams = streams
        self._decoder = decoder
        self._limits = limits
        self._models: Catalogue[tuple[str, str], Model] = Catalogue(
            self._describe, ttl_s=description_ttl_s, timeout_s=description_timeout_s
        )
        # By model and version, each with the outputs that it is for.
        self._labels: dict[tuple[str, str], tuple[Sequence[TensorSpec], Sequence[str | None]]] = {}
        self._digests: dict[tuple[str, str], str] = {}
        routes.on_change(self._forget_changed)

    async def close(self) -> None:
        """End what this has begun on its own."""
        await self._models.close()

    def _forget_changed(self, table: Table) -> None:
        """Ask anew about versions that are other files now, or are gone."""
        digests = {key: self._routes.digest(*key) for key in table.versions()}
        for key, digest in self._digests.items():
            if digests.get(key) != digest:
                self._models.forget(key)
                self._labels.pop(key, None)
        self._digests = digests

    @asynccontextmanager
    async def admitted(  # noqa: PLR0913, PLR0917 - what is asked of a request before its content
        self,
        name: str,
        pin: str,
        key: str | None,
        tried: list[str],
        priority: Priority,
        deadline: Deadline,
    ) -> AsyncIterator[Admission]:
        """Let a request in, and hold the versions that it may go to until it has ended.

        Args:
            name: the model, or an alias of it.
            pin: the version that the client wants, or ENGINES_CHOICE.
            key: its sticky key, or None.
            tried: gets the names of the endpoints that the request is tried on.
            priority: against others that wait.
            deadline: until which it may wait.

        Raises:
            ModelNotFound: the table has no such model, or the version gets no traffic.
            InvalidInput: the key is too long.
            Overloaded: there are too many already.
            DeadlineExceeded: its turn has not come.
        """
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            raise InvalidInput(
                f"{STICKY_HEADER}: expected 1 to {LONGEST_KEY} characters, got {len(key)}"
            )
        # First of all, since what is not there need not wait to be told so.
        route = self._route(name, pin, key)
        slot = await self._admissions.enter(route.model, priority, deadline)
        try:
            with self._routes.in_use(name):
                if route.revision != self._routes.revision:
                    route = self._route(name, pin, key)
                yield Admission(key, route, tried, slot)
        finally:
            slot.leave()

    async def described(self, name: str, pin: str, deadline: Deadline) -> Model:
        """What is known of a model to a client that asks for it alone.

        Raises:
            RequestError: any of the domain's errors.
        """
        with self._routes.in_use(name):
            return await self._described(self._route(name, pin, None), deadline)

    async def model(self, admission: Admission, deadline: Deadline) -> Model:
        """What is known of the model; raises ModelNotFound and whatever the engines do."""
        return await self._described(admission.route, deadline)

    async def _described(self, route: Route, deadline: Deadline) -> Model:
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
        model = await self._checked(admission, request, deadline)
        if model.decoupled:
            raise NotOffered(
                f"model {model.name!r} is decoupled: it answers a request any number of times; ask "
                "it with ModelStreamInfer, generate or generate_stream"
            )
        return await self._attempt(admission, request, deadline)

    async def stream(
        self, admission: Admission, request: Request, deadline: Deadline
    ) -> AsyncGenerator[Response, None]:
        """All answers to `request`, of which there is one where the model is not decoupled.

        Raises:
            RequestError: any of the domain's errors; once an answer has come, the rest is lost.
        """
        model = await self._checked(admission, request, deadline)
        if model.decoupled:
            route = self._route_of(admission, request)
            answers = self._streams.answers(
                route,
                lambda engine, version, until: engine.stream(
                    replace(request, model=route.model, version=version), until
                ),
                deadline,
                admission.tried,
                sequence=request.sequence,
            )
            with self._remembering(route, request):
                async with aclosing(answers):
                    async for answer in answers:
                        yield answer
            return
        answer = await self._attempt(admission, request, deadline)
        yield replace(answer, parameters={**answer.parameters, FINAL: True})

    async def statistics(self, name: str, pin: str, deadline: Deadline) -> Sequence[bytes]:
        """What each engine that has it has counted of a model, or of all ("") models.

        Raises:
            ModelNotFound: no engine has it.
            RequestError: one of them cannot be asked, without which all would be too little.
        """
        model, version = (self._route(name, pin, None).model, pin) if name else ("", "")
        engines = self._attempts.endpoints.connected()
        if not engines:
            raise EngineUnavailable("no engine can be reached; try again later")
        told = await asyncio.gather(
            *(engine.statistics(model, version, deadline) for engine in engines),
            return_exceptions=True,
        )
        found = [each for each in told if not isinstance(each, BaseException)]
        failed = [each for each in told if isinstance(each, BaseException)]
        for error in failed:
            if not isinstance(error, ModelNotFound) or not found:
                raise error
        return found

    async def index(self, *, ready_only: bool) -> Sequence[Listed]:
        """The versions that requests may go to, by the routing table.

        Raises:
            NotOffered: there is no table, and so nobody who knows all models.
        """
        wanted = self._routes.wanted()
        if wanted is None:
            raise NotOffered("the index of models is made from a routing table; there is none here")
        listed = [self._listed(name, version) for name, version in sorted(wanted)]
        return [each for each in listed if each.state is State.READY or not ready_only]

    def _listed(self, name: str, version: str) -> Listed:
        if self._attempts.endpoints.serves(name, version):
            return Listed(name, version, State.READY, "")
        return Listed(name, version, State.UNAVAILABLE, "no engine serves it now")

    async def _checked(self, admission: Admission, request: Request, deadline: Deadline) -> Model:
        """The model, which takes `request`."""
        limits = self._limits
        for what, found in ("inputs", len(request.inputs)), ("outputs", len(request.outputs)):
            if found > limits.max_tensors:
                raise PayloadTooLarge(
                    f"the request: expected at most {limits.max_tensors} {what} "
                    f"(limits.max_tensors), got {found}"
                )
        model = await self.model(admission, deadline)
        check_request(model, request)
        # Not before: a hostile shape has a product that takes minutes.
        elements = sum(prod(tensor.shape) for tensor in request.inputs)
        if elements > limits.max_elements:
            raise PayloadTooLarge(
                f"the request: expected at most {limits.max_elements} elements "
                f"(limits.max_elements), got {elements}"
            )
        return model

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
        request = Request(model=model.name, inputs=[tensor], outputs=[Wanted(output.name)])
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
        route = self._route_of(admission, request)
        with self._remembering(route, request):
            return await self._attempts.run(
                route,
                lambda engine, version, until: engine.infer(
                    replace(request, model=route.model, version=version), until
                ),
                deadline,
                admission.tried,
                sequence=request.sequence,
            )

    @contextmanager
    def _remembering(self, route: Route, request: Request) -> Iterator[None]:
        """Forget, once `request` has ended, what holds no longer."""
        try:
            yield
        except (InvalidInput, ModelNotFound):
            # It passed our checks and the engine thinks otherwise: what we remember is out of date.
            self._models.forget((route.model, route.version))
            raise
        finally:
            if request.sequence and request.parameters.get("sequence_end"):
                key = route.model, route.version
                self._attempts.endpoints.forget_sequence(key, request.sequence)

    def _route_of(self, admission: Admission, request: Request) -> Route:
        """Where `request` goes: all of a sequence to one version, or its state would be lost on the
        way. By the model's own name: that is what the admission holds, whatever an alias means by
        now."""
        route, sequence = admission.route, request.sequence
        if sequence and not route.pinned and admission.key is None:
            return self._route(route.model, ENGINES_CHOICE, sequence)
        return route

    def _route(self, name: str, pin: str, key: str | None) -> Route:
        if len(name) > _LONGEST_NAME:
            raise ModelNotFound(
                f"a model's name: expected at most {_LONGEST_NAME} characters, got {len(name)}"
            )
        if not name.isprintable():
            # Triton takes what stands before a zero for the whole name.
            raise ModelNotFound(f"no engine has model {name!r}")
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
