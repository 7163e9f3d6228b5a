"""Requests with any number of answers: where they are tried, what ends them, what is left over."""

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tidegate_gateway.attempts import Reason
from tidegate_gateway.deadline import Deadline
from tidegate_gateway.errors import (
    BackendDead,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    InvalidInput,
    ModelNotFound,
    RequestError,
    VersionUnready,
)
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import AttemptSettings, StreamSettings
from tidegate_gateway.streams import Streams
from tidegate_gateway.table import Routes
from tidegate_table.document import parse

from .scripted import MODEL, ROUTE, STABLE, Engine, Fleet, a_fleet, in_virtual_time

TRIED_OUT = Route(MODEL, "2", 7, pinned=False, fallback="1")
LOST = EngineUnavailable("lost")
SETTINGS = StreamSettings(silent_s=60, max_after_roll_s=300)
TABLE = parse(
    {
        "schema": 1,
        "revision": 7,
        "models": {MODEL: {"stable": "1", "weights": {"1": 50, "2": 50}}},
    }
)
ALL_TO_STABLE = parse(
    {"schema": 1, "revision": 8, "models": {MODEL: {"stable": "1", "weights": {"1": 100}}}}
)


@dataclass
class Gives:
    """What an engine does with a stream: so many answers, `every_s`, then `error` or the end."""

    answers: int = 3
    error: RequestError | None = None
    every_s: float = 1.0


@dataclass
class Engines:
    """What each attempt does, in the order of the attempts, and what became of them."""

    plan: list[Gives]
    asked: list[str] = field(default_factory=list)
    closed: int = 0

    async def call(
        self, engine: Engine, version: str, deadline: Deadline
    ) -> AsyncGenerator[str, None]:
        self.asked.append(f"{engine.name}:{version}")
        gives = self.plan.pop(0)
        try:
            for number in range(gives.answers):
                await asyncio.sleep(gives.every_s)
                yield f"{engine.name}:{version}:{number}"
            if gives.error is not None:
                raise gives.error
        finally:
            self.closed += 1


def streams(fleet: Fleet, settings: StreamSettings = SETTINGS) -> tuple[Streams[Engine], Routes]:
    routes = Routes(Random(1))
    made = Streams(fleet.attempts, routes, settings)
    routes.apply(TABLE)
    return made, routes


async def all_answers(
    made: Streams[Engine],
    engines: Engines,
    route: Route = ROUTE,
    *,
    sequence: str = "",
    timeout: float = 3600,
) -> tuple[list[str], RequestError | None]:
    """The answers, without the names of the engines, and the error that ended them."""
    answers: list[str] = []
    until = Deadline.after(timeout)
    try:
        async for answer in made.answers(route, engines.call, until, [], sequence=sequence):
            answers.append(answer.partition(":")[2])  # noqa: PERF401  those before an error count
    except RequestError as error:
        return answers, error
    return answers, None


def counted(fleet: Fleet) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in fleet.counted(fleet.metrics.attempts).items() if value}


@in_virtual_time
async def test_all_answers_come_as_they_are_given() -> None:
    async with a_fleet(2) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(3)])
        assert await all_answers(made, engines) == (["1:0", "1:1", "1:2"], None)
        assert (len(engines.asked), engines.closed) == (1, 1)
        assert counted(fleet) == {("first", "good"): 1}


@in_virtual_time
async def test_no_answer_at_all_is_an_end_as_well() -> None:
    async with a_fleet(1) as fleet:
        made, _ = streams(fleet)
        assert await all_answers(made, Engines([Gives(0)])) == ([], None)
        assert counted(fleet) == {("first", "good"): 1}


@pytest.mark.parametrize(
    "error", [LOST, VersionUnready("stops"), ModelNotFound("stops"), BackendDead("dead")], ids=repr
)
def test_before_the_first_answer_another_engine_is_tried(error: RequestError) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_fleet(2) as fleet:
            made, _ = streams(fleet)
            engines = Engines([Gives(0, error), Gives(2)])
            assert await all_answers(made, engines) == (["1:0", "1:1"], None)
            assert len(set(engines.asked)) == 2
            assert engines.closed == 2

    test()


@in_virtual_time
async def test_after_the_first_answer_no_other_is() -> None:
    async with a_fleet(2) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(1, LOST), Gives(2)])
        assert await all_answers(made, engines) == (["1:0"], LOST)
        assert engines.closed == 1
        assert counted(fleet) == {("first", "good"): 1, ("first", "failed"): 1}


@pytest.mark.parametrize("error", [InvalidInput("bad"), EngineFailed("raised")], ids=repr)
def test_what_every_engine_would_say_is_not_asked_again(error: RequestError) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_fleet(2) as fleet:
            made, _ = streams(fleet)
            engines = Engines([Gives(0, error), Gives(2)])
            assert await all_answers(made, engines) == ([], error)
            assert len(engines.asked) == 1

    test()


@in_virtual_time
async def test_a_sequence_is_tried_once() -> None:
    async with a_fleet(2) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(0, LOST), Gives(2)])
        assert await all_answers(made, engines, sequence="s") == ([], LOST)


@in_virtual_time
async def test_attempts_have_an_end_and_so_has_a_fleet_without_engines() -> None:
    async with a_fleet(2, attempts=AttemptSettings(most=3)) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(0, LOST)] * 5)
        assert await all_answers(made, engines) == ([], LOST)
        assert len(engines.asked) == 3
    async with a_fleet(0) as fleet:
        made, _ = streams(fleet)
        _, error = await all_answers(made, Engines([]))
        assert isinstance(error, EngineUnavailable)


@in_virtual_time
async def test_a_candidate_that_fails_is_followed_by_the_stable_version() -> None:
    async with a_fleet(1) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(0, EngineFailed("raised")), Gives(1)])
        assert await all_answers(made, engines, TRIED_OUT) == (["1:0"], None)
        assert engines.asked == ["e1:2", "e1:1"]
        assert counted(fleet) == {("first", "failed"): 1, (Reason.FALLBACK.value, "good"): 1}


@in_virtual_time
async def test_an_engine_that_is_silent_is_given_up() -> None:
    async with a_fleet(1) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(5, every_s=59), Gives(1, every_s=61)])
        answers, error = await all_answers(made, engines)
        assert (len(answers), error) == (5, None)
        answers, error = await all_answers(made, engines)
        assert isinstance(error, DeadlineExceeded)
        assert error.message == "no answer for 60 s (stream.silent_s)"
        assert engines.closed == 2


@in_virtual_time
async def test_the_deadline_is_that_of_all_answers() -> None:
    async with a_fleet(1) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(100)])
        answers, error = await all_answers(made, engines, timeout=10.5)
        assert len(answers) == 10
        assert isinstance(error, DeadlineExceeded)
        assert error.message == "no answer within the deadline of 10.5 s"


@in_virtual_time
async def test_who_stops_listening_ends_the_call() -> None:
    async with a_fleet(1) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(100), Gives(100, every_s=50)])
        answers = made.answers(ROUTE, engines.call, Deadline.after(3600), [])
        assert await anext(answers) == "e1:1:0"
        assert fleet.in_flight() == 1
        await answers.aclose()
        assert (engines.closed, fleet.in_flight()) == (1, 0)

        waiting = asyncio.create_task(all_answers(made, engines))
        await asyncio.sleep(1)
        assert fleet.in_flight() == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (engines.closed, fleet.in_flight()) == (2, 0)


@in_virtual_time
async def test_a_version_that_left_has_its_time_and_one_that_comes_back_has_all() -> None:
    async with a_fleet(1) as fleet:
        made, routes = streams(fleet)
        on_two = replace(TRIED_OUT, fallback="")
        began = asyncio.get_running_loop().time()
        engines = Engines([Gives(10_000), Gives(10_000), Gives(10_000)])
        stays = asyncio.create_task(all_answers(made, engines))
        leaves = asyncio.create_task(all_answers(made, engines, on_two))
        await asyncio.sleep(10)
        routes.apply(ALL_TO_STABLE)
        answers, error = await leaves
        assert asyncio.get_running_loop().time() - began == pytest.approx(310, abs=1)
        assert len(answers) in (309, 310)
        assert isinstance(error, EngineUnavailable)
        assert error.message == (
            "version 2 of model 'm' gets no more requests, and its answers have gone on for 300 s "
            "since then (stream.max_after_roll_s); ask again"
        )
        comes_back = asyncio.create_task(all_answers(made, engines, on_two))
        await asyncio.sleep(1)
        routes.apply(replace(ALL_TO_STABLE, revision=9))
        await asyncio.sleep(100)
        routes.apply(replace(TABLE, revision=10))
        await asyncio.sleep(1000)
        assert not comes_back.done()
        assert not stays.done()
        made.end_all()
        for task in (stays, comes_back):
            _, error = await task
            assert isinstance(error, EngineUnavailable)
            assert error.message == "the gateway is leaving; ask again and another one answers"


@in_virtual_time
async def test_a_stream_weighs_on_its_engine_but_is_not_taken_for_slow() -> None:
    async with a_fleet(2) as fleet:
        made, _ = streams(fleet)
        engines = Engines([Gives(math.ceil(1e6), every_s=1.0)])
        answers = made.answers(ROUTE, engines.call, Deadline.after(1e7), [])
        busy = (await anext(answers)).partition(":")[0]
        for _ in range(200):
            await anext(answers)
        assert fleet.described(busy)["inFlight"] == 1
        assert fleet.version(busy, STABLE)["latencyMs"] == pytest.approx(1000, rel=0.1)
        assert fleet.version(busy, STABLE)["ejected"] is None
        await answers.aclose()
