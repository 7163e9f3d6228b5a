"""What happens to the engines, how gateways choose, and what is made of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from bench.simulation.choices import AnyOne, Choice, LeastRequest, RoundRobin, Tidegate
from bench.simulation.world import SHARES_S, Engine, Result, Scale, World

SUBSET = 100
"""Engines that a gateway connects to, as the setting balancing.subset has it."""


class Scenario(StrEnum):
    """What happens to the engines."""

    ALIKE = "all engines alike"
    SLOW = "10 % at half speed"
    STALL = "5 % stall"
    JOIN = "10 % more come"


CHOICES: dict[str, Callable[[str, Random], Choice[Any]]] = {
    f"Tidegate, {SUBSET} engines": lambda name, random: Tidegate(name, random, SUBSET),
    "Tidegate, all engines": lambda name, random: Tidegate(name, random, 0),
    "least request of two": lambda _, random: LeastRequest(random),
    "round robin": lambda _, random: RoundRobin(random),
    "random": lambda _, random: AnyOne(random),
}
"""How a gateway of that name chooses."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A run in figures.

    Attributes:
        p50_s: median of what clients waited, in seconds; a request that failed counts as the
            deadline.
        p99_s: 99th percentile of it.
        failed: share of the requests without an answer within the deadline.
        most_used: utilisation of the engine that is used most, over the mean.
        p99_used: 99th percentile of the utilisation over its median.
        reaction_s: seconds until stalled engines get less than 1 % of the attempts, or new ones
            half of their share; None: not before the end.
        per_gateway: connections of a gateway.
        per_engine: connections of the engine that has most.
    """

    p50_s: float
    p99_s: float
    failed: float
    most_used: float
    p99_used: float
    reaction_s: float | None
    per_gateway: float
    per_engine: int


def simulate(
    scenario: Scenario, choose: Callable[[str, Random], Choice[Any]], scale: Scale, seed: int
) -> Result:
    """One run; the same one for the same seed."""
    random = Random(seed)  # noqa: S311  nothing secret
    engines = [Engine(f"10.0.{i // 256}.{i % 256}:8001") for i in range(scale.engines)]
    if scenario is Scenario.SLOW:
        for engine in engines[::10]:
            engine.speed = 0.5

    def event(world: World) -> None:
        if scenario is Scenario.STALL:
            for engine in engines[::20]:
                engine.stalled = engine.marked = True
        elif scenario is Scenario.JOIN:
            more = range(scale.engines // 10)
            world.join([Engine(f"10.1.{i // 256}.{i % 256}:8001", marked=True) for i in more])

    choices = [choose(f"gateway-{i}", random) for i in range(scale.gateways)]
    return World(scale, engines, choices, random, event).run()


def figures(scenario: Scenario, scale: Scale, result: Result) -> Figures:
    """What a run is summed up to."""
    latencies, used = result.latencies, result.utilisation
    return Figures(
        p50_s=_quantile(latencies, 0.5),
        p99_s=_quantile(latencies, 0.99),
        failed=result.failed / len(latencies),
        most_used=used[-1] * len(used) / sum(used),
        p99_used=_quantile(used, 0.99) / _quantile(used, 0.5),
        reaction_s=_reaction_s(scenario, scale, result),
        per_gateway=result.per_gateway,
        per_engine=result.per_engine,
    )


def _reaction_s(scenario: Scenario, scale: Scale, result: Result) -> float | None:
    begin = round(scale.event_s / SHARES_S)
    new = scale.engines // 10
    for number, share in enumerate(result.shares[begin:], start=1):
        stalled_left = scenario is Scenario.STALL and share < 0.01
        new_found = scenario is Scenario.JOIN and share >= new / (scale.engines + new) / 2
        if stalled_left or new_found:
            return number * SHARES_S
    return None


def _quantile(ordered: list[float], q: float) -> float:
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]
