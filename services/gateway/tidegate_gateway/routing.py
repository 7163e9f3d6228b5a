"""Which version of a model a request goes to: pure, from the routing table alone.

The table says for every model its stable version and the percentage of requests that each version
gets. It is validated whole before it is used, and every fault is told, so that a table is applied
as it is meant or not at all. Tables come from other releases too: a member that is not known here
is kept and ignored; another `schema` is refused, since all else may then mean something different.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate_gateway.errors import ModelNotFound
from tidegate_gateway.hashing import unit
from tidegate_gateway.tensors import json_kind

SCHEMA = 1
"""The one form of the document that is understood."""

Served = Callable[[str, str], bool]
"""Whether a version (of a model, by its real name) is served by some engine."""

# As engines name their versions: numbers of 64 bits. Some read "01" as 1 as well, and would have
# one version remembered under as many names as a client can think of.
_VERSION = re.compile(r"[1-9][0-9]{0,18}")

_WHOLE = 100
# What sums of decimals such as 33.3 + 33.3 + 33.4 may be off by.
_SUM_TOLERANCE = 1e-9

# Characters of a text that a fault quotes.
_LONGEST_QUOTED = 64


class InvalidTable(Exception):
    """A routing table that cannot be used.

    Attributes:
        faults: a sentence for each: where, what was expected, what came. The message has one a
            line.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes.

    Attributes:
        model: the model's real name, aliases resolved.
        version: explicit; "" only where there is no table: the engine's choice.
        revision: of the table that chose it; 0 without a table.
        pinned: whether the client named the version.
        fallback: the stable version, where `version` is an unpinned candidate; else "".
    """

    model: str
    version: str
    revision: int
    pinned: bool
    fallback: str


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """What the table says of one model.

    Attributes:
        stable: the version that serves now.
        weights: percentages by version, 0 to 100, together 100; `stable` is one of them.
        unknown: members of a later release.
    """

    stable: str
    weights: Mapping[str, float]
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A routing table; `parse` makes valid ones.

    Attributes:
        revision: at least 1; of two tables the one with the higher counts.
        models: by name.
        aliases: other names of models, each with the model's own.
        unknown: members of a later release.
    """

    revision: int
    models: Mapping[str, ModelRoutes]
    aliases: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """The model's own name; `name` itself where it is no alias."""
        return self.aliases.get(name, name)

    def versions(self) -> frozenset[tuple[str, str]]:
        """All (model, version) that may be asked of an engine: those with a weight above 0, and
        each stable."""
        return frozenset(
            (model, version)
            for model, routes in self.models.items()
            for version, weight in routes.weights.items()
            if weight > 0 or version == routes.stable
        )

    def ignored(self) -> list[str]:
        """The members of a later release, for the log: one may be a misspelt member of this one."""
        return [
            *self.unknown,
            *(
                f"model {name!r}: {member}"
                for name, routes in self.models.items()
                for member in routes.unknown
            ),
        ]

    def route(self, model: str, pin: str, key: str | None, draw: float, served: Served) -> Route:
        """The version for one request.

        A version that is served nowhere counts as weight 0, unless that leaves none: the attempt
        then tells that no engine is there. A pin is judged by the table alone, since an engine that
        is away for a moment is no reason to deny that there is such a version.

        Args:
            model: the name that the client used, an alias perhaps.
            pin: the version that the client named, or "" where it left that open.
            key: the client's sticky key: the same key gets the same version while weights stay.
                When they change, a key leaves a version for another only if the weight of the
                former fell or that of the latter rose; with two versions, that is as few keys as
                can be.
            draw: chance in [0, 1), which decides where there is no key.
            served: what is known of engines.

        Raises:
            ModelNotFound: no such model in the table, or the pinned version gets no traffic.
        """
        name = self.resolve(model)
        routes = self.models.get(name)
        if routes is None:
            raise ModelNotFound(f"there is no model {model!r}")
        if pin:
            if routes.weights.get(pin, 0) <= 0:
                raise ModelNotFound(f"version {pin} of model {model!r} gets no traffic")
            return Route(name, pin, self.revision, pinned=True, fallback="")
        weighted = {version: weight for version, weight in routes.weights.items() if weight > 0}
        present = {version: weighted[version] for version in weighted if served(name, version)}
        weights = present or weighted
        version = _drawn(weights, draw) if key is None else _kept(weights, name, key)
        fallback = routes.stable if version != routes.stable else ""
        return Route(name, version, self.revision, pinned=False, fallback=fallback)


def is_version(text: str) -> bool:
    """Whether `text` is a version as engines name them: a whole number from 1, of at most 19
    digits and without leading zeros."""
    return _VERSION.fullmatch(text) is not None


def _drawn(weights: Mapping[str, float], draw: float) -> str:
    left = draw * math.fsum(weights.values())
    for version, weight in weights.items():
        left -= weight
        if left < 0:
            return version
    return [*weights][-1]  # Rounding may leave a rest.


def _kept(weights: Mapping[str, float], model: str, key: str) -> str:
    # Weighted rendezvous hashing as a race (Efraimidis and Spirakis, 2006): each version arrives
    # after an exponential time of its own, the sooner the more it weighs, and is first with just
    # the probability of its share.
    def arrival(version: str) -> float:
        return -math.log1p(-unit(model, version, key)) / weights[version]

    return min(weights, key=arrival)


def parse(document: object) -> Table:
    """The table in `document`, which is as Python's `json` gives it.

    Raises:
        InvalidTable: it is none; every fault is told.
    """
    faults = [*_faults(document)]
    if faults:
        raise InvalidTable(faults)
    return _table(document)


def write(table: Table) -> dict[str, Any]:
    """The document that `parse` makes `table` of."""
    return {
        "schema": SCHEMA,
        "revision": table.revision,
        "aliases": dict(table.aliases),
        "models": {
            name: {"stable": routes.stable, "weights": dict(routes.weights), **routes.unknown}
            for name, routes in table.models.items()
        },
        **table.unknown,
    }


def _table(document: Any) -> Table:
    return Table(
        revision=document["revision"],
        models={name: _model_routes(member) for name, member in document["models"].items()},
        aliases=document.get("aliases", {}),
        unknown=_without(document, "schema", "revision", "aliases", "models"),
    )


def _model_routes(member: Any) -> ModelRoutes:
    return ModelRoutes(
        stable=member["stable"],
        weights=member.get("weights", {member["stable"]: _WHOLE}),
        unknown=_without(member, "stable", "weights"),
    )


def _without(document: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in known}


def _faults(document: object) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"the table: expected an object, got {_quoted(document)}"
        return
    schema = document.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        yield f"schema: expected {SCHEMA}, got {_got(document, 'schema')}"
        return
    revision = document.get("revision")
    # type() and not isinstance(): a bool is an int to Python.
    if type(revision) is not int or revision < 1:
        yield f"revision: expected a whole number from 1, got {_got(document, 'revision')}"
    models, aliases = document.get("models"), document.get("aliases", {})
    if not isinstance(aliases, dict):
        yield f"aliases: expected an object, got {_quoted(aliases)}"
        aliases = {}
    if not isinstance(models, dict):
        yield f"models: expected an object, got {_got(document, 'models')}"
        return
    for name, member in models.items():
        yield from _model_faults(name, member)
    for alias, model in aliases.items():
        yield from _alias_faults(alias, model, models)


def _model_faults(name: str, member: object) -> Iterator[str]:
    where = f"model {_quoted(name)}"
    if not name:
        yield f"{where}: expected a name, got an empty one"
    if not isinstance(member, dict):
        yield f"{where}: expected an object, got {_quoted(member)}"
        return
    stable = member.get("stable")
    if not isinstance(stable, str) or not is_version(stable):
        yield f"{where}: stable: expected a version such as '1', got {_got(member, 'stable')}"
        stable = None
    if "weights" not in member:
        return
    weights = member["weights"]
    if not isinstance(weights, dict):
        yield f"{where}: weights: expected an object, got {_quoted(weights)}"
        return
    yield from _weight_faults(f"{where}: weights", weights)
    if stable is not None and stable not in weights:
        yield f"{where}: stable: expected one of the versions in weights, got {stable!r}"


def _weight_faults(where: str, weights: Mapping[str, Any]) -> Iterator[str]:
    summable = True
    for version, weight in weights.items():
        if not is_version(version):
            yield f"{where}: expected versions such as '1', got {_quoted(version)}"
        if type(weight) not in (int, float) or not 0 <= weight <= _WHOLE:
            summable = False
            yield (
                f"{where}: version {_quoted(version)}: expected a number of 0 to {_WHOLE}, "
                f"got {_quoted(weight)}"
            )
    if summable:
        total = math.fsum(weights.values())
        if abs(total - _WHOLE) > _SUM_TOLERANCE:
            yield f"{where}: expected a sum of {_WHOLE}, got {total:.12g}"


def _alias_faults(alias: str, model: object, models: Mapping[str, Any]) -> Iterator[str]:
    where = f"alias {_quoted(alias)}"
    if not alias:
        yield f"{where}: expected a name, got an empty one"
    if alias in models:
        yield f"{where}: expected a name that no model has, got that of one"
    # A model is no alias by the rule above, so this refuses aliases of aliases, too.
    if not isinstance(model, str) or model not in models:
        yield f"{where}: expected the name of a model, got {_quoted(model)}"


def _got(document: Mapping[str, Any], name: str) -> str:
    return _quoted(document[name]) if name in document else "none"


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:_LONGEST_QUOTED]) + ("…" if len(value) > _LONGEST_QUOTED else "")
    return json_kind(value)
