"""A cluster in one process, in which anything may happen at any time.

The plan, the routing table, the bookkeeping of gateways and that of loaders are the shipped code.
What is played is what they have in common with nothing else: the API server and its watches, Triton
and the repository, Kubernetes, clients, and the order in which things happen. Each method of
`World` is one thing that happens, however small; what must never be is checked when it could
happen, and raises `Violation`.
"""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidegate_engine.loader.bookkeeping import Bookkeeping, Verdict
from tidegate_engine.loader.memory import Memory as LoaderMemory
from tidegate_engine.loader.plan import (
    Action,
    Copy,
    Discard,
    Fetch,
    Listed,
    Load,
    LocalModel,
    Prove,
    State,
    Unload,
)
from tidegate_gateway.errors import EngineUnavailable, ModelNotFound
from tidegate_gateway.table import Routes
from tidegate_operator import conditions, gateways, loaders, plan, recovery
from tidegate_operator.next_table import next_table
from tidegate_operator.resources import PodSeen
from tidegate_operator.sightings import Document, Pods, claims_of, known_revision
from tidegate_operator.situation import Fail, Memory, Observed, Wait, Write
from tidegate_operator.spec import PROGRESS_DEADLINE_S, Rollout
from tidegate_table.document import InvalidTable, Loads, Phase, Table, parse, read, write

MODEL = "m"
CONFIG = 'name: "m"'
HOLD_S, BAKE_S, DRAIN_S, DEADLINE_S = 20, 30, 15, 300
LONG_S = 25
"""Above `HOLD_S` and `DRAIN_S`: a few of it, and any time has passed."""

GOOD = "good"
BAD = ("missing", "broken", "crashing", "wrong", "other config", "torn", "hanging")


class Violation(AssertionError):
    """Something that must never be."""


@dataclass
class Rules:
    """Guards that are not in the plan, each of which a test takes out."""

    precondition: bool = True
    persist_first: bool = True
    by_revision: bool = True


# The API server


@dataclass
class Api:
    content: bytes | None = None
    version: int = 0
    rollouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    serial: int = 0

    def number(self) -> int:
        self.serial += 1
        return self.serial


class Follower:
    """Whoever follows the ConfigMap: what is on its way to it, and what it has kept."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.coming: list[bytes] = []
        self.kept: Table | None = None
        self.reaches_api = True
        self.is_silent = False
        self.is_misled = False  # It has begun by a table that someone has put back.

    @property
    def table(self) -> Table | None:
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        raise NotImplementedError

    def apply(self, table: Table) -> None:
        raise NotImplementedError

    def receive(self, content: bytes) -> None:
        if not self.is_alive:
            return
        try:
            table = read(content)
        except InvalidTable:
            return
        newer = self.table is None or table.revision > self.table.revision
        if newer or not self.world.rules.by_revision:
            if self.world.rules.persist_first:
                self.kept = table
            self.is_misled = False
            self.apply(table)

    def begin(self) -> None:
        """A process begins: it lists, and takes what it has kept only where that does not do."""
        if not self.world.rules.persist_first and self.table is not None:
            self.kept = self.table
        self.coming = []
        if self.kept is not None and (not self.reaches_api or self._listed_is_older(self.kept)):
            self.apply(self.kept)
        else:
            self.relist()

    def _listed_is_older(self, kept: Table) -> bool:
        try:
            listed = read(self.world.api.content or b"")
        except InvalidTable:
            return True
        return listed.revision <= kept.revision

    def relist(self) -> None:
        if self.reaches_api:
            self.coming = []
            if self.world.api.content is not None:
                begins = self.table is None
                self.receive(self.world.api.content)
                self.is_misled = self.world.is_put_back if begins else self.is_misled

    def deliver(self, index: int = 0) -> None:
        if self.coming and self.reaches_api:
            self.receive(self.coming.pop(index % len(self.coming)))


# Gateways and their requests


@dataclass(eq=False)
class Request:
    gateway: "Gateway"
    counted: AbstractContextManager[None]
    revision: int
    version: str
    fallback: str
    engine: "Engine | None" = None  # where it is being answered
    is_misled: bool = False

    def may_go_to(self, version: str) -> bool:
        return version in (self.version, self.fallback)


class Gateway(Follower):
    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.routes = Routes(Random(0), needed=True)
        self.is_running = self.is_ready = self.is_leaving = self.told_started = False
        self.views: dict[str, set[str]] = {}
        self.requests: list[Request] = []

    @property
    def table(self) -> Table | None:
        return self.routes.table if self.is_running else None

    @property
    def is_alive(self) -> bool:
        return self.is_running

    def apply(self, table: Table) -> None:
        if not self.world.rules.by_revision and self.routes.table is not None:
            self.routes.table = None
        self.routes.apply(table)

    def start(self) -> None:
        if self.is_running:
            return
        self.routes = Routes(self.world.random, needed=True)
        self.is_running = True
        self.begin()

    def kill(self) -> None:
        """Its clients lose their requests, whatever the operator does."""
        self.is_running = self.is_ready = False
        self.requests, self.views = [], {}

    def probe(self) -> None:
        """What the kubelet tells."""
        self.told_started = self.told_started or self.is_running
        self.is_ready = self.is_running and not self.is_leaving and self.table is not None

    def look(self) -> None:
        """It asks the loaders what their engines serve."""
        for engine in self.world.engines.values():
            if engine.book is not None and not engine.is_silent:
                report = engine.book.report()["models"].get(MODEL, {"versions": {}})
                self.views[engine.name] = {
                    version
                    for version, each in report["versions"].items()
                    if each["wanted"] and each["proven"]
                }

    def serves(self, engine: "Engine", version: str) -> bool:
        return version in self.views.get(engine.name, ())

    def send(self, pin: str = "", key: str | None = None) -> None:
        if not self.is_running or self.table is None:
            return
        counted = self.routes.in_use(MODEL)
        counted.__enter__()
        try:
            route = self.routes.route(MODEL, pin, key, self._is_served)
        except (ModelNotFound, EngineUnavailable):
            counted.__exit__(None, None, None)
            return
        request = Request(self, counted, route.revision, route.version, route.fallback)
        request.is_misled = self.is_misled
        self.requests.append(request)
        self.world.check_sent(request)

    def _is_served(self, model: str, version: str) -> bool:
        usable = self.world.usable()
        return any(self.serves(engine, version) for engine in usable)

    def end(self, request: Request) -> None:
        request.counted.__exit__(None, None, None)
        self.requests.remove(request)


# Engines


class Engine(Follower):
    """A pod with a loader and Triton."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.book: Bookkeeping | None = None
        self.memory = LoaderMemory()
        self.local: dict[str, LocalModel] = {}
        self.is_ready = False
        self.boot, self.boots = 0, 0
        self.states: dict[str, State] = {}
        self.requests: dict[str, int] = {}
        self.proven_at: dict[str, int] = {}
        self.doing: tuple[Action, int] | None = None
        self.done: tuple[Action, int, str] | None = None
        self.proving: list[tuple[Prove, int]] = []

    @property
    def table(self) -> Table | None:
        return self.book.table if self.book is not None else None

    @property
    def is_alive(self) -> bool:
        return self.book is not None

    def apply(self, table: Table) -> None:
        if self.book is not None:
            self.book.applied(table)

    def copies(self) -> dict[str, Copy]:
        return dict(self.local[MODEL].copies) if MODEL in self.local else {}

    # Processes

    def start_loader(self) -> None:
        if self.book is None:
            self.book = Bookkeeping(name=self.name)
            self.book.restored(self.memory, self.local)
            self.begin()

    def kill_loader(self) -> None:
        """What it has asked Triton for may still be done."""
        if self.book is not None:
            self.memory = self.book.memory()
        self.book, self.done, self.proving = None, None, []
        if self.doing is not None and not isinstance(self.doing[0], Load | Unload):
            self.doing = None

    def start_triton(self) -> None:
        if not self.boot:
            self.boots += 1
            self.boot = self.boots

    def kill_triton(self) -> None:
        self.boot = 0
        self.states, self.requests, self.proven_at, self.done = {}, {}, {}, None
        if self.doing is not None and isinstance(self.doing[0], Load | Unload):
            self.doing = None

    def probe(self) -> None:
        """What the kubelet tells."""
        self.is_ready = bool(self.boot) and self.book is not None and not self.book.unready()

    # The loader

    def notice(self) -> None:
        """The loader sees how Triton is."""
        if self.book is None:
            return
        if not self.boot:
            if self.book.boot:
                self.book.gone()
                self.proving = []
            return
        if self.book.boot != self.boot:
            self.book.started(self.boot)
            self.proving = []
            if self.doing is not None and isinstance(self.doing[0], Load | Unload):
                self.triton_acts()  # What a loader before it had asked for.
                self.done = None
        if self.doing is None and self.done is None:
            self.book.listed({MODEL: self._listing()}, self.world.now)
        counts = {(MODEL, version): count for version, count in self.requests.items()}
        self.book.counted(counts)

    def think(self) -> None:
        """The loader begins what is to be done next."""
        if self.book is None:
            return
        if self.doing is None and self.done is None:
            action = self.book.next_action(MODEL, self.world.now)
            if action is not None:
                self.book.begun(action)
                self.memory = self.book.memory()
                self.doing = (action, self.boot)
        for prove in self.book.due_proofs(self.world.now):
            self.book.asked(prove)
            self.proving.append((prove, self.boot))

    def act(self) -> None:
        """What has begun is done, or its answer comes."""
        if self.done is not None:
            self._answered()
        elif self.doing is not None:
            action, _ = self.doing
            if isinstance(action, Load | Unload):
                self.triton_acts()
            else:
                self.doing = None
                self._files(action)
            if self.book is not None:
                self.memory = self.book.memory()

    def _files(self, action: Action) -> None:
        if self.book is None:
            return
        local = self.local.setdefault(MODEL, LocalModel())
        copies = dict(local.copies)
        if isinstance(action, Fetch):
            kind = self.world.kind(action.version)
            found = Copy(self.world.digest(action.version, self), 1)
            if kind == "missing":
                self.book.not_fetched(action, "there is no such version", self.world.now)
                return
            if action.digest and found.digest != action.digest:
                self.book.not_fetched(action, "another digest", self.world.now)
                return
            copies[action.version] = found
            config = self.world.config(action.version)
            self.local[MODEL] = replace(local, copies=copies)
            self.book.fetched(action, found, config, self.world.now)
        elif isinstance(action, Discard):
            if action.version:
                copies.pop(action.version, None)
                self.local[MODEL] = replace(local, copies=copies)
            else:
                del self.local[MODEL]
            self.book.discarded(action)

    def _answered(self) -> None:
        assert self.done is not None
        (action, boot, error), self.done = self.done, None
        if self.book is None:
            return
        if isinstance(action, Load):
            self.book.load_ended(action, boot, error, self._listing(), self.world.now)
        elif isinstance(action, Unload):
            self.book.unload_ended(action, boot, error, self._listing(), self.world.now)

    def prove(self) -> None:
        """A golden request is answered."""
        if not self.proving or self.book is None:
            return
        prove, boot = self.proving.pop(0)
        if boot != self.boot or self.states.get(prove.version) is not State.READY:
            self.book.answered(prove, Verdict.NONE, "", self.world.now)
            return
        self.requests[prove.version] = self.requests.get(prove.version, 0) + 1
        kind = self.world.kind(prove.version)
        verdict = {"wrong": Verdict.BAD, "hanging": Verdict.NONE}.get(kind, Verdict.GOOD)
        self.book.answered(prove, verdict, "the answer is another one", self.world.now)
        self.record_proofs()

    def record_proofs(self) -> None:
        """By which revision a version was last really proven here."""
        if self.book is None:
            return
        versions = self.book.report()["models"].get(MODEL, {"versions": {}})["versions"]
        for version, each in versions.items():
            if each["proven"] and each["wanted"] and self.states.get(version) is State.READY:
                self.proven_at[version] = self.book.revision
                self.world.proven.add(version)

    # Triton

    def triton_acts(self) -> None:
        """Triton does what it was asked for."""
        assert self.doing is not None
        (action, boot), self.doing = self.doing, None
        if boot != self.boot:
            return
        stay = action.versions if isinstance(action, Load) else ()
        error = ""
        if isinstance(action, Load) and action.added:
            kind = self.world.kind(action.added)
            if kind == "crashing":
                self.kill_triton()
                return
            if kind == "broken":
                error = "load failed"
        if not error:
            for version in [each for each, s in self.states.items() if s is State.READY]:
                if version not in stay:
                    self.world.check_unload(self, version)
                    self.states[version] = State.UNAVAILABLE
                    self.requests.pop(version, None)
                    self.proven_at.pop(version, None)
            for version in stay:
                self.states[version] = State.READY
            if isinstance(action, Load):
                local = self.local.setdefault(MODEL, LocalModel())
                self.local[MODEL] = replace(local, config=action.config)
        self.done = (action, boot, error)

    def _listing(self) -> dict[str, Listed]:
        return {version: Listed(state) for version, state in self.states.items()}

    def has(self, version: str) -> bool:
        return bool(self.boot) and self.states.get(version) is State.READY


# The operator


class Operator:
    """One process of the operator. Its round is told apart into what can be interrupted."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.memories: dict[str, Memory] = {}
        self.clock_off = 0.0
        self.turn: Iterator[None] | None = None
        self.lost = ""

    @property
    def now(self) -> float:
        return self.world.now + self.clock_off

    def crash(self) -> None:
        self.turn, self.memories = None, {}

    def step(self) -> bool:
        """The next part of a round; whether it has ended."""
        if self.turn is None:
            self.turn = self._round()
        try:
            next(self.turn)
        except StopIteration:
            self.turn = None
            return True
        return False

    def round(self) -> None:
        """The rest of a round, or a whole one."""
        while not self.step():
            pass

    def _round(self) -> Iterator[None]:
        api = self.world.api
        documents = copy.deepcopy(list(api.rollouts.values()))
        yield
        content, version = api.content, api.version
        yield
        # The pods are listed after the table was read.
        engines = [(self._engine_pod(each), each) for each in self.world.engines.values()]
        fronts = [(self._gateway_pod(each), each) for each in self.world.gateways.values()]
        yield
        self.world.note_followed()
        pods = Pods(
            [(pod, self._ask_loader(each)) for pod, each in engines],
            [(pod, self._ask_gateway(each)) for pod, each in fronts],
        )
        stored = _read(content)
        held = pods.held_above(stored.revision if stored else 0)
        known = max(known_revision(documents), pods.told_revision())
        found = recovery.current(stored, held, known, pods.silent())
        self.lost = found.message if isinstance(found, recovery.Lost) else ""
        if not isinstance(found, recovery.Stands):
            if isinstance(found, recovery.Rewrite):
                yield
                self.world.write_table(found.table, version if content is not None else None, None)
            return
        table = found.table
        claims = claims_of(documents)
        seen = {}
        for model in sorted({*table.models, *table.loads, *claims.owners}):
            claimed = claims.owners.get(model)
            seen[model] = Observed(
                model=model,
                table=table,
                rollout=claimed.rollout if claimed is not None else None,
                loaders=pods.loaders_of(model),
                gateways=pods.gateways_of(model),
            )
        decisions, memories = {}, {}
        for model, observed in seen.items():
            decisions[model], memories[model] = plan.next_step(
                observed, self.memories.get(model, Memory()), self.now
            )
        self.memories = memories
        draft, decisions = next_table(table, decisions)
        for decision in decisions.values():
            if isinstance(decision, Wait) and decision.reason == "TableRefused":
                raise Violation(f"a table that nobody can read: {decision.message}")
        yield
        if draft is not None and not self.world.write_table(draft, version, seen.get(MODEL)):
            return
        yield
        for model, decision in decisions.items():
            if (owner := claims.owners.get(model)) is not None:
                self._tell(owner.document, seen[model], decision)

    def _tell(self, document: Document, seen: Observed, decision: Wait | Write | Fail) -> None:
        name, metadata = document["metadata"]["name"], document["metadata"]
        current = self.world.api.rollouts.get(name)
        if current is None or current["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return
        before = document.get("status") or {}
        status = conditions.status_of(seen, decision, metadata["generation"], before, "now")
        json.dumps(status)
        if status != before:
            current["status"] = status
            metadata = current["metadata"]
            metadata["resourceVersion"] = str(self.world.api.number())

    def _ask_loader(self, engine: Engine) -> loaders.Status | None:
        if engine.book is None or engine.is_silent or engine.name not in self.world.engines:
            return None
        return loaders.read(engine.book.report())

    def _ask_gateway(self, gateway: Gateway) -> gateways.Routing | None:
        if not gateway.is_running or gateway.is_silent or gateway.name not in self.world.gateways:
            return None
        return gateways.read(gateway.routes.document())

    def _engine_pod(self, engine: Engine) -> PodSeen:
        return PodSeen(engine.name, engine.name, "10.0.0.1", engine.is_ready, True)

    def _gateway_pod(self, gateway: Gateway) -> PodSeen:
        ready = gateway.is_ready and not gateway.is_leaving
        return PodSeen(gateway.name, gateway.name, "10.0.0.2", ready, gateway.told_started)


def _read(content: bytes | None) -> Table | None:
    try:
        return read(content) if content is not None else None
    except InvalidTable:
        return None


# All of it


class World:
    """The whole cluster.

    Attributes:
        kinds: how the versions in the repository are, by version; the others are good.
        proven: versions that some engine has proven since the table last began to want them.
        gave_up: (uid, generation, version) that have been tried and gone back from.
    """

    def __init__(self, engines: int = 2, gateways: int = 2, seed: int = 0) -> None:
        self.random = Random(seed)
        self.rules = Rules()
        self.now = 1000.0
        self.jumped_at = float("-inf")
        self.api = Api()
        self.kinds: dict[str, str] = {}
        self.proven: set[str] = set()
        self.gave_up: set[tuple[str, int, str]] = set()
        self.written: list[Table] = []
        self.followed_at: dict[int, float] = {}
        self.names = 0
        self.gateways: dict[str, Gateway] = {}
        self.engines: dict[str, Engine] = {}
        self.ghosts: list[Gateway] = []
        self.operators = [Operator(self), Operator(self)]
        for _ in range(engines):
            self.add_engine()
        for _ in range(gateways):
            self.add_gateway().start()

    @property
    def operator(self) -> Operator:
        return self.operators[0]

    @property
    def table(self) -> Table | None:
        """As it is stored."""
        return _read(self.api.content)

    @property
    def is_put_back(self) -> bool:
        """Whether someone has put back an older one."""
        table = self.table
        return table is not None and table.revision < self.written[-1].revision

    @property
    def phase(self) -> Phase | None:
        table = self.table
        loads = table.loads.get(MODEL) if table is not None else None
        return loads.roll.phase if loads is not None and loads.roll is not None else None

    @property
    def followers(self) -> list[Follower]:
        return [*self.gateways.values(), *self.engines.values()]

    @property
    def requests(self) -> list[Request]:
        return [
            each for gateway in (*self.gateways.values(), *self.ghosts) for each in gateway.requests
        ]

    def usable(self) -> list[Engine]:
        """The engines that gateways send to: those that are ready, or all where none is."""
        ready = [engine for engine in self.engines.values() if engine.is_ready]
        return ready or list(self.engines.values())

    def kind(self, version: str) -> str:
        return self.kinds.get(version, GOOD)

    def config(self, version: str) -> str:
        """The text of config.pbtxt beside that version in the repository."""
        other = self.kind(version) == "other config"
        return f"{CONFIG} max_batch_size: 8" if other else CONFIG

    def digest(self, version: str, engine: Engine) -> str:
        torn = self.kind(version) == "torn" and engine.name == "engine-1"
        return "sha256:" + f"{version}{'f' if torn else '0'}".rjust(64, "0")

    # What must never be

    def check_unload(self, engine: Engine, version: str) -> None:
        """Triton lets a version go because the loader says so."""
        for request in self.requests:
            if request.may_go_to(version) and not request.is_misled:
                raise Violation(
                    f"{engine.name} unloads version {version}, which a request of revision "
                    f"{request.revision} in {request.gateway.name} may still go to"
                )
        for gateway in (*self.gateways.values(), *self.ghosts):
            table = gateway.table if not gateway.is_misled else None
            if table is not None and (MODEL, version) in table.versions():
                raise Violation(
                    f"{engine.name} unloads version {version}, which {gateway.name} routes to by "
                    f"revision {table.revision}"
                )

    def check_sent(self, request: Request) -> None:
        if request.version not in self.proven:
            raise Violation(
                f"{request.gateway.name} sends a request to version {request.version}, which no "
                "engine has proven"
            )

    def check_write(self, old: Table | None, new: Table, seen: Observed | None) -> None:
        """A table is about to be stored; `seen` is what it comes from, None for one made anew."""
        self._check_document(new)
        if old is not None and new.revision <= old.revision and self.rules.by_revision:
            raise Violation(f"revision {new.revision} is written over {old.revision}")
        was = old.models.get(MODEL) if old is not None else None
        comes = new.models.get(MODEL)
        loads = new.loads.get(MODEL)
        kept = loads.versions if loads is not None else {}
        if was is not None and seen is not None and was.stable not in kept:
            raise Violation(f"version {was.stable}, which is stable, is dropped")
        if comes is None or seen is None or old is None:
            return
        for version, weight in comes.weights.items():
            if weight > 0 and (was is None or was.weights.get(version, 0) == 0):
                self._check_may_weigh(version, old, new, seen)
        self._check_held(old, new)

    def _check_document(self, table: Table) -> None:
        document = write(table)
        if parse(json.loads(json.dumps(document))) != table:
            raise Violation("a table is not what is written of it")

    def _check_may_weigh(self, version: str, old: Table, new: Table, seen: Observed) -> None:
        roll = old.loads[MODEL].roll if MODEL in old.loads else None
        if roll is None or version not in (roll.origin, roll.target):
            raise Violation(f"version {version} gets weight without a roll")
        if version == roll.origin and roll.phase is not Phase.PROMOTED:
            return  # It is stable, and makes engines ready.
        ready = [self.engines[each.name] for each in seen.engines if each.name in self.engines]
        if not seen.engines:
            raise Violation(f"version {version} gets weight while there is no engine")
        for engine in ready:
            # A Triton that has ended since proves nothing, and was proven.
            if (
                engine.boot
                and engine.proven_at.get(version, 0) < roll.since
                and engine.boot == (engine.book.boot if engine.book is not None else 0)
            ):
                raise Violation(f"version {version} gets weight and is not proven on {engine.name}")
        pinned = new.loads[MODEL].versions[version]
        for engine in ready:
            found = engine.copies().get(version)
            if engine.has(version) and found is not None and found.digest != pinned:
                raise Violation(f"version {version} has other files on {engine.name}")

    def _check_held(self, old: Table, new: Table) -> None:
        before = old.loads[MODEL].roll if MODEL in old.loads else None
        after = new.loads[MODEL].roll if MODEL in new.loads else None
        if before is None or after is None or self.jumped_at > self.now - 10 * LONG_S:
            return
        held = {Phase.STEPPING: HOLD_S, Phase.BAKING: BAKE_S}.get(before.phase)
        if held is None or after.phase is Phase.ROLLING_BACK or before.since == after.since:
            return
        if self.now - self.followed_at.get(before.since, self.now) < held:
            raise Violation(f"revision {before.since} was not held for {held} s")

    def note_followed(self) -> None:
        """When every ready gateway went by the phase and step that the stored table has."""
        table = self.table
        loads = table.loads.get(MODEL) if table is not None else None
        ready = [gateway for gateway in self.gateways.values() if gateway.is_ready]
        if loads is not None and loads.roll is not None and ready:
            since = loads.roll.since
            if all(gateway.routes.revision >= since for gateway in ready):
                self.followed_at.setdefault(since, self.now)

    # The API server

    def write_table(self, table: Table, over: int | None, seen: Observed | None) -> bool:
        """Whether it is stored: only over what was read."""
        api = self.api
        current = api.version if api.content is not None else None
        if over != current and self.rules.precondition:
            return False
        self.check_write(self.table, table, seen)
        self._note_rolls(self.table, table, seen)
        self._store(json.dumps(write(table)).encode())
        self.written.append(table)
        return True

    def _store(self, content: bytes) -> None:
        self.api.content, self.api.version = content, self.api.number()
        for follower in self.followers:
            follower.coming.append(content)

    def _note_rolls(self, old: Table | None, new: Table, seen: Observed | None) -> None:
        before = old.loads[MODEL].roll if old is not None and MODEL in old.loads else None
        after = new.loads[MODEL].roll if MODEL in new.loads else None
        loads = new.loads.get(MODEL)
        if seen is not None:
            self.proven &= {*loads.versions} if loads is not None else set()
        if seen is None or not isinstance(seen.rollout, Rollout) or after is None:
            return
        key = seen.rollout.uid, seen.rollout.generation, after.target
        if before is None and after.phase is Phase.LOADING and key in self.gave_up:
            raise Violation(f"version {after.target} is tried again under the same spec")
        goes_back = (
            after.phase is Phase.ROLLING_BACK
            and before is not None
            and before.phase is not Phase.ROLLING_BACK
        )
        if goes_back and seen.rollout.spec.version == after.target:
            self.gave_up.add(key)

    def spoil_candidate(self) -> None:
        """A candidate that was good is not any more; one that has ever been stable stays good."""
        table = self.table
        roll = table.loads[MODEL].roll if table is not None and MODEL in table.loads else None
        stable = {each.models[MODEL].stable for each in self.written if MODEL in each.models}
        if roll is not None and roll.target not in stable:
            self.kinds.setdefault(roll.target, "wrong")

    def delete_config_map(self) -> None:
        self.api.content = None

    def put_back(self, index: int) -> None:
        """Someone restores a copy of an older table, though not in the moment of a write."""
        told = known_revision(self.api.rollouts.values())
        if self.written and told >= self.written[-1].revision:
            older = self.written[index % len(self.written)]
            self._store(json.dumps(write(older)).encode())

    def spoil_config_map(self) -> None:
        self._store(b"{")

    # People

    def apply_rollout(self, version: int, name: str = "roll", **spec: Any) -> None:
        """Make it, or change its spec."""
        api = self.api
        strategy = {
            "steps": [{"weight": 10, "hold": f"{HOLD_S}s"}],
            "bake": f"{BAKE_S}s",
            "drain": f"{DRAIN_S}s",
        }
        wanted = {
            "model": MODEL,
            "version": version,
            "strategy": strategy,
            "progressDeadline": f"{DEADLINE_S}s",
            **spec,
        }
        there = api.rollouts.get(name)
        if there is None:
            serial = api.number()
            metadata = {
                "name": name,
                "uid": f"uid-{serial}",
                "generation": 1,
                "creationTimestamp": f"2026-12-01T00:00:{serial % 60:02}Z",
                "resourceVersion": str(serial),
            }
            api.rollouts[name] = {"metadata": metadata, "spec": wanted, "status": {}}
        elif there["spec"] != wanted:
            there["spec"] = wanted
            there["metadata"]["generation"] += 1
            there["metadata"]["resourceVersion"] = str(api.number())

    def change(self, name: str = "roll", **spec: Any) -> None:
        """Change some of its spec."""
        there = self.api.rollouts.get(name)
        if there is not None:
            kept = {key: value for key, value in there["spec"].items() if key not in spec}
            version = spec.pop("version", kept.pop("version", None))
            kept.pop("version", None)
            kept.pop("model", None)
            self.apply_rollout(version, name, **{**kept, **spec})

    def delete_rollout(self, name: str = "roll") -> None:
        self.api.rollouts.pop(name, None)

    # Kubernetes

    def add_gateway(self) -> Gateway:
        self.names += 1
        gateway = Gateway(self, f"gateway-{self.names}")
        self.gateways[gateway.name] = gateway
        return gateway

    def remove_gateway(self, name: str) -> None:
        """It is gone when its requests have ended."""
        gateway = self.gateways[name]
        gateway.is_leaving = True
        gateway.is_ready = False
        if not gateway.requests:
            gateway.kill()
            del self.gateways[name]

    def add_engine(self) -> Engine:
        self.names += 1
        engine = Engine(self, f"engine-{self.names}")
        self.engines[engine.name] = engine
        engine.start_triton()
        engine.start_loader()
        return engine

    def remove_engine(self, name: str) -> None:
        engine = self.engines.pop(name)
        engine.kill_triton()
        engine.kill_loader()
        for request in self.requests:
            if request.engine is engine:
                request.engine = None

    def kill_triton(self, engine: Engine) -> None:
        engine.kill_triton()
        for request in self.requests:
            if request.engine is engine:
                request.engine = None  # It is tried again, elsewhere.

    # Requests

    def land(self, request: Request) -> None:
        """An attempt comes to an engine, and to the next one where that one does not have it."""
        if request.engine is not None:
            return
        for version in filter(None, (request.version, request.fallback)):
            usable = sorted(self.usable(), key=lambda e: not request.gateway.serves(e, version))
            for engine in usable:
                if engine.has(version):
                    self._landed(request, engine, version)
                    return
        if any(self._is_well(engine, request) for engine in self.engines.values()):
            raise Violation(
                f"a request of revision {request.revision} for version {request.version} finds "
                "no engine that has it"
            )
        request.gateway.end(request)

    def _landed(self, request: Request, engine: Engine, version: str) -> None:
        if version != request.version:
            request.version, request.fallback = version, ""
        request.engine = engine
        engine.requests[version] = engine.requests.get(version, 0) + 1

    def _is_well(self, engine: Engine, request: Request) -> bool:
        """Whether it could answer, by what its loader says. A new engine gets requests as soon as
        it has what they are sent to now, and has what an old one came in for a little later."""
        book = engine.book
        if book is None or not engine.is_ready or book.unready():
            return False
        versions = book.report()["models"].get(MODEL, {"versions": {}})["versions"]
        return (
            book.boot == engine.boot != 0
            and book.revision >= request.revision
            and all(each["proven"] or each["failed"] for each in versions.values())
        )

    def finish(self, request: Request) -> None:
        """A request is answered well."""
        if request.engine is None:
            self.land(request)
        if request in request.gateway.requests:
            request.gateway.end(request)

    def fall_back(self, request: Request) -> None:
        """The candidate fails at a request, which is tried on the stable version."""
        if request.fallback and request.engine is not None:
            request.version, request.fallback, request.engine = request.fallback, "", None
            self.check_sent(request)

    # Time, and everything as it usually goes

    def tick(self, seconds: float) -> None:
        self.note_followed()
        self.now += seconds

    def jump(self, seconds: float) -> None:
        """The operators' monotonic clock is not as monotonic as it should be."""
        self.jumped_at = self.now
        for operator in self.operators:
            operator.clock_off += seconds

    def engine_turns(self, engine: Engine, turns: int = 3) -> None:
        """A loader goes on, as far as it comes in so many turns."""
        for _ in range(turns):
            engine.notice()
            engine.think()
            engine.act()
            engine.act()
            while engine.proving:
                engine.prove()
        engine.notice()
        engine.record_proofs()

    def breathe(self) -> None:
        """Everyone who can gets what is on its way, and goes on; but no operator, and no time."""
        for follower in self.followers:
            while follower.coming and follower.reaches_api:
                follower.deliver()
        for engine in [*self.engines.values()]:
            self.engine_turns(engine)
            engine.probe()
        for gateway in [*self.gateways.values()]:
            gateway.probe()
            gateway.look()

    def go_on(self, seconds: float = 1.0, rounds: int = 1) -> None:
        """Some rounds in which nothing goes wrong that is not wrong already."""
        for _ in range(rounds):
            self.breathe()
            self.operator.round()
            self.tick(seconds)

    def until(self, is_so: Callable[[], bool], seconds: float = LONG_S, rounds: int = 80) -> None:
        """Rounds until something is so.

        Raises:
            Violation: it is never so.
        """
        for _ in range(rounds):
            if is_so():
                return
            self.go_on(seconds)
        raise Violation(f"what was to come never came; the table is {self.table}")

    # The end

    def heal(self) -> None:
        """The world is left alone, and nothing is wrong any more."""
        for request in self.requests:
            self.finish(request)
        for name, gateway in [*self.gateways.items()]:
            gateway.reaches_api, gateway.is_silent = True, False
            if gateway.is_leaving:
                self.remove_gateway(name)
            else:
                gateway.start()
        self.ghosts = []
        for engine in self.engines.values():
            engine.reaches_api, engine.is_silent = True, False
            engine.start_triton()
            engine.start_loader()
        for follower in self.followers:
            follower.relist()
        if not self.engines:
            self.add_engine()
        if not self.gateways:
            self.add_gateway().start()
        for operator in self.operators[1:]:
            operator.crash()
        for name in [*self.api.rollouts]:
            self.change(name, paused=False, onFailure="RollBack")

    def settle(self) -> None:
        """Leave the world alone until nothing changes any more, and look at what has become of it.

        Raises:
            Violation: it does not come to rest, or not at what the spec says.
        """
        self.heal()
        self._rest()
        # What else went wrong may have been taken for a fault of the version.
        for name in [*self.api.rollouts]:
            self.change(name, progressDeadline=f"{DEADLINE_S + 1}s")
        self._rest()
        self.check_end()

    def _rest(self) -> None:
        """Nothing has changed for longer than anything is waited for."""
        before, still_s = self.table, 0.0
        for _ in range(120):
            for engine in self.engines.values():
                engine.start_triton()
            for follower in self.followers:
                follower.relist()
            # What is proven for ever without an answer keeps the counts moving until the deadline.
            seconds = LONG_S if self.phase is None else 4 * LONG_S
            self.go_on(seconds)
            still_s = still_s + seconds if self.table == before else 0.0
            before = self.table
            if still_s > (3 * LONG_S if self.phase is None else PROGRESS_DEADLINE_S + 8 * LONG_S):
                return
        raise Violation(f"it does not come to rest: {self.table}")

    def _check_lost(self) -> None:
        """Nobody has the newest table any more, and that is for a person to decide."""
        held = max((each.table.revision for each in self.followers if each.table), default=0)
        if held >= known_revision(self.api.rollouts.values()):
            raise Violation(f"revision {held} is held, and said to be lost: {self.operator.lost}")

    def check_end(self) -> None:
        """What is to be at the end."""
        table = self.table
        if self.operator.lost:
            self._check_lost()
            return
        assert table is not None
        routes, loads = table.models.get(MODEL), table.loads.get(MODEL)
        roll = loads.roll if loads is not None else None
        if roll is not None and not roll.origin and self.kind(roll.target) == "hanging":
            return  # A first version has all the time that it wants.
        if roll is not None:
            raise Violation(f"a roll has not come to its end: {roll}")
        if (routes is None) != (loads is None):
            raise Violation("the two halves of the table differ")
        stable = routes.stable if routes is not None else ""
        if routes is not None and loads is not None:
            if dict(routes.weights) != {stable: 100} or [*loads.versions] != [stable]:
                raise Violation(f"more than version {stable} is left: {routes}, {loads}")
            # Files are torn, and a configuration is another one, only where there are others.
            if self.kind(stable) in {*BAD} - {"other config", "torn"}:
                raise Violation(f"version {stable} serves: {self.kind(stable)}")
        self._check_wanted(stable, loads)
        self._check_followed(table, loads)

    def _check_wanted(self, stable: str, loads: Loads | None) -> None:
        """What the spec says is what serves, or has failed for a reason of its own."""
        owner = claims_of(self.api.rollouts.values()).owners.get(MODEL)
        rollout = owner.rollout if owner is not None else None
        if not isinstance(rollout, Rollout) or stable == rollout.spec.version:
            return
        wanted = rollout.spec.version
        if not rollout.has_failed(wanted):
            raise Violation(f"version {wanted} is wanted, and {stable or 'none'} serves")
        fits = loads is None or loads.config == self.config(wanted)
        if self.kind(wanted) == GOOD and fits:
            raise Violation(f"a good version has failed: {rollout.failed}")

    def _check_followed(self, table: Table, loads: Loads | None) -> None:
        """Everyone goes by the table, and engines have what it wants and no more."""
        versions = loads.versions if loads is not None else {}
        for engine in self.engines.values():
            has = {version for version in engine.states if engine.has(version)}
            wanted = {v for v, digest in versions.items() if digest == self.digest(v, engine)}
            if has != wanted:
                raise Violation(f"{engine.name} has {has}, and is to have {wanted}")
            if has and loads is not None and engine.local[MODEL].config != loads.config:
                raise Violation(f"{engine.name} serves with another configuration")
        for gateway in self.gateways.values():
            if gateway.routes.revision != table.revision:
                raise Violation(f"{gateway.name} routes by revision {gateway.routes.revision}")
