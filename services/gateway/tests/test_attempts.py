"""When a request is tried again, where, how often, and what is left over of it: nothing."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.attempts import Budget, is_late, patience
from tidegate_gateway.balancing import Rules
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.endpoints import Connection
from tidegate_gateway.errors import (
    BackendDead,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import AttemptSettings
from tidegate_gateway.statuses import http_status

from .scripted import (
    ANSWERS,
    CANDIDATE,
    HANGS,
    MODEL,
    ROUTE,
    STABLE,
    USUAL_S,
    Call,
    Does,
    Engine,
    Fleet,
    a_fleet,
    endpoint,
    fails,
    in_virtual_time,
)

PINNED = Route(MODEL, "2", 7, pinned=True, fallback="")
TRIED_OUT = Route(MODEL, "2", 7, pinned=False, fallback="1")
NO_TABLE = Route(MODEL, "", 0, pinned=False, fallback="")

NO_BUDGET = AttemptSettings(budget_ratio=0, budget_burst=0)

LOST = EngineUnavailable("lost")
UNREADY = VersionUnready("unready")
DEAD = BackendDead("dead")
FAILED = EngineFailed("failed", detail="the model's own words")
NOT_FOUND = ModelNotFound("not found", detail="version 1 is not found")
INVALID = InvalidInput("invalid")
FULL = Overloaded("full")
TOO_LARGE = PayloadTooLarge("too large")


def kind(error: BaseException) -> str:
    return type(error).__name__


def engines(calls: list[Call]) -> list[str]:
    return [call.engine for call in calls]


def since_first(calls: list[Call]) -> list[float]:
    """Seconds from the first attempt to each of them."""
    return [round(call.at - calls[0].at, 6) for call in calls]


async def outcome(fleet: Fleet, route: Route = ROUTE, *, timeout: float = 3.0) -> tuple[float, str]:
    """How many seconds one request took, and its answer or the kind of its error."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        answer = await fleet.run(route, timeout=timeout)
    except RequestError as error:
        answer = kind(error)
    return round(loop.time() - began, 6), answer


# How long an attempt is waited for


RULES = AttemptSettings(wait_least_s=0.2, wait_p99_factor=4)


@pytest.mark.parametrize(
    ("remaining", "usual", "hedged", "expected"),
    [
        (3.0, None, None, 1.5),  # not known: half of what remains
        (3.0, 0.01, None, 0.2),  # quick: the least
        (3.0, 0.05, None, 0.2),
        (3.0, 0.1, None, 0.4),  # four times the usual
        (3.0, 0.5, None, 1.5),  # which would be more than half of what remains
        (0.1, 0.01, None, 0.05),
        (0.0, 0.01, None, 0.0),
        (0.0, None, None, 0.0),
        (3.0, 0.1, 0.08, 0.08),  # hedged: the 95th percentile
        (3.0, 0.001, 0.0008, 0.0008),
        (3.0, 0.1, 0.9, 0.4),  # unless that is longer
        (0.1, 0.1, 0.08, 0.05),
    ],
)
def test_how_long_an_attempt_is_waited_for(
    remaining: float, usual: float | None, hedged: float | None, expected: float
) -> None:
    assert patience(remaining, usual, RULES, hedged=hedged) == expected


@pytest.mark.parametrize(
    ("waited", "usual", "late"),
    [
        (0.19, 0.01, False),
        (0.2, 0.01, True),
        (0.39, 0.1, False),
        (0.4, 0.1, True),
        (99, None, False),
    ],
)
def test_late_is_what_takes_longer_than_it_usually_does(
    waited: float, usual: float | None, late: bool
) -> None:
    assert is_late(waited, usual, RULES) is late


# The budget


@settings(max_examples=200, deadline=None, database=None)
@given(
    ratio=st.sampled_from([0.0, 0.2, 1.0]),
    steps=st.lists(
        st.tuples(
            st.one_of(st.just(0.0), st.floats(0, 3), st.just(9.5), st.just(30.0)),
            st.integers(0, 20),  # requests
            st.integers(0, 8),  # further attempts that are wished for
            st.integers(0, 5),  # the burst
        ),
        max_size=40,
    ),
)
def test_a_further_attempt_is_refused_just_when_it_would_be_too_many(
    ratio: float, steps: list[tuple[float, int, int, int]]
) -> None:
    budget, now = Budget(ratio), 100.0
    requests: list[int] = []  # the second of each
    granted: list[int] = []
    for pause, coming, wished, burst in steps:
        now += pause
        window = range(int(now) - 9, int(now) + 1)
        for _ in range(coming):
            budget.deposit(now)
            requests.append(int(now))
        for _ in range(wished):
            allowed = ratio * sum(r in window for r in requests) + burst
            spent = sum(g in window for g in granted)
            assert budget.withdraw(now, burst) is (spent + 1 <= allowed)
            if spent + 1 <= allowed:
                granted.append(int(now))


# One attempt


@in_virtual_time
async def test_a_request_is_tried_once_where_that_is_enough(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fleet(3) as fleet:
        caplog.set_level(logging.INFO, "tidegate_gateway.attempts")
        tried: list[str] = []

        answer = await fleet.run(ROUTE, tried=tried)

        (call,) = fleet.calls
        assert answer == f"{call.engine}:1"
        assert tried == [call.engine]
        assert fleet.counted(fleet.metrics.attempts) == {("first", "good"): 1}
        assert caplog.records == []


@in_virtual_time
async def test_a_failure_of_our_own_comes_through_as_it_is() -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [fails(ZeroDivisionError())]

        with pytest.raises(ZeroDivisionError):
            await fleet.run(ROUTE)

        assert len(fleet.calls) == 1


@in_virtual_time
async def test_a_call_that_fails_before_it_begins_leaves_nothing_behind() -> None:
    def call(engine: Engine, version: str, deadline: Deadline) -> asyncio.Future[str]:
        raise ZeroDivisionError

    async with a_fleet(1) as fleet:
        with pytest.raises(ZeroDivisionError):
            await fleet.attempts.run(ROUTE, call, Deadline.after(3), [])

        assert fleet.in_flight() == 0


# After a failure


@pytest.mark.parametrize("error", [LOST, UNREADY, DEAD, NOT_FOUND], ids=kind)
@in_virtual_time
async def test_what_one_engine_fails_in_is_tried_at_another(error: RequestError) -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [fails(error)]
        tried: list[str] = []

        took, answer = await outcome(fleet)
        await fleet.run(ROUTE, tried=tried)

        first, second = fleet.calls[:2]
        assert {first.engine, second.engine} == {"e1", "e2"}
        assert answer == f"{second.engine}:1"
        assert took == 2 * USUAL_S
        counts = fleet.counted(fleet.metrics.attempts)
        assert counts["retry", "good"] == 1
        assert counts["first", "good"] == 1
        # Where it failed, the next request does not go.
        assert tried == [second.engine] or error is LOST


@in_virtual_time
async def test_no_engine_is_tried_twice_while_there_is_another() -> None:
    async with a_fleet(4, attempts=AttemptSettings(most=4)) as fleet:
        fleet.plan = [fails(LOST), fails(UNREADY), fails(NOT_FOUND)]
        tried: list[str] = []

        await fleet.run(ROUTE, tried=tried)

        assert sorted(tried) == ["e1", "e2", "e3", "e4"]
        assert tried == engines(fleet.calls)


@in_virtual_time
async def test_the_last_of_the_attempts_tells_its_error() -> None:
    async with a_fleet(5) as fleet:
        fleet.plan = [fails(UNREADY), fails(UNREADY), fails(LOST)]

        with pytest.raises(EngineUnavailable) as told:
            await fleet.run(ROUTE)

        assert told.value is LOST
        assert len(fleet.calls) == 3


@in_virtual_time
async def test_a_single_engine_is_tried_again_after_a_pause_that_doubles() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [fails(UNREADY, 0.0), fails(LOST, 0.0)]

        assert await fleet.run(ROUTE) == "e1:1"

        assert since_first(fleet.calls) == [0.0, 0.05, 0.15]


@in_virtual_time
async def test_who_is_known_not_to_serve_a_version_is_no_other() -> None:
    async with a_fleet(0) as fleet:
        for name in ("e2", "e3"):
            fleet.engines[name] = Engine(name, serves=set())
        await fleet.announce(endpoint(1), endpoint(2), endpoint(3))
        fleet.plan = [fails(LOST, 0.0)]

        assert await fleet.run(ROUTE) == "e1:1"

        assert engines(fleet.calls) == ["e1", "e1"]
        assert since_first(fleet.calls) == [0.0, 0.05]


@in_virtual_time
async def test_an_engine_that_leaves_is_better_than_none() -> None:
    async with a_fleet(2) as fleet:
        await fleet.announce(endpoint(1), endpoint(2, terminating=True))
        fleet.engines["e1"].does["1"] = fails(LOST)

        assert await fleet.run(ROUTE) == "e2:1"

        assert engines(fleet.calls) == ["e1", "e2"]


@pytest.mark.parametrize("error", [INVALID, TOO_LARGE, FAILED, FULL], ids=kind)
@in_virtual_time
async def test_what_another_engine_would_say_as_well_is_told_at_once(error: RequestError) -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(error)]

        with pytest.raises(type(error)) as told:
            await fleet.run(ROUTE)

        assert told.value is error
        assert len(fleet.calls) == 1
        outcome = "failed" if error is FAILED else "dropped"
        assert fleet.counted(fleet.metrics.attempts) == {("first", outcome): 1}


@pytest.mark.parametrize("error", [LOST, UNREADY, DEAD, NOT_FOUND], ids=kind)
@in_virtual_time
async def test_a_sequence_is_never_tried_again(error: RequestError) -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(error)]

        with pytest.raises(RequestError):
            await fleet.run(ROUTE, sequence="7")

        assert len(fleet.calls) == 1


@in_virtual_time
async def test_a_sequence_that_hangs_is_waited_for() -> None:
    async with a_fleet(3) as fleet:
        await fleet.warm_up()
        fleet.plan = [Does(2.0)]

        await fleet.run(ROUTE, sequence="7")

        assert len(fleet.calls) == 1


@in_virtual_time
async def test_a_sequence_stays_where_it_is() -> None:
    async with a_fleet(5) as fleet:
        await asyncio.gather(*(fleet.run(ROUTE, sequence="7") for _ in range(20)))

        assert len(set(engines(fleet.calls))) == 1


# A dead backend


@in_virtual_time
async def test_a_request_that_kills_its_backend_does_so_twice_at_most() -> None:
    async with a_fleet(5) as fleet:
        fleet.plan = [fails(DEAD), fails(DEAD)]

        with pytest.raises(BackendDead):
            await fleet.run(ROUTE)

        assert len(fleet.calls) == 2
        for call in fleet.calls:
            assert fleet.version(call.engine, STABLE)["ejected"] == "backend failed"
        assert fleet.counted(fleet.metrics.ejections) == {("backend",): 2}


@in_virtual_time
async def test_a_dead_backend_is_not_tried_again_where_it_is_the_only_one() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [fails(DEAD)]

        with pytest.raises(BackendDead):
            await fleet.run(ROUTE)

        assert len(fleet.calls) == 1


@in_virtual_time
async def test_a_dead_backend_is_left_for_another_after_other_failures_too() -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(LOST), fails(DEAD)]

        answer = await fleet.run(ROUTE)

        assert answer == f"{fleet.calls[2].engine}:1"


# While an attempt goes on


@in_virtual_time
async def test_an_overdue_attempt_gets_company_and_the_first_answer_wins() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up()
        fleet.plan = [HANGS]

        took, answer = await outcome(fleet)

        first, second = fleet.calls
        assert {first.engine, second.engine} == {"e1", "e2"}
        assert answer == f"{second.engine}:1"
        assert took == 0.21
        await asyncio.sleep(0)
        assert fleet.cancelled == [first]
        counts = fleet.counted(fleet.metrics.attempts)
        assert (counts["first", "late"], counts["overdue", "good"]) == (1, 1)


@in_virtual_time
async def test_while_its_latency_is_not_known_a_model_gets_half_of_the_time() -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [HANGS]

        took, _ = await outcome(fleet, timeout=2.0)

        assert took == 1.0 + USUAL_S
        # Nobody can say that it was late.
        assert fleet.counted(fleet.metrics.attempts)["first", "dropped"] == 1


@in_virtual_time
async def test_the_first_attempt_may_still_win() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up(requests=200)
        fleet.plan = [Does(0.5), Does(0.5)]

        took, answer = await outcome(fleet)

        first, second = fleet.calls
        assert answer == f"{first.engine}:1"
        assert took == 0.5
        # Whoever began later is not late.
        await asyncio.sleep(0)
        assert fleet.cancelled == [second]
        assert fleet.counted(fleet.metrics.attempts)["overdue", "dropped"] == 1


@in_virtual_time
async def test_of_two_that_end_together_the_good_one_is_told() -> None:
    async with a_fleet(3) as fleet:
        await fleet.warm_up()
        moment = asyncio.Event()
        fleet.plan = [Does(error=LOST, until=moment), Does(until=moment)]
        asyncio.get_running_loop().call_later(0.3, moment.set)

        took, answer = await outcome(fleet)

        assert answer == f"{fleet.calls[1].engine}:1"
        assert took == 0.3
        assert len(fleet.calls) == 2
        assert sum(fleet.counted(fleet.metrics.attempts).values()) == 32


@in_virtual_time
async def test_an_answer_is_heard_while_another_attempt_has_nowhere_to_go() -> None:
    async with a_fleet(2, attempts=AttemptSettings(backoff_s=1)) as fleet:
        await fleet.warm_up()
        fleet.plan = [Does(0.25), fails(LOST)]

        took, answer = await outcome(fleet)

        assert answer == f"{fleet.calls[0].engine}:1"
        assert took == 0.25


@in_virtual_time
async def test_what_is_the_requests_own_fault_is_told_though_another_attempt_hangs() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up()
        fleet.plan = [HANGS, fails(INVALID)]

        assert await outcome(fleet) == (0.21, "InvalidInput")


@in_virtual_time
async def test_a_models_own_failure_leaves_the_other_attempt_its_chance() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up()
        fleet.plan = [Does(0.5), fails(FAILED)]

        took, answer = await outcome(fleet)

        assert answer == f"{fleet.calls[0].engine}:1"
        assert took == 0.5


@in_virtual_time
async def test_an_attempt_may_answer_its_cancellation_with_an_error() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up()

        async def call(engine: Engine, version: str, deadline: Deadline) -> str:
            try:
                return await fleet.call(engine, version, deadline)
            except asyncio.CancelledError:
                raise EngineUnavailable("cancelled") from None

        fleet.plan = [HANGS]

        # An exception that nobody sees is seen at the end of this test.
        assert await fleet.attempts.run(ROUTE, call, Deadline.after(3), [])


@in_virtual_time
async def test_a_retry_comes_as_soon_as_all_that_ran_have_failed() -> None:
    async with a_fleet(2) as fleet:
        await fleet.warm_up()
        fleet.plan = [fails(LOST, 0.4), fails(LOST)]

        took, _ = await outcome(fleet)

        assert since_first(fleet.calls) == [0.0, 0.2, 0.45]
        assert took == 0.45 + USUAL_S


@in_virtual_time
async def test_a_hedge_comes_at_the_95th_percentile() -> None:
    async with a_fleet(2, attempts=AttemptSettings(hedge=True)) as fleet:
        await fleet.warm_up()
        fleet.plan = [HANGS]

        took, _ = await outcome(fleet)

        # As exactly as quantiles are known.
        assert took == pytest.approx(2 * USUAL_S, rel=0.05)
        assert fleet.counted(fleet.metrics.attempts)["hedge", "good"] == 1


@in_virtual_time
async def test_what_is_slower_than_usual_by_far_is_overdue_and_no_hedge() -> None:
    async with a_fleet(3, attempts=AttemptSettings(hedge=True)) as fleet:
        fleet.plan = [HANGS]

        await fleet.run(ROUTE)

        assert fleet.counted(fleet.metrics.attempts)["overdue", "good"] == 1


@in_virtual_time
async def test_a_load_that_slows_all_engines_fails_no_request() -> None:
    async with a_fleet(3) as fleet:
        fleet.all_do(Does(0.1))
        await fleet.warm_up()
        fleet.all_do(Does(0.5))

        answers = await asyncio.gather(*(outcome(fleet) for _ in range(200)))

        assert {took for took, _ in answers} == {0.5}
        # 20 % of 230 requests, and as many as one engine had in flight.
        further = len(fleet.calls) - 200
        assert 0 < further <= 46 + 200


# The budget of attempts


@pytest.mark.parametrize("error", [UNREADY, DEAD, NOT_FOUND], ids=kind)
@in_virtual_time
async def test_without_budget_there_is_no_retry(
    error: RequestError, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        caplog.set_level(logging.INFO, "tidegate_gateway.attempts")
        fleet.plan = [fails(error)]

        with pytest.raises(RequestError):
            await fleet.run(ROUTE)

        assert len(fleet.calls) == 1
        assert fleet.counted(fleet.metrics.attempts_refused) == {("retry",): 1}
        assert caplog.records[-1].getMessage() == "no budget for a further attempt"
        assert caplog.records[-1].__dict__["reason"] == "retry"


@in_virtual_time
async def test_a_lost_connection_is_outside_the_budget() -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        fleet.plan = [fails(LOST), fails(LOST)]

        await fleet.run(ROUTE)

        assert len(fleet.calls) == 3


@in_virtual_time
async def test_company_for_an_overdue_attempt_is_refused_without_budget() -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        await fleet.warm_up()
        fleet.plan = [HANGS, ANSWERS, Does(2.5)]

        # What one engine has in flight is allowed in any case, and that is this one.
        assert (await outcome(fleet))[0] == 0.21
        assert (await outcome(fleet))[0] == 2.5

        assert len(fleet.calls) == 3
        # It is looked at again and again, and told once.
        assert fleet.counted(fleet.metrics.attempts_refused)["overdue",] == 1


@in_virtual_time
async def test_a_burst_covers_all_that_one_engine_has_in_flight() -> None:
    async with a_fleet(2, attempts=NO_BUDGET) as fleet:
        await fleet.warm_up()
        fleet.engines["e1"].does["1"] = HANGS

        answers = await asyncio.gather(*(outcome(fleet) for _ in range(100)))

        assert {answer for _, answer in answers} == {"e2:1"}
        assert "e1" in engines(fleet.calls)


@in_virtual_time
async def test_questions_are_no_requests_to_the_budget() -> None:
    async with a_fleet(3, attempts=AttemptSettings(budget_ratio=1, budget_burst=0)) as fleet:
        for _ in range(20):
            await fleet.attempts.ask(ROUTE, fleet.call, Deadline.after(3))
        fleet.plan = [fails(UNREADY)] * 2

        # They earn nothing: only the request itself does.
        with pytest.raises(VersionUnready):
            await fleet.run(ROUTE)

        assert fleet.counted(fleet.metrics.attempts_refused) == {("retry",): 1}


@in_virtual_time
async def test_questions_about_what_does_not_exist_leave_the_budget_alone() -> None:
    async with a_fleet(3, attempts=AttemptSettings(budget_ratio=0, budget_burst=1)) as fleet:
        unknown = Route("unknown", "1", 0, pinned=True, fallback="")
        for _ in range(20):
            fleet.plan = [fails(NOT_FOUND)] * 3
            with pytest.raises(ModelNotFound):
                await fleet.attempts.ask(unknown, fleet.call, Deadline.after(3))
        fleet.plan = [fails(UNREADY)]

        assert (await fleet.run(ROUTE))[-1] == "1"


# A version that is being tried out


@pytest.mark.parametrize("error", [FAILED, DEAD, UNREADY, NOT_FOUND], ids=kind)
@in_virtual_time
async def test_what_a_candidate_fails_in_is_tried_on_the_stable_version(
    error: RequestError,
) -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        fleet.plan = [fails(error)]

        answer = await fleet.run(TRIED_OUT)

        first, second = fleet.calls
        assert (first.version, second.version) == ("2", "1")
        assert first.engine != second.engine
        assert answer == f"{second.engine}:1"
        assert fleet.counted(fleet.metrics.attempts)["fallback", "good"] == 1


@in_virtual_time
async def test_the_stable_version_may_be_asked_where_the_candidate_failed() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [fails(FAILED)]

        took, answer = await outcome(fleet, TRIED_OUT)

        assert answer == "e1:1"
        assert took == 2 * USUAL_S


@in_virtual_time
async def test_a_candidate_is_given_up_once() -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(EngineFailed("the candidate")), fails(FAILED)]

        with pytest.raises(EngineFailed) as told:
            await fleet.run(TRIED_OUT)

        assert told.value is FAILED
        assert [call.version for call in fleet.calls] == ["2", "1"]


@in_virtual_time
async def test_after_a_candidate_the_stable_version_is_tried_as_any_other() -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [fails(FAILED), fails(LOST)]

        # At once, where the candidate has failed.
        assert (await outcome(fleet, TRIED_OUT))[0] == 0.03

        assert [call.version for call in fleet.calls] == ["2", "1", "1"]
        assert fleet.calls[1].engine != fleet.calls[2].engine


@in_virtual_time
async def test_what_is_the_requests_own_fault_is_told_by_the_candidate_too() -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(INVALID)]

        assert (await outcome(fleet, TRIED_OUT))[1] == kind(INVALID)

        assert len(fleet.calls) == 1


@pytest.mark.parametrize("error", [FULL, DeadlineExceeded("its queue's own limit")], ids=kind)
@in_virtual_time
async def test_the_queue_of_a_candidate_is_the_candidates(error: RequestError) -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        fleet.plan = [fails(error)]

        await fleet.run(TRIED_OUT)

        assert [call.version for call in fleet.calls] == ["2", "1"]


@in_virtual_time
async def test_what_cannot_be_in_time_costs_nobody_his_budget() -> None:
    async with a_fleet(2) as fleet:
        fleet.all_do(Does(0.05))
        await fleet.warm_up()
        for _ in range(200):
            with pytest.raises(DeadlineExceeded):
                await fleet.run(ROUTE, timeout=0.02)

        assert len(fleet.calls) == 200
        assert fleet.counted(fleet.metrics.attempts_refused) == {}


@in_virtual_time
async def test_a_candidate_that_is_lost_with_its_engine_is_tried_at_another_first() -> None:
    async with a_fleet(3, attempts=NO_BUDGET) as fleet:
        fleet.plan = [fails(LOST)]

        await fleet.run(TRIED_OUT)

        assert [call.version for call in fleet.calls] == ["2", "2"]


@in_virtual_time
async def test_a_candidate_that_is_lost_each_time_is_given_up() -> None:
    async with a_fleet(5, attempts=NO_BUDGET) as fleet:
        fleet.plan = [fails(LOST)] * 3

        answer = await fleet.run(TRIED_OUT)

        assert answer.endswith(":1")
        assert [call.version for call in fleet.calls] == ["2", "2", "2", "1"]


@in_virtual_time
async def test_a_candidate_that_hangs_does_not_hang_the_request() -> None:
    async with a_fleet(3) as fleet:
        await fleet.warm_up("1")
        fleet.all_do(HANGS, "2")

        took, answer = await outcome(fleet, TRIED_OUT)

        first, second = fleet.calls
        assert answer == f"{second.engine}:1"
        assert first.engine != second.engine
        # Nobody knows how long the candidate takes: as long as the stable version, it is hoped.
        assert took == 0.21
        assert fleet.counted(fleet.metrics.attempts)["first", "late"] == 1


NO_BUDGET = AttemptSettings(budget_ratio=0.0, budget_burst=0)


@in_virtual_time
async def test_where_a_candidate_hangs_no_budget_is_needed_and_it_is_out_soon() -> None:
    """Also where some of its answers take so long that four times the usual is more than half of a
    deadline: a backend that died with a long queue fails one request a second."""
    rules = Rules(consecutive_failures=5, ejection_s=99)
    async with a_fleet(3, attempts=NO_BUDGET, rules=rules) as fleet:
        await fleet.warm_up("1")
        fleet.all_do(Does(1.5), "2")
        await fleet.warm_up("2")
        fleet.all_do(HANGS, "2")
        for engine in fleet.engines.values():
            engine.golden_by[CANDIDATE] = HANGS

        began = [asyncio.create_task(outcome(fleet, TRIED_OUT, timeout=9.0)) for _ in range(40)]
        ended = await asyncio.gather(*began)

        assert {(took, answer[-2:]) for took, answer in ended} == {(4.51, ":1")}
        assert not fleet.endpoints.serves(*CANDIDATE)
        assert fleet.endpoints.serves(*STABLE)


@in_virtual_time
async def test_a_candidate_that_answers_others_does_not_hang() -> None:
    """It may have too much to do, and so may the engines: then the budget counts."""
    async with a_fleet(1, attempts=NO_BUDGET) as fleet:
        await fleet.warm_up("1")
        await fleet.warm_up("2")
        fleet.plan = [HANGS]
        waiting = asyncio.create_task(outcome(fleet, TRIED_OUT, timeout=2.0))
        for _ in range(30):
            await asyncio.sleep(0.1)
            if not waiting.done():
                await fleet.run(TRIED_OUT)

        assert await waiting == (2.0, "DeadlineExceeded")


@in_virtual_time
async def test_a_candidate_that_fails_after_all_changes_nothing_more() -> None:
    async with a_fleet(3) as fleet:
        await fleet.warm_up("1")
        fleet.plan = [fails(UNREADY, 0.3), Does(0.15)]

        assert await outcome(fleet, TRIED_OUT) == (0.35, f"{fleet.calls[1].engine}:1")

        assert [call.version for call in fleet.calls] == ["2", "1"]


@pytest.mark.parametrize("does", [HANGS, fails(FAILED)], ids=["hangs", "fails"])
@in_virtual_time
async def test_a_candidate_that_fails_five_times_is_out_at_every_endpoint(does: Does) -> None:
    async with a_fleet(3, rules=Rules(consecutive_failures=5, ejection_s=99)) as fleet:
        await fleet.warm_up("1")
        fleet.all_do(does, "2")
        answers: list[str] = []

        while fleet.endpoints.serves(*CANDIDATE):
            answers.append(await fleet.run(TRIED_OUT))

        assert len(answers) == 3 * 5
        assert {answer[-1] for answer in answers} == {"1"}
        assert fleet.endpoints.serves(*STABLE)
        assert fleet.counted(fleet.metrics.ejections) == {("failures",): 3}


@in_virtual_time
async def test_a_version_that_the_client_names_is_kept() -> None:
    async with a_fleet(3) as fleet:
        fleet.plan = [fails(LOST), fails(UNREADY)]
        await fleet.run(PINNED)
        fleet.plan = [fails(FAILED)]
        with pytest.raises(EngineFailed):
            await fleet.run(PINNED)

        assert {call.version for call in fleet.calls} == {"2"}


# A version that is nowhere


@in_virtual_time
async def test_a_version_of_the_table_that_no_engine_has_is_unavailable() -> None:
    async with a_fleet(3) as fleet:
        fleet.all_do(fails(NOT_FOUND))

        with pytest.raises(EngineUnavailable) as told:
            await fleet.run(ROUTE)

        assert told.value.message == (
            "no engine serves model 'm' in version 1 now; try again later"
        )
        assert told.value.detail == "version 1 is not found"
        assert http_status(told.value) == 503
        assert sorted(engines(fleet.calls)) == ["e1", "e2", "e3"]


@in_virtual_time
async def test_without_a_table_what_no_engine_has_is_not_found() -> None:
    async with a_fleet(2) as fleet:
        fleet.all_do(fails(NOT_FOUND), "")

        with pytest.raises(ModelNotFound) as told:
            await fleet.run(NO_TABLE)

        assert told.value is NOT_FOUND
        assert sorted(engines(fleet.calls)) == ["e1", "e2"]


@in_virtual_time
async def test_without_a_table_those_are_asked_that_may_have_the_model() -> None:
    key = (MODEL, "")
    async with a_fleet(0, wanted=[key]) as fleet:
        for name in ("e2", "e3"):
            fleet.engines[name] = Engine(name, serves=set())
        fleet.engines["e1"] = Engine("e1", serves={key})
        await fleet.announce(endpoint(1), endpoint(2), endpoint(3))
        fleet.plan = [fails(NOT_FOUND)]

        with pytest.raises(ModelNotFound):
            await fleet.run(NO_TABLE)

        assert engines(fleet.calls) == ["e1"]


# Deadlines


@in_virtual_time
async def test_a_deadline_is_kept_though_all_engines_hang() -> None:
    async with a_fleet(3) as fleet:
        fleet.all_do(HANGS)

        took, answer = await outcome(fleet, timeout=2.0)

        assert (took, answer) == (2.0, "DeadlineExceeded")
        assert since_first(fleet.calls) == [0.0, 1.0, 1.5]


@in_virtual_time
async def test_an_engine_that_ends_late_is_waited_for_without_haste() -> None:
    async with a_fleet(1) as fleet:
        # The loop of this test stops where it spins.
        fleet.plan = [Does(4.0, DeadlineExceeded("late"), punctual=False)]

        assert await outcome(fleet, timeout=1.0) == (4.0, "DeadlineExceeded")


@in_virtual_time
async def test_after_the_deadline_nothing_begins() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [Does(1.5, LOST, punctual=False)]
        both = (endpoint(1), endpoint(2))
        asyncio.get_running_loop().call_later(0.6, fleet.snapshots.put_nowait, both)

        assert await outcome(fleet, timeout=0.5) == (1.5, "EngineUnavailable")

        assert len(fleet.calls) == 1


@in_virtual_time
async def test_a_pause_is_no_longer_than_the_time_that_is_left() -> None:
    async with a_fleet(1, attempts=AttemptSettings(backoff_s=60)) as fleet:
        fleet.plan = [fails(UNREADY)]

        took, _ = await outcome(fleet, timeout=0.5)

        assert took == 0.5


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1, 0.25, 0.5])
@in_virtual_time
async def test_a_client_that_leaves_takes_its_attempts_along(after: float) -> None:
    async with a_fleet(2, attempts=AttemptSettings(backoff_s=0.05)) as fleet:
        await fleet.warm_up()
        fleet.plan = [fails(LOST), HANGS, HANGS]
        request = asyncio.create_task(fleet.run(ROUTE))
        await asyncio.sleep(after)

        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

        assert request.cancelled()
        assert fleet.in_flight() == 0
        await asyncio.sleep(0)
        hung = [call for call in fleet.calls if call is not fleet.calls[0]]
        assert [call for call in fleet.cancelled if call in hung] == hung


@pytest.mark.parametrize("turns", range(5))
@in_virtual_time
async def test_a_client_may_leave_in_the_moment_in_which_its_attempt_fails(turns: int) -> None:
    async with a_fleet(1) as fleet:
        moment = asyncio.Event()
        fleet.plan = [Does(error=INVALID, until=moment)]
        request = asyncio.create_task(fleet.run(ROUTE))
        await asyncio.sleep(0.1)

        moment.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        request.cancel()

        (result,) = await asyncio.gather(request, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) or result is INVALID


# Whoever is not there


@in_virtual_time
async def test_where_all_engines_are_away_a_request_is_refused_at_once() -> None:
    async with a_fleet(3, connection=Connection.DOWN) as fleet:
        took, answer = await outcome(fleet)

        assert (took, answer) == (0.0, "EngineUnavailable")
        assert fleet.calls == []


@in_virtual_time
async def test_a_request_whose_engines_die_under_it_is_refused_at_once() -> None:
    async with a_fleet(2) as fleet:
        fleet.all_do(fails(LOST))
        asyncio.get_running_loop().call_later(0.005, fleet.become, Connection.DOWN)

        took, answer = await outcome(fleet)

        assert (took, answer) == (USUAL_S, "EngineUnavailable")
        assert len(fleet.calls) == 1


@pytest.mark.parametrize(
    ("comes_after", "timeout", "expected"),
    [
        (0.5, 3.0, (0.5 + USUAL_S, "e1:1")),
        (None, 3.0, (1.0, "EngineUnavailable")),
        (None, 0.3, (0.3, "EngineUnavailable")),
    ],
)
@in_virtual_time
async def test_in_its_first_moments_a_gateway_waits_for_a_connection(
    comes_after: float | None, timeout: float, expected: tuple[float, str]
) -> None:
    async with a_fleet(1, connection=Connection.COMING) as fleet:
        if comes_after is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(comes_after, fleet.become, Connection.UP, "e1")

        took, answer = await outcome(fleet, timeout=timeout)

        assert (took, answer) == expected


@in_virtual_time
async def test_a_gateway_that_knows_no_endpoints_yet_waits_for_them() -> None:
    async with a_fleet(0) as fleet:
        request = asyncio.create_task(fleet.run(ROUTE))
        await asyncio.sleep(0.5)

        await fleet.announce(endpoint(1))

        assert await request == "e1:1"


@in_virtual_time
async def test_a_request_that_is_cut_off_with_its_connection_is_tried_at_another() -> None:
    async with a_fleet(2) as fleet:
        # As gRPC does with the calls of a channel that is closed.
        fleet.plan = [fails(asyncio.CancelledError())]

        answer = await fleet.run(ROUTE)

        assert answer == f"{fleet.calls[1].engine}:1"
        assert fleet.counted(fleet.metrics.attempts)["first", "failed"] == 1


# Questions


@in_virtual_time
async def test_a_question_is_asked_elsewhere_and_says_nothing_of_health() -> None:
    async with a_fleet(3) as fleet:
        for _ in range(10):
            fleet.plan = [fails(LOST)]
            assert await fleet.attempts.ask(ROUTE, fleet.call, Deadline.after(3))
        fleet.plan = [fails(DEAD)] * 2
        with pytest.raises(BackendDead):
            await fleet.attempts.ask(ROUTE, fleet.call, Deadline.after(3))

        assert fleet.counted(fleet.metrics.attempts) == {}
        assert fleet.counted(fleet.metrics.ejections) == {}
        assert {fleet.version(name, STABLE)["serves"] for name in fleet.engines} == {True}


@in_virtual_time
async def test_a_question_that_hangs_is_asked_elsewhere() -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [HANGS, fails(LOST), HANGS]

        # The second one fails while the first goes on, with nowhere else to go.
        with pytest.raises(DeadlineExceeded):
            await fleet.attempts.ask(ROUTE, fleet.call, Deadline.after(1))

        assert since_first(fleet.calls) == [0.0, 0.2]


# What is told of it


@in_virtual_time
async def test_every_further_attempt_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fleet(3) as fleet:
        caplog.set_level(logging.INFO, "tidegate_gateway.attempts")
        fleet.plan = [fails(FAILED), HANGS]

        await fleet.run(TRIED_OUT)

        candidate, stable, company = fleet.calls
        told = [
            (record.getMessage(), record.__dict__["reason"], record.__dict__["endpoint"])
            for record in caplog.records
        ]
        assert told == [
            ("attempt failed", "first", candidate.engine),
            ("further attempt", "fallback", stable.engine),
            ("further attempt", "overdue", company.engine),
        ]
        failed = caplog.records[0].__dict__
        assert (failed["model"], failed["model_version"]) == (MODEL, "2")
        assert failed["error_type"] == "EngineFailed"
        assert failed["detail"] == "the model's own words"


@in_virtual_time
async def test_latencies_are_kept_of_so_many_versions_at_most() -> None:
    async with a_fleet(0) as fleet:
        for _ in range(20):
            fleet.attempts.observe(STABLE, 0.1)
        assert fleet.attempts.quantile(STABLE, 0.5) == pytest.approx(0.1, rel=0.05)

        for version in range(1000):
            fleet.attempts.observe((MODEL, str(version + 2)), 0.1)

        assert fleet.attempts.quantile(STABLE, 0.5) is None


# Whatever happens

DOINGS = st.sampled_from(
    [
        ANSWERS,
        HANGS,
        Does(0.15),
        Does(0.25),
        Does(0.7, LOST, punctual=False),
        *(fails(error) for error in (LOST, UNREADY, DEAD, NOT_FOUND, FAILED, INVALID, FULL)),
        *(fails(error, 0.25) for error in (LOST, UNREADY, DEAD, FAILED)),
        fails(LOST, 0.0),
        fails(asyncio.CancelledError()),
    ]
)


@settings(max_examples=300, deadline=None, database=None)
@given(
    count=st.integers(1, 4),
    plan=st.lists(DOINGS, max_size=5),
    route=st.sampled_from([ROUTE, PINNED, TRIED_OUT, NO_TABLE]),
    known=st.booleans(),
    hedge=st.booleans(),
    leaves=st.one_of(st.none(), st.floats(0, 0.6)),
    dies=st.one_of(st.none(), st.floats(0, 0.6)),
)
def test_whatever_engines_do_a_request_ends_in_time_and_leaves_nothing_behind(  # noqa: PLR0917
    count: int,
    plan: list[Does],
    route: Route,
    known: bool,
    hedge: bool,
    leaves: float | None,
    dies: float | None,
) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_fleet(count, attempts=AttemptSettings(hedge=hedge)) as fleet:
            if known:
                await fleet.warm_up("1")
            fleet.plan = list(plan)
            loop, tried = asyncio.get_running_loop(), list[str]()
            request = asyncio.create_task(fleet.run(route, timeout=0.5, tried=tried))
            if leaves is not None:
                loop.call_later(leaves, request.cancel)
            if dies is not None:
                loop.call_later(dies, fleet.become, Connection.DOWN, "e1")
            began = loop.time()

            (result,) = await asyncio.gather(request, return_exceptions=True)

            assert fleet.in_flight() == 0
            assert isinstance(result, str | RequestError | asyncio.CancelledError), result
            # The one that is not punctual ends so much later.
            assert loop.time() - began <= 0.5 + 0.7 + 1e-6
            assert tried == engines(fleet.calls)
            assert len(tried) <= 3 + (route is TRIED_OUT)
            outcomes = sum(fleet.counted(fleet.metrics.attempts).values())
            assert outcomes == len(tried) + 30 * known
            if isinstance(result, str):
                assert result in {f"{call.engine}:{call.version}" for call in fleet.calls}
            if not plan and leaves is None and dies is None:
                assert isinstance(result, str)

    check()


# What nobody wants any more


@in_virtual_time
async def test_what_nobody_wants_any_more_has_a_moment_to_end_by_itself() -> None:
    """Some engines crash when a call is cancelled in the very moment in which it ends."""
    async with a_fleet(1) as fleet:
        fleet.attempts.cancel_after_s = 0.1
        for seconds, cancelled in ((0.05, 0), (5.0, 1)):
            fleet.cancelled.clear()
            fleet.all_do(Does(seconds))
            request = asyncio.create_task(fleet.run(ROUTE))
            await asyncio.sleep(0.01)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            assert (fleet.in_flight(), fleet.cancelled) == (0, [])
            await asyncio.sleep(0.2)
            assert len(fleet.cancelled) == cancelled
