"""What `make bench-balance` concludes from its rounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.balance.figures import Load, Round, Verdict, gateway_share, quantile, spread, verdict
from bench.balance.report import judgement, table

ENGINES = [("fast", "a:1"), ("slow", "b:1")]


def load(rate: int, latency: float = 0.2) -> Load:
    """`rate` answers in a second, every third one of the slow engine."""
    counted = Load(seconds=1.0)
    for number in range(rate):
        counted.count(latency, ["b:1" if number % 3 == 0 else "a:1"])
    return counted


def a_round(gateway: int, *, ideal: int = 300, round_robin: int = 200) -> Round:
    slow = ideal // 3
    return Round(
        alone=[load(ideal - slow), load(slow)],
        gateway=load(gateway),
        round_robin=load(round_robin),
        gateway_open=load(210),
        round_robin_open=load(210, latency=0.7),
    )


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
@settings(deadline=None, database=None, max_examples=100)
def test_a_quantile_is_the_least_value_that_the_share_does_not_exceed(
    values: list[float], q: float
) -> None:
    found = quantile(values, q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values)
    assert sum(value < found for value in values) < q * len(values)


def test_there_is_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="expected at least one value, got none"):
        quantile([], 0.5)


def test_the_spread_is_a_share_of_the_median() -> None:
    assert spread([100, 90, 120]) == pytest.approx(0.3)


def test_each_round_is_measured_by_its_own_ideal() -> None:
    rounds = [a_round(270), a_round(285), a_round(288, ideal=360)]
    assert gateway_share(rounds) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([a_round(270), a_round(270), a_round(280)], Verdict.GOOD),
        ([a_round(269), a_round(269), a_round(280)], Verdict.BELOW),
        ([a_round(200), a_round(290), a_round(290)], Verdict.GOOD),
        ([a_round(290, ideal=280), a_round(290), a_round(290, ideal=330)], Verdict.NOISY),
        ([a_round(290, round_robin=150), a_round(290), a_round(290)], Verdict.NOISY),
    ],
)
def test_the_verdict_is_of_the_median_where_the_machine_keeps_still(
    rounds: list[Round], expected: Verdict
) -> None:
    assert verdict(rounds) is expected
    says = {Verdict.GOOD: "at least 90%", Verdict.BELOW: "too little", Verdict.NOISY: "not judged"}
    assert says[expected] in judgement(rounds).lower()


def test_the_table_has_medians_of_rates_and_sums_by_engine() -> None:
    lines = table(ENGINES, 0.7, [a_round(270), a_round(282), a_round(276)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells} == {7}
    rows = {row[0]: row[1:] for row in cells}
    assert rows["gateway"] == ["276.0", "4.3%", "92.0%", "200 ms", "200 ms", "552 / 276"]
    assert rows["round robin, at 70% of the ideal"][3:5] == ["700 ms", "700 ms"]


def test_attempts_beyond_the_first_are_told() -> None:
    once, twice = a_round(290), a_round(290)
    twice.gateway.count(0.4, ["a:1", "b:1"])
    assert "with 1 further attempts" in judgement([once, twice])
