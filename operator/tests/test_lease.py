"""One operator acts at a time, whatever becomes of the other and of the clock.

The API server's part is played by a few lines: a real one does not lose an answer on demand. With a
real one the Lease is tested in k8s-tests.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_operator.errors import ClusterFailed, Conflict
from tidegate_operator.lease import Claim, Lease

DURATION_S = 15


@dataclass
class FakeClaims:
    """The Lease in an API server.

    Attributes:
        away: how the next calls fail: before they are heard, or after they have been done.
    """

    stored: Claim | None = None
    version: int = 0
    away: str = ""
    writes: list[str] = field(default_factory=list)

    async def claim(self) -> Claim | None:
        if self.away:
            raise ClusterFailed("away")
        return self.stored

    async def write_claim(self, holder: str, duration_s: int, over: Claim | None) -> Claim:
        if self.away == "before":
            raise ClusterFailed("away")
        if over != self.stored:
            raise Conflict("changed")
        self.version += 1
        self.stored = Claim(str(self.version), holder, duration_s, 0)
        self.writes.append(holder)
        if self.away == "after":
            raise ClusterFailed("no answer")
        return self.stored


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def lease(claims: FakeClaims, clock: Clock, holder: str = "a") -> Lease:
    return Lease(claims, holder=holder, duration_s=DURATION_S, renew_s=5, clock=clock)


async def test_the_first_takes_it_and_renews_it_when_that_is_due() -> None:
    claims, clock = FakeClaims(), Clock()
    first = lease(claims, clock)

    assert await first.hold()
    clock.now += 4.9
    assert await first.hold()
    assert claims.writes == ["a"]
    clock.now += 0.1
    assert await first.hold()
    assert claims.writes == ["a", "a"]


async def test_another_one_waits_for_its_whole_duration_from_when_it_first_saw_it() -> None:
    claims, clock = FakeClaims(), Clock()
    assert await lease(claims, clock, "a").hold()
    second = lease(claims, clock, "b")

    clock.now += 1000
    assert not await second.hold()
    clock.now += DURATION_S - 0.1
    assert not await second.hold()
    clock.now += 0.1
    assert await second.hold()


async def test_another_one_waits_as_long_as_it_is_renewed() -> None:
    claims, clock = FakeClaims(), Clock()
    first, second = lease(claims, clock, "a"), lease(claims, clock, "b")

    for _ in range(20):
        assert await first.hold()
        assert not await second.hold()
        clock.now += 5


async def test_one_that_is_given_back_is_taken_at_once() -> None:
    claims, clock = FakeClaims(), Clock()
    first, second = lease(claims, clock, "a"), lease(claims, clock, "b")
    assert await first.hold()
    assert not await second.hold()

    await first.release()

    assert not first.is_held()
    assert await second.hold()


async def test_one_that_comes_back_under_its_own_name_goes_on_at_once() -> None:
    claims, clock = FakeClaims(), Clock()
    assert await lease(claims, clock, "a").hold()

    assert await lease(claims, clock, "a").hold()


async def test_it_is_not_held_for_longer_than_it_lasts() -> None:
    claims, clock = FakeClaims(), Clock()
    first = lease(claims, clock)
    assert await first.hold()

    assert first.is_held(for_s=DURATION_S - 0.1)
    assert not first.is_held(for_s=DURATION_S)
    claims.away = "before"
    clock.now += 6
    with pytest.raises(ClusterFailed):
        await first.hold()
    assert first.is_held(for_s=8)
    clock.now += 9
    assert not first.is_held()


async def test_one_that_was_taken_over_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    claims, clock = FakeClaims(), Clock()
    first = lease(claims, clock, "a")
    assert await first.hold()
    assert claims.stored is not None
    claims.stored = replace(claims.stored, version="9", holder="b")

    clock.now += 6
    assert not await first.hold()

    assert not first.is_held()
    assert caplog.messages == ["the Lease is lost: nothing is written"]
    await first.release()
    assert claims.stored.holder == "b"


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "before", "after"]),
        st.sampled_from([0.0, 1.0, 6.0, 14.9, 15.1]), st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=200, deadline=None, database=None)
@given(ACTIONS)
async def test_two_never_hold_it_at_a_time(actions: list[tuple[str, str, float, bool]]) -> None:
    claims, clock = FakeClaims(), Clock()
    operators = {name: lease(claims, clock, name) for name in "abc"}
    for name, away, passing_s, gives_back in actions:
        claims.away = away
        try:
            if gives_back:
                await operators[name].release()
            else:
                await operators[name].hold()
        except ClusterFailed:
            pass
        assert sum(each.is_held() for each in operators.values()) <= 1
        clock.now += passing_s
