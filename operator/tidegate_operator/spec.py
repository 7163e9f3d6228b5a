"""What a ModelRollout says: frozen types, and the strict reading of the API's JSON.

The custom resource's schema refuses most nonsense before it is stored. But an object may be older
than the schema, or written while another release of it was installed, and the operator must live
with each that there is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from tidegate_table.document import is_digest

OnFailure = Literal["RollBack", "Pause"]
OnDelete = Literal["Keep", "Unload"]

MOST_STEPS = 20
"""Most steps of a roll."""
DRAIN_S = 30.0
"""Seconds for which a version must have had no requests before it is let go, unless the spec says
otherwise or there is none any more."""
PROGRESS_DEADLINE_S = 900.0
"""Seconds without progress after which a roll goes back, unless the spec says otherwise."""

# As Go writes durations, which is how Kubernetes reads them.
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_LONGEST_S = 7 * 24 * 3600
# Kubernetes' quantities, as far as they are amounts of memory.
_CONFIG_MAP = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_FACTORS = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_LATER = ("analysis",)
_LATER_STRATEGY = ("shadow", "maxUnavailable")
_DEFAULT_STEPS = ({"weight": 10, "hold": "1m"}, {"weight": 50, "hold": "1m"})


class InvalidRollout(Exception):
    """A ModelRollout that cannot be acted on.

    Attributes:
        faults: a sentence for each: where, what was expected, what came.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a roll.

    Attributes:
        weight: percentage of the requests that the candidate gets, 1 to 99.
        hold_s: seconds for which it stays so, once every ready gateway routes by it.
    """

    weight: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class ProofSource:
    """Where the golden request is.

    Attributes:
        config_map: the name of the ConfigMap with request.json and, perhaps, outputs.json.
        tolerance: by how much numbers of floating point may differ.
    """

    config_map: str
    tolerance: float


@dataclass(frozen=True, slots=True)
class Spec:
    """What should be; docs/rolling.md has each member's meaning.

    Attributes:
        version: as the engines name it, such as "2".
        digest: of the version's files, or "".
        memory_bytes: what one version needs on the GPU; None: not said.
    """

    model: str
    version: str
    digest: str = ""
    steps: tuple[Step, ...] = (Step(10, 60.0), Step(50, 60.0))
    bake_s: float = 120.0
    drain_s: float = DRAIN_S
    progress_deadline_s: float = PROGRESS_DEADLINE_S
    on_failure: OnFailure = "RollBack"
    on_delete: OnDelete = "Keep"
    paused: bool = False
    proof: ProofSource | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A version that is not tried again until the spec changes.

    Attributes:
        generation: of the spec that it failed under.
        reason: in one word, such as LoadFailed.
        message: what went wrong, and where.
    """

    version: str
    generation: int
    reason: str
    message: str

    def is_of(self, version: str, generation: int) -> bool:
        """Whether it is that version which has failed, under that spec."""
        return (self.version, self.generation) == (version, generation)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A ModelRollout.

    Attributes:
        created: the time of its creation, as the API writes it (RFC 3339 in UTC, so that the text
            sorts as the times do).
        failed: from its status; None when nothing has failed.
    """

    name: str
    uid: str
    generation: int
    created: str
    spec: Spec
    failed: Failed | None = None

    def has_failed(self, version: str) -> bool:
        """Whether that version has failed under the present spec."""
        return self.failed is not None and self.failed.is_of(version, self.generation)


def owner_of(claims: Sequence[tuple[str, str]]) -> str:
    """Which of several ModelRollouts for one model acts: the oldest.

    Args:
        claims: (time of creation, name) of each.
    """
    return min(claims)[1]


def read(document: Mapping[str, Any]) -> Rollout:
    """The ModelRollout in `document`, as the API server tells it.

    Raises:
        InvalidRollout: its spec cannot be acted on; every fault is told.
    """
    metadata, spec = document["metadata"], document.get("spec")
    if not isinstance(spec, dict):
        raise InvalidRollout([f"spec: expected an object, got {spec!r}"])
    faults = [*_faults(spec)]
    if faults:
        raise InvalidRollout(faults)
    return Rollout(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata.get("creationTimestamp") or "",
        spec=_spec(spec),
        failed=failed_in(document),
    )


def seconds(text: str) -> float:
    """A duration such as 90s or 1h30m, in seconds.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(text, str) or _DURATION.fullmatch(text) is None:
        raise ValueError(f"expected a time such as 90s or 1h30m, got {text!r}")
    total = sum(Decimal(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if total > _LONGEST_S:
        raise ValueError(f"expected at most {_LONGEST_S // 3600}h, got {text}")
    return float(total)


def size(quantity: object) -> int:
    """An amount of memory such as 2Gi, in bytes.

    Raises:
        ValueError: it is none, or is not above 0.
    """
    found = _QUANTITY.fullmatch(str(quantity)) if type(quantity) in (int, str) else None
    amount = int(Decimal(found[1]) * _FACTORS[found[2]]) if found else 0
    if amount <= 0:
        raise ValueError(f"expected an amount of memory such as 2Gi, got {quantity!r}")
    return amount


def _spec(spec: Mapping[str, Any]) -> Spec:
    strategy = spec.get("strategy") or {}
    proof = spec.get("proof")
    return Spec(
        model=spec["model"],
        version=str(spec["version"]),
        digest=spec.get("digest", ""),
        steps=tuple(
            Step(each["weight"], seconds(each["hold"]))
            for each in strategy.get("steps", _DEFAULT_STEPS)
        ),
        bake_s=seconds(strategy.get("bake", "2m")),
        drain_s=seconds(strategy.get("drain", "30s")),
        progress_deadline_s=seconds(spec.get("progressDeadline", "15m")),
        on_failure=spec.get("onFailure", "RollBack"),
        on_delete=spec.get("onDelete", "Keep"),
        paused=spec.get("paused", False),
        proof=None
        if proof is None
        else ProofSource(proof["configMapRef"]["name"], float(proof.get("tolerance", "0"))),
        memory_bytes=None if spec.get("memory") is None else size(spec["memory"]),
    )


def failed_in(document: Mapping[str, Any]) -> Failed | None:
    """What the status says has failed; what cannot be read was not written by an operator, and
    counts not."""
    status = document.get("status")
    failed = status.get("failed") if isinstance(status, dict) else None
    if not isinstance(failed, dict):
        return None
    version, generation = failed.get("version"), failed.get("generation")
    if type(version) not in (int, str) or type(generation) is not int:
        return None
    reason, message = failed.get("reason", ""), failed.get("message", "")
    return Failed(str(version), generation, str(reason), str(message))


def _faults(spec: Mapping[str, Any]) -> Iterator[str]:
    model, version, digest = spec.get("model"), spec.get("version"), spec.get("digest", "")
    if not isinstance(model, str) or not model:
        yield f"model: expected the name of a model, got {model!r}"
    # type() and not isinstance(): a bool is an int to Python.
    if type(version) is not int or not 1 <= version < 2**63:
        yield f"version: expected a whole number from 1, got {version!r}"
    if not isinstance(digest, str) or (digest and not is_digest(digest)):
        yield f"digest: expected sha256: and 64 hexadecimal digits, got {digest!r}"
    if spec.get("memory") is not None:
        yield from _fault("memory", size, spec["memory"])
    yield from _fault("progressDeadline", _some_time, spec.get("progressDeadline", "15m"))
    yield from _one_of("onFailure", spec.get("onFailure", "RollBack"), "RollBack", "Pause")
    yield from _one_of("onDelete", spec.get("onDelete", "Keep"), "Keep", "Unload")
    if type(spec.get("paused", False)) is not bool:
        yield f"paused: expected true or false, got {spec['paused']!r}"
    yield from (f"{name} is not offered yet" for name in _LATER if name in spec)
    yield from _strategy_faults(spec.get("strategy") or {})
    yield from _proof_faults(spec.get("proof"))


def _strategy_faults(strategy: object) -> Iterator[str]:
    if not isinstance(strategy, dict):
        yield f"strategy: expected an object, got {strategy!r}"
        return
    if strategy.get("type", "SideBySide") == "PodByPod":
        yield "strategy.type PodByPod is not offered yet"
    else:
        yield from _one_of("strategy.type", strategy.get("type", "SideBySide"), "SideBySide")
    yield from (
        f"strategy.{name} is not offered yet" for name in _LATER_STRATEGY if name in strategy
    )
    yield from _fault("strategy.bake", seconds, strategy.get("bake", "2m"))
    yield from _fault("strategy.drain", seconds, strategy.get("drain", "30s"))
    steps = strategy.get("steps", [*_DEFAULT_STEPS])
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        yield f"strategy.steps: expected a list of at most {MOST_STEPS}, got {steps!r}"
        return
    below = 0
    for index, step in enumerate(steps):
        where = f"strategy.steps[{index}]"
        weight = step.get("weight") if isinstance(step, dict) else None
        if type(weight) is not int or not below < weight < 100:
            yield f"{where}.weight: expected a whole number of {below + 1} to 99, got {weight!r}"
        else:
            below = weight
        if isinstance(step, dict):
            yield from _fault(f"{where}.hold", seconds, step.get("hold"))


def _proof_faults(proof: object) -> Iterator[str]:
    if proof is None:
        return
    reference = proof.get("configMapRef") if isinstance(proof, dict) else None
    name = reference.get("name") if isinstance(reference, dict) else None
    if not isinstance(name, str) or _CONFIG_MAP.fullmatch(name) is None:
        yield f"proof.configMapRef.name: expected the name of a ConfigMap, got {name!r}"
    if isinstance(proof, dict):
        yield from _fault("proof.tolerance", _tolerance, proof.get("tolerance", "0"))


def _some_time(text: str) -> None:
    if not seconds(text):
        raise ValueError(f"expected more than no time at all, got {text}")


def _tolerance(text: object) -> float:
    try:
        tolerance = Decimal(str(text))
    except InvalidOperation:
        tolerance = Decimal(-1)
    if not tolerance.is_finite() or tolerance < 0:
        raise ValueError(f"expected a number from 0, got {text!r}")
    return float(tolerance)


def _fault(where: str, reader: Any, value: object) -> Iterator[str]:
    try:
        reader(value)
    except ValueError as error:
        yield f"{where}: {error}"


def _one_of(where: str, value: object, *allowed: str) -> Iterator[str]:
    if value not in allowed:
        yield f"{where}: expected {' or '.join(allowed)}, got {value!r}"
