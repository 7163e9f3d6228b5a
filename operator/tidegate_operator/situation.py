"""What one decision rests on, and what can be decided: plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate_operator.spec import Failed, Rollout
from tidegate_table.document import Loads, ModelRoutes, Proof, Table

# What is seen


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """What a loader reports of one version of a model.

    Attributes:
        digest: of the files that it has; "" where it has none.
        loaded: whether Triton serves it.
        proven: whether it has answered the golden request, since Triton's start and the last time.
        failed: whether it was tried and will not be tried again by itself.
        error: why not, or "".
        requests: how many Triton has served.
    """

    digest: str = ""
    loaded: bool = False
    proven: bool = False
    failed: bool = False
    error: str = ""
    requests: int = 0


@dataclass(frozen=True, slots=True)
class LoaderSeen:
    """An engine, as Kubernetes and its loader tell it.

    Attributes:
        name: the pod's.
        ready: whether the pod is ready, and does not leave.
        revision: of the table that it acts on; None: it is silent, and the rest says nothing.
        config: the text of config.pbtxt in its repository.
        config_error: why there is none, or "".
        versions: of this model.
        free_memory: bytes on its GPU; None: it does not tell.
    """

    name: str
    ready: bool
    revision: int | None
    config: str = ""
    config_error: str = ""
    versions: Mapping[str, VersionSeen] = field(default_factory=dict)
    free_memory: int | None = None


@dataclass(frozen=True, slots=True)
class GatewaySeen:
    """A gateway, as Kubernetes and itself tell it.

    Attributes:
        name: the pod's.
        ready: whether the pod is ready, and does not leave.
        started: whether any of its containers has ever started.
        revision: of the table that it routes by, 0 without one; None: it is silent.
        oldest_in_use: the lowest revision that a request of this model in flight came in by; None:
            it has none, and the model is not in its table.
    """

    name: str
    ready: bool
    started: bool
    revision: int | None
    oldest_in_use: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A ModelRollout that is there, and cannot be acted on.

    Attributes:
        message: why not.
        generation: of the spec that cannot be read.
        failed: from its status; None when nothing has failed.
    """

    name: str
    message: str
    generation: int = 1
    failed: Failed | None = None

    def has_failed(self, version: str) -> bool:
        """Whether that version has failed under the present spec."""
        return self.failed is not None and self.failed.is_of(version, self.generation)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that one decision rests on.

    Attributes:
        model: the model that it is about.
        table: as it was read, before the pods were listed and asked.
        rollout: None only when a list that succeeded has none for the model.
        proof: what the spec's ConfigMap holds, as long as the spec's version is on its way; None
            without one.
        proof_error: why it cannot be read, or "".
        loaders: one for each pod of an engine.
        gateways: one for each pod of a gateway that has not ended for good.
    """

    model: str
    table: Table
    rollout: Rollout | Unreadable | None
    loaders: Sequence[LoaderSeen] = ()
    gateways: Sequence[GatewaySeen] = ()
    proof: Proof | None = None
    proof_error: str = ""

    @property
    def loads(self) -> Loads | None:
        """The model's part of the loaders' half of the table."""
        return self.table.loads.get(self.model)

    @property
    def routes(self) -> ModelRoutes | None:
        """The model's part of the gateways' half of the table."""
        return self.table.models.get(self.model)

    @property
    def next_revision(self) -> int:
        """That of a write that comes from this observation."""
        return self.table.revision + 1

    @property
    def engines(self) -> list[LoaderSeen]:
        """Those that get requests: all that are ready; where none is, all that answer, for gateways
        then try any. So a stable version that has gone bad everywhere can be rolled away from."""
        ready = [loader for loader in self.loaders if loader.ready]
        return ready or [each for each in self.loaders if each.revision is not None]

    def come(self, version: str) -> int:
        """How far the engines have come with a version, in steps of each: its files are there, it
        is loaded, it is proven."""
        told = [each.versions.get(version, VersionSeen()) for each in self.loaders]
        return sum(bool(each.digest) + each.loaded + each.proven for each in told)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is measured by the monotonic clock, for one model; a new one will do at any time.

    Attributes:
        since: the revision of the phase and step that it is about.
        began: when every ready gateway had applied it; where a version goes, when that began.
        best: how far things have come at best.
        best_at: when that was.
        counts: what the engines had served of the version that goes.
        counts_at: since when they have not served any more.
        free_at: since when no gateway has needed the version that goes.
    """

    since: int = 0
    began: float | None = None
    best: int = -1
    best_at: float | None = None
    counts: Mapping[str, int] | None = None
    counts_at: float | None = None
    free_at: float | None = None


# What is decided


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done in this round.

    Attributes:
        reason: in one word, for a condition.
        message: what is waited for, and where.
        gateways: the names of gateways that are awaited.
    """

    reason: str
    message: str
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """The model's part of the next table.

    Attributes:
        loads: None: the model is not in it.
        routes: None: the model gets no requests.
        reason: in one word, for an event.
        message: what happens, and why.
    """

    loads: Loads | None
    routes: ModelRoutes | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The candidate has failed: to be recorded in the ModelRollout's status, and acted on next.

    Attributes:
        reason: in one word.
        message: what went wrong, and where.
    """

    version: str
    reason: str
    message: str


Decision = Wait | Write | Fail
