"""The choice of an endpoint and who is left out of it: each rule, and what holds in any history."""

import math
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate_gateway.balancing import (
    Cause,
    Ejection,
    Outcome,
    Peer,
    Pool,
    Rules,
    Ticket,
    subset,
)

KEY = ("classifier", "1")
OTHER_KEY = ("classifier", "2")
LONG_AGO = -1000.0


def serving(pool: Pool, *names: str, zone: str = "", since: float = LONG_AGO) -> list[Peer]:
    """Connected endpoints that serve KEY."""
    peers = []
    for name in names:
        peer = pool.add(name, zone=zone)
        peer.connected_since(since)
        peer.set_serves(KEY, True)
        peers.append(peer)
    return peers


def a_pool(zone: str = "", rules: Rules | None = None) -> Pool:
    return Pool(rules or Rules(), Random(1), zone=zone)


def attempt(peer: Peer, outcome: Outcome = Outcome.GOOD, *, now: float, took: float = 0.1) -> None:
    """One attempt that ended `now`."""
    peer.end(peer.begin(KEY, now - took), now, outcome)


def fail(
    pool: Pool,
    peer: Peer,
    times: int,
    *,
    besides: Peer,
    now: float = 0.0,
    outcome: Outcome = Outcome.FAILED,
) -> Ejection | None:
    """Attempts that fail, each of them beside three good ones elsewhere; the ejection, if they
    brought one."""
    for _ in range(times):
        for _ in range(3):
            attempt(besides, now=now)
        attempt(peer, outcome, now=now)
        ejection = pool.judge(peer, KEY, now)
        if ejection is not None:
            return ejection
    return None


def chosen(pool: Pool, now: float = 0.0, times: int = 1000) -> Counter[str]:
    """How often each endpoint is chosen while nothing changes."""
    counts: Counter[str] = Counter()
    for _ in range(times):
        peer = pool.choose(KEY, now)
        assert peer is not None
        counts[peer.name] += 1
    return counts


# The choice


def test_of_two_endpoints_the_less_loaded_one_is_chosen() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    a.begin(KEY, 0.0)
    assert chosen(pool) == {"b": 1000}


def test_endpoints_that_are_alike_are_chosen_alike() -> None:
    pool = a_pool()
    serving(pool, *"abcd")
    counts = chosen(pool, times=4000)
    # 1000 expected each; the standard deviation is 27.
    assert set(counts) == set("abcd")
    assert all(800 < count < 1200 for count in counts.values())


def test_all_models_load_an_endpoint() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    a.begin(OTHER_KEY, 0.0)
    assert chosen(pool) == {"b": 1000}


def test_load_is_in_flight_times_latency() -> None:
    pool = a_pool()
    fast, slow = serving(pool, "fast", "slow")
    for _ in range(100):
        attempt(fast, now=0.0, took=0.1)
        attempt(slow, now=0.0, took=0.4)
    for _ in range(2):
        fast.begin(OTHER_KEY, 0.0)
    assert chosen(pool) == {"fast": 1000}
    for _ in range(3):
        fast.begin(OTHER_KEY, 0.0)
    assert chosen(pool) == {"slow": 1000}


def test_what_is_faster_by_a_hair_does_not_get_all() -> None:
    pool = a_pool()
    fast, slow = serving(pool, "fast", "slow")
    for _ in range(100):
        attempt(fast, now=0.0, took=0.10)
        attempt(slow, now=0.0, took=0.12)
    assert min(chosen(pool).values()) > 400


def test_a_slow_first_answer_says_little() -> None:
    pool = a_pool()
    *warm, cold = serving(pool, "a", "b", "cold")
    for peer in warm:
        for _ in range(100):
            attempt(peer, now=0.0, took=0.1)
    attempt(cold, now=0.0, took=1.0)
    assert cold.latency(KEY, 0.0) == pytest.approx(0.1 + 0.9 / 3)
    for _ in range(100):
        attempt(cold, now=0.0, took=1.0)
    assert cold.latency(KEY, 0.0) > 0.9


def test_an_endpoint_that_stalls_grows_heavy_at_once() -> None:
    pool = a_pool()
    stalled, busy = serving(pool, "stalled", "busy")
    for _ in range(20):
        attempt(stalled, now=0.0)
        attempt(busy, now=0.0)
    stalled.begin(KEY, 0.0)
    for _ in range(3):
        busy.begin(KEY, 0.95)
    assert chosen(pool, now=0.1) == {"stalled": 1000}
    assert chosen(pool, now=1.0) == {"busy": 1000}


def test_an_endpoint_without_answers_counts_as_the_median() -> None:
    pool = a_pool()
    *known, new = serving(pool, "a", "b", "c", "new")
    for peer, took in zip(known, (0.1, 0.2, 5.0), strict=True):
        attempt(peer, now=0.0, took=took)
    assert new.latency(KEY, 0.0) == pytest.approx(0.2)


def test_an_endpoint_that_was_slow_is_tried_again() -> None:
    pool = a_pool()
    once_slow, other = serving(pool, "once slow", "other")
    for _ in range(20):
        attempt(once_slow, now=0.0, took=0.4)
        attempt(other, now=0.0, took=0.1)
    other.begin(OTHER_KEY, 0.0)
    assert chosen(pool, now=0.0) == {"other": 1000}
    assert chosen(pool, now=10.0) == {"once slow": 1000}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LATE])
def test_to_break_off_fast_is_not_to_be_fast(outcome: Outcome) -> None:
    peer, _ = serving(a_pool(), "a", "b")
    attempt(peer, now=0.0, took=0.1)
    attempt(peer, outcome, now=0.0, took=0.001)
    assert peer.latency(KEY, 0.0) == pytest.approx(0.1)
    attempt(peer, outcome, now=0.0, took=0.7)
    assert peer.latency(KEY, 0.0) > 0.15


def test_what_was_dropped_says_nothing() -> None:
    peer, _ = serving(a_pool(), "a", "b")
    attempt(peer, now=0.0, took=0.1)
    attempt(peer, Outcome.DROPPED, now=0.0, took=60.0)
    assert peer.latency(KEY, 0.0) == pytest.approx(0.1)


def test_an_attempt_ends_once() -> None:
    peer, _ = serving(a_pool(), "a", "b")
    ticket = peer.begin(KEY, 0.0)
    peer.begin(KEY, 0.0)
    peer.end(ticket, 0.1, Outcome.GOOD)
    peer.end(ticket, 0.1, Outcome.DROPPED)
    assert peer.in_flight == 1


# Slow start


@pytest.mark.parametrize(("age", "share"), [(0.0, 0.1), (1.0, 0.2), (2.5, 0.5), (5.0, 1.0)])
def test_a_new_endpoint_takes_part_by_its_age(age: float, share: float) -> None:
    pool = a_pool()
    (old,) = serving(pool, "old")
    serving(pool, "new", since=0.0)
    old.begin(KEY, age)  # so that the new one wins each draw that it takes part in
    counts = chosen(pool, now=age, times=4000)
    # The standard deviation is at most 0.008.
    assert counts["new"] / 4000 == pytest.approx(share, abs=0.04)


def test_a_readmitted_endpoint_starts_slowly_too() -> None:
    pool = a_pool()
    back, other = serving(pool, "back", "other")
    pool.eject(back, KEY, Cause.PROBE, 0.0)
    pool.readmit(back, KEY, 10.0)
    other.begin(KEY, 10.0)
    assert 40 < chosen(pool, now=10.0)["back"] < 200


def test_slow_start_holds_nobody_back_where_all_are_new() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b", since=0.0)
    a.begin(KEY, 0.0)
    assert chosen(pool, now=0.0) == {"b": 1000}


def test_new_endpoints_are_chosen_where_no_other_is_left() -> None:
    pool = a_pool()
    serving(pool, "old")
    serving(pool, "b", "c", since=0.0)
    for _ in range(100):
        peer = pool.choose(KEY, 0.0, excluding=["old"])
        assert peer is not None
        assert peer.name in ("b", "c")


# Zones


def test_the_own_zone_is_left_only_when_it_is_so_many_times_as_loaded() -> None:
    pool = a_pool(zone="west")
    (near,) = serving(pool, "near", zone="west")
    serving(pool, "far", "farther", zone="east")
    assert chosen(pool) == {"near": 1000}
    near.begin(OTHER_KEY, 0.0)
    assert chosen(pool) == {"near": 1000}
    near.begin(OTHER_KEY, 0.0)
    assert set(chosen(pool)) == {"far", "farther"}


def test_a_new_endpoint_in_the_own_zone_does_not_take_all_at_once() -> None:
    pool = a_pool(zone="west")
    serving(pool, "new", zone="west", since=0.0)
    serving(pool, "far", "farther", zone="east")
    assert 40 < chosen(pool, now=0.0)["new"] < 200


@pytest.mark.parametrize(("own", "theirs"), [("", "east"), ("west", "east"), ("west", "")])
def test_where_the_own_zone_has_no_endpoint_all_are_alike(own: str, theirs: str) -> None:
    pool = a_pool(zone=own)
    serving(pool, "a", zone=theirs)
    serving(pool, "b", zone="north")
    counts = chosen(pool)
    assert set(counts) == {"a", "b"}
    assert min(counts.values()) > 400


# Who may be chosen


def ejected(pool: Pool, peer: Peer) -> None:
    pool.eject(peer, KEY, Cause.PROBE, 0.0)


def leaving(pool: Pool, peer: Peer) -> None:
    peer.leaving = True


def unknown(pool: Pool, peer: Peer) -> None:
    peer.set_serves(KEY, None)


def not_serving(pool: Pool, peer: Peer) -> None:
    peer.set_serves(KEY, False)


def disconnected(pool: Pool, peer: Peer) -> None:
    peer.disconnected()


def well(pool: Pool, peer: Peer) -> None:
    pass


Change = Callable[[Pool, Peer], None]
TIERS: list[list[Change]] = [[well], [unknown], [ejected], [leaving], [not_serving]]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (better, worse)
        for tier, betters in enumerate(TIERS)
        for better in betters
        for worses in TIERS[tier + 1 :]
        for worse in worses
    ],
)
def test_better_endpoints_come_first_and_those_tried_already_last(
    better: Change, worse: Change
) -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    better(pool, a)
    worse(pool, b)
    for _ in range(100):
        a.begin(OTHER_KEY, 0.0)
    assert set(chosen(pool, times=100)) == {"a"}
    assert pool.choose(KEY, 0.0, excluding=["a"]) is (a if worse is not_serving else b)
    assert pool.choose(KEY, 0.0, excluding=["a", "b"]) is a


def test_nothing_is_chosen_where_nothing_is_connected() -> None:
    pool = a_pool()
    assert pool.choose(KEY, 0.0) is None
    for peer in serving(pool, "a", "b"):
        peer.disconnected()
    assert pool.choose(KEY, 0.0) is None
    assert pool.choose(KEY, 0.0, excluding=["a"]) is None


def test_a_version_is_served_while_an_endpoint_is_well_for_it() -> None:
    pool = a_pool()
    assert not pool.is_served(KEY)
    a, b = serving(pool, "a", "b")
    assert pool.is_served(KEY)
    assert not pool.is_served(OTHER_KEY)
    pool.eject(a, KEY, Cause.PROBE, 0.0)
    b.forget_versions()
    assert b.serves(KEY) is None
    assert not pool.is_served(KEY)


def test_an_endpoint_is_ejected_for_one_model_and_version() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    for peer in (a, b):
        peer.set_serves(OTHER_KEY, True)
    pool.eject(a, KEY, Cause.PROBE, 0.0)
    b.begin(KEY, 0.0)
    assert pool.choose(KEY, 0.0) is b
    assert pool.choose(OTHER_KEY, 0.0) is a


def test_a_removed_endpoint_is_not_chosen_and_its_attempts_may_end() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    ticket = a.begin(KEY, 0.0)
    pool.eject(a, KEY, Cause.PROBE, 0.0)
    pool.remove("a")
    a.end(ticket, 1.0, Outcome.FAILED)

    assert a.in_flight == 0
    assert pool.judge(a, KEY, 1.0) is None
    assert pool.due(1000.0) == []
    assert set(chosen(pool, times=100)) == {"b"}
    pool.add("a")
    with pytest.raises(ValueError, match="endpoint a is in the pool already"):
        pool.add("a")


def test_statistics_of_models_not_used_for_long_give_way() -> None:
    pool = a_pool(rules=Rules(max_keys=2))
    (peer,) = serving(pool, "a")
    ticket = peer.begin(KEY, 0.0)
    pool.eject(peer, KEY, Cause.PROBE, 0.0)
    for version in "23":
        peer.set_serves(("classifier", version), True)

    assert peer.serves(KEY) is None
    assert pool.due(1000.0) == []
    assert peer.serves(("classifier", "2")) is True
    peer.end(ticket, 0.1, Outcome.GOOD)
    assert peer.in_flight == 0


# Sequences


def test_a_sequence_stays_and_only_moves_when_its_endpoint_is_gone() -> None:
    pool = a_pool()
    peers = {peer.name: peer for peer in serving(pool, *"abcd")}
    first = pool.stay(KEY, "17", 0.0)
    assert first is not None
    pool.eject(first, KEY, Cause.PROBE, 0.0)
    first.leaving = True
    for _ in range(100):
        first.begin(KEY, 0.0)
    assert pool.stay(KEY, "17", 1.0) is first

    first.disconnected()
    second = pool.stay(KEY, "17", 2.0)
    assert second is not None
    assert second is not first
    first.connected_since(3.0)
    assert pool.stay(KEY, "17", 4.0) is second
    second.set_serves(KEY, False)
    assert pool.stay(KEY, "17", 5.0) not in (None, second)
    for name in peers:
        pool.remove(name)
    assert pool.stay(KEY, "17", 6.0) is None


def test_gateways_that_see_the_same_endpoints_place_sequences_alike_and_evenly() -> None:
    names = [f"engine-{number}" for number in range(4)]
    one, other = a_pool(), a_pool()
    serving(one, *names)
    serving(other, *reversed(names))
    placed: Counter[str] = Counter()
    for sequence in map(str, range(1000)):
        peer, same = one.stay(KEY, sequence, 0.0), other.stay(KEY, sequence, 0.0)
        assert peer is not None
        assert same is not None
        assert peer.name == same.name
        placed[peer.name] += 1
    # 250 expected each; the standard deviation is 14.
    assert all(180 < placed[name] < 320 for name in names)


@pytest.mark.parametrize(
    ("forgotten", "rules"),
    [
        (lambda pool: pool.forget(KEY, "17"), Rules()),
        (lambda pool: pool.stay(KEY, "18", 600.0), Rules()),
        (lambda pool: pool.stay(KEY, "18", 1.0), Rules(max_sequences=1)),
    ],
    ids=["ended", "idle", "too many"],
)
def test_sequences_are_forgotten(forgotten: Callable[[Pool], None], rules: Rules) -> None:
    pool = a_pool(rules=rules)
    serving(pool, *"abcdefgh")
    first = pool.stay(KEY, "17", 0.0)
    assert first is not None
    pool.eject(first, KEY, Cause.PROBE, 0.0)
    assert pool.stay(KEY, "17", 0.0) is first
    forgotten(pool)
    assert pool.stay(KEY, "17", 1.0) not in (None, first)


# Ejection


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LATE])
def test_five_failures_in_a_row_eject(outcome: Outcome) -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    assert fail(pool, a, 4, besides=b, now=1.0, outcome=outcome) is None
    ejection = fail(pool, a, 1, besides=b, now=1.0, outcome=outcome)
    assert ejection == Ejection(Cause.FAILURES, "5 failures in a row", at=1.0, until=6.0)
    assert a.ejection(KEY) == ejection
    assert chosen(pool) == {"b": 1000}


def test_a_success_in_between_or_a_dropped_attempt_is_no_row() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    assert fail(pool, a, 4, besides=b) is None
    attempt(a, now=0.0)
    assert fail(pool, a, 4, besides=b) is None
    assert a.failures_in_a_row(KEY) == 4
    attempt(a, Outcome.DROPPED, now=0.0)
    assert pool.judge(a, KEY, 0.0) is None
    assert fail(pool, a, 1, besides=b) is not None


def test_half_of_twenty_attempts_eject() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    for _ in range(9):
        attempt(a, now=0.0)
        assert fail(pool, a, 1, besides=b) is None
    attempt(a, now=0.0)
    ejection = fail(pool, a, 1, besides=b)
    assert ejection is not None
    assert ejection.cause is Cause.ERRORS
    assert ejection.reason == "10 of 20 attempts failed"


def test_errors_are_forgotten_with_their_window() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    for now, times in ((0.0, 9), (10.0, 2)):
        for _ in range(times):
            attempt(a, now=now)
            assert fail(pool, a, 1, besides=b, now=now) is None


def test_failures_are_no_evidence_while_nothing_is_known_of_the_others() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    for _ in range(10):
        attempt(a, Outcome.FAILED, now=0.0)
        assert pool.judge(a, KEY, 0.0) is None


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_what_happens_to_all_alike_ejects_nobody(share: float, seed: int) -> None:
    pool, random = a_pool(), Random(seed)
    peers = serving(pool, *"abcdefgh")
    for peer in peers:
        for _ in range(50):
            attempt(peer, now=0.0)
    # Chance ejects somebody in about 1 of 500 such histories; hence fixed seeds.
    for step in range(2000):
        peer = peers[step % 8]
        attempt(peer, Outcome.LATE if random.random() < share else Outcome.GOOD, now=step / 1000)
        assert pool.judge(peer, KEY, step / 1000) is None


def test_an_endpoint_far_slower_than_the_others_is_ejected() -> None:
    pool = a_pool()
    *others, slow = serving(pool, "a", "b", "c", "slow")
    for peer in others:
        for _ in range(10):
            attempt(peer, now=0.0, took=0.1)
    for _ in range(9):
        attempt(slow, now=0.0, took=0.6)
        assert pool.judge(slow, KEY, 0.0) is None
    attempt(slow, now=0.0, took=0.6)
    ejection = pool.judge(slow, KEY, 0.0)
    assert ejection is not None
    assert ejection.cause is Cause.SLOW
    assert ejection.reason == "0.600 s for an answer, the others 0.100 s"


@pytest.mark.parametrize(
    ("slow", "fast"),
    [(0.45, 0.1), (0.09, 0.001), (2.0, 2.0)],
    ids=["less than five times", "too fast to matter", "all alike"],
)
def test_slowness_that_does_not_eject(slow: float, fast: float) -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    for _ in range(50):
        attempt(a, now=0.0, took=slow)
        attempt(b, now=0.0, took=fast)
        assert pool.judge(a, KEY, 0.0) is None


@pytest.mark.parametrize(("endpoints", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (10, 5)])
def test_no_more_than_half_are_ejected_for_failures(endpoints: int, most: int) -> None:
    pool = a_pool()
    peers = serving(pool, *map(str, range(endpoints)))
    witness = pool.add("not connected: it only shows how others do")
    out = [peer for peer in peers if fail(pool, peer, 100, besides=witness)]
    assert len(out) == most


def test_what_a_probe_found_is_out_without_taking_room() -> None:
    pool = a_pool()
    a, b, c, d = serving(pool, *"abcd")
    for peer in (a, b, c):
        pool.eject(peer, KEY, Cause.BACKEND, 0.0)
    assert chosen(pool) == {"d": 1000}
    pool.readmit(c, KEY, -1.0)
    assert fail(pool, d, 5, besides=c) is not None
    assert chosen(pool) == {"c": 1000}
    assert fail(pool, c, 100, besides=a) is None


def test_ejections_grow_and_shrink() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")

    def length(now: float) -> float:
        ejection = fail(pool, a, 5, besides=b, now=now)
        assert ejection is not None
        pool.readmit(a, KEY, ejection.until)
        return ejection.until - ejection.at

    now, lengths = 0.0, []
    for _ in range(6):
        lengths.append(length(now))
        now += lengths[-1] + 1.0
    assert lengths == [5, 10, 20, 40, 60, 60]
    # Well for twice the last one's length (and a second): two steps are forgotten.
    assert length(now + 120) == 20


def test_a_failed_probe_makes_the_ejection_longer() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    pool.eject(a, KEY, Cause.PROBE, 0.0)
    again = pool.eject(a, KEY, Cause.PROBE, 5.0)
    assert (again.at, again.until) == (5.0, 15.0)


def test_the_reason_of_an_ejection_is_told() -> None:
    pool = a_pool()
    a, _ = serving(pool, "a", "b")
    assert pool.eject(a, KEY, Cause.BACKEND, 0.0).reason == "backend failed"
    pool.readmit(a, KEY, -1.0)
    attempt(a, Outcome.FAILED, now=0.0)
    assert pool.eject(a, KEY, Cause.FAILURES, 0.0).reason == "1 failures in a row"


def test_an_ejection_whose_time_is_up_is_due_until_a_probe_is_answered() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    fail(pool, a, 5, besides=b)
    assert pool.due(4.9) == []
    assert pool.due(5.0) == [(a, KEY)]
    assert chosen(pool, now=100.0) == {"b": 1000}
    pool.readmit(a, KEY, 100.0)
    assert pool.due(100.0) == []
    assert chosen(pool, now=110.0)["a"] > 0


def test_a_new_connection_makes_ejections_due_at_once() -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    fail(pool, a, 5, besides=b)
    a.disconnected()
    a.connected_since(1.0)
    assert pool.due(1.0) == [(a, KEY)]
    assert chosen(pool, now=1.0) == {"b": 1000}


@pytest.mark.parametrize("back", ["readmitted", "connected"])
def test_attempts_from_before_its_return_do_not_count(back: str) -> None:
    pool = a_pool()
    a, b = serving(pool, "a", "b")
    for _ in range(100):
        attempt(b, now=0.0)
    tickets = [a.begin(KEY, 0.0) for _ in range(50)]
    if back == "readmitted":
        pool.eject(a, KEY, Cause.PROBE, 1.0)
        pool.readmit(a, KEY, 6.0)
    else:
        a.connected_since(6.0)
    for ticket in tickets:
        a.end(ticket, 7.0, Outcome.FAILED)
        assert pool.judge(a, KEY, 7.0) is None
    assert a.in_flight == 0


# Subsets


few_names = st.sets(st.text("abc0123456789.:", min_size=1, max_size=12), max_size=30)


@settings(max_examples=100, deadline=None, database=None)
@given(names=few_names, size=st.integers(1, 12), newcomer=st.text("xyz", min_size=1))
def test_one_endpoint_more_exchanges_at_most_one_of_a_subset(
    names: set[str], size: int, newcomer: str
) -> None:
    before = set(subset(names, "gateway-1", size))
    after = set(subset([*names, newcomer], "gateway-1", size))
    assert len(before) == min(size, len(names))
    assert after - before <= {newcomer}
    assert len(before - after) <= 1


def test_a_subset_of_size_0_is_all_of_them() -> None:
    assert sorted(subset(["b", "a", "c"], "gateway-1", 0)) == ["a", "b", "c"]


def test_each_gateway_has_its_own_subset() -> None:
    names = [f"10.0.0.{number}:8001" for number in range(100)]
    taken = Counter(name for gateway in range(100) for name in subset(names, f"g{gateway}", 20))
    # 20 expected each; the standard deviation is 4.
    assert len(taken) == 100
    assert max(taken.values()) < 40
    assert subset(names, "g1", 20) == subset(names[::-1], "g1", 20)


def test_names_that_nobody_serves_leave_nothing_behind_and_drive_nothing_out() -> None:
    pool = a_pool(rules=Rules(max_keys=10))
    peer, _ = serving(pool, "a", "b")
    pool.eject(peer, KEY, Cause.BACKEND, 0.0)
    for number in range(100):
        assert pool.choose((f"invented {number}", ""), 0.0) is not None
    assert peer.ejection(KEY) is not None
    assert peer.serves(KEY) is True
    assert len(pool._groups) <= 2


# Any history


class Balancing(RuleBasedStateMachine):
    """Endpoints come, go, fail and recover in any order."""

    names = st.sampled_from("abcdef")
    seconds = st.floats(0.0, 30.0)
    number = st.integers(0, 1000)

    def __init__(self) -> None:
        super().__init__()
        self.pool = a_pool(zone="west")
        self.now = 0.0
        self.peers: dict[str, Peer] = {}
        self.running: list[tuple[Peer, Ticket]] = []
        self.gone: list[Peer] = []

    @rule(name=names, zone=st.sampled_from(["west", "east", ""]))
    def come(self, name: str, zone: str) -> None:
        if name not in self.peers:
            peer = self.pool.add(name, zone=zone)
            peer.connected_since(self.now)
            peer.set_serves(KEY, True)
            self.peers[name] = peer

    @rule(name=names)
    def go(self, name: str) -> None:
        if name in self.peers:
            self.gone.append(self.peers.pop(name))
            self.pool.remove(name)

    @rule(name=names, change=st.sampled_from([ejected, leaving, unknown, not_serving]))
    def worsen(self, name: str, change: Change) -> None:
        if name in self.peers:
            change(self.pool, self.peers[name])

    @rule(name=names)
    def recover(self, name: str) -> None:
        if name in self.peers:
            self.peers[name].leaving = False
            self.peers[name].set_serves(KEY, True)

    @rule(name=names, connected=st.booleans())
    def connect(self, name: str, connected: bool) -> None:
        if name in self.peers and connected != self.peers[name].connected:
            if connected:
                self.peers[name].connected_since(self.now)
            else:
                self.peers[name].disconnected()

    @rule(seconds=seconds)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(excluding=st.sets(names, max_size=4))
    def choose(self, excluding: set[str]) -> None:
        peer = self.pool.choose(KEY, self.now, excluding=excluding)
        there = [other for other in self.peers.values() if other.connected]
        elsewhere = [other for other in there if other.name not in excluding]
        all_well = [other for other in elsewhere if self.is_well(other)]
        may_serve = [other for other in elsewhere if other.serves(KEY) is not False]
        if not there:
            assert peer is None
        else:
            assert peer in (all_well or may_serve or there)
            self.running.append((peer, peer.begin(KEY, self.now)))

    @rule(which=number, outcome=st.sampled_from(Outcome), times=st.integers(1, 8))
    def end(self, which: int, outcome: Outcome, times: int) -> None:
        for _ in range(min(times, len(self.running))):
            peer, ticket = self.running.pop(which % len(self.running))
            peer.end(ticket, self.now, outcome)
            if self.pool.judge(peer, KEY, self.now) is not None:
                self.check_room()

    @rule(name=names, outcome=st.sampled_from([Outcome.FAILED, Outcome.LATE, Outcome.GOOD]))
    def go_on_alike(self, name: str, outcome: Outcome) -> None:
        if name in self.peers:
            for _ in range(6):
                attempt(self.peers[name], outcome, now=self.now)
                if self.pool.judge(self.peers[name], KEY, self.now) is not None:
                    self.check_room()

    @rule(answers=st.booleans())
    def probe(self, answers: bool) -> None:
        for peer, key in self.pool.due(self.now):
            assert peer.ejection(key) is not None
            if answers:
                self.pool.readmit(peer, key, self.now)
            else:
                self.pool.eject(peer, key, Cause.PROBE, self.now)

    def is_well(self, peer: Peer) -> bool:
        return peer.serves(KEY) is True and not peer.leaving and peer.ejection(KEY) is None

    def check_room(self) -> None:
        """At the moment of a passive ejection no more than half may be out."""
        out = found = 0
        for peer in self.peers.values():
            ejection = peer.ejection(KEY)
            if not peer.connected or peer.leaving or not peer.serves(KEY):
                continue
            if ejection is not None and ejection.cause in (Cause.PROBE, Cause.BACKEND):
                continue
            found += 1
            out += ejection is not None
        assert out <= math.floor(found / 2)

    @invariant()
    def in_flight_is_what_was_begun_and_has_not_ended(self) -> None:
        begun = Counter(peer for peer, _ in self.running)
        for peer in [*self.peers.values(), *self.gone]:
            assert peer.in_flight == begun[peer]

    def teardown(self) -> None:
        for peer, ticket in self.running:
            peer.end(ticket, self.now, Outcome.DROPPED)
        assert all(peer.in_flight == 0 for peer in [*self.peers.values(), *self.gone])


TestBalancing = Balancing.TestCase
TestBalancing.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, database=None
)
