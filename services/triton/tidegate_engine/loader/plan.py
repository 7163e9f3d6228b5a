"""What a loader does next for one model: pure.

One version is brought at a time, in the order of importance that the table gives them: fetched,
loaded beside those that serve, proven; then the next one. Triton drops every version that a load
call adds when one of them fails, and a crash leaves nothing behind that says which load it was, so
no call ever adds two. What the table does not want leaves, but never before what is to stay is
named in the same call, and nothing leaves that the table wants.

The order of the rules is what counts, see `next_step`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate_table.document import Proof


class State(StrEnum):
    """What Triton says of a version, in its words."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Listed:
    """A version in Triton's index.

    Attributes:
        state: as Triton says; None where it has never been loaded.
        reason: why it is unavailable, in Triton's words.
    """

    state: State | None
    reason: str = ""


Listing = Mapping[str, Mapping[str, Listed]]
"""Triton's index: model → version → what Triton says of it."""


@dataclass(frozen=True, slots=True)
class Requests:
    """How often a version has been asked since it was loaded, by Triton's count.

    Attributes:
        answered: well.
        failed: answered with an error, refused or given up in the queue.
    """

    answered: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A version that lies whole in the local repository.

    Attributes:
        digest: of its files, `sha256:…`.
        size: of its files together, in bytes.
    """

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class LocalModel:
    """What lies of a model in the local repository.

    Attributes:
        config: the text of its config.pbtxt without the version policy; "" where there is none.
        copies: version → the copy.
    """

    config: str = ""
    copies: Mapping[str, Copy] = field(default_factory=dict)


# What there is to do


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a version into the local repository; `digest` "" takes what there is."""

    model: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Load:
    """Have Triton serve exactly these versions of a model.

    Attributes:
        versions: those that stay, and `added`.
        added: the one that is not loaded yet; "" where versions only leave, or the text changes.
        config: the text of config.pbtxt, without a version policy.
    """

    model: str
    versions: tuple[str, ...]
    added: str
    config: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Have Triton drop all versions of a model."""

    model: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove a version from the local repository; `version` "": the model's whole folder."""

    model: str
    version: str


Action = Fetch | Load | Unload | Discard


@dataclass(frozen=True, slots=True)
class Prove:
    """Have a version answer its golden request.

    Attributes:
        instance: the load of the version that the answer counts for.
        reference: the most important version when another one is proven and that one serves, else
            "": the two must take and give the same.
        proof: what the table says of it; None: the model's own golden request, or zeros.
        at: when it was due, on the bookkeeping's clock.
    """

    model: str
    version: str
    instance: int
    reference: str = ""
    proof: Proof | None = None
    at: float = 0.0


# The decision


@dataclass(frozen=True, slots=True)
class VersionView:
    """What is known of one version.

    Attributes:
        digest: the one that the table wants; "" any.
        copied: a whole copy with that digest lies in the local repository.
        discardable: a copy lies there that is of no use, or not wanted.
        state: what Triton says; None when nothing.
        failed: it has been tried and is left alone.
        proven: it has answered its golden request since Triton's start.
    """

    version: str
    digest: str = ""
    copied: bool = False
    discardable: bool = False
    state: State | None = None
    failed: bool = False
    proven: bool = False

    @property
    def in_triton(self) -> bool:
        """Whether Triton may read its files, or waits for its last requests."""
        return self.state in (State.READY, State.UNLOADING)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for before the next version is brought."""
        return self.failed or self.proven


@dataclass(frozen=True, slots=True)
class ModelView:
    """What is known of one model.

    Attributes:
        wanted: the versions that the table wants, in order of importance.
        others: those that it does not want, as far as anything of them is left.
        config: the text of config.pbtxt to load it with; "": not known yet.
        loaded_config: the text that it was last loaded with; "": not known.
        triton: whether it is known what Triton has loaded.
        may_load: whether versions may be taken out now, or the text be changed.
        may_add: whether a version may be loaded now.
        folder: whether the local repository has a folder of this model.
        fetching: the version that is being fetched; "": none.
    """

    name: str
    wanted: tuple[VersionView, ...] = ()
    others: tuple[VersionView, ...] = ()
    config: str = ""
    loaded_config: str = ""
    triton: bool = False
    may_load: bool = False
    may_add: bool = False
    folder: bool = False
    fetching: str = ""


def next_step(model: ModelView) -> Action | None:
    """The next thing to do for `model` when nothing but a fetch is being done for it; None: nothing
    for now.

    A fetch may take minutes, and the stable version must not wait for that of a candidate when
    Triton restarts. What is being fetched is neither loaded nor removed.
    """
    everything = (*model.wanted, *model.others)
    if any(each.state is State.LOADING for each in everything):
        return None
    ready = tuple(each.version for each in model.wanted if each.state is State.READY)
    leaving = any(each.state is State.READY for each in model.others)
    if model.triton:
        for each in everything:
            if each.discardable and not each.in_triton and each.version != model.fetching:
                return Discard(model.name, each.version)
        # Not together with the next version: when that one fails, nothing of the call is done.
        if ready and (leaving or model.config != model.loaded_config):
            return _load(model, ready, "")
    for each in model.wanted:
        if not each.settled:
            return _bring(model, each, ready)
    if model.triton and leaving:
        return Unload(model.name)
    if model.triton and model.folder and not everything:
        return Discard(model.name, "")
    return None


def _bring(model: ModelView, each: VersionView, ready: tuple[str, ...]) -> Action | None:
    """The next step towards a version that is wanted and neither proven nor failed."""
    if each.in_triton or each.discardable or each.version == model.fetching:
        return None
    if not each.copied or not model.config:
        return None if model.fetching else Fetch(model.name, each.version, each.digest)
    return _load(model, (*ready, each.version), each.version) if model.triton else None


def _load(model: ModelView, versions: tuple[str, ...], added: str) -> Action | None:
    may = model.may_add if added else model.may_load
    return Load(model.name, versions, added, model.config) if may else None
