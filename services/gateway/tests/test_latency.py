"""Means follow what is measured, quantiles are as exact as they say, and both forget."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.latency import Moving, Quantiles

many = settings(max_examples=200, deadline=None, database=None)
LATENCIES = st.floats(1e-4, 600.0)


@many
@given(st.lists(LATENCIES, min_size=20, max_size=200), st.floats(0.0, 1.0))
def test_a_quantile_is_within_2_5_percent_of_the_sample_of_its_rank(
    samples: list[float], q: float
) -> None:
    quantiles = Quantiles()
    for seconds in samples:
        quantiles.observe(seconds, now=5.0)
    exact = sorted(samples)[max(1, math.ceil(q * len(samples))) - 1]

    assert quantiles.quantile(q, now=5.0) == pytest.approx(exact, rel=0.025)


@pytest.mark.parametrize(("seconds", "edge"), [(0.0, 1e-4), (1e-9, 1e-4), (1e6, 600.0)])
def test_what_is_out_of_range_counts_as_its_edge(seconds: float, edge: float) -> None:
    quantiles = Quantiles()
    for _ in range(20):
        quantiles.observe(seconds, now=0.0)
    assert quantiles.quantile(0.5, now=0.0) == pytest.approx(edge, rel=0.05)


def test_fewer_than_20_samples_have_no_quantiles() -> None:
    quantiles = Quantiles()
    for _ in range(19):
        quantiles.observe(0.1, now=0.0)
    assert quantiles.quantile(0.5, now=0.0) is None
    quantiles.observe(0.1, now=0.0)
    assert quantiles.quantile(0.5, now=0.0) is not None


def test_old_samples_give_way_to_new_ones() -> None:
    quantiles = Quantiles(window_s=10.0)
    for _ in range(1000):
        quantiles.observe(1.0, now=0.0)
    for second in range(1, 30):
        for _ in range(5):
            quantiles.observe(0.1, now=float(second))

    assert quantiles.quantile(0.99, now=29.0) == pytest.approx(0.1, rel=0.05)


def test_samples_that_are_rare_are_waited_for() -> None:
    quantiles = Quantiles(window_s=10.0)
    for sample in range(40):
        quantiles.observe(0.1, now=14.0 * sample)
        known = quantiles.quantile(0.5, now=14.0 * sample)
        assert (known is None) == (sample < 19)


def test_after_a_long_pause_nothing_is_known() -> None:
    quantiles = Quantiles(window_s=10.0)
    for _ in range(100):
        quantiles.observe(0.1, now=0.0)
    assert quantiles.quantile(0.5, now=299.0) is not None
    assert quantiles.quantile(0.5, now=1000.0) is None


@many
@given(st.lists(st.tuples(LATENCIES, st.floats(0.0, 100.0)), min_size=1, max_size=50))
def test_a_mean_lies_between_its_samples(samples: list[tuple[float, float]]) -> None:
    moving, now = Moving(), 0.0
    for seconds, pause in samples:
        now += pause
        moving.observe(seconds, now)
    value = moving.value(now)

    assert value is not None
    latencies = [seconds for seconds, _ in samples]
    # Sums of floats are rounded.
    assert min(latencies) * (1 - 1e-9) <= value <= max(latencies) * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.1, 1.0, 10.0, 10_000.0])
def test_a_rise_shows_within_five_samples_at_any_rate(rate: float) -> None:
    moving = Moving()
    for sample in range(100):
        moving.observe(0.1, now=sample / rate)
    for sample in range(100, 105):
        moving.observe(2.0, now=sample / rate)
    value = moving.value(104 / rate)

    assert value is not None
    assert value > 5 * 0.1


def test_one_outlier_among_many_is_not_a_rise() -> None:
    moving = Moving()
    for sample in range(100):
        moving.observe(0.1, now=sample / 100)
    moving.observe(1.0, now=1.0)
    value = moving.value(1.0)

    assert value is not None
    assert value < 2 * 0.1


def test_the_first_samples_weigh_alike() -> None:
    moving = Moving()
    for seconds in (3.0, 1.0, 2.0):
        moving.observe(seconds, now=0.0)
    assert moving.value(0.0) == pytest.approx(2.0)


def test_an_old_mean_fades_towards_the_value_given() -> None:
    moving = Moving(tau_s=10.0, fade_s=5.0)
    assert moving.value(0.0) is None
    assert moving.value(0.0, 0.1) == 0.1
    moving.observe(1.0, now=0.0)

    assert moving.value(0.0, 0.1) == pytest.approx(0.1 + 0.9 / 3)
    for _ in range(7):
        moving.observe(1.0, now=0.0)
    assert moving.value(0.0, 0.1) == pytest.approx(0.1 + 0.9 * 0.8)
    assert moving.value(5.0, 0.1) == pytest.approx(0.1 + 0.9 * 0.8 / math.e)
    assert moving.value(1000.0, 0.1) == pytest.approx(0.1)
    assert moving.value(1000.0) == 1.0
