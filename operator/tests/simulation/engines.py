"""Engines: the bookkeeping of their loaders, and a Triton and files that are played."""

from dataclasses import replace
from typing import Protocol

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
    Requests,
    State,
    Unload,
)
from tidegate_table.document import Table

from . import followers
from .repository import MODEL, Repository


class Unloading(Protocol):
    """Judges what is unloaded; `proven` is told what some engine has proven."""

    proven: set[str]

    def check_unload(self, engine: "Engine", version: str) -> None: ...


class Surroundings(followers.Surroundings, Protocol):
    """What engines need of the world."""

    now: float
    repository: Repository

    @property
    def invariants(self) -> Unloading: ...


class Engine(followers.Follower):
    """A pod with a loader and Triton."""

    world: Surroundings

    def __init__(self, world: Surroundings, name: str) -> None:
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
        self.book.counted({(MODEL, v): Requests(count) for v, count in self.requests.items()})

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
            kind = self.world.repository.kind(action.version)
            found = Copy(self.world.repository.digest(action.version, self.name), 1)
            if kind == "missing":
                self.book.not_fetched(action, "there is no such version", self.world.now)
                return
            if action.digest and found.digest != action.digest:
                self.book.not_fetched(action, "another digest", self.world.now)
                return
            copies[action.version] = found
            config = self.world.repository.config(action.version)
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
        kind = self.world.repository.kind(prove.version)
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
                self.world.invariants.proven.add(version)

    def go_on(self, turns: int = 3) -> None:
        """The loader goes on, as far as it comes in so many turns."""
        for _ in range(turns):
            self.notice()
            self.think()
            self.act()
            self.act()
            while self.proving:
                self.prove()
        self.notice()
        self.record_proofs()

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
            kind = self.world.repository.kind(action.added)
            if kind == "crashing":
                self.kill_triton()
                return
            if kind == "broken":
                error = "load failed"
        if not error:
            for version in [each for each, s in self.states.items() if s is State.READY]:
                if version not in stay:
                    self.world.invariants.check_unload(self, version)
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
