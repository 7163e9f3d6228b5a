"""Endpoints that come and go, what each serves, and who is out until a probe is answered."""

import asyncio
import logging
from itertools import pairwise

import pytest

from tidegate_gateway.balancing import Cause, Rules
from tidegate_gateway.endpoints import Connection
from tidegate_gateway.errors import (
    BackendDead,
    EngineFailed,
    EngineUnavailable,
    ModelNotFound,
    VersionUnready,
)
from tidegate_gateway.loaders import Said
from tidegate_gateway.routing import Route
from tidegate_gateway.settings import HealthSettings
from tidegate_process.asking import NoAnswer

from .scripted import (
    CANDIDATE,
    HANGS,
    MODEL,
    ROUTE,
    STABLE,
    Does,
    Engine,
    Fleet,
    a_fleet,
    endpoint,
    fails,
    in_virtual_time,
)

# Ejections of 5 s, 10 s and so on.
EJECTED = Rules(ejection_s=5)

# What loaders say of a version.
FILES = "sha256:" + "1" * 64
PROVEN = Said(is_proven=True, digest=FILES)
UNPROVEN = Said(is_proven=False, digest=FILES)

# Within a turn of what looks for probes that are due (every 0.25 s).
TURN_S = 0.3


def connections(fleet: Fleet) -> dict[str, int]:
    """How often each engine was connected to."""
    return {name: len(links) for name, links in fleet.links.items()}


def now() -> float:
    return asyncio.get_running_loop().time()


async def answering(fleet: Fleet, requests: int = 60) -> set[str]:
    """The engines that answer one of so many requests."""
    return {(await fleet.run(ROUTE)).partition(":")[0] for _ in range(requests)}


def messages(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What was logged of one endpoint."""
    return [r.getMessage() for r in caplog.records if r.__dict__.get("endpoint") == name]


# Who comes and goes


@in_virtual_time
async def test_an_endpoint_is_connected_to_once_however_often_it_is_told() -> None:
    async with a_fleet(2) as fleet:
        await fleet.announce(endpoint(1), endpoint(2))
        await fleet.announce(endpoint(2), endpoint(1), endpoint(3))
        await fleet.announce(endpoint(1, zone="a"), endpoint(2, ready=False), endpoint(3))

        assert connections(fleet) == {"e1": 1, "e2": 1, "e3": 1}


@in_virtual_time
async def test_a_new_endpoint_gets_requests_and_one_that_is_gone_none() -> None:
    async with a_fleet(1) as fleet:
        assert await answering(fleet) == {"e1"}

        await fleet.announce(endpoint(1), endpoint(2))
        assert await answering(fleet) == {"e1", "e2"}

        await fleet.announce(endpoint(2))
        assert await answering(fleet) == {"e2"}
        assert fleet.links["e1"][0].closed == 1


@in_virtual_time
async def test_a_connection_is_closed_when_the_requests_on_it_have_ended() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [Does(5.0), Does(8.0)]
        requests = [asyncio.create_task(fleet.run(ROUTE, timeout=30)) for _ in range(2)]
        await asyncio.sleep(0.1)

        await fleet.announce()

        (link,) = fleet.links["e1"]
        await asyncio.sleep(7.0)
        assert link.closed == 0
        assert await asyncio.gather(*requests) == ["e1:1", "e1:1"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.closed == 1


@in_virtual_time
async def test_requests_that_last_too_long_are_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with a_fleet(1, close_after_s=10) as fleet:
        fleet.plan = [Does(20.0)]
        request = asyncio.create_task(fleet.run(ROUTE, timeout=30))
        await asyncio.sleep(0.1)
        await fleet.announce()

        (link,) = fleet.links["e1"]
        await asyncio.sleep(9.0)
        assert link.closed == 0
        await asyncio.sleep(1.0)
        assert link.closed == 1
        assert messages(caplog, "e1") == ["requests cut off"]
        # This engine answers over a closed connection.
        assert await request == "e1:1"


@in_virtual_time
async def test_an_endpoint_that_comes_back_while_it_is_let_go_is_a_new_one() -> None:
    async with a_fleet(1) as fleet:
        fleet.plan = [Does(5.0)]
        request = asyncio.create_task(fleet.run(ROUTE, timeout=30))
        await asyncio.sleep(0.1)
        await fleet.announce()
        await fleet.announce(endpoint(1))

        assert await fleet.run(ROUTE) == "e1:1"

        assert await request == "e1:1"
        await asyncio.sleep(1.0)
        assert [link.closed for link in fleet.links["e1"]] == [1, 0]


@pytest.mark.parametrize("how", [{"terminating": True}, {"ready": False}], ids=str)
@in_virtual_time
async def test_an_endpoint_that_leaves_gets_nothing_new(how: dict[str, bool]) -> None:
    async with a_fleet(3) as fleet:
        await fleet.announce(endpoint(1), endpoint(2, **how), endpoint(3))

        assert await answering(fleet) == {"e1", "e3"}
        assert fleet.described("e2")["leaving"]
        assert fleet.links["e2"][0].closed == 0


@in_virtual_time
async def test_a_sequence_stays_with_an_endpoint_that_leaves() -> None:
    async with a_fleet(3) as fleet:
        home = (await fleet.run(ROUTE, sequence="7")).partition(":")[0]
        others = [endpoint(n) for n in (1, 2, 3) if f"e{n}" != home]
        await fleet.announce(*others, endpoint(int(home[1:]), terminating=True))

        assert await fleet.run(ROUTE, sequence="7") == f"{home}:1"


@in_virtual_time
async def test_where_none_is_ready_all_are_tried() -> None:
    async with a_fleet(2) as fleet:
        await fleet.announce(endpoint(1, ready=False), endpoint(2, ready=False))

        assert await answering(fleet) == {"e1", "e2"}


@in_virtual_time
async def test_of_many_endpoints_each_gateway_has_its_own() -> None:
    async with a_fleet(20, most=3) as fleet:
        mine = set(connections(fleet))
        assert len(mine) == 3
        assert await answering(fleet) == mine

        # They leave all at once: others take their place, and they stay until they are gone.
        after = [endpoint(n, terminating=f"e{n}" in mine) for n in range(1, 21)]
        await fleet.announce(*after)
        assert len(set(connections(fleet)) - mine) == 3
        assert await answering(fleet) == set(connections(fleet)) - mine
        assert {link.closed for name in mine for link in fleet.links[name]} == {0}

        await fleet.announce(*(each for each in after if not each.terminating))
        assert {link.closed for name in mine for link in fleet.links[name]} == {1}


@in_virtual_time
async def test_who_follows_no_more_probes_nobody() -> None:
    async with a_fleet(2) as fleet:
        await answering(fleet)
        probed = [len(engine.probed) for engine in fleet.engines.values()]

        fleet.follow.cancel()
        await asyncio.sleep(20.0)

        assert [len(engine.probed) for engine in fleet.engines.values()] == probed


@in_virtual_time
async def test_the_end_closes_all_and_refuses_what_still_comes() -> None:
    async with a_fleet(2) as fleet:
        fleet.plan = [Does(5.0)]
        request = asyncio.create_task(fleet.run(ROUTE, timeout=30))
        await asyncio.sleep(0.1)
        await fleet.announce(endpoint(2))

        await fleet.endpoints.close()

        assert {link.closed for links in fleet.links.values() for link in links} == {1}
        with pytest.raises(EngineUnavailable):
            await fleet.run(ROUTE)
        assert fleet.endpoints.document() == []
        await request


# The connection


@in_virtual_time
async def test_an_endpoint_without_a_connection_gets_no_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fleet(2) as fleet:
        for connection in (Connection.COMING, Connection.DOWN, Connection.COMING, Connection.DOWN):
            fleet.become(connection, "e1")
            await asyncio.sleep(0.1)
            assert await answering(fleet) == {"e2"}
        # To try once more is no news.
        assert messages(caplog, "e1") == ["endpoint away"]
        assert fleet.endpoints.count(Connection.DOWN) == 1

        fleet.become(Connection.UP, "e1")
        await asyncio.sleep(0.1)
        assert await answering(fleet, requests=200) == {"e1", "e2"}
        assert fleet.endpoints.count(Connection.UP) == 2


@in_virtual_time
async def test_what_an_engine_served_before_is_asked_anew_when_it_is_back() -> None:
    async with a_fleet(2) as fleet:
        fleet.become(Connection.DOWN, "e1")
        await asyncio.sleep(0.1)
        fleet.engines["e1"].serves = {CANDIDATE}
        fleet.engines["e1"].says = Does(0.5)

        fleet.become(Connection.UP, "e1")

        await asyncio.sleep(0.3)
        assert fleet.version("e1", STABLE)["serves"] is None
        assert await answering(fleet) == {"e2"}
        await asyncio.sleep(0.3)
        assert fleet.version("e1", STABLE)["serves"] is False
        assert fleet.version("e1", CANDIDATE)["serves"] is True


# Which versions are served


@in_virtual_time
async def test_engines_are_asked_for_the_versions_of_the_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with a_fleet(0) as fleet:
        fleet.engines["e1"] = Engine("e1", serves={STABLE})

        await fleet.announce(endpoint(1))

        assert {key for _, key in fleet.engines["e1"].asked} == {STABLE, CANDIDATE}
        assert fleet.endpoints.serves(*STABLE)
        assert not fleet.endpoints.serves(*CANDIDATE)
        assert sorted(messages(caplog, "e1")) == [
            "endpoint connected",
            "endpoint found",
            "version not served",
            "version served",
        ]


@in_virtual_time
async def test_a_changed_table_is_asked_about_at_once() -> None:
    third = (MODEL, "3")
    async with a_fleet(2) as fleet:
        fleet.engines["e1"].serves.add(third)
        await asyncio.sleep(1.0)

        fleet.wanted = {STABLE, third}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(0.1)

        assert fleet.version("e1", third)["serves"] is True
        assert fleet.version("e2", third)["serves"] is False


@pytest.mark.parametrize("error", [ModelNotFound("no"), VersionUnready("no")], ids=repr)
@in_virtual_time
async def test_a_refusal_is_believed_and_then_asked_about(error: BaseException) -> None:
    async with a_fleet(2) as fleet:
        await asyncio.sleep(1.0)
        fleet.engines["e1"].does["1"] = fails(error)
        fleet.engines["e1"].serves = set()

        # It takes one request to find out, which is answered too.
        assert await answering(fleet, requests=30) == {"e2"}
        assert [call.engine for call in fleet.calls].count("e1") == 1
        asked = [at for at, key in fleet.engines["e1"].asked if key == STABLE]
        assert asked[-1] == pytest.approx(
            next(c.at for c in fleet.calls if c.engine == "e1") + 0.01
        )

        # It asks again after a while, and until then the next refusal is not far.
        fleet.engines["e1"].does.clear()
        fleet.engines["e1"].serves = {STABLE}
        await asyncio.sleep(6.1)
        assert await answering(fleet) == {"e1", "e2"}


@in_virtual_time
async def test_an_engine_that_refuses_all_the_time_is_not_asked_all_the_time() -> None:
    async with a_fleet(1) as fleet:
        fleet.engines["e1"].does["1"] = fails(ModelNotFound("no"), 0.001)
        began, before = now(), len(fleet.engines["e1"].asked)

        while now() < began + 2.0:
            with pytest.raises(EngineUnavailable):
                await fleet.run(ROUTE)

        rounds = (len(fleet.engines["e1"].asked) - before) / 2
        assert 2 <= rounds <= 2.0 / 0.2 + 1


@in_virtual_time
async def test_a_version_is_served_where_its_loader_has_proven_it() -> None:
    async with a_fleet(0, loaders=True) as fleet:
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        # Triton would call it ready: it is loaded, and not proven.
        fleet.reports["e2"] = {STABLE: PROVEN, CANDIDATE: UNPROVEN}
        await fleet.announce(endpoint(1), endpoint(2))

        assert fleet.version("e1", CANDIDATE)["serves"] is True
        assert fleet.version("e2", CANDIDATE)["serves"] is False
        assert fleet.version("e2", STABLE)["serves"] is True
        assert not any(engine.asked for engine in fleet.engines.values())


@in_virtual_time
async def test_behind_a_silent_loader_stable_is_asked_of_the_engine_and_no_candidate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fleet(1, loaders=True) as fleet:
        assert {key for _, key in fleet.engines["e1"].asked} == {STABLE}
        assert fleet.version("e1", STABLE)["serves"] is True
        assert fleet.version("e1", CANDIDATE)["serves"] is not True

        # What was known of a candidate stands while its loader is silent once more.
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(0.5)
        fleet.reports["e1"] = NoAnswer("no answer")
        fleet.endpoints.ask_anew()
        await asyncio.sleep(20.0)
        assert fleet.version("e1", CANDIDATE)["serves"] is True
        assert messages(caplog, "e1").count("loader silent") == 2


@in_virtual_time
async def test_a_loader_that_has_not_heard_of_a_version_says_nothing_of_it() -> None:
    async with a_fleet(0, loaders=True) as fleet:
        fleet.reports["e1"] = {STABLE: PROVEN}
        await fleet.announce(endpoint(1))
        assert fleet.version("e1", CANDIDATE)["serves"] is not True

        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(0.5)
        assert fleet.version("e1", CANDIDATE)["serves"] is True


@in_virtual_time
async def test_a_proof_of_other_files_than_the_tables_is_none() -> None:
    async with a_fleet(0, loaders=True) as fleet:
        fleet.digests = {STABLE: FILES, CANDIDATE: "sha256:" + "2" * 64}
        # Its table is an older one, in which the candidate was another upload of the version.
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        await fleet.announce(endpoint(1))

        assert fleet.version("e1", STABLE)["serves"] is True
        assert fleet.version("e1", CANDIDATE)["serves"] is False


@in_virtual_time
async def test_a_proof_that_is_awaited_is_known_within_a_second_or_so() -> None:
    async with a_fleet(0, loaders=True, health=HealthSettings(refresh_s=60)) as fleet:
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: UNPROVEN}
        await fleet.announce(endpoint(1))
        await asyncio.sleep(30.0)
        began = fleet.questions["e1"]
        await asyncio.sleep(10.0)
        assert 6 <= fleet.questions["e1"] - began <= 11

        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        await asyncio.sleep(1.5)
        assert fleet.version("e1", CANDIDATE)["serves"] is True

        # And then there is no hurry.
        began = fleet.questions["e1"]
        await asyncio.sleep(40.0)
        assert fleet.questions["e1"] == began


@in_virtual_time
async def test_a_loader_is_asked_once_for_all_versions() -> None:
    async with a_fleet(0, loaders=True) as fleet:
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        await fleet.announce(endpoint(1))

        assert fleet.questions["e1"] == 1


@in_virtual_time
async def test_a_table_that_changes_while_a_loader_is_asked_is_asked_about_anew() -> None:
    async with a_fleet(0, loaders=True, wanted=[STABLE]) as fleet:
        fleet.report_takes_s = 2.0
        fleet.reports["e1"] = {STABLE: PROVEN, CANDIDATE: PROVEN}
        await fleet.announce(endpoint(1))

        fleet.wanted = {STABLE, CANDIDATE}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(2.0)
        assert fleet.version("e1", STABLE)["serves"] is True
        assert fleet.version("e1", CANDIDATE)["serves"] is None

        await asyncio.sleep(2.3)
        assert fleet.version("e1", CANDIDATE)["serves"] is True


@in_virtual_time
async def test_engines_are_asked_again_every_few_seconds_out_of_step() -> None:
    async with a_fleet(2, health=HealthSettings(refresh_s=5)) as fleet:
        await asyncio.sleep(60.0)

        times = [[at for at, key in e.asked if key == STABLE] for e in fleet.engines.values()]
        for asked in times:
            pauses = [after - before for before, after in pairwise(asked)]
            assert all(4.0 <= pause <= 6.3 for pause in pauses)
            assert len(set(pauses)) > 1
        assert not set(times[0][1:]) & set(times[1][1:])


@in_virtual_time
async def test_versions_in_use_are_asked_about_without_a_table() -> None:
    async with a_fleet(2, wanted=[]) as fleet:
        assert fleet.engines["e1"].asked == []
        await fleet.run(ROUTE)
        await asyncio.sleep(0.3)

        for engine in fleet.engines.values():
            assert {key for _, key in engine.asked} == {STABLE}
        assert fleet.endpoints.serves(*STABLE)

        # A minute later, nobody needs to know.
        await asyncio.sleep(60.0)
        known = len(fleet.engines["e1"].asked)
        await asyncio.sleep(20.0)
        assert len(fleet.engines["e1"].asked) == known


@pytest.mark.parametrize("says", [HANGS, fails(EngineFailed("no"))], ids=["hangs", "fails"])
@in_virtual_time
async def test_who_does_not_say_what_it_serves_is_not_thereby_unwell(says: Does) -> None:
    async with a_fleet(2) as fleet:
        fleet.engines["e1"].says = says
        await asyncio.sleep(30.0)

        # No request has waited, and what it said before holds.
        assert await answering(fleet) == {"e1", "e2"}
        assert {r for _, r in {(c.engine, c.version) for c in fleet.calls}} == {"1"}
        assert fleet.version("e1", STABLE)["serves"] is True
        assert fleet.counted(fleet.metrics.ejections) == {}


# Ejection and return


@in_virtual_time
async def test_who_is_ejected_is_out_until_a_probe_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with a_fleet(2, rules=EJECTED) as fleet:
        caplog.clear()
        fleet.plan = [fails(BackendDead("dead"))]
        await fleet.run(ROUTE)
        dead, began = fleet.calls[0].engine, now()
        other = fleet.calls[1].engine
        engine = fleet.engines[dead]

        assert fleet.version(dead, STABLE)["ejected"] == "backend failed"
        assert fleet.version(dead, CANDIDATE)["ejected"] is None
        while now() < began + 4.5:
            assert await answering(fleet, requests=20) == {other}
        assert engine.probed == []

        await asyncio.sleep(began + 5.0 + TURN_S - now())
        ((at, key),) = engine.probed
        assert key == STABLE
        assert at == pytest.approx(began + 5.0, abs=TURN_S)
        assert fleet.version(dead, STABLE)["ejected"] is None
        assert await answering(fleet, requests=200) == {dead, other}
        assert [m for m in messages(caplog, dead) if m.startswith("endpoint")] == [
            "endpoint ejected",
            "endpoint readmitted",
        ]
        ejected = next(r for r in caplog.records if r.getMessage() == "endpoint ejected").__dict__
        assert (ejected["model"], ejected["model_version"]) == STABLE
        assert (ejected["cause"], ejected["seconds"]) == ("backend", 5.0)


@pytest.mark.parametrize("golden", [fails(BackendDead("dead")), HANGS], ids=["fails", "hangs"])
@in_virtual_time
async def test_a_probe_that_is_not_answered_makes_it_longer(golden: Does) -> None:
    async with a_fleet(2, rules=EJECTED, health=HealthSettings(probe_timeout_s=2)) as fleet:
        engine = fleet.engines["e1"]
        engine.golden = golden
        fleet.endpoints.eject(fleet.target("e1"), STABLE, Cause.BACKEND)
        began = now()

        # All the time something else is answered there, which lets a version in no more.
        while now() < began + 60.0:
            await fleet.run(Route(MODEL, "2", 7, pinned=True, fallback=""))
            await asyncio.sleep(0.5)

        took = 2.0 if golden is HANGS else 0.0
        due = [5.0, 15.0 + took, 35.0 + 2 * took]
        times = [at - began for at, key in engine.probed if key == STABLE]
        assert times == [pytest.approx(at, abs=3 * TURN_S) for at in due]
        assert await answering(fleet) == {"e2"}


@in_virtual_time
async def test_without_a_table_a_model_that_moved_while_nobody_used_it_is_found() -> None:
    async with a_fleet(2, wanted=()) as fleet:
        fleet.engines["e2"].serves.discard(STABLE)
        await answering(fleet)
        assert await answering(fleet) == {"e1"}
        fleet.engines["e1"].serves.discard(STABLE)
        fleet.engines["e2"].serves.add(STABLE)
        fleet.engines["e1"].does["1"] = fails(ModelNotFound("no engine has it"))
        await asyncio.sleep(120)

        unrouted = Route(MODEL, "1", 0, pinned=False, fallback="")
        assert await fleet.run(unrouted) == "e2:1"


@in_virtual_time
async def test_a_version_that_is_unloaded_is_not_probed_for_ever() -> None:
    async with a_fleet(2, rules=EJECTED) as fleet:
        engine = fleet.engines["e1"]
        fleet.endpoints.eject(fleet.target("e1"), STABLE, Cause.BACKEND)
        engine.golden = fails(ModelNotFound("no"))
        engine.serves.discard(STABLE)
        await asyncio.sleep(60.0)
        assert len(engine.probed) <= 1
        # Nor is it asked more often than all others.
        assert len(engine.asked) <= len(fleet.engines["e2"].asked) + 2

        engine.golden = Does(0.001)
        engine.serves.add(STABLE)
        await asyncio.sleep(7.0)
        assert fleet.version("e1", STABLE)["ejected"] is None
        assert await answering(fleet, requests=200) == {"e1", "e2"}


@in_virtual_time
async def test_a_new_process_is_probed_at_once() -> None:
    async with a_fleet(2, rules=EJECTED) as fleet:
        fleet.endpoints.eject(fleet.target("e1"), STABLE, Cause.BACKEND)
        fleet.become(Connection.DOWN, "e1")
        await asyncio.sleep(0.1)
        assert fleet.engines["e1"].probed == []

        fleet.become(Connection.UP, "e1")
        await asyncio.sleep(TURN_S)

        assert len(fleet.engines["e1"].probed) == 1
        assert fleet.version("e1", STABLE)["ejected"] is None


@in_virtual_time
async def test_a_probe_ends_with_its_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    async with a_fleet(2, rules=EJECTED) as fleet:
        fleet.engines["e1"].golden = HANGS
        fleet.endpoints.eject(fleet.target("e1"), STABLE, Cause.BACKEND)
        await asyncio.sleep(6.0)
        assert len(fleet.engines["e1"].probed) == 1
        caplog.clear()

        await fleet.announce(endpoint(2))
        await asyncio.sleep(10.0)

        assert messages(caplog, "e1") == []
        assert fleet.counted(fleet.metrics.ejections) == {("backend",): 1}


# Probes of those that are quiet


@in_virtual_time
async def test_what_nobody_uses_is_not_probed() -> None:
    async with a_fleet(2) as fleet:
        await asyncio.sleep(60.0)

        assert [engine.probed for engine in fleet.engines.values()] == [[], []]


@in_virtual_time
async def test_whoever_answers_requests_is_not_probed() -> None:
    async with a_fleet(2, health=HealthSettings(probe_interval_s=5)) as fleet:
        await answering(fleet)
        began = now()
        before = [len(engine.probed) for engine in fleet.engines.values()]
        while now() < began + 20.0:
            assert await answering(fleet, requests=20) == {"e1", "e2"}
            await asyncio.sleep(1.0)

        assert [len(engine.probed) for engine in fleet.engines.values()] == before


@in_virtual_time
async def test_a_version_in_use_is_probed_where_it_has_not_answered_lately() -> None:
    async with a_fleet(2, health=HealthSettings(probe_interval_s=5)) as fleet:
        await answering(fleet)
        last = fleet.calls[-1].at

        await asyncio.sleep(120.0)

        for engine in fleet.engines.values():
            times = [at - last for at, _ in engine.probed]
            assert {key for _, key in engine.probed} == {STABLE}
            # About every 5 s for a minute after the last request.
            assert times[0] == pytest.approx(5.0, abs=1.0)
            assert 10 <= len(times) <= 12
            assert times[-1] <= 60.5


@in_virtual_time
async def test_a_quiet_engine_with_a_dead_backend_is_found_and_left_out() -> None:
    async with a_fleet(3, health=HealthSettings(probe_interval_s=5)) as fleet:
        await answering(fleet)
        fleet.engines["e1"].golden = fails(BackendDead("dead"))
        await asyncio.sleep(6.0)

        assert fleet.version("e1", STABLE)["serves"] is True
        assert fleet.version("e1", STABLE)["ejected"] == "probe failed"
        assert fleet.counted(fleet.metrics.ejections) == {("probe",): 1}
        assert await answering(fleet) == {"e2", "e3"}


@in_virtual_time
async def test_a_probe_out_of_time_counts_where_nothing_else_is_answered() -> None:
    health = HealthSettings(probe_interval_s=5, probe_timeout_s=2)
    async with a_fleet(3, health=health, rules=Rules(ejection_s=99)) as fleet:
        await answering(fleet)
        for name in ("e1", "e2"):
            fleet.engines[name].golden = HANGS
        fleet.engines["e1"].does["2"] = Does(0.01)
        pin = Route(MODEL, "2", 7, pinned=True, fallback="")
        # e1 alone serves version 2, and goes on to answer there.
        for name in ("e2", "e3"):
            fleet.engines[name].serves.discard(CANDIDATE)
        await asyncio.sleep(6.2)
        began = now()
        while now() < began + 10.0:
            assert await fleet.run(pin) == "e1:2"
            await asyncio.sleep(0.3)

        assert fleet.version("e1", STABLE)["ejected"] is None
        assert fleet.version("e2", STABLE)["ejected"] == "probe failed"
        assert fleet.version("e3", STABLE)["ejected"] is None


@in_virtual_time
async def test_a_version_that_has_left_the_table_is_not_probed() -> None:
    """It is only unloaded once its engine has seen no request for it for a while."""
    candidate = Route(MODEL, "2", 7, pinned=False, fallback="1")
    async with a_fleet(1) as fleet:
        engine = fleet.engines["e1"]
        engine.golden = fails(BackendDead("dead"))
        await fleet.run(candidate)
        fleet.endpoints.eject(fleet.target("e1"), CANDIDATE, Cause.BACKEND)

        fleet.wanted = {STABLE}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(30.0)
        assert [key for _, key in engine.probed if key == CANDIDATE] == []

        # It may come back before it is forgotten, and is looked at then.
        fleet.wanted = {STABLE, CANDIDATE}
        fleet.endpoints.ask_anew()
        await asyncio.sleep(TURN_S)
        assert [key for _, key in engine.probed if key == CANDIDATE] == [CANDIDATE]


@in_virtual_time
async def test_who_is_late_is_probed_at_once_and_out_if_it_does_not_answer() -> None:
    async with a_fleet(3, health=HealthSettings(probe_timeout_s=1, probe_interval_s=3600)) as fleet:
        await fleet.warm_up()
        for name in ("e1", "e2"):
            fleet.engines[name].does["1"] = fleet.engines[name].golden = HANGS
        tried: list[str] = []
        while not {"e1", "e2"} <= set(tried):
            await fleet.run(ROUTE, tried=tried)

        await asyncio.sleep(1.1)

        # More than half of them, which failures alone must not take out.
        assert fleet.counted(fleet.metrics.ejections) == {("probe",): 2}
        assert await answering(fleet) == {"e3"}
        assert fleet.engines["e3"].probed == []


@in_virtual_time
async def test_one_probe_at_a_time_however_long_it_takes() -> None:
    health = HealthSettings(probe_interval_s=1, probe_timeout_s=10)
    async with a_fleet(1, health=health) as fleet:
        await answering(fleet)
        fleet.engines["e1"].golden = HANGS
        await asyncio.sleep(8.0)

        assert len([at for at, _ in fleet.engines["e1"].probed if at > fleet.calls[-1].at]) == 1


@in_virtual_time
async def test_a_probe_that_is_refused_tells_what_is_not_served() -> None:
    async with a_fleet(2, health=HealthSettings(probe_interval_s=5, refresh_s=99)) as fleet:
        await answering(fleet)
        fleet.engines["e1"].golden = fails(VersionUnready("no"))
        fleet.engines["e1"].serves.clear()
        await asyncio.sleep(6.0)

        assert fleet.version("e1", STABLE)["serves"] is False
        assert fleet.version("e1", STABLE)["ejected"] is None


# What is told of them


@in_virtual_time
async def test_the_document_tells_each_endpoint_as_it_is() -> None:
    async with a_fleet(0) as fleet:
        fleet.engines["e1"] = Engine("e1", serves={STABLE})
        await fleet.announce(endpoint(1, zone="a"), endpoint(2, terminating=True), endpoint(3))
        fleet.become(Connection.DOWN, "e3")
        fleet.plan = [Does(1.0)]
        request = asyncio.create_task(fleet.run(Route(MODEL, "1", 7, pinned=True, fallback="")))
        await asyncio.sleep(0.1)
        fleet.endpoints.eject(fleet.target("e1"), STABLE, Cause.BACKEND)

        document = fleet.endpoints.document()

        assert [each["address"] for each in document] == ["10.0.0.1:8001", "10.0.0.3:8001"]
        first, third = document
        latency = first["versions"][0].pop("latencyMs")
        assert latency == pytest.approx(100.0)
        first["versions"][1].pop("latencyMs")
        assert first == {
            "address": "10.0.0.1:8001",
            "name": "e1",
            "zone": "a",
            "connection": "up",
            "leaving": False,
            "inFlight": 1,
            "versions": [
                {"model": "m", "version": "1", "serves": True, "ejected": "backend failed"},
                {"model": "m", "version": "2", "serves": False, "ejected": None},
            ],
        }
        assert (third["connection"], third["inFlight"]) == ("down", 0)
        await request
