"""When requests are due. Pure: the clock is the caller's."""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Arrival:
    """A request of route number `route`, due `at_s` seconds after the start."""

    at_s: float
    route: int


def arrivals(rates: Sequence[float], duration_s: float = math.inf) -> Iterator[Arrival]:
    """All arrivals of routes with `rates` (requests a second, each above 0) in their order.

    Each route's are evenly spaced. Each begins at another part of its own interval, so that routes
    of one rate take turns.

    Args:
        duration_s: arrivals are due before it.
    """
    merged = heapq.merge(
        *(_of_route(route, rate, route / len(rates)) for route, rate in enumerate(rates))
    )
    return itertools.takewhile(lambda arrival: arrival.at_s < duration_s, merged)


def _of_route(route: int, rate: float, phase: float) -> Iterator[Arrival]:
    # A product, not a sum: rounding errors do not add up.
    return (Arrival((number + phase) / rate, route) for number in itertools.count())
