"""The document of the routing table: pure, from JSON and back.

`models` is what gateways route by, `loads` what loaders have in their engines, with the operator's
notes on the roll of each model. A table is validated whole before it is used, and every fault is
told, so that it is applied as it is meant or not at all. Tables come from other releases too: a
member that is not known here is kept and ignored, and so is a phase or a policy, which only the
operator acts on; another `schema` is refused, since all else may then mean something different.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

SCHEMA = 1
"""The one form of the document that is understood."""

WHOLE = 100
"""What the weights of a model add up to."""

# As engines name their versions: numbers of 64 bits. Some read "01" as 1 as well, and would have
# one version remembered under as many names as a client can think of.
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# What sums of decimals such as 33.3 + 33.3 + 33.4 may be off by.
_SUM_TOLERANCE = 1e-9

# Characters of a text that a fault quotes.
_LONGEST_QUOTED = 64


class InvalidTable(Exception):
    """A routing table that cannot be used.

    Attributes:
        faults: a sentence for each: where, what was expected, what came. The message has one a
            line.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """What the table says to gateways of one model.

    Attributes:
        stable: the version that serves now.
        weights: percentages by version, 0 to 100, together 100; `stable` is one of them.
        unknown: members of a later release.
    """

    stable: str
    weights: Mapping[str, float]
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """The golden request of a version, and what is expected of its answer.

    Attributes:
        request: the body of a KServe v2 infer request, as JSON has it.
        outputs: the outputs of the answer, as JSON has them; None: any values will do.
        tolerance: by how much numbers of floating point may differ from `outputs`.
    """

    request: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]] | None = None
    tolerance: float = 0.0


class Phase(StrEnum):
    """How far a roll has come."""

    LOADING = "Loading"
    STEPPING = "Stepping"
    BAKING = "Baking"
    PROMOTED = "Promoted"
    ROLLING_BACK = "RollingBack"


@dataclass(frozen=True, slots=True)
class Roll:
    """Where the roll of a model stands.

    Attributes:
        origin: the version that was stable when it began; "" when there was none. In JSON: `from`.
        target: the candidate. In JSON: `to`.
        phase: how far it has come; one of a later release is a text.
        step: the index of the step, from 0, while it is stepping.
        since: the revision of the table that brought this phase and step.
        engine: while it is loading, the one engine that is to load the candidate before the others
            do, by its pod's name; "": all of them.
    """

    origin: str
    target: str
    phase: Phase | str
    step: int
    since: int
    engine: str = ""

    def is_held_back(self, version: str, engine: str) -> bool:
        """Whether that engine is to wait with a version until another one has proven it."""
        return version == self.target and self.engine not in ("", engine)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator has to know of a ModelRollout that is gone.

    Attributes:
        uid: of the object.
        on_delete: whether its model then stays (Keep) or leaves the engines (Unload); a later
            release may know more.
    """

    uid: str
    on_delete: str


@dataclass(frozen=True, slots=True)
class Loads:
    """What the table says to loaders of one model.

    Attributes:
        config: the text of its config.pbtxt, without a version policy; "": that of the repository.
        versions: each that every engine is to have → its digest, or "" where none is known yet.
        proofs: by version; one without: the model's own golden request, or zeros. A version keeps
            the one that it was rolled with: another version may well answer differently.
        roll: None when there is none.
        policy: None where no ModelRollout has had the model.
        unknown: members of a later release.
    """

    config: str
    versions: Mapping[str, str]
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    roll: Roll | None = None
    policy: Policy | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A routing table; `parse` makes valid ones.

    Attributes:
        revision: at least 1; of two tables the one with the higher counts.
        models: by name.
        aliases: other names of models, each with the model's own.
        loads: by name of the model; those that are not here are not the loaders' business.
        unknown: members of a later release.
    """

    revision: int
    models: Mapping[str, ModelRoutes]
    aliases: Mapping[str, str] = field(default_factory=dict)
    loads: Mapping[str, Loads] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """The model's own name; `name` itself where it is no alias."""
        return self.aliases.get(name, name)

    def versions(self) -> frozenset[tuple[str, str]]:
        """All (model, version) that may be asked of an engine: those with a weight above 0, and
        each stable."""
        return frozenset(
            (model, version)
            for model, routes in self.models.items()
            for version, weight in routes.weights.items()
            if weight > 0 or version == routes.stable
        )

    def ignored(self) -> list[str]:
        """The members of a later release, for the log: one may be a misspelt member of this one."""
        return [
            *self.unknown,
            *(
                f"model {name!r}: {member}"
                for name, routes in self.models.items()
                for member in routes.unknown
            ),
            *(
                f"loads of model {name!r}: {member}"
                for name, loads in self.loads.items()
                for member in loads.unknown
            ),
        ]


def is_version(text: str) -> bool:
    """Whether `text` is a version as engines name them: a whole number from 1, of at most 19
    digits and without leading zeros."""
    return _VERSION.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Whether `text` is the digest of a version's files: sha256: and 64 hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


# From bytes and JSON


def read(content: bytes) -> Table:
    """The table in JSON text.

    Raises:
        InvalidTable: it is none; every fault is told.
    """
    return parse(_json(content))


def parse(document: object) -> Table:
    """The table in `document`, which is as Python's `json` gives it.

    Raises:
        InvalidTable: it is none; every fault is told.
    """
    faults = [*_faults(document)]
    if faults:
        raise InvalidTable(faults)
    return _table(document)


def _json(content: bytes) -> object:
    try:
        # Stricter than json: no NaN, no number that becomes infinite, no lone surrogate. But only
        # json tells what comes twice.
        orjson.loads(content)
        found: object = json.loads(content, object_pairs_hook=_each_once)
        # What is applied is kept and told again, and a whole number of more than 64 bits cannot be.
        orjson.dumps(found)
    except RecursionError:
        raise InvalidTable(["expected JSON, got some that is nested too deep"]) from None
    except (ValueError, TypeError) as error:
        raise InvalidTable([f"expected JSON: {error}"]) from None
    return found


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what `json` would take the last of: a model, say, that someone adds once more."""
    found = dict(members)
    if len(found) < len(members):
        counts = Counter(name for name, _ in members)
        raise InvalidTable(
            [f"expected {name!r} once, got it {n} times" for name, n in counts.items() if n > 1]
        )
    return found


def _table(document: Any) -> Table:
    return Table(
        revision=document["revision"],
        models={name: _model_routes(member) for name, member in document["models"].items()},
        aliases=document.get("aliases", {}),
        loads={name: _loads(member) for name, member in document.get("loads", {}).items()},
        unknown=_without(document, "schema", "revision", "aliases", "models", "loads"),
    )


def _model_routes(member: Any) -> ModelRoutes:
    return ModelRoutes(
        stable=member["stable"],
        weights=member.get("weights", {member["stable"]: WHOLE}),
        unknown=_without(member, "stable", "weights"),
    )


def _loads(member: Any) -> Loads:
    return Loads(
        config=member.get("config", ""),
        versions={version: each["digest"] for version, each in member["versions"].items()},
        proofs={version: _proof(each) for version, each in member.get("proofs", {}).items()},
        roll=_roll(member.get("roll")),
        policy=_policy(member.get("policy")),
        unknown=_without(member, "config", "versions", "proofs", "roll", "policy"),
    )


def _proof(member: Any) -> Proof:
    return Proof(member["request"], member.get("outputs"), member.get("tolerance", 0.0))


def _roll(member: Any) -> Roll | None:
    if member is None:
        return None
    return Roll(
        member["from"],
        member["to"],
        _phase(member["phase"]),
        member["step"],
        member["since"],
        member.get("engine", ""),
    )


def _phase(text: str) -> Phase | str:
    return Phase(text) if text in [*Phase] else text


def _policy(member: Any) -> Policy | None:
    return None if member is None else Policy(member["uid"], member["onDelete"])


def _without(document: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in known}


# To JSON


def write(table: Table) -> dict[str, Any]:
    """The document that `parse` makes `table` of."""
    return {
        "schema": SCHEMA,
        "revision": table.revision,
        "aliases": dict(table.aliases),
        "models": {
            name: {"stable": routes.stable, "weights": dict(routes.weights), **routes.unknown}
            for name, routes in table.models.items()
        },
        "loads": {name: _written_loads(loads) for name, loads in table.loads.items()},
        **table.unknown,
    }


def _written_loads(loads: Loads) -> dict[str, Any]:
    roll, policy = loads.roll, loads.policy
    return {
        "config": loads.config,
        "versions": {version: {"digest": digest} for version, digest in loads.versions.items()},
        "proofs": {version: _written_proof(proof) for version, proof in loads.proofs.items()},
        "roll": roll
        and {
            "from": roll.origin,
            "to": roll.target,
            "phase": str(roll.phase),
            "step": roll.step,
            "since": roll.since,
            "engine": roll.engine,
        },
        "policy": policy and {"uid": policy.uid, "onDelete": policy.on_delete},
        **loads.unknown,
    }


def _written_proof(proof: Proof) -> dict[str, Any]:
    return {
        "request": dict(proof.request),
        "outputs": None if proof.outputs is None else [dict(each) for each in proof.outputs],
        "tolerance": proof.tolerance,
    }


# Faults


def _faults(document: object) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"the table: expected an object, got {_quoted(document)}"
        return
    schema = document.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        yield f"schema: expected {SCHEMA}, got {_got(document, 'schema')}"
        return
    # type() and not isinstance(): a bool is an int to Python.
    if not _is_whole(document.get("revision"), 1):
        yield f"revision: expected a whole number from 1, got {_got(document, 'revision')}"
    models, loads = document.get("models"), document.get("loads", {})
    aliases = document.get("aliases", {})
    if not isinstance(aliases, dict):
        yield f"aliases: expected an object, got {_quoted(aliases)}"
        aliases = {}
    if not isinstance(loads, dict):
        yield f"loads: expected an object, got {_quoted(loads)}"
        loads = {}
    if not isinstance(models, dict):
        yield f"models: expected an object, got {_got(document, 'models')}"
        return
    for name, member in models.items():
        yield from _model_faults(name, member)
    for alias, model in aliases.items():
        yield from _alias_faults(alias, model, models)
    for name, member in loads.items():
        yield from _loads_faults(f"loads of model {_quoted(name)}", member, models.get(name))


def _model_faults(name: str, member: object) -> Iterator[str]:
    where = f"model {_quoted(name)}"
    if not name:
        yield f"{where}: expected a name, got an empty one"
    if not isinstance(member, dict):
        yield f"{where}: expected an object, got {_quoted(member)}"
        return
    stable = member.get("stable")
    if not isinstance(stable, str) or not is_version(stable):
        yield f"{where}: stable: expected a version such as '1', got {_got(member, 'stable')}"
        stable = None
    if "weights" not in member:
        return
    weights = member["weights"]
    if not isinstance(weights, dict):
        yield f"{where}: weights: expected an object, got {_quoted(weights)}"
        return
    yield from _weight_faults(f"{where}: weights", weights)
    if stable is not None and stable not in weights:
        yield f"{where}: stable: expected one of the versions in weights, got {stable!r}"


def _weight_faults(where: str, weights: Mapping[str, Any]) -> Iterator[str]:
    summable = True
    for version, weight in weights.items():
        if not is_version(version):
            yield f"{where}: expected versions such as '1', got {_quoted(version)}"
        if type(weight) not in (int, float) or not 0 <= weight <= WHOLE:
            summable = False
            yield (
                f"{where}: version {_quoted(version)}: expected a number of 0 to {WHOLE}, "
                f"got {_quoted(weight)}"
            )
    if summable:
        total = math.fsum(weights.values())
        if abs(total - WHOLE) > _SUM_TOLERANCE:
            yield f"{where}: expected a sum of {WHOLE}, got {total:.12g}"


def _alias_faults(alias: str, model: object, models: Mapping[str, Any]) -> Iterator[str]:
    where = f"alias {_quoted(alias)}"
    if not alias:
        yield f"{where}: expected a name, got an empty one"
    if alias in models:
        yield f"{where}: expected a name that no model has, got that of one"
    # A model is no alias by the rule above, so this refuses aliases of aliases, too.
    if not isinstance(model, str) or model not in models:
        yield f"{where}: expected the name of a model, got {_quoted(model)}"


def _loads_faults(where: str, member: object, routes: object) -> Iterator[str]:
    if not isinstance(member, dict):
        yield f"{where}: expected an object, got {_quoted(member)}"
        return
    if not isinstance(member.get("config", ""), str):
        yield f"{where}: config: expected a text, got {_got(member, 'config')}"
    versions = member.get("versions")
    if not isinstance(versions, dict):
        yield f"{where}: versions: expected an object, got {_got(member, 'versions')}"
        return
    for version, each in versions.items():
        yield from _version_faults(f"{where}: version {_quoted(version)}", version, each)
    for version in _routed(routes):
        if version not in versions:
            yield f"{where}: versions: expected {version!r}, which gateways may ask for, got none"
    proofs = member.get("proofs", {})
    if not isinstance(proofs, dict):
        yield f"{where}: proofs: expected an object, got {_quoted(proofs)}"
        proofs = {}
    for version, proof in proofs.items():
        yield from _proof_faults(f"{where}: proof of version {_quoted(version)}", proof)
    yield from _roll_faults(f"{where}: roll", member.get("roll"), versions)
    yield from _policy_faults(f"{where}: policy", member.get("policy"))


def _version_faults(where: str, version: str, each: object) -> Iterator[str]:
    if not is_version(version):
        yield f"{where}: expected versions such as '1', got {_quoted(version)}"
    digest = each.get("digest") if isinstance(each, dict) else None
    if not isinstance(digest, str) or (digest and not is_digest(digest)):
        yield f"{where}: expected a digest (sha256:… or an empty text), got {_quoted(each)}"


def _routed(routes: object) -> Iterator[str]:
    """The versions that gateways may ask for, as far as `routes` can be read."""
    if isinstance(routes, dict):
        stable, weights = routes.get("stable"), routes.get("weights", {})
        if isinstance(stable, str):
            yield stable
        if isinstance(weights, dict):
            yield from (name for name, weight in weights.items() if weight and name != stable)


def _proof_faults(where: str, proof: object) -> Iterator[str]:
    if not isinstance(proof, dict):
        yield f"{where}: expected an object, got {_quoted(proof)}"
        return
    if not isinstance(proof.get("request"), dict):
        yield f"{where}: request: expected an object, got {_got(proof, 'request')}"
    outputs = proof.get("outputs")
    if outputs is not None and not (
        isinstance(outputs, list) and all(isinstance(each, dict) for each in outputs)
    ):
        yield f"{where}: outputs: expected a list of objects or null, got {_quoted(outputs)}"
    tolerance = proof.get("tolerance", 0.0)
    if type(tolerance) not in (int, float) or tolerance < 0:
        yield f"{where}: tolerance: expected a number from 0, got {_quoted(tolerance)}"


def _roll_faults(where: str, roll: object, versions: Mapping[str, Any]) -> Iterator[str]:
    if roll is None:
        return
    if not isinstance(roll, dict):
        yield f"{where}: expected an object or null, got {_quoted(roll)}"
        return
    origin, target = roll.get("from"), roll.get("to")
    if not isinstance(target, str) or target not in versions:
        yield f"{where}: to: expected one of the versions, got {_got(roll, 'to')}"
    if origin != "" and (not isinstance(origin, str) or origin not in versions):
        yield f"{where}: from: expected one of the versions or an empty text, got {_quoted(origin)}"
    elif origin == target:
        yield f"{where}: from: expected another version than in to, got {_quoted(origin)}"
    if not _is_some_text(roll.get("phase")):
        yield f"{where}: phase: expected a text such as {Phase.LOADING}, got {_got(roll, 'phase')}"
    if not _is_whole(roll.get("step"), 0):
        yield f"{where}: step: expected a whole number from 0, got {_got(roll, 'step')}"
    if not isinstance(roll.get("engine", ""), str):
        yield f"{where}: engine: expected a text, got {_got(roll, 'engine')}"
    if not _is_whole(roll.get("since"), 1):
        yield f"{where}: since: expected a whole number from 1, got {_got(roll, 'since')}"


def _policy_faults(where: str, policy: object) -> Iterator[str]:
    if policy is None:
        return
    if not isinstance(policy, dict):
        yield f"{where}: expected an object or null, got {_quoted(policy)}"
        return
    if not isinstance(policy.get("uid"), str):
        yield f"{where}: uid: expected a text, got {_got(policy, 'uid')}"
    if not _is_some_text(policy.get("onDelete")):
        yield f"{where}: onDelete: expected a text such as Keep, got {_got(policy, 'onDelete')}"


def _is_some_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _got(document: Mapping[str, Any], name: str) -> str:
    return _quoted(document[name]) if name in document else "none"


def _quoted(value: object) -> str:
    match value:
        case str():
            return repr(value[:_LONGEST_QUOTED]) + ("…" if len(value) > _LONGEST_QUOTED else "")
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case list():
            return "a list"
        case _:
            return "an object"
