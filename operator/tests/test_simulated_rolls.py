"""Whatever happens in whatever order: no request fails, and all ends as the spec says.

The random machine below drives the cluster of `simulation`; its invariants are in there. How many
histories: SIMULATION_HISTORIES.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tidegate_operator.sightings import known_revision
from tidegate_table.document import Phase as Roll

from .simulation.api_server import LONG_S
from .simulation.engines import Engine
from .simulation.gateways import Gateway
from .simulation.repository import BAD, GOOD, MODEL
from .simulation.world import World

HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "200"))

GOOD_VERSION = 5
"""What histories that begin in mid-roll roll to; versions 2 to 4 may be bad."""

WHICH = st.integers(0, 7)
SECONDS = st.sampled_from([0.5, 5, LONG_S])


class Cluster(RuleBasedStateMachine):
    """Everything that may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(
        engines=st.integers(1, 3),
        gateways=st.integers(1, 3),
        kinds=st.lists(st.sampled_from([GOOD, GOOD, *BAD]), min_size=3, max_size=3),
        seed=st.integers(0, 3),
        begins=st.sampled_from([None, "served", "served", *Roll]),
    )
    def begin(
        self, engines: int, gateways: int, kinds: list[str], seed: int, begins: Roll | str | None
    ) -> None:
        """An empty cluster, one that serves version 1, or one in the middle of a roll."""
        self.world = world = World(engines, gateways, seed)
        world.kinds = {str(2 + index): kind for index, kind in enumerate(kinds) if kind != GOOD}
        world.apply_rollout(1)
        if begins is None:
            return
        world.until(lambda: world.table is not None and MODEL in world.table.models)
        if isinstance(begins, Roll):
            world.apply_rollout(GOOD_VERSION)
            if begins is Roll.ROLLING_BACK:
                world.until(lambda: world.phase is Roll.STEPPING)
                world.apply_rollout(1)
            world.until(lambda: world.phase is begins)

    def gateway(self, which: int) -> Gateway | None:
        found = [*self.world.gateways.values()]
        return found[which % len(found)] if found else None

    def engine(self, which: int) -> Engine | None:
        found = [*self.world.engines.values()]
        return found[which % len(found)] if found else None

    # As it usually goes, so that histories come far

    @rule(rounds=st.integers(1, 8), seconds=SECONDS)
    def go_on(self, rounds: int, seconds: float) -> None:
        for _ in range(rounds):
            for gateway in self.world.gateways.values():
                gateway.send()
            self.world.go_on(seconds)
            for request in self.world.requests[3:]:
                self.world.finish(request)

    @rule()
    def breathe(self) -> None:
        self.world.breathe()

    @rule(seconds=SECONDS)
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    # Clients

    @rule(which=WHICH, pin=st.sampled_from(["", "", "1", "2", "3"]))
    def send(self, which: int, pin: str) -> None:
        if (gateway := self.gateway(which)) is not None:
            gateway.send(pin, key=str(which))

    @rule(which=WHICH)
    def land(self, which: int) -> None:
        if self.world.requests:
            self.world.land(self.world.requests[which % len(self.world.requests)])

    @rule(which=WHICH)
    def fall_back(self, which: int) -> None:
        if self.world.requests:
            self.world.fall_back(self.world.requests[which % len(self.world.requests)])

    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        if self.world.requests:
            self.world.finish(self.world.requests[which % len(self.world.requests)])

    # The operator

    @rule(which=st.sampled_from([0, 0, 0, 1]), parts=st.integers(1, 5))
    def operator_goes_on(self, which: int, parts: int) -> None:
        for _ in range(parts):
            self.world.operators[which].step()

    @rule(which=st.integers(0, 1))
    def operator_crashes(self, which: int) -> None:
        self.world.operators[which].crash()

    @rule(seconds=st.sampled_from([-1000, -10, 10, 1000]))
    def clock_jumps(self, seconds: float) -> None:
        self.world.jump(seconds)

    # Messages

    @rule(which=WHICH, index=st.integers(0, 3))
    def deliver(self, which: int, index: int) -> None:
        followers = self.world.followers
        if followers:
            followers[which % len(followers)].deliver(index)

    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        followers = self.world.followers
        if followers:
            followers[which % len(followers)].coming.clear()

    @rule(which=WHICH)
    def relist(self, which: int) -> None:
        followers = self.world.followers
        if followers:
            followers[which % len(followers)].relist()

    @rule(which=WHICH, reaches=st.booleans())
    def api_server_away(self, which: int, reaches: bool) -> None:
        followers = self.world.followers
        if followers:
            followers[which % len(followers)].reaches_api = reaches

    @rule(which=WHICH, silent=st.booleans())
    def silence(self, which: int, silent: bool) -> None:
        followers = self.world.followers
        if followers:
            followers[which % len(followers)].is_silent = silent

    # Engines

    @rule(which=WHICH, what=st.sampled_from(["notice", "think", "act", "act", "prove", "probe"]))
    def engine_goes_on(self, which: int, what: str) -> None:
        if (engine := self.engine(which)) is not None:
            getattr(engine, what)()
            engine.record_proofs()

    @rule(which=WHICH)
    def loader_dies(self, which: int) -> None:
        if (engine := self.engine(which)) is not None:
            engine.kill_loader()

    @rule(which=WHICH)
    def loader_starts(self, which: int) -> None:
        if (engine := self.engine(which)) is not None:
            engine.start_loader()

    @rule(which=WHICH)
    def triton_dies(self, which: int) -> None:
        if (engine := self.engine(which)) is not None:
            self.world.kill_triton(engine)

    @rule(which=WHICH)
    def triton_starts(self, which: int) -> None:
        if (engine := self.engine(which)) is not None:
            engine.start_triton()

    @precondition(lambda self: len(self.world.engines) < 4)
    @rule()
    def engine_added(self) -> None:
        self.world.add_engine()

    @precondition(lambda self: len(self.world.engines) > 1)
    @rule(which=WHICH)
    def engine_removed(self, which: int) -> None:
        if (engine := self.engine(which)) is not None:
            self.world.remove_engine(engine.name)

    # Gateways

    @rule(which=WHICH)
    def gateway_looks(self, which: int) -> None:
        if (gateway := self.gateway(which)) is not None:
            gateway.look()
            gateway.probe()

    @rule(which=WHICH)
    def gateway_dies(self, which: int) -> None:
        if (gateway := self.gateway(which)) is not None:
            gateway.kill()

    @rule(which=WHICH)
    def gateway_starts(self, which: int) -> None:
        if (gateway := self.gateway(which)) is not None and not gateway.is_leaving:
            gateway.start()

    @precondition(lambda self: len(self.world.gateways) < 4)
    @rule()
    def gateway_added(self) -> None:
        self.world.add_gateway()

    @rule(which=WHICH)
    def gateway_leaves(self, which: int) -> None:
        if (gateway := self.gateway(which)) is not None:
            self.world.remove_gateway(gateway.name)

    # People

    @rule(version=st.integers(1, 5))
    def version_set(self, version: int) -> None:
        self.world.change(version=version)

    @rule(paused=st.booleans())
    def paused(self, paused: bool) -> None:
        self.world.change(paused=paused)

    @rule(
        on_failure=st.sampled_from(["RollBack", "RollBack", "Pause"]),
        on_delete=st.sampled_from(["Keep", "Unload"]),
    )
    def policies_set(self, on_failure: str, on_delete: str) -> None:
        self.world.change(onFailure=on_failure, onDelete=on_delete)

    # With the table and all statuses gone, while all who hold it are away, nobody knows any more.
    @precondition(lambda self: self.world.table is not None)
    @rule(name=st.sampled_from(["roll", "another"]))
    def deleted(self, name: str) -> None:
        self.world.delete_rollout(name)

    @rule(
        version=st.integers(1, 5),
        name=st.sampled_from(["roll", "roll", "another"]),
        on_delete=st.sampled_from(["Keep", "Unload"]),
    )
    def applied(self, version: int, name: str, on_delete: str) -> None:
        self.world.apply_rollout(version, name, onDelete=on_delete)

    @precondition(lambda self: bool(self.world.api.rollouts))
    @rule()
    def config_map_deleted(self) -> None:
        self.world.delete_config_map()

    @precondition(lambda self: bool(self.world.api.rollouts))
    @rule()
    def config_map_spoilt(self) -> None:
        self.world.spoil_config_map()

    @rule()
    def candidate_spoilt(self) -> None:
        self.world.spoil_candidate()

    @rule(index=WHICH)
    def config_map_put_back(self, index: int) -> None:
        self.world.put_back(index)

    def teardown(self) -> None:
        self.world.settle()


@pytest.fixture(autouse=True)
def _few_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


Cluster.TestCase.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    # A history is not made shorter: that takes many minutes, and the one that is told will do.
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[*HealthCheck],
)


TestCluster = Cluster.TestCase


def test_a_modelrollout_that_outlives_its_installation_is_served_by_the_next() -> None:
    world = World()
    world.apply_rollout(1)
    world.until(lambda: world.table is not None and MODEL in world.table.models)
    world.apply_rollout(2)
    world.until(lambda: world.phase is Roll.STEPPING)
    world.go_on()
    known = known_revision(world.api.rollouts.values())

    for name in [*world.gateways]:
        world.remove_gateway(name)
    for name in [*world.engines]:
        world.remove_engine(name)
    world.delete_config_map()
    world.go_on(LONG_S, rounds=5)
    assert world.api.content is None
    world.add_engine()
    world.add_gateway().start()
    world.settle()

    table = world.table
    assert table is not None
    assert table.models[MODEL].stable == "2"
    assert table.revision > known
