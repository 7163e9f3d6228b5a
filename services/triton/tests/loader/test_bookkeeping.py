"""The bookkeeping against a simulated Triton, repository and clock, through histories at random.

The simulated Triton behaves as the real one was seen to (see `tidegate_engine.loader.triton`, and
`test_loader_on_triton` for the real one). Here it crashes at every point, the loader restarts at
every point, answers are lost, and tables are missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate_engine.loader.bookkeeping import Bookkeeping, Rules, Verdict
from tidegate_engine.loader.memory import Memory
from tidegate_engine.loader.plan import (
    Action,
    Copy,
    Discard,
    Fetch,
    Listed,
    Listing,
    Load,
    LocalModel,
    Prove,
    State,
    Unload,
)
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

RULES = Rules(crashes=2, bad_proofs=2, proof_interval_s=3.0, retry_s=10.0)
CONFIG = "backend: 'python'\n"
# What each version does when it is loaded, or asked.
GOOD, MISSING, BROKEN, CRASHING, WRONG = "good", "missing", "broken", "crashing", "wrong"
MODELS = ("a", "b")
VERSIONS = ("1", "2", "3")


def listed(*ready: str, **states: State) -> Mapping[str, Listed]:
    return {version: Listed(State.READY) for version in ready} | {
        version.lstrip("v"): Listed(state) for version, state in states.items()
    }


def table(
    revision: int,
    *versions: str,
    stable: str = "1",
    weights: Mapping[str, float] | None = None,
    roll: Roll | None = None,
    digests: Mapping[str, str] | None = None,
    config: str = "",
) -> Table:
    """A table of one model `a`."""
    given = digests or {}
    loads = Loads(config, {each: given.get(each, "") for each in versions}, roll=roll)
    routes = {"a": ModelRoutes(stable, weights or {stable: 100})} if stable else {}
    return Table(revision, routes, loads={"a": loads})


@dataclass
class World:
    """A loader that does what its bookkeeping says, at once, and an engine."""

    behaviour: dict[tuple[str, str], str] = field(default_factory=dict)
    book: Bookkeeping = field(default_factory=lambda: Bookkeeping(RULES))
    memory: Memory = field(default_factory=Memory)
    local: dict[str, dict[str, Copy]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    ready: dict[str, set[str]] = field(default_factory=dict)
    boot: int = 0
    boots: int = 0
    now: float = 100.0
    crashes: int = 0
    loads: list[Load] = field(default_factory=list)

    def behaves(self, model: str, version: str) -> str:
        return self.behaviour.get((model, version), GOOD)

    def start(self) -> None:
        self.boots += 1
        self.boot = self.boots
        self.ready = {}
        self.book.started(self.boot)
        self.book.listed(self.listing(), self.now)

    def crash(self) -> None:
        self.boot, self.ready = 0, {}
        self.book.gone()

    def restart_loader(self) -> None:
        held = self.book.table
        self.book = Bookkeeping(RULES)
        found = {
            model: LocalModel(self.configs.get(model, ""), dict(copies))
            for model, copies in self.local.items()
        }
        self.book.restored(self.memory, found)
        if held is not None:
            self.book.applied(held)
        if self.boot:
            self.book.started(self.boot)
            self.book.listed(self.listing(), self.now)

    def listing(self) -> Listing:
        return {model: listed(*versions) for model, versions in self.ready.items()}

    def begin(self, model: str) -> Action | None:
        action = self.book.next_action(model, self.now)
        if action is not None:
            self.check(action)
            self.book.begun(action)
            self.memory = self.book.memory()
        return action

    def check(self, action: Action) -> None:
        """What must hold of everything that is ever done."""
        assert self.book.table is not None
        loads = self.book.table.loads.get(action.model)
        wanted = set(loads.versions) if loads is not None else set()
        ready = self.ready.get(action.model, set())
        if isinstance(action, Load):
            assert set(action.versions) >= ready & wanted, "a version that is wanted would leave"
            assert set(action.versions) <= wanted
            assert set(action.versions) - ready <= {action.added}, "two are added at once"
            for version in action.versions:
                assert version in self.local[action.model], "it would be loaded without its files"
        elif isinstance(action, Unload):
            assert not ready & wanted, "a version that is wanted would leave"
        elif isinstance(action, Discard):
            leaving = {action.version} if action.version else set(self.local.get(action.model, ()))
            assert not leaving & ready, "the files of what is loaded would go"

    def do(self, action: Action) -> None:
        if isinstance(action, Fetch):
            self.fetch(action)
        elif isinstance(action, Discard):
            if action.version:
                self.local.get(action.model, {}).pop(action.version, None)
            else:
                self.local.pop(action.model, None)
                self.configs.pop(action.model, None)
            self.book.discarded(action)
        elif isinstance(action, Load):
            self.load(action)
        else:
            self.ready.pop(action.model, None)
            self.book.unload_ended(action, self.boot, "", {}, self.now)
        self.memory = self.book.memory()

    def fetch(self, action: Fetch) -> None:
        if self.behaves(action.model, action.version) == MISSING:
            self.book.not_fetched(action, "it is not there", self.now)
            return
        copy = Copy(f"sha256:{action.version}", 1)
        self.local.setdefault(action.model, {})[action.version] = copy
        self.book.fetched(action, copy, CONFIG, self.now)

    def load(self, action: Load) -> None:
        self.loads.append(action)
        self.configs[action.model] = action.config
        ready = self.ready.setdefault(action.model, set())
        behaviour = self.behaves(action.model, action.added) if action.added else GOOD
        if behaviour == CRASHING:
            self.crashes += 1
            self.crash()
            self.memory = self.book.memory()
            self.start()
            return
        error = ""
        if behaviour == BROKEN:
            error = "it is broken"
        else:
            self.ready[action.model] = set(action.versions)
            ready = self.ready[action.model]
        self.book.load_ended(action, self.boot, error, listed(*ready), self.now)

    def answer(self, prove: Prove) -> None:
        wrong = self.behaves(prove.model, prove.version) == WRONG
        verdict = Verdict.BAD if wrong else Verdict.GOOD
        self.book.answered(prove, verdict, "it is wrong" if wrong else "", self.now)
        self.memory = self.book.memory()

    def settle(self, seconds: int = 100) -> None:
        """Do all that is to be done."""
        for _ in range(seconds):
            self.now += 1.0
            for model in self.book.models:
                action = self.begin(model)
                if action is not None:
                    self.do(action)
            for prove in self.book.due_proofs(self.now):
                self.book.asked(prove)
                self.answer(prove)

    def told(self, version: str, model: str = "a") -> dict[str, Any]:
        told: dict[str, Any] = self.book.report()["models"][model]["versions"][version]
        return told


# Sentences


@pytest.fixture
def world() -> World:
    made = World()
    made.book.restored(Memory(), {})
    made.start()
    return made


def test_stable_is_loaded_and_proven_before_the_candidate_is_touched(world: World) -> None:
    world.book.applied(table(1, "2", "1"))
    world.do(world.begin("a") or Discard("", ""))
    load = world.begin("a")
    assert load == Load("a", ("1",), "1", CONFIG)
    world.do(load)
    assert world.begin("a") is None
    assert world.book.unready() == "model 'a' version 1 is not proven yet"
    (prove,) = world.book.due_proofs(world.now)
    world.book.asked(prove)
    assert world.book.due_proofs(world.now) == []
    world.answer(prove)
    assert world.book.unready() == ""
    assert world.begin("a") == Fetch("a", "2", "")


def test_one_bad_proof_is_none_and_a_time_out_never_is(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    for verdict in (Verdict.NONE, Verdict.BAD, Verdict.NONE, Verdict.GOOD, Verdict.BAD):
        world.now += RULES.proof_interval_s
        (prove,) = world.book.due_proofs(world.now)
        world.book.answered(prove, verdict, "bad", world.now)
        assert world.told("1")["proven"]
    world.now += RULES.proof_interval_s
    world.book.answered(prove, Verdict.BAD, "bad", world.now)
    assert world.told("1") | {"proven": False, "failed": True, "error": "bad"} == world.told("1")
    assert world.book.unready()


def test_an_answer_from_before_a_restart_proves_nothing(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.now += RULES.proof_interval_s
    (old,) = world.book.due_proofs(world.now)
    world.book.asked(old)
    world.crash()
    world.start()
    load = world.begin("a")
    assert load is not None
    world.do(load)
    world.answer(old)
    assert not world.told("1")["proven"]


def test_a_load_that_is_not_answered_is_waited_for_and_blocks_nothing_else(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.book.applied(table(2, "1", "2"))
    world.do(world.begin("a") or Discard("", ""))
    load = world.begin("a")
    assert isinstance(load, Load)
    world.book.unanswered(load, world.boot)
    world.book.listed({"a": listed("1", v2=State.LOADING)}, world.now)
    assert world.begin("a") is None
    assert not world.told("2")["failed"]
    world.book.listed({"a": listed("1", "2")}, world.now)
    assert world.told("2")["loaded"]
    assert world.begin("a") is None


def test_a_version_that_a_later_roll_wants_again_is_tried_anew_though_its_drop_was_missed(
    world: World,
) -> None:
    world.behaviour["a", "2"] = BROKEN
    roll = Roll("1", "2", Phase.LOADING, 0, 2)
    world.book.applied(table(2, "1", "2", roll=roll))
    world.settle()
    assert world.told("2")["failed"]
    world.book.applied(table(3, "1", "2", roll=roll))
    world.settle()
    assert world.told("2")["failed"]
    world.behaviour["a", "2"] = GOOD
    world.book.applied(table(5, "1", "2", roll=Roll("1", "2", Phase.LOADING, 0, 5)))
    assert not world.told("2")["failed"]
    world.settle()
    assert world.told("2")["proven"]


def test_what_crashed_comes_after_all_that_has_not_and_a_stable_version_is_never_given_up(
    world: World,
) -> None:
    world.behaviour["a", "1"] = CRASHING
    loads = {each: Loads("", {"1": ""}) for each in MODELS}
    routes = {each: ModelRoutes("1", {"1": 100}) for each in MODELS}
    world.book.applied(Table(1, routes, loads=loads))
    for _ in range(6):
        world.settle()
    assert world.crashes > RULES.crashes
    assert not world.told("1", "a")["failed"]
    order = "".join(load.model for load in world.loads)
    assert order.removesuffix("b") == "a" + "ba" * (order.count("a") - 1)


def test_a_text_that_the_table_changes_is_loaded_with_what_serves(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.book.applied(table(2, "1", config="other\n"))
    load = world.begin("a")
    assert load == Load("a", ("1",), "", "other\n")
    world.do(load)
    assert not world.told("1")["proven"], "what is loaded is another instance"
    world.settle()
    assert world.told("1")["proven"]
    assert world.book.report()["models"]["a"]["config"] == "other\n"


def test_a_model_that_the_table_has_for_gateways_alone_is_not_touched(world: World) -> None:
    world.ready = {"a": {"1"}}
    world.book.listed(world.listing(), world.now)
    world.book.applied(Table(1, {"a": ModelRoutes("1", {"1": 100})}))
    assert world.begin("a") is None
    assert world.book.unready() == ""
    world.book.applied(Table(2, {}))
    assert world.begin("a") == Unload("a")


# Histories


class Histories(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.book.restored(Memory(), {})
        self.revision = 0
        self.pending: list[Action] = []
        self.proofs: list[Prove] = []

    @rule(
        data=st.data(),
        missed=st.integers(0, 2),
        behaviour=st.dictionaries(
            st.tuples(st.sampled_from(MODELS), st.sampled_from(VERSIONS)),
            st.sampled_from([GOOD, MISSING, BROKEN, CRASHING, WRONG]),
            max_size=2,
        ),
    )
    def write_table(
        self, data: st.DataObject, missed: int, behaviour: dict[tuple[str, str], str]
    ) -> None:
        self.world.behaviour |= behaviour
        models, loads = {}, {}
        for name in MODELS:
            versions = data.draw(st.lists(st.sampled_from(VERSIONS), unique=True, max_size=2))
            if not versions:
                continue
            loads[name] = Loads("", dict.fromkeys(versions, ""))
            if data.draw(st.booleans()):
                weight = data.draw(st.sampled_from([0, 50, 100]))
                weights = {versions[0]: 100.0 - weight if versions[1:] else 100.0}
                weights |= dict.fromkeys(versions[1:], float(weight))
                models[name] = ModelRoutes(versions[0], weights)
        self.revision += 1 + missed
        self.world.book.applied(Table(self.revision, models, loads=loads))

    @rule(model=st.sampled_from(MODELS))
    def begin_an_action(self, model: str) -> None:
        action = self.world.begin(model)
        if action is not None:
            self.pending.append(action)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def end_an_action(self, data: st.DataObject) -> None:
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.world.do(action)

    @rule()
    def send_proofs(self) -> None:
        for prove in self.world.book.due_proofs(self.world.now):
            self.world.book.asked(prove)
            self.proofs.append(prove)

    @precondition(lambda self: self.proofs)
    @rule(data=st.data())
    def answer_a_proof(self, data: st.DataObject) -> None:
        self.world.answer(self.proofs.pop(data.draw(st.integers(0, len(self.proofs) - 1))))

    @rule(seconds=st.sampled_from([2, 12]))
    def all_goes_on_for_a_while(self, seconds: int) -> None:
        self.end_all()
        self.world.settle(seconds)

    @rule()
    def triton_restarts(self) -> None:
        self.world.crash()
        # What is asked of one that has ended is never answered; fetches go on.
        self.pending = [each for each in self.pending if not isinstance(each, Load | Unload)]
        self.world.start()

    @rule()
    def the_loader_restarts(self) -> None:
        self.pending, self.proofs = [], []
        self.world.restart_loader()

    @rule(seconds=st.sampled_from([0.5, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        if self.world.boot:
            self.world.book.listed(self.world.listing(), self.world.now)

    def end_all(self) -> None:
        for action in self.pending:
            self.world.do(action)
        for prove in self.proofs:
            self.world.answer(prove)
        self.pending, self.proofs = [], []
        if not self.world.boot:
            self.world.start()

    @invariant()
    def what_is_reported_makes_sense(self) -> None:
        for name, model in self.world.book.report()["models"].items():
            for version, told in model["versions"].items():
                assert not (told["proven"] and told["failed"])
                assert not told["proven"] or version in self.world.ready.get(name, ())
                assert bool(told["error"]) == told["failed"]

    def teardown(self) -> None:
        """However it came here: when nothing more happens, all is as the table wants it."""
        self.end_all()
        for _ in range(3):
            self.world.settle()
        table = self.world.book.table
        if table is None or any(
            self.world.behaves(name, routes.stable) == CRASHING
            for name, routes in table.models.items()
        ):
            return  # Triton goes on crashing: what is to serve is never given up
        for name in MODELS:
            loads = table.loads.get(name)
            if loads is None and name in table.models:
                continue
            wanted = set(loads.versions) if loads is not None else set()
            assert self.world.ready.get(name, set()) <= wanted
            assert set(self.world.local.get(name, ())) <= wanted
            for version in wanted:
                told = self.world.told(version, name)
                behaves = self.world.behaves(name, version)
                if behaves == GOOD and not told["failed"]:
                    assert told["proven"], (name, version, told)
                # What failed before the table changed may have failed for good.
                assert told["proven"] or told["failed"], (name, version, told)


Histories.TestCase.settings = settings(
    deadline=None,
    database=None,
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHistories = Histories.TestCase


def test_a_version_that_another_engine_is_to_prove_first_is_left_alone(world: World) -> None:
    """Whatever the phase: one that failed there must not be loaded here on the way back."""
    world.book = Bookkeeping(RULES, "engine-1")
    world.start()
    for revision, phase, engine, there in (
        (5, Phase.LOADING, "engine-0", {"1"}),
        (6, Phase.ROLLING_BACK, "engine-0", {"1"}),
        (7, Phase.LOADING, "engine-1", {"1", "2"}),
        (8, Phase.LOADING, "", {"1", "2"}),
    ):
        roll = Roll("1", "2", phase, 0, revision, engine)
        world.book.applied(table(revision, "1", "2", roll=roll))
        world.settle()
        assert world.ready["a"] == there, (revision, engine)
        assert ("2" in world.book.report()["models"]["a"]["versions"]) is (len(there) == 2)
