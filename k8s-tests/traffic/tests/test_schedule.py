import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_traffic.schedule import arrivals

RATES = st.lists(st.floats(min_value=0.1, max_value=200), min_size=1, max_size=5)
DURATIONS = st.floats(min_value=0.01, max_value=3)


@settings(deadline=None)
@given(RATES, DURATIONS)
def test_arrivals_are_in_order_and_before_the_end(rates: list[float], duration_s: float) -> None:
    times = [arrival.at_s for arrival in arrivals(rates, duration_s)]
    assert times == sorted(times)
    assert all(0 <= time < duration_s for time in times)


@settings(deadline=None)
@given(RATES, DURATIONS)
def test_each_route_keeps_its_rate_beside_the_others(rates: list[float], duration_s: float) -> None:
    found = list(arrivals(rates, duration_s))
    for route, rate in enumerate(rates):
        times = [arrival.at_s for arrival in found if arrival.route == route]
        assert math.isclose(len(times), rate * duration_s, abs_tol=1)
        for earlier, later in itertools.pairwise(times):
            assert math.isclose(later - earlier, 1 / rate, rel_tol=1e-6)


def test_the_rate_does_not_drift() -> None:
    last = next(itertools.islice(arrivals([3.0]), 300_000, None))
    assert last.at_s == 100_000.0


def test_routes_of_one_rate_take_turns() -> None:
    found = itertools.islice(arrivals([10.0, 10.0]), 4)
    assert [(round(a.at_s, 3), a.route) for a in found] == [
        (0.0, 0),
        (0.05, 1),
        (0.1, 0),
        (0.15, 1),
    ]
