import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_traffic.histogram import Histogram

SECONDS = st.lists(st.floats(min_value=0, max_value=1000), min_size=1, max_size=300)


def histogram(durations: list[float]) -> Histogram:
    made = Histogram()
    for seconds in durations:
        made.add(seconds)
    return made


@settings(deadline=None)
@given(SECONDS, st.floats(min_value=0.1, max_value=100))
def test_percentiles_are_nearest_rank_and_at_most_one_percent_high(
    durations: list[float], percent: float
) -> None:
    exact = sorted(durations)[math.ceil(len(durations) * percent / 100) - 1]
    found = histogram(durations).percentile(percent)
    assert exact * (1 - 1e-9) <= found <= exact * 1.0100001 + 1e-6


@settings(deadline=None)
@given(SECONDS)
def test_figures_agree_with_the_durations(durations: list[float]) -> None:
    latency = histogram(durations).latency()
    assert latency.count == len(durations)
    assert latency.max_ms == pytest.approx(max(durations) * 1000, abs=0.001)
    assert latency.mean_ms == pytest.approx(sum(durations) / len(durations) * 1000, abs=0.001)
    assert latency.p50_ms <= latency.p90_ms <= latency.p99_ms <= latency.p999_ms <= latency.max_ms


def test_nothing_is_zero() -> None:
    latency = Histogram().latency()
    assert (latency.count, latency.p99_ms, latency.max_ms) == (0, 0.0, 0.0)
