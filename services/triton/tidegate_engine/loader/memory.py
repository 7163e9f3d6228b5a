"""What a loader remembers over its own restart, as a document in the local repository: pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_engine.loader.plan import Copy

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Crashes:
    """Ends of Triton that a version is held to account for.

    Attributes:
        count: how many.
        revision: of the table in force at the last one.
    """

    count: int
    revision: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A version whose load has begun and that is not proven yet.

    Attributes:
        revision: of the table in force when its load began.
    """

    version: str
    revision: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered.

    Attributes:
        copies: model → version → the whole copy, so that it need not be read to know its digest.
        trials: model → its version on trial.
        crashes: model → version → how often Triton ended for it.
    """

    copies: Mapping[str, Mapping[str, Copy]] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    crashes: Mapping[str, Mapping[str, Crashes]] = field(default_factory=dict)


def write(memory: Memory) -> dict[str, Any]:
    """The document that `read` makes `memory` of."""
    return {
        "schema": SCHEMA,
        "copies": {
            model: {v: {"digest": each.digest, "size": each.size} for v, each in copies.items()}
            for model, copies in memory.copies.items()
        },
        "trials": {
            model: {"version": each.version, "revision": each.revision}
            for model, each in memory.trials.items()
        },
        "crashes": {
            model: {
                v: {"count": each.count, "revision": each.revision} for v, each in crashes.items()
            }
            for model, crashes in memory.crashes.items()
        },
    }


def read(document: Any) -> Memory:
    """The memory in `document`.

    Raises:
        ValueError: it is none, or of another schema.
    """
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, got {document['schema']!r}")
        return Memory(
            copies={
                model: {v: Copy(str(each["digest"]), int(each["size"])) for v, each in of.items()}
                for model, of in document["copies"].items()
            },
            trials={
                model: Trial(str(each["version"]), int(each["revision"]))
                for model, each in document["trials"].items()
            },
            crashes={
                model: {
                    v: Crashes(int(each["count"]), int(each["revision"])) for v, each in of.items()
                }
                for model, of in document["crashes"].items()
            },
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a loader's memory: {error!r}") from None
