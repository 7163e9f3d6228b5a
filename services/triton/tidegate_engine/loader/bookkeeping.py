"""What a loader knows of its engine, what it does next, and what it reports: pure.

`Bookkeeping` is told what happens and never does anything itself:

    restored(memory, locals)             the loader begins; what it finds in the local repository
    applied(table)                       a table is in force (and persisted)
    started(boot), gone()                Triton began to run; Triton ended
    listed(listing), counted(requests)   what Triton has, and how often it was asked
    begun(action), then one of           an action is being done; see `plan` for what there is
      fetched, not_fetched, discarded, load_ended, unload_ended, unanswered
    asked(prove), then answered          a golden request was sent, and came back

and is asked: `next_action(model, now)`, `due_proofs(now)`, `unready()`, `report()`, `memory()`.
`now` is monotonic, in seconds. One action a model at a time, and a fetch beside it; proofs run
beside them. What happens under an earlier start of Triton is ignored, so results may come as late
as they like.

A failure lasts until the table drops the version or Triton ends. These are not so simple:

- Triton ends while a version is on trial, from the beginning of its load to its first proof. That
  is counted as a crash of that version, and so many make it failed until the table drops it. The
  count survives Triton and the loader (`memory`).
- Triton ends while none is on trial, and a candidate gets requests: it may have been one of these,
  and is counted in the same way. Nothing tells what Triton died of. So where something else kills
  it so many times within one roll (memory, a node, a person), a candidate fails that is not at
  fault, and so does each, where two models are being rolled: to go back for nothing costs a roll,
  to go on with one that kills costs all models their engines. The end of a pod counts only where
  the local repository outlives it.
- The version that serves is never given up: it is tried again after a pause, and after all others
  when it crashes.
- A version that is dropped and wanted again is tried anew, also when the table in between was
  missed: a roll that began after the failure says so.
- A version that carries weight is proven again and again, and may fail and be well again. No answer
  is no failure, but a candidate that gives none for long, to nobody, while stable answers has
  failed: where stable is silent, too, or the candidate answers others, the engine is under load,
  and the candidate's time begins anew.
- The target of a roll that goes back is let be: neither brought nor proven.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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
    ModelView,
    Prove,
    Requests,
    State,
    Unload,
    VersionView,
    next_step,
)
from tidegate_table.document import Loads, Phase, Table, is_version, write

SCHEMA = 1
"""Of the report."""

_IN_TRITON = (State.READY, State.LOADING, State.UNLOADING)


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits.

    Attributes:
        crashes: of Triton while a version is on trial or a candidate gets requests, after which the
            version counts as failed.
        bad_proofs: in a row, after which a version is not proven.
        proof_interval_s: between two proofs of a version that carries weight, in seconds.
        silent_s: without a good answer of a candidate that carries weight, while stable gives them,
            after which it is not proven, in seconds.
        retry_s: after which a stable version that failed is tried again, and a call that only takes
            versions out, in seconds.
    """

    crashes: int = 2
    bad_proofs: int = 2
    proof_interval_s: float = 3.0
    silent_s: float = 30.0
    retry_s: float = 10.0


class Verdict(StrEnum):
    """What an answer to a golden request says.

    NONE: nothing, as a time-out or a full queue: an engine under load is not wrong.
    """

    GOOD = "good"
    BAD = "bad"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class _Failure:
    error: str
    at: float


@dataclass(slots=True)
class _Version:
    copy: Copy | None = None
    stale: bool = False  # what lies there is not to be used: it was dropped, or has another config
    state: State | None = None
    requests: Requests = field(default_factory=Requests)
    failure: _Failure | None = None
    crashes: int = 0
    judged: int = 0  # the revision in force when it was last found to be bad
    instance: int = 0
    proven: bool = False
    refuted: str = ""
    bad_proofs: int = 0
    proof_due: float = 0.0
    asked: bool = False
    good_at: float | None = None  # when it was last proven
    silent_since: float | None = None  # when it was first asked of what it has not answered well

    def forget_proofs(self) -> None:
        """What is loaded from now on is another instance."""
        self.instance += 1
        self.proven = self.asked = False
        self.refuted = ""
        self.bad_proofs = 0
        self.proof_due = 0.0
        self.good_at = self.silent_since = None

    def forget_faults(self) -> None:
        self.failure = None
        self.crashes = self.bad_proofs = 0
        self.refuted = ""
        self.silent_since = None


@dataclass(slots=True)
class _Model:
    versions: dict[str, _Version] = field(default_factory=dict)
    folder: bool = False
    loaded_config: str = ""
    source_config: str = ""
    config_error: str = ""
    busy: Load | Unload | Discard | None = None
    fetching: str = ""
    unknown: bool = False  # how the load that it is busy with ends will be seen in a listing
    trial: str = ""
    trial_revision: int = 0
    retry_at: float = 0.0

    @property
    def in_triton(self) -> bool:
        """Whether Triton has any version of it, as far as it has said."""
        return any(known.state in _IN_TRITON for known in self.versions.values())

    def is_taking_out(self, version: str) -> bool:
        """Whether Triton may let go of the version at any moment, since it has been asked to. A
        table that wants it again comes too late: it is as good as gone."""
        if isinstance(self.busy, Load):
            return version not in self.busy.versions
        return isinstance(self.busy, Unload)


class Bookkeeping:
    """All that a loader knows.

    Args:
        rules: the limits.
        name: of the engine, as the table may name it.

    Attributes:
        table: the one in force, or None.
        boot: the start of Triton that all is known of; 0 while it does not run.
        gpu_memory: bytes used and bytes in all on the engine's GPUs, or None.
    """

    def __init__(self, rules: Rules | None = None, name: str = "") -> None:
        self.table: Table | None = None
        self.boot = 0
        self.gpu_memory: tuple[int, int] | None = None
        self._rules = rules or Rules()
        self._name = name
        self._models: dict[str, _Model] = {}
        self._listed = False
        self._restored_trials: dict[str, Trial] = {}

    # --- What happens ---------------------------------------------------------------------------

    def restored(self, memory: Memory, found: Mapping[str, LocalModel]) -> None:
        """The loader begins, with what it remembers and finds in the local repository."""
        for name, local in found.items():
            model = self._model(name)
            model.folder = True
            model.loaded_config = local.config
            for version, copy in local.copies.items():
                self._version(name, version).copy = copy
        for name, crashes in memory.crashes.items():
            for version, each in crashes.items():
                known = self._version(name, version)
                known.crashes, known.judged = each.count, each.revision
        self._restored_trials = dict(memory.trials)

    def applied(self, table: Table) -> None:
        """`table` is in force."""
        self.table = table
        self._restored_trials = {
            name: trial
            for name, trial in self._restored_trials.items()
            if name in table.loads
            and trial.version in table.loads[name].versions
            and not _began_after(table.loads[name], trial.version, trial.revision)
        }
        carrying = table.versions()
        for name, loads in table.loads.items():
            for version in loads.versions:
                self._version(name, version)
        for name, model in self._models.items():
            wanted = table.loads.get(name)
            for version, known in model.versions.items():
                is_wanted = wanted is not None and version in wanted.versions
                if not is_wanted and model.trial == version:
                    model.trial = ""
                if not is_wanted or _is_wanted_anew(wanted, version, known):
                    known.forget_faults()
                    known.stale = True
                if is_wanted and known.state is State.READY:
                    known.stale = False
                if (name, version) not in carrying:
                    known.silent_since = None

    def started(self, boot: int) -> None:
        """Triton runs; `boot` is above 0 and differs from those before."""
        self.gone()
        self.boot = boot

    def gone(self) -> None:
        """Triton has ended, and with it all that it had loaded."""
        for name, version in self._suspects():
            model = self._model(name)
            self._count_crash(model, version, model.trial_revision)
        for model in self._models.values():
            model.trial = ""
            for known in model.versions.values():
                known.state = None
                known.requests = Requests()
                known.failure = None
                known.forget_proofs()
            if isinstance(model.busy, Load | Unload):
                model.busy = None
            model.unknown = False
            model.retry_at = 0.0
            model.config_error = ""
        self.boot = 0
        self._listed = False

    def listed(self, listing: Listing, now: float) -> None:
        """Triton says what it has; not to be told of one that was asked for before the last load or
        unload ended."""
        for name, versions in listing.items():
            for version, seen in versions.items():
                if seen.state in _IN_TRITON and is_version(version):
                    self._version(name, version)
        for name, model in self._models.items():
            self._see(model, listing.get(name, {}), now)
        if not self._listed:
            self._listed = True
            self._settle_restored_trials(listing)
            for model in self._models.values():
                self._settle_config(model)

    def counted(self, requests: Mapping[tuple[str, str], Requests]) -> None:
        """Triton says how often each (model, version) has been asked since it was loaded."""
        for name, model in self._models.items():
            for version, known in model.versions.items():
                before, known.requests = known.requests, requests.get((name, version), Requests())
                if known.requests.answered > before.answered:
                    # It has no time for the golden request, but it does not hang.
                    known.silent_since = None

    def begun(self, action: Action) -> None:
        """`action` is about to be done: `memory()` is to be written before it is."""
        model = self._model(action.model)
        if isinstance(action, Fetch):
            model.fetching = action.version
            self._version(action.model, action.version).stale = False
            return
        model.busy = action
        if isinstance(action, Load) and action.added:
            model.trial, model.trial_revision = action.added, self.revision

    def fetched(self, action: Fetch, copy: Copy, config: str, now: float) -> None:
        """The version lies whole in the local repository.

        Args:
            config: the text of the repository's config.pbtxt, without its version policy.
        """
        model, known = self._model(action.model), self._version(action.model, action.version)
        model.fetching = ""
        model.folder = True
        known.copy, known.failure = copy, None
        in_force = self._config(action.model)
        if action.version == self._first(action.model) or not in_force:
            model.source_config = config
            if self._listed:
                self._settle_config(model)
        elif config != in_force:
            # Not to be kept: a failure is forgotten with Triton, and what lies there is not asked
            # about its configuration again.
            known.stale = True
            self._fail(
                action.model,
                action.version,
                "its configuration in the repository differs from the one that is in force",
                now,
            )

    def not_fetched(self, action: Fetch, error: str, now: float) -> None:
        """Nothing of the version lies in the local repository; `error` says why."""
        self._model(action.model).fetching = ""
        self._fail(action.model, action.version, error, now)

    def discarded(self, action: Discard) -> None:
        """The local repository has it no more."""
        model = self._model(action.model)
        model.busy = None
        if action.version:
            known = self._version(action.model, action.version)
            known.copy, known.stale = None, False
            if not self._wants(action.model, action.version):
                del model.versions[action.version]
        else:
            del self._models[action.model]

    def load_ended(
        self, action: Load, boot: int, error: str, found: Mapping[str, Listed], now: float
    ) -> None:
        """Triton has answered a load.

        Args:
            boot: the start of Triton that was asked.
            error: "" where Triton says that it is done.
            found: what Triton says of the model's versions after it.
        """
        if boot != self.boot:
            return
        model = self._model(action.model)
        self._see(model, found, now)
        self._settle_load(model, action, error, now)

    def unload_ended(
        self, action: Unload, boot: int, error: str, found: Mapping[str, Listed], now: float
    ) -> None:
        """Triton has answered an unload; see `load_ended`."""
        if boot != self.boot:
            return
        model = self._model(action.model)
        model.busy = None
        if error:
            model.retry_at = now + self._rules.retry_s
        self._see(model, found, now)

    def unanswered(self, action: Load | Unload, boot: int) -> None:
        """Triton did not answer in time, or at all: it goes on, or has ended."""
        if boot == self.boot:
            self._model(action.model).unknown = True

    def asked(self, prove: Prove) -> None:
        """A golden request is on its way."""
        self._version(prove.model, prove.version).asked = True

    def answered(self, prove: Prove, verdict: Verdict, why: str, now: float) -> None:
        """A golden request was answered, or not; `why` says what is bad about it."""
        model, known = self._model(prove.model), self._version(prove.model, prove.version)
        if known.instance != prove.instance:
            return
        known.asked = False
        known.proof_due = now + self._rules.proof_interval_s
        if verdict is Verdict.GOOD:
            known.proven, known.refuted, known.bad_proofs = True, "", 0
            known.good_at, known.silent_since = now, None
            if prove.version == self._stable(prove.model):
                # Or it would count when another one is stable, and this one the way back.
                known.crashes = 0
        elif verdict is Verdict.NONE:
            self._keep_silence(prove, known, now)
        elif verdict is Verdict.BAD:
            known.bad_proofs += 1
            if known.bad_proofs >= self._rules.bad_proofs:
                known.proven, known.refuted = False, why
                known.judged = self.revision
            elif not known.proven:
                known.proof_due = now
        if model.trial == prove.version and (known.proven or known.refuted):
            model.trial = ""

    # --- What is asked --------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """That of the table in force; 0 without one."""
        return self.table.revision if self.table is not None else 0

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that there may be something to do for."""
        return tuple(self._models)

    def next_action(self, model: str, now: float) -> Action | None:
        """What to do next for `model`; None: nothing for now. While a fetch goes on, there may be
        more."""
        known = self._models.get(model)
        if self.table is None or known is None or known.busy is not None:
            return None
        if model in self.table.models and model not in self.table.loads:
            return None  # by the table not the loaders' business
        return next_step(self._view(model, known, now))

    def due_proofs(self, now: float) -> list[Prove]:
        """The golden requests to send now."""
        return [
            prove
            for name, loads in self._loads().items()
            for prove in self._due_proofs(name, loads, now)
        ]

    def unready(self) -> str:
        """Why the engine should get no traffic, or ""."""
        if self.table is None:
            return "no routing table is applied yet"
        if not self._listed:
            return "Triton does not run"
        for name, version in sorted(self.table.versions()):
            if name not in self.table.loads:
                continue
            known = self._version(name, version)
            proven = self._is_proven(name, version, known)
            stable = version == self.table.models[name].stable
            if not proven and (stable or not self._error(name, version, known)):
                return f"model {name!r} version {version} is not proven yet"
        return ""

    def report(self) -> dict[str, Any]:
        """What `GET /status` tells."""
        memory = self.gpu_memory
        return {
            "schema": SCHEMA,
            "revision": self.revision,
            "table": write(self.table) if self.table is not None else None,
            "engine": {
                "running": self._listed,
                "gpuMemory": memory and {"usedBytes": memory[0], "totalBytes": memory[1]},
            },
            "models": {
                name: self._report_model(name, model)
                for name, model in self._models.items()
                if name in self._loads() or model.in_triton
            },
        }

    def memory(self) -> Memory:
        """What is to be remembered over a restart of the loader."""
        return Memory(
            copies={
                name: copies
                for name, model in self._models.items()
                if (copies := {v: each.copy for v, each in model.versions.items() if each.copy})
            },
            trials={
                **self._restored_trials,
                **{
                    name: Trial(each.trial, each.trial_revision)
                    for name, each in self._models.items()
                    if each.trial
                },
            },
            crashes={
                name: crashes
                for name, model in self._models.items()
                if (
                    crashes := {
                        v: Crashes(each.crashes, each.judged)
                        for v, each in model.versions.items()
                        if each.crashes
                    }
                )
            },
        )

    # --- Inside ---------------------------------------------------------------------------------

    def _model(self, name: str) -> _Model:
        return self._models.setdefault(name, _Model())

    def _version(self, name: str, version: str) -> _Version:
        return self._model(name).versions.setdefault(version, _Version())

    def _loads(self) -> Mapping[str, Loads]:
        return self.table.loads if self.table is not None else {}

    def _wants(self, name: str, version: str) -> bool:
        return version in self._wanted(name)

    def _stable(self, name: str) -> str:
        routes = self.table.models.get(name) if self.table is not None else None
        return routes.stable if routes is not None else ""

    def _wanted(self, name: str) -> list[str]:
        """In order of importance: the one that serves, then as the table has them."""
        loads, stable = self._loads().get(name), self._stable(name)
        if loads is None:
            return []
        roll = loads.roll
        return sorted(
            (v for v in loads.versions if roll is None or not roll.is_held_back(v, self._name)),
            key=lambda each: each != stable,
        )

    def _first(self, name: str) -> str:
        return next(iter(self._wanted(name)), "")

    def _config(self, name: str) -> str:
        """The text in force: the table's, that with which the model serves, the repository's."""
        loads, model = self._loads().get(name), self._model(name)
        pinned = loads.config if loads is not None else ""
        return pinned or model.loaded_config or model.source_config

    def _is_other(self, name: str, version: str, known: _Version) -> bool:
        """Whether the copy has another digest than the table wants."""
        digest = self._loads()[name].versions[version] if self._wants(name, version) else ""
        return bool(digest and known.copy and known.copy.digest != digest)

    def _error(self, name: str, version: str, known: _Version) -> str:
        """Why the version failed, or ""."""
        if known.crashes >= self._rules.crashes and version != self._stable(name):
            return f"Triton ended {known.crashes} times while it was being loaded or got requests"
        if known.failure is not None:
            return known.failure.error
        if known.state is State.READY and self._is_other(name, version, known):
            return "the files that are loaded have another digest than the table wants"
        return known.refuted

    def _is_proven(self, name: str, version: str, known: _Version) -> bool:
        taken_out = self._model(name).is_taking_out(version)
        return known.proven and not taken_out and not self._is_other(name, version, known)

    def _is_going_back(self, name: str, version: str) -> bool:
        """Whether it is the target of a roll that goes back: bad, and asked by nobody."""
        loads = self._loads().get(name)
        roll = loads.roll if loads is not None else None
        return (
            roll is not None
            and roll.phase is Phase.ROLLING_BACK
            and roll.target == version != self._stable(name)
        )

    def _is_left_alone(self, name: str, version: str, known: _Version, now: float) -> bool:
        if self._is_going_back(name, version):
            return True
        failure = known.failure
        if failure is not None and version == self._stable(name):
            return now < failure.at + self._rules.retry_s
        return bool(self._error(name, version, known))

    def _fail(self, name: str, version: str, error: str, now: float) -> None:
        model, known = self._model(name), self._version(name, version)
        if model.trial == version:
            model.trial = ""
        if not self._wants(name, version):
            return
        known.failure = _Failure(error, now)
        known.judged = self.revision
        if not model.loaded_config:
            # It may be the text that is at fault: it is read again with the next try.
            model.source_config = ""

    def _suspects(self) -> list[tuple[str, str]]:
        """The versions for which Triton may have ended: those on trial; where there are none, the
        candidates that get requests."""
        trials = [(name, each.trial) for name, each in self._models.items() if each.trial]
        if trials or self.table is None:
            return trials
        candidates = [
            (name, loads.roll.target)
            for name, loads in self.table.loads.items()
            if loads.roll is not None and loads.roll.target != self._stable(name)
        ]
        return [
            (name, version)
            for name, version in candidates
            if (name, version) in self.table.versions()
            and self._version(name, version).state is State.READY
        ]

    def _count_crash(self, model: _Model, version: str, revision: int) -> None:
        """`revision`: of the table in force when it was last loaded; there may be none by now."""
        known = model.versions.setdefault(version, _Version())
        known.crashes += 1
        known.judged = max(known.judged, revision, self.revision)

    def _keep_silence(self, prove: Prove, known: _Version, now: float) -> None:
        """A version has not answered."""
        model, stable = self._model(prove.model), self._stable(prove.model)
        if prove.version == stable:
            for each in model.versions.values():
                each.silent_since = None
            return
        if self.table is None or (prove.model, prove.version) not in self.table.versions():
            return
        if known.silent_since is None:
            known.silent_since = prove.at
        long_ago = now - self._rules.silent_s
        answered_at = self._version(prove.model, stable).good_at
        if known.silent_since <= long_ago and answered_at is not None and answered_at > long_ago:
            known.proven, known.judged = False, self.revision
            known.refuted = (
                f"no answer to its golden request for {self._rules.silent_s:g} s, "
                f"while version {stable} answers"
            )

    def _see(self, model: _Model, found: Mapping[str, Listed], now: float) -> None:
        for version, known in model.versions.items():
            known.state = found.get(version, Listed(None)).state
            if known.state is not State.READY:
                known.forget_proofs()
        if model.unknown:
            self._settle_unknown(model, found, now)

    def _settle_load(self, model: _Model, action: Load, error: str, now: float) -> None:
        """A load has ended, and `listed` has been told what there is after it."""
        model.busy = None
        model.unknown = False
        added = self._version(action.model, action.added) if action.added else None
        if not error and added is not None and added.state is not State.READY:
            error = "Triton does not have it after loading the model"
        if not error:
            model.config_error = ""
            if added is not None:
                added.failure = None
            model.source_config = ""
            if model.loaded_config != action.config:
                model.loaded_config = action.config
                for known in model.versions.values():
                    known.forget_proofs()
        elif added is not None:
            self._fail(action.model, action.added, error, now)
        else:
            model.config_error = error
            model.retry_at = now + self._rules.retry_s

    def _settle_unknown(self, model: _Model, found: Mapping[str, Listed], now: float) -> None:
        """See in a listing how what Triton did not answer has ended."""
        if any(each.state is State.LOADING for each in found.values()):
            return
        action, model.busy, model.unknown = model.busy, None, False
        if isinstance(action, Load):
            added = found.get(action.added, Listed(None))
            failed = action.added and added.state is not State.READY
            reason = added.reason or "Triton did not load it"
            self._settle_load(model, action, reason if failed else "", now)

    def _settle_restored_trials(self, listing: Listing) -> None:
        """The loader ended while versions were on trial. Where Triton has nothing at all, it has
        ended as well."""
        has_ended = not any(
            each.state is not None for versions in listing.values() for each in versions.values()
        )
        for name, trial in self._restored_trials.items():
            model, version = self._model(name), trial.version
            if has_ended:
                self._count_crash(model, version, trial.revision)
            elif listing.get(name, {}).get(version, Listed(None)).state in _IN_TRITON:
                model.trial, model.trial_revision = version, trial.revision
        self._restored_trials = {}

    def _settle_config(self, model: _Model) -> None:
        """There is a text with which the model was loaded and another one with which its first
        version has come. That of what is loaded counts; that of an earlier life does not."""
        if model.source_config and model.loaded_config:
            if model.in_triton:
                model.source_config = ""
            else:
                model.loaded_config = ""

    def _view(self, name: str, model: _Model, now: float) -> ModelView:
        wanted = self._wanted(name)
        may_load = now >= model.retry_at
        return ModelView(
            name=name,
            wanted=tuple(self._view_version(name, v, model.versions[v], now) for v in wanted),
            others=tuple(
                self._view_version(name, version, known, now)
                for version, known in model.versions.items()
                if version not in wanted
            ),
            config=self._config(name),
            loaded_config=model.loaded_config,
            triton=self._listed,
            may_load=may_load,
            may_add=may_load and self._may_add(name, now),
            folder=model.folder,
            fetching=model.fetching,
        )

    def _view_version(self, name: str, version: str, known: _Version, now: float) -> VersionView:
        usable = not known.stale and not self._is_other(name, version, known)
        return VersionView(
            version=version,
            digest=self._loads()[name].versions[version] if self._wants(name, version) else "",
            copied=known.copy is not None and usable,
            discardable=known.copy is not None and not (usable and self._wants(name, version)),
            state=known.state,
            failed=self._is_left_alone(name, version, known, now),
            proven=known.proven,
        )

    def _may_add(self, name: str, now: float) -> bool:
        """One load that adds a version at a time in the whole engine, so that a crash has one
        cause; and what has crashed before comes after all that has not."""
        if any(
            isinstance(each.busy, Load) and each.busy.added and not each.unknown
            for each in self._models.values()
        ):
            return False
        own = self._next_version(name, now)
        others = [self._next_version(other, now) for other in self._models if other != name]
        return not (own and own.crashes and any(each and not each.crashes for each in others))

    def _next_version(self, name: str, now: float) -> _Version | None:
        """The most important version of a model that is neither proven nor failed."""
        for version in self._wanted(name):
            known = self._version(name, version)
            if not (known.proven or self._is_left_alone(name, version, known, now)):
                return known
        return None

    def _due_proofs(self, name: str, loads: Loads, now: float) -> Iterator[Prove]:
        carrying = self.table.versions() if self.table is not None else frozenset()
        first = self._first(name)
        for version in loads.versions:
            known = self._version(name, version)
            if known.state is not State.READY or known.asked or now < known.proof_due:
                continue
            if self._model(name).is_taking_out(version) or self._is_going_back(name, version):
                continue
            if (name, version) in carrying or not (known.proven or known.refuted):
                compared = version != first and self._version(name, first).state is State.READY
                reference = first if compared else ""
                proof = loads.proofs.get(version)
                yield Prove(name, version, known.instance, reference, proof, now)

    def _report_model(self, name: str, model: _Model) -> dict[str, Any]:
        return {
            "config": model.loaded_config or model.source_config,
            "configError": model.config_error,
            "versions": {
                version: self._report_version(name, version, known)
                for version, known in model.versions.items()
                if self._wants(name, version) or known.state in _IN_TRITON
            },
        }

    def _report_version(self, name: str, version: str, known: _Version) -> dict[str, Any]:
        error = self._error(name, version, known)
        copy = known.copy if not known.stale else None
        return {
            "wanted": self._wants(name, version),
            "fetched": copy is not None,
            "digest": copy.digest if copy is not None else "",
            "bytes": copy.size if copy is not None else 0,
            "loaded": known.state is State.READY,
            "proven": self._is_proven(name, version, known) and not error,
            "failed": bool(error),
            "error": error,
            "requests": known.requests.answered + known.requests.failed,
        }


def _is_wanted_anew(loads: Loads | None, version: str, known: _Version) -> bool:
    """Whether the roll to a version began after it was found to be bad: then a table in between,
    which dropped it, was missed."""
    bad = known.failure is not None or known.crashes > 0 or bool(known.refuted)
    return bad and _began_after(loads, version, known.judged)


def _began_after(loads: Loads | None, version: str, revision: int) -> bool:
    """Whether there is a roll to a version that began after a revision."""
    roll = loads.roll if loads is not None else None
    return (
        roll is not None
        and roll.target == version
        and roll.phase is Phase.LOADING
        and roll.since > revision
    )
