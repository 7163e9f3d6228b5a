"""The simulation behind docs/balancing.md, in small: who does better, by wide margins."""

from functools import cache

import pytest

from bench.simulation.choices import Tidegate
from bench.simulation.scenarios import CHOICES, Figures, Scenario, figures, simulate
from bench.simulation.world import Scale

SMALL = Scale(engines=60, gateways=6, warm_s=3.0, event_s=4.0, end_s=10.0)
OURS = "Tidegate, all engines"


@cache
def small(scenario: Scenario, name: str) -> Figures:
    return figures(scenario, SMALL, simulate(scenario, CHOICES[name], SMALL, seed=1))


def test_where_all_engines_are_alike_it_does_better_than_chance() -> None:
    ours, chance = small(Scenario.ALIKE, OURS), small(Scenario.ALIKE, "random")
    assert ours.p99_s < chance.p99_s
    assert ours.most_used < chance.most_used


@pytest.mark.parametrize("other", ["round robin", "random"])
@pytest.mark.parametrize("scenario", [Scenario.SLOW, Scenario.STALL])
def test_engines_that_are_slow_or_stalled_cost_clients_less(scenario: Scenario, other: str) -> None:
    ours, theirs = small(scenario, OURS), small(scenario, other)
    assert ours.p99_s < theirs.p99_s / 2
    assert ours.failed <= theirs.failed


def test_slow_engines_get_less_than_the_others() -> None:
    assert (
        small(Scenario.SLOW, OURS).most_used < small(Scenario.SLOW, "round robin").most_used - 0.1
    )


def test_engines_that_stall_are_left_and_those_that_come_are_found() -> None:
    left, found = small(Scenario.STALL, OURS).reaction_s, small(Scenario.JOIN, OURS).reaction_s
    assert left is not None
    assert left <= 3.0
    assert found is not None
    # Slow start: not at once, but half of the share at half of its 5 s.
    assert 1.0 <= found <= 4.5
    assert small(Scenario.STALL, "round robin").reaction_s is None


def test_a_gateway_has_no_more_connections_than_its_subset() -> None:
    result = simulate(Scenario.JOIN, lambda name, random: Tidegate(name, random, 10), SMALL, seed=1)
    assert result.per_gateway == 10
    assert result.per_engine <= SMALL.gateways


def test_the_same_seed_is_the_same_run() -> None:
    brief = Scale(engines=10, gateways=3, warm_s=0.5, event_s=1.0, end_s=2.0)

    def run(seed: int) -> list[float]:
        return simulate(Scenario.STALL, CHOICES[OURS], brief, seed).latencies

    assert run(1) == run(1)
    assert run(1) != run(2)
