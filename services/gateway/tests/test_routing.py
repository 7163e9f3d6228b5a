"""The routing table: what is a valid one, and which version each request gets by it."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.errors import ModelNotFound
from tidegate_gateway.hashing import unit
from tidegate_gateway.routing import Route, route
from tidegate_table.document import (
    ModelRoutes,
    Table,
    parse,
)

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "revision": 7,
    "aliases": {"classifier": "image_classifier"},
    "models": {
        "image_classifier": {"stable": "1", "weights": {"1": 95, "2": 5, "3": 0}},
        "identity": {"stable": "4"},
    },
}
TABLE = parse(DOCUMENT)

VERSIONS = st.integers(1, 10**19 - 1).map(str)


def anywhere(model: str, version: str) -> bool:
    return True


def nowhere(model: str, version: str) -> bool:
    return False


def of(weights: Mapping[str, float]) -> Table:
    """A table of one model, `m`, whose first version is stable."""
    return Table(revision=1, models={"m": ModelRoutes(next(iter(weights)), weights)})


def version_for(table: Table, key: str) -> str:
    return route(table, "m", "", key, 0.0, anywhere).version


@st.composite
def weights(draw: st.DrawFn, versions: st.SearchStrategy[list[str]]) -> dict[str, float]:
    """Percentages of some versions; now and then with decimals, or all on one."""
    names = draw(versions)
    scale = draw(st.sampled_from([1, 1000]))
    inner = st.integers(0, 100 * scale)
    cuts = sorted(draw(st.lists(inner, min_size=len(names) - 1, max_size=len(names) - 1)))
    bounds = [0, *cuts, 100 * scale]
    shares = [b - a for a, b in pairwise(bounds)]
    return {
        name: share if scale == 1 else share / scale
        for name, share in zip(names, shares, strict=True)
    }


SOME_WEIGHTS = weights(st.lists(VERSIONS, min_size=1, max_size=4, unique=True))
SAME_VERSIONS = st.sampled_from([["1", "2"], ["1", "2", "3"], ["1", "2", "3", "4"]]).flatmap(
    lambda names: st.tuples(weights(st.just(names)), weights(st.just(names)))
)
# The hash


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        ((), 0.8931675160897388),
        (("a", "b"), 0.13806821453000806),
        (("ab",), 0.2450415034926876),
        (("image_classifier", "2", "user-1"), 0.8943776028662803),
        (("é", "\udc80"), 0.006081230641747926),
    ],
)
def test_a_hash_is_the_same_in_every_process_and_release(
    parts: tuple[str, ...], number: float
) -> None:
    assert unit(*parts) == number


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.text(max_size=4), max_size=3), st.lists(st.text(max_size=4), max_size=3))
def test_a_hash_tells_parts_apart(one: list[str], other: list[str]) -> None:
    assert (unit(*one) == unit(*other)) == (one == other)
    assert 0 <= unit(*one) < 1


def test_the_largest_hash_is_below_1(monkeypatch: pytest.MonkeyPatch) -> None:
    # A digest of ones alone cannot be had by a search.
    class Ones:
        def update(self, part: bytes) -> None:
            pass

        def digest(self) -> bytes:
            return b"\xff" * 8

    monkeypatch.setattr("tidegate_gateway.hashing.blake2b", lambda digest_size: Ones())

    assert unit("a") < 1


# Routes


def test_engines_are_asked_about_all_that_may_serve() -> None:
    bake = Table(revision=2, models={"m": ModelRoutes("1", {"1": 0, "2": 100, "3": 0})})

    assert bake.versions() == {("m", "1"), ("m", "2")}
    assert TABLE.versions() == {
        ("image_classifier", "1"),
        ("image_classifier", "2"),
        ("identity", "4"),
    }


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("name", ["image_classifier", "classifier"])
def test_an_alias_means_the_model(name: str, key: str | None) -> None:
    assert route(TABLE, name, "", key, 0.5, anywhere) == Route(
        "image_classifier", "1", 7, pinned=False, fallback=""
    )


def test_a_candidate_falls_back_to_stable() -> None:
    assert route(TABLE, "classifier", "", None, 0.97, anywhere) == Route(
        "image_classifier", "2", 7, pinned=False, fallback="1"
    )


def test_a_candidate_that_has_all_the_weight_still_falls_back() -> None:
    bake = Table(revision=2, models={"m": ModelRoutes("1", {"1": 0, "2": 100})})

    assert route(bake, "m", "", None, 0.0, anywhere) == Route("m", "2", 2, False, fallback="1")


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("served", [anywhere, nowhere])
def test_a_pin_keeps_its_version_whoever_serves_it(version: str, served: Any) -> None:
    assert route(TABLE, "classifier", version, "key", 0.0, served) == Route(
        "image_classifier", version, 7, pinned=True, fallback=""
    )


@pytest.mark.parametrize("version", ["3", "4", "01", "-1"])
def test_a_pin_without_traffic_is_refused(version: str) -> None:
    with pytest.raises(ModelNotFound) as refused:
        route(TABLE, "classifier", version, None, 0.0, anywhere)

    assert refused.value.message == f"version {version} of model 'classifier' gets no traffic"


@pytest.mark.parametrize("pin", ["", "1"])
def test_a_model_that_is_not_in_the_table_is_refused(pin: str) -> None:
    with pytest.raises(ModelNotFound) as refused:
        route(TABLE, "resnet", pin, None, 0.0, anywhere)

    assert refused.value.message == "there is no model 'resnet'"


@pytest.mark.parametrize("key", [None, *map(str, range(20))])
def test_a_version_that_is_served_nowhere_gets_nothing(key: str | None) -> None:
    table = of({"1": 1, "2": 98, "3": 1})

    def served(model: str, version: str) -> bool:
        return (model, version) in {("m", "1"), ("m", "3")}

    for draw in (0.0, 0.3, 0.7, 0.9999):
        assert route(table, "m", "", key, draw, served).version in {"1", "3"}


def test_a_version_without_weight_gets_nothing_even_where_it_alone_is_served() -> None:
    table = of({"1": 0, "2": 100})

    for key in (None, *map(str, range(20))):
        assert route(table, "m", "", key, 0.0, lambda _, version: version == "1").version == "2"


@settings(max_examples=100, deadline=None, database=None)
@given(SOME_WEIGHTS, st.none() | st.text(max_size=5), st.floats(0, 1, exclude_max=True))
def test_where_nothing_is_served_the_table_alone_decides(
    shares: dict[str, float], key: str | None, draw: float
) -> None:
    table = of(shares)

    assert route(table, "m", "", key, draw, nowhere) == route(table, "m", "", key, draw, anywhere)


@settings(max_examples=200, deadline=None, database=None)
@given(
    SOME_WEIGHTS,
    st.none() | st.text(max_size=5),
    st.floats(0, 1, exclude_max=True) | st.just(math.nextafter(1, 0)),
    st.data(),
)
def test_a_version_has_weight_and_is_served_where_any_is(
    shares: dict[str, float], key: str | None, draw: float, data: st.DataObject
) -> None:
    there = data.draw(st.sets(st.sampled_from([*shares])))

    chosen = route(of(shares), "m", "", key, draw, lambda _, version: version in there)

    assert shares[chosen.version] > 0
    assert chosen.version in there or not any(shares[version] > 0 for version in there)
    assert chosen.fallback == ("" if chosen.version == next(iter(shares)) else next(iter(shares)))


@pytest.mark.parametrize(
    ("draw", "version"),
    [(0.0, "1"), (math.nextafter(0.5, 0), "1"), (0.5, "3"), (math.nextafter(1, 0), "3")],
)
def test_a_draw_falls_into_the_part_of_a_version(draw: float, version: str) -> None:
    table = of({"1": 50, "2": 0, "3": 50})

    assert route(table, "m", "", None, draw, anywhere).version == version


def interval(count: int, share: float, error: float = 1e-9) -> tuple[int, int]:
    """The least and most hits in `count` draws that a fair one leaves with probability `error`."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(share) + (count - k) * math.log1p(-share)
        for k in range(count + 1)
    ]  # fmt: skip
    chances = [math.exp(log) for log in logs]
    return _tail(chances, error / 2), count - _tail(chances[::-1], error / 2)


def _tail(chances: list[float], error: float) -> int:
    total = 0.0
    for k, chance in enumerate(chances):
        total += chance
        if total > error:
            return k
    raise AssertionError("the chances do not sum to 1")


@pytest.mark.parametrize(
    "shares",
    [{"1": 99, "2": 1}, {"1": 50, "2": 50}, {"3": 0.5, "2": 5, "1": 94.5}],
    ids=str,
)
@pytest.mark.parametrize("by", ["chance", "key"])
def test_weights_are_kept(shares: dict[str, float], by: str) -> None:
    count, chance, table = 20_000, random.Random(5), of(shares)

    hits = Counter(
        route(table, "m", "", None if by == "chance" else f"user-{n}", chance.random(), anywhere)
        .version for n in range(count)
    )  # fmt: skip

    for version, share in shares.items():
        least, most = interval(count, share / 100)
        assert least <= hits[version] <= most, (version, hits)


# Sticky keys


def test_a_key_has_one_version_whatever_is_drawn() -> None:
    table = of({"1": 50, "2": 50})

    for key in map(str, range(50)):
        assert len({route(table, "m", "", key, n / 10, anywhere).version for n in range(10)}) == 1


def test_keys_have_the_same_versions_in_every_process_and_release() -> None:
    table = of({"1": 50, "2": 30, "3": 20})

    assert "".join(version_for(table, f"user-{n}") for n in range(24)) == "122121113331213221312131"


def test_the_order_in_the_file_moves_no_key() -> None:
    one, other = of({"1": 50, "2": 30, "3": 20}), of({"3": 20, "1": 50, "2": 30})

    assert [version_for(one, str(n)) for n in range(500)] == [
        version_for(other, str(n)) for n in range(500)
    ]


def test_keys_of_one_model_say_nothing_of_another() -> None:
    shares = {"1": 50, "2": 50}
    table = Table(1, {"a": ModelRoutes("1", shares), "b": ModelRoutes("1", shares)})

    alike = sum(
        route(table, "a", "", key, 0, anywhere).version
        == route(table, "b", "", key, 0, anywhere).version
        for key in map(str, range(2000))
    )

    least, most = interval(2000, 0.5)
    assert least <= alike <= most


@settings(max_examples=200, deadline=None, database=None)
@given(SAME_VERSIONS, st.integers())
def test_a_key_leaves_only_what_fell_or_for_what_rose(
    change: tuple[dict[str, float], dict[str, float]], seed: int
) -> None:
    before, after = change
    for n in range(20):
        old = version_for(of(before), f"{seed}-{n}")
        new = version_for(of(after), f"{seed}-{n}")
        if old != new:
            assert after[old] < before[old] or after[new] > before[new]
            # In full: what it goes to has gained over what it leaves.
            assert after[new] * before[old] >= after[old] * before[new] * (1 - 1e-9)


@settings(max_examples=50, deadline=None, database=None)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=5), st.integers())
def test_keys_only_ever_go_to_a_candidate_whose_weight_rises(steps: list[int], seed: int) -> None:
    rising = [of({"1": 100 - weight, "2": weight}) for weight in sorted(steps)]
    for n in range(20):
        versions = [version_for(table, f"{seed}-{n}") for table in rising]
        assert versions == sorted(versions)


@settings(max_examples=100, deadline=None, database=None)
@given(SOME_WEIGHTS.filter(lambda shares: len(shares) > 1), st.text(), st.data())
def test_only_the_keys_of_a_version_that_is_gone_move(
    shares: dict[str, float], key: str, data: st.DataObject
) -> None:
    table = of(shares)
    gone = data.draw(st.sampled_from([v for v in shares if shares[v] < 100]))

    before = version_for(table, key)
    after = route(table, "m", "", key, 0.0, lambda _, version: version != gone).version

    assert before in (after, gone)
