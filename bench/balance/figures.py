"""What was counted, and what is concluded from it. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

EXPECTED = 0.9
"""Least share of the ideal that the gateway is to reach."""
MOST_NOISE = 0.1
"""Spread between rounds above which nothing is judged: by then the machine moves the figures as far
as what is looked for."""


class Verdict(StrEnum):
    """What the rounds say of the gateway."""

    GOOD = "good"
    BELOW = "below"
    NOISY = "noisy"


@dataclass(slots=True)
class Load:
    """What was counted in the `seconds` of one load.

    Attributes:
        latencies: seconds, one for each answer.
        attempts: by engine.
    """

    seconds: float
    latencies: list[float] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)

    def count(self, latency: float, engines: Sequence[str]) -> None:
        """An answer came after `latency` seconds; the request was tried on `engines`."""
        self.latencies.append(latency)
        self.attempts.update(engines)

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    @property
    def further_attempts(self) -> int:
        """Attempts beyond the first of each request."""
        return self.attempts.total() - len(self.latencies)


@dataclass(frozen=True, slots=True)
class Round:
    """All loads, one after the other.

    Attributes:
        alone: each engine by itself, saturated.
        gateway, round_robin: all engines, saturated, in both ways.
        gateway_open, round_robin_open: the same, where requests come when they like.
    """

    alone: Sequence[Load]
    gateway: Load
    round_robin: Load
    gateway_open: Load
    round_robin_open: Load

    @property
    def ideal(self) -> float:
        """Requests a second that all engines can do together."""
        return sum(load.per_second for load in self.alone)


def quantile(values: Sequence[float], q: float) -> float:
    """The least of `values` that the share `q` (above 0, at most 1) of them does not exceed.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("expected at least one value, got none")
    return sorted(values)[math.ceil(q * len(values)) - 1]


def spread(values: Sequence[float]) -> float:
    """The distance from the least to the largest, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def noise(rounds: Sequence[Round]) -> float:
    """How much the machine itself differs between rounds: the larger spread of the two that have no
    gateway in their path, so that a gateway that is now good and now bad is not called noise."""
    return max(
        spread([each.ideal for each in rounds]),
        spread([each.round_robin.per_second for each in rounds]),
    )


def gateway_share(rounds: Sequence[Round]) -> float:
    """The gateway's share of the ideal: the median of the rounds, each with its own ideal."""
    return statistics.median(each.gateway.per_second / each.ideal for each in rounds)


def verdict(rounds: Sequence[Round]) -> Verdict:
    """Whether the gateway does as well as is expected, where that can be told."""
    if noise(rounds) > MOST_NOISE:
        return Verdict.NOISY
    return Verdict.GOOD if gateway_share(rounds) >= EXPECTED else Verdict.BELOW
