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
from tidegate_engine.loader.memory import Crashes, Memory, Trial
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
    Requests,
    State,
    Unload,
)
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

RULES = Rules(crashes=2, bad_proofs=2, proof_interval_s=3.0, silent_s=30.0, retry_s=10.0)
CONFIG = "backend: 'python'\n"
OTHER_CONFIG = "backend: 'onnxruntime'\n"
# What each version does when it is loaded, or asked.
GOOD, MISSING, BROKEN, CRASHING, WRONG = "good", "missing", "broken", "crashing", "wrong"
SILENT = "silent"
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
    pending: list[Action] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

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
        # What is asked of one that has ended is never answered; fetches go on.
        self.pending = [each for each in self.pending if not isinstance(each, Load | Unload)]
        self.book.gone()
        self.memory = self.book.memory()

    def restart_loader(self) -> None:
        held = self.book.table
        self.pending = []
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
            self.pending.append(action)
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
        for other in self.pending:
            if other.model == action.model:
                assert isinstance(other, Fetch), "only a fetch may go on beside anything"
                assert not isinstance(action, Fetch), "one at a time"
                assert action != Discard(action.model, ""), "its folder would go"
                if isinstance(action, Load):
                    assert other.version not in action.versions, "it is not there yet"
                elif isinstance(action, Discard):
                    assert other.version != action.version, "it comes and goes at once"

    def do(self, action: Action) -> None:
        if action in self.pending:
            self.pending.remove(action)
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
        text = self.texts.get(action.model, CONFIG)
        self.book.fetched(action, copy, text, self.now)

    def load(self, action: Load) -> None:
        self.loads.append(action)
        self.configs[action.model] = action.config
        ready = self.ready.setdefault(action.model, set())
        behaviour = self.behaves(action.model, action.added) if action.added else GOOD
        if behaviour == CRASHING:
            self.crashes += 1
            self.crash()
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
        behaves = self.behaves(prove.model, prove.version)
        verdict = {WRONG: Verdict.BAD, SILENT: Verdict.NONE}.get(behaves, Verdict.GOOD)
        self.book.answered(prove, verdict, f"it is {behaves}", self.now)
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


def rolling(
    world: World, phase: Phase = Phase.STEPPING, weight: float = 50, *, revision: int = 2
) -> None:
    """A table in which 2 is the candidate for 1."""
    roll = Roll("1", "2", phase, 0, revision)
    weights = {"1": 100 - weight, "2": weight}
    world.book.applied(table(revision, "1", "2", weights=weights, roll=roll))


def test_a_candidate_that_is_silent_while_stable_answers_is_not_proven_until_it_answers(
    world: World,
) -> None:
    rolling(world)
    world.settle()
    asked_well = world.now
    world.behaviour["a", "2"] = SILENT
    while world.now < asked_well + RULES.silent_s:
        world.settle(1)
        assert world.told("2")["proven"] or world.now == asked_well + RULES.silent_s
    world.settle(int(RULES.proof_interval_s) + 1)
    told = world.told("2")
    assert (told["proven"], told["failed"]) == (False, True)
    assert told["error"] == "no answer to its golden request for 30 s, while version 1 answers"
    assert world.told("1")["proven"]
    assert world.book.unready() == ""
    world.behaviour["a", "2"] = GOOD
    world.settle(4)
    assert world.told("2")["proven"]
    assert world.told("2")["error"] == ""


def test_a_candidate_that_never_answers_after_a_restart_does_not_keep_the_engine_unready(
    world: World,
) -> None:
    rolling(world)
    world.settle()
    world.behaviour["a", "2"] = SILENT
    world.crash()
    world.start()
    world.settle(20)
    assert world.book.unready() == "model 'a' version 2 is not proven yet"
    world.settle(20)
    assert world.told("2")["failed"]
    assert world.book.unready() == ""


def test_nobody_is_blamed_for_silence_while_stable_is_silent_too(world: World) -> None:
    rolling(world)
    world.settle()
    world.behaviour |= {("a", "1"): SILENT, ("a", "2"): SILENT}
    world.settle(100)
    assert world.told("1")["proven"]
    assert world.told("2")["proven"]
    # Stable is first to answer again: the candidate has its time from then on.
    world.behaviour["a", "1"] = GOOD
    world.settle(20)
    assert world.told("2")["proven"]
    world.settle(20)
    assert world.told("2")["failed"]


def test_a_candidate_that_answers_others_is_not_blamed_for_silence(world: World) -> None:
    """A full queue leaves no place for the golden request; stable has nothing to do."""
    rolling(world)
    world.settle()
    world.behaviour["a", "2"] = SILENT
    for answered in range(1, 10):
        world.settle(20)
        world.book.counted({("a", "2"): Requests(answered, failed=20 * answered)})
        assert world.told("2")["proven"]
        assert world.told("2")["requests"] == 21 * answered
    for failed in range(1, 3):
        world.settle(20)
        world.book.counted({("a", "2"): Requests(answered, failed=180 + failed)})
    assert world.told("2")["failed"]


def test_silence_counts_from_the_first_request_that_is_not_answered_and_only_under_weight(
    world: World,
) -> None:
    rolling(world, Phase.LOADING, weight=0)
    world.settle()
    world.behaviour["a", "2"] = SILENT
    rolling(world, revision=3)
    world.settle(10)
    assert world.told("2")["proven"], "it was last asked long ago, since it had no weight"
    rolling(world, weight=0, revision=4)
    world.settle(60)
    rolling(world, revision=5)
    world.settle(10)
    assert world.told("2")["proven"]
    world.settle(30)
    assert world.told("2")["failed"]


def test_a_candidate_under_which_triton_ends_again_and_again_has_failed(world: World) -> None:
    rolling(world)
    for ends in range(1, RULES.crashes + 1):
        world.settle()
        assert world.told("2")["proven"]
        world.crash()
        world.restart_loader()
        world.start()
        assert world.told("2")["failed"] is (ends == RULES.crashes)
    world.settle()
    told = world.told("2")
    assert not told["loaded"]
    assert told["error"] == "Triton ended 2 times while it was being loaded or got requests"
    assert world.told("1")["proven"]
    # As after any other failure: a later roll tries it anew.
    rolling(world, Phase.LOADING, weight=0, revision=9)
    world.settle()
    assert world.told("2")["proven"]


@pytest.mark.parametrize("case", ["stable", "no weight", "no roll"])
def test_triton_ends_for_none_that_is_no_candidate_with_requests(world: World, case: str) -> None:
    rolling(world, weight=0 if case == "no weight" else 50)
    if case == "stable":
        roll = Roll("1", "2", Phase.PROMOTED, 0, 2)
        world.book.applied(table(2, "2", "1", stable="2", roll=roll))
    elif case == "no roll":
        world.book.applied(table(2, "1", "2", weights={"1": 50, "2": 50}))
    for _ in range(RULES.crashes):
        world.settle()
        world.crash()
        assert not world.memory.crashes
        world.start()
    world.settle()
    assert world.told("1")["proven"]
    assert world.told("2")["proven"]


def test_what_was_counted_against_a_version_is_forgotten_when_it_serves(world: World) -> None:
    """Else it would be failed where another one is promoted, and there were no way back."""
    world.behaviour["a", "1"] = CRASHING
    world.book.applied(table(1, "1"))
    for _ in range(RULES.crashes):
        action = world.begin("a")
        while not isinstance(action, Load):
            assert action is not None
            world.do(action)
            action = world.begin("a")
        world.do(action)
    assert world.memory.crashes["a"]["1"].count == RULES.crashes
    world.behaviour["a", "1"] = GOOD
    world.settle()
    roll = Roll("1", "2", Phase.PROMOTED, 0, 2)
    world.book.applied(table(2, "2", "1", stable="2", roll=roll))
    assert world.told("1")["proven"]
    assert not world.told("1")["failed"]


def test_triton_that_ends_in_a_trial_ends_for_that_alone(world: World) -> None:
    rolling(world)
    world.settle()
    loads = {
        "a": Loads("", {"1": "", "2": ""}, roll=Roll("1", "2", Phase.STEPPING, 0, 2)),
        "b": Loads("", {"1": ""}),
    }
    world.book.applied(Table(3, {"a": ModelRoutes("1", {"1": 50, "2": 50})}, loads=loads))
    while not isinstance(action := world.begin("b"), Load):
        assert action is not None
        world.do(action)
    world.crash()
    assert world.memory.crashes == {"b": {"1": Crashes(1, 3)}}


def test_a_fetch_that_is_under_way_does_not_keep_stable_away_from_a_triton_that_restarts(
    world: World,
) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.book.applied(table(2, "1", "2"))
    fetch = world.begin("a")
    assert fetch == Fetch("a", "2", "")
    assert world.begin("a") is None
    world.crash()
    world.start()
    load = world.begin("a")
    assert load == Load("a", ("1",), "1", CONFIG)
    world.do(fetch)
    assert world.begin("a") is None
    world.do(load)
    world.settle()
    assert world.told("1")["proven"]
    assert world.told("2")["proven"]


def test_what_is_being_fetched_is_neither_removed_nor_fetched_twice(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.book.applied(table(2, "1", "2"))
    fetch = world.begin("a")
    assert isinstance(fetch, Fetch)
    world.book.applied(table(3, "1"))
    assert world.begin("a") is None
    world.book.applied(table(4, "1", "2"))
    assert world.begin("a") is None
    world.book.applied(Table(5, {}))
    unload = world.begin("a")
    assert unload == Unload("a")
    world.do(unload)
    assert world.begin("a") == Discard("a", "1")
    world.do(world.pending[-1])
    assert world.begin("a") is None, "its folder is about to be written to"
    world.do(fetch)
    world.settle()
    assert "a" not in world.local


def test_one_version_is_fetched_at_a_time(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.book.applied(table(2, "1", "2"))
    fetch = world.begin("a")
    assert fetch == Fetch("a", "2", "")
    world.book.applied(table(3, "1", "3"))
    assert world.begin("a") is None
    world.do(fetch)
    assert world.begin("a") == Discard("a", "2")


def test_a_version_whose_text_is_being_fetched_is_neither_loaded_nor_removed(world: World) -> None:
    """Its files are there already, from before the loader restarted."""
    world.local = {"a": {"1": Copy("sha256:1", 1)}}
    world.restart_loader()
    world.book.applied(table(1, "1"))
    fetch = world.begin("a")
    assert fetch == Fetch("a", "1", "")
    world.book.applied(table(2, "1", config=CONFIG))
    assert world.begin("a") is None
    world.book.applied(Table(3, {}))
    assert world.begin("a") is None
    world.do(fetch)
    assert world.begin("a") == Discard("a", "1")


@pytest.mark.parametrize("recalled", [0, 1])
def test_a_crash_that_is_found_before_a_table_is_applied_is_not_forgotten_with_it(
    recalled: int,
) -> None:
    """Triton ended in the trial of 2 together with the loader, which hears of its table late."""
    crashes = {"a": {"2": Crashes(recalled, 5)}} if recalled else {}
    memory = Memory(trials={"a": Trial("2", 5)}, crashes=crashes)
    world = World(memory=memory)
    world.book.restored(memory, {})
    world.start()
    assert world.book.memory().crashes["a"]["2"] == Crashes(recalled + 1, 5)
    rolling(world, Phase.LOADING, weight=0, revision=4)
    assert world.book.memory().crashes["a"]["2"].count == recalled + 1
    assert world.told("2")["failed"] is (recalled + 1 == RULES.crashes)
    rolling(world, Phase.LOADING, weight=0, revision=6)
    assert "a" not in world.book.memory().crashes, "a later roll tries it anew"


def test_a_trial_counts_though_another_engine_is_to_go_first_by_now() -> None:
    world = World(book=Bookkeeping(RULES, "engine-1"))
    world.book.restored(Memory(trials={"a": Trial("2", 5)}), {})
    roll = Roll("1", "2", Phase.LOADING, 0, 4, "engine-0")
    world.book.applied(table(6, "1", "2", roll=roll))
    world.start()
    assert world.book.memory().crashes == {"a": {"2": Crashes(1, 6)}}


@pytest.mark.parametrize("since", [None, 6])
def test_a_trial_of_an_earlier_roll_counts_for_nothing(since: int | None) -> None:
    world = World()
    world.book.restored(Memory(trials={"a": Trial("2", 5)}), {})
    if since is None:
        world.book.applied(table(7, "1"))
    rolling(world, Phase.LOADING, weight=0, revision=since or 8)
    world.start()
    assert "a" not in world.book.memory().crashes


def test_the_target_of_a_roll_that_goes_back_is_let_be(world: World) -> None:
    rolling(world)
    world.settle()
    rolling(world, Phase.ROLLING_BACK, weight=0, revision=3)
    world.now += RULES.proof_interval_s
    assert [each.version for each in world.book.due_proofs(world.now)] == ["1"]
    world.settle()
    assert world.ready["a"] == {"1", "2"}, "gateways may still have requests for it"
    world.crash()
    world.start()
    world.settle()
    assert world.ready["a"] == {"1"}
    assert not world.told("2")["failed"]


def test_a_target_that_has_never_answered_is_asked_no_more_when_its_roll_goes_back(
    world: World,
) -> None:
    world.behaviour["a", "2"] = SILENT
    rolling(world, Phase.LOADING, weight=0)
    world.settle()
    world.now += RULES.proof_interval_s
    assert [each.version for each in world.book.due_proofs(world.now)] == ["1", "2"]
    rolling(world, Phase.ROLLING_BACK, weight=0, revision=3)
    assert [each.version for each in world.book.due_proofs(world.now)] == ["1"]


def test_a_first_version_comes_with_its_own_text_where_nothing_of_the_model_is_loaded() -> None:
    """What is left of an earlier life, with another text, is not in force any more."""
    for is_running in (True, False):
        world = World(texts={"a": OTHER_CONFIG})
        world.book.restored(Memory(), {"a": LocalModel(CONFIG, {})})
        if is_running:
            world.start()
        world.book.applied(table(1, "1", "2"))
        fetch = world.begin("a")
        assert isinstance(fetch, Fetch)
        world.do(fetch)
        if not is_running:
            world.start()
        assert world.begin("a") == Load("a", ("1",), "1", OTHER_CONFIG)
        world.do(world.pending[-1])
        world.settle()
        assert world.told("2")["proven"]
        # From then on it is in force, also over a restart, whatever the repository has by then.
        world.texts["a"] = CONFIG
        world.book.applied(table(2, "1", "2", "3"))
        world.crash()
        world.start()
        world.settle()
        assert world.configs["a"] == OTHER_CONFIG
        assert "its configuration in the repository differs" in world.told("3")["error"]


def test_what_serves_keeps_its_text_when_another_version_becomes_the_first(world: World) -> None:
    world.book.applied(table(1, "1"))
    world.settle()
    world.texts["a"] = OTHER_CONFIG
    world.book.applied(table(2, "2", "1", stable="2"))
    world.settle()
    assert world.configs["a"] == CONFIG


# Histories


class Histories(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.book.restored(Memory(), {})
        self.revision = 0
        self.proofs: list[Prove] = []

    @rule(
        data=st.data(),
        missed=st.integers(0, 2),
        behaviour=st.dictionaries(
            st.tuples(st.sampled_from(MODELS), st.sampled_from(VERSIONS)),
            st.sampled_from([GOOD, MISSING, BROKEN, CRASHING, WRONG, SILENT]),
            max_size=2,
        ),
        texts=st.dictionaries(st.sampled_from(MODELS), st.sampled_from([CONFIG, OTHER_CONFIG])),
    )
    def write_table(
        self,
        data: st.DataObject,
        missed: int,
        behaviour: dict[tuple[str, str], str],
        texts: dict[str, str],
    ) -> None:
        self.world.behaviour |= behaviour
        self.world.texts |= texts
        models, loads = {}, {}
        for name in MODELS:
            versions = data.draw(st.lists(st.sampled_from(VERSIONS), unique=True, max_size=2))
            if not versions:
                continue
            phase = data.draw(st.sampled_from([None, *Phase]))
            since = self.revision + 1 - data.draw(st.integers(0, 2))
            roll = Roll(versions[0], versions[-1], phase, 0, since) if phase else None
            loads[name] = Loads("", dict.fromkeys(versions, ""), roll=roll)
            if data.draw(st.booleans()):
                weight = data.draw(st.sampled_from([0, 50, 100]))
                weights = {versions[0]: 100.0 - weight if versions[1:] else 100.0}
                weights |= dict.fromkeys(versions[1:], float(weight))
                models[name] = ModelRoutes(versions[0], weights)
        self.revision += 1 + missed
        self.world.book.applied(Table(self.revision, models, loads=loads))

    @rule(model=st.sampled_from(MODELS))
    def begin_an_action(self, model: str) -> None:
        self.world.begin(model)

    @precondition(lambda self: self.world.pending)
    @rule(data=st.data())
    def end_an_action(self, data: st.DataObject) -> None:
        self.world.do(data.draw(st.sampled_from(self.world.pending)))

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
        self.world.start()

    @rule()
    def the_loader_restarts(self) -> None:
        self.proofs = []
        self.world.restart_loader()

    @rule(seconds=st.sampled_from([0.5, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        if self.world.boot:
            self.world.book.listed(self.world.listing(), self.world.now)

    def end_all(self) -> None:
        while self.world.pending:
            self.world.do(self.world.pending[0])
        for prove in self.proofs:
            self.world.answer(prove)
        self.proofs = []
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
                is_good = self.world.behaves(name, version) == GOOD
                if self.is_let_be(name, version):
                    continue
                if self.is_heard_of(name, version):
                    assert told["proven"] or told["failed"], (name, version, told)
                if self.is_waiting():
                    continue
                if is_good and not told["failed"]:
                    assert told["proven"], (name, version, told)
                # What failed before the table changed may have failed for good.
                assert told["proven"] or told["failed"], (name, version, told)

    def is_waiting(self) -> bool:
        """Whether there is a version that does not answer, and so keeps others waiting."""
        table = self.world.book.table
        assert table is not None
        return any(
            self.world.behaves(name, version) == SILENT
            and not self.world.told(version, name)["proven"]
            and not self.world.told(version, name)["failed"]
            for name, loads in table.loads.items()
            for version in loads.versions
        )

    def is_let_be(self, name: str, version: str) -> bool:
        table = self.world.book.table
        assert table is not None
        roll, routes = table.loads[name].roll, table.models.get(name)
        return (
            roll is not None
            and roll.phase is Phase.ROLLING_BACK
            and roll.target == version
            and (routes is None or routes.stable != version)
        )

    def is_heard_of(self, name: str, version: str) -> bool:
        """Whether it is loaded, and another version's answers would show if it were silent."""
        table = self.world.book.table
        assert table is not None
        routes = table.models.get(name)
        return (
            routes is not None
            and version != routes.stable
            and bool(self.world.told(version, name)["loaded"])
            and (name, version) in table.versions()
            and self.world.told(routes.stable, name)["proven"]
            and self.world.behaves(name, routes.stable) == GOOD
        )


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
