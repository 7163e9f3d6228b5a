"""From what the API server and the pods say to what the plan decides on: pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_operator import gateways, loaders
from tidegate_operator.gateways import Routing
from tidegate_operator.loaders import Status
from tidegate_operator.recovery import Silence
from tidegate_operator.resources import PodSeen
from tidegate_operator.situation import GatewaySeen, LoaderSeen, Unreadable
from tidegate_operator.spec import InvalidRollout, ProofSource, Rollout, failed_in, owner_of, read
from tidegate_table.document import InvalidTable, Proof, Table, parse

Document = Mapping[str, Any]
"""A ModelRollout as the API has it."""

# The keys of the ConfigMap of a proof.
_REQUEST = "request.json"
_OUTPUTS = "outputs.json"


class InvalidProof(Exception):
    """A ConfigMap without a golden request that can be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A ModelRollout that has its model for itself, or is the oldest that names it.

    Attributes:
        document: as the API has it.
        rollout: what it says.
    """

    document: Document
    rollout: Rollout | Unreadable


@dataclass(frozen=True, slots=True)
class Claims:
    """Which ModelRollout acts for which model.

    Attributes:
        owners: by model.
        others: those that name a model of another one, with the name of that one.
    """

    owners: Mapping[str, Claimed]
    others: Sequence[tuple[Document, str]]


def claims_of(documents: Iterable[Document]) -> Claims:
    """Who acts, of all ModelRollouts that there are. One that names no model, which the custom
    resource's schema does not allow, does nothing."""
    named: dict[str, list[Document]] = {}
    for document in documents:
        spec = document.get("spec")
        model = spec.get("model") if isinstance(spec, dict) else None
        if isinstance(model, str) and model:
            named.setdefault(model, []).append(document)
    owners: dict[str, Claimed] = {}
    others: list[tuple[Document, str]] = []
    for model, claiming in named.items():
        owner = owner_of([(_created(each), name_of(each)) for each in claiming])
        for each in claiming:
            if name_of(each) == owner:
                owners[model] = Claimed(each, _rollout(each))
            else:
                others.append((each, owner))
    return Claims(owners, others)


def name_of(document: Document) -> str:
    """A ModelRollout's own name."""
    return str(document["metadata"]["name"])


def generation_of(document: Document) -> int:
    """That of a ModelRollout's spec."""
    return int(document["metadata"].get("generation", 1))


def status_in(document: Document) -> Mapping[str, Any]:
    """The status of a ModelRollout; an empty one where there is none."""
    status = document.get("status")
    return status if isinstance(status, dict) else {}


def known_revision(documents: Iterable[Document]) -> int:
    """The highest revision of the table that any status tells of; 0 where none does."""
    told = ((status_in(each).get("table") or {}).get("revision") for each in documents)
    return max((each for each in told if isinstance(each, int)), default=0)


def proof_of(source: ProofSource, data: Mapping[str, str] | None) -> Proof:
    """The golden request in a ConfigMap.

    Args:
        data: what it holds; None: there is no such ConfigMap.

    Raises:
        InvalidProof: it has none that can be used; the message says why.
    """
    where = f"configmap {source.config_map}"
    if data is None:
        raise InvalidProof(f"{where}: there is none")
    request = _json(where, _REQUEST, data.get(_REQUEST, ""))
    if not isinstance(request, dict):
        raise InvalidProof(f"{where}: {_REQUEST}: expected an object")
    outputs = _json(where, _OUTPUTS, data[_OUTPUTS]) if _OUTPUTS in data else None
    if outputs is not None and not (
        isinstance(outputs, list) and all(isinstance(each, dict) for each in outputs)
    ):
        raise InvalidProof(f"{where}: {_OUTPUTS}: expected a list of objects")
    return Proof(request, outputs, source.tolerance)


@dataclass(frozen=True, slots=True)
class Pods:
    """What the pods say, each with None where it is silent."""

    engines: Sequence[tuple[PodSeen, Status | None]]
    gateways: Sequence[tuple[PodSeen, Routing | None]]

    def loaders_of(self, model: str) -> list[LoaderSeen]:
        """What counts of every engine for one model."""
        return [loaders.seen(pod, status, model) for pod, status in self.engines]

    def gateways_of(self, model: str) -> list[GatewaySeen]:
        """What counts of every gateway for one model."""
        return [gateways.seen(pod, routing, model) for pod, routing in self.gateways]

    def silent(self) -> Silence:
        """Who does not answer."""
        engines = [pod for pod, status in self.engines if status is None]
        fronts = [pod for pod, routing in self.gateways if routing is None]
        ready = [pod.name for pod in engines if pod.ready]
        started = [pod for pod in fronts if pod.started]
        missing = [] if self.engines else ["an engine"]
        missing += [] if self.gateways else ["a gateway"]
        return Silence(
            pods=[*(pod.name for pod in (*engines, *fronts)), *missing],
            running=[*ready, *(pod.name for pod in started)],
            served=[*ready, *(pod.name for pod in started if pod.was_ready)],
        )

    def are_empty(self) -> bool:
        """Whether there are engines and gateways, and every one answers that it has no table."""
        return not self.silent().pods and self.told_revision() == 0

    def told_revision(self) -> int:
        """The highest revision that any pod tells of; 0 where none does."""
        said = [each for _, each in (*self.engines, *self.gateways) if each is not None]
        return max((each.revision for each in said), default=0)

    def held_above(self, revision: int) -> list[Table]:
        """The tables of a revision above that one that any pod holds and that can be read."""
        said = [each for _, each in (*self.engines, *self.gateways) if each is not None]
        tables = (_table(each.table) for each in said if each.revision > revision)
        return [table for table in tables if table is not None]


def _table(document: object) -> Table | None:
    try:
        return parse(document)
    except InvalidTable:
        return None


def _created(document: Document) -> str:
    return document["metadata"].get("creationTimestamp") or ""


def _rollout(document: Document) -> Rollout | Unreadable:
    try:
        return read(document)
    except InvalidRollout as invalid:
        return Unreadable(
            name_of(document), str(invalid), generation_of(document), failed_in(document)
        )


def _json(where: str, key: str, text: str) -> object:
    try:
        found: object = json.loads(text)
        # What no table can have: a number that is none, half a character.
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidProof(f"{where}: {key}: expected JSON: {error}") from None
    return found
