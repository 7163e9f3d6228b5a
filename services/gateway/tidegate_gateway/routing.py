"""Which version of a model a request goes to: pure, from the routing table alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate_gateway.errors import ModelNotFound
from tidegate_gateway.hashing import unit
from tidegate_table.document import Table

Served = Callable[[str, str], bool]
"""Whether a version (of a model, by its real name) is served by some engine."""


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


def route(  # noqa: PLR0913, PLR0917 - what a request and its moment consist of
    table: Table, model: str, pin: str, key: str | None, draw: float, served: Served
) -> Route:
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
    name = table.resolve(model)
    routes = table.models.get(name)
    if routes is None:
        raise ModelNotFound(f"there is no model {model!r}")
    if pin:
        if routes.weights.get(pin, 0) <= 0:
            raise ModelNotFound(f"version {pin} of model {model!r} gets no traffic")
        return Route(name, pin, table.revision, pinned=True, fallback="")
    weighted = {version: weight for version, weight in routes.weights.items() if weight > 0}
    present = {version: weighted[version] for version in weighted if served(name, version)}
    weights = present or weighted
    version = _drawn(weights, draw) if key is None else _kept(weights, name, key)
    fallback = routes.stable if version != routes.stable else ""
    return Route(name, version, table.revision, pinned=False, fallback=fallback)


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
