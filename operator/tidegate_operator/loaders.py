"""What loaders tell: `GET /status` of each engine's pod, read strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_operator.answers import is_said, members, text, whole
from tidegate_operator.resources import PodSeen
from tidegate_operator.situation import LoaderSeen, VersionSeen
from tidegate_process.asking import Asking, NoAnswer

SCHEMA = 1
"""The one form of a loader's status that is understood."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a loader says of one model.

    Attributes:
        config: the text of config.pbtxt in its repository, without a version policy.
        config_error: why there is none, or "".
        versions: each that it has, is to have, or has tried.
    """

    config: str
    config_error: str
    versions: Mapping[str, VersionSeen]


@dataclass(frozen=True, slots=True)
class Status:
    """What a loader says.

    Attributes:
        revision: of the table that it acts on.
        table: that table, as JSON has it and unread; None where it has none.
        free_memory: bytes on its GPU; None: it does not tell.
        models: by name.
    """

    revision: int
    table: object = None
    free_memory: int | None = None
    models: Mapping[str, ModelStatus] = field(default_factory=dict)


async def ask(asking: Asking, pod: PodSeen, port: int) -> Status:
    """What the loader of an engine's pod says now.

    Raises:
        NoAnswer: nothing that can be used.
    """
    return read(await asking.ask(pod.address, port, "/status"))


def read(document: Mapping[str, Any]) -> Status:
    """The status in a loader's answer.

    Raises:
        NoAnswer: it is none; the message says where.
    """
    if document.get("schema") != SCHEMA:
        raise NoAnswer(f"schema: expected {SCHEMA}, got {document.get('schema')!r:.64}")
    models = members(document, "models")
    return Status(
        revision=whole(document, "revision"),
        table=document.get("table"),
        free_memory=_free_memory(members(document, "engine")),
        models={name: _model(members(models, name)) for name in models},
    )


def seen(pod: PodSeen, status: Status | None, model: str) -> LoaderSeen:
    """What counts of an engine for one model; a status of None is silence."""
    if status is None:
        return LoaderSeen(pod.name, pod.ready, revision=None)
    said = status.models.get(model, ModelStatus("", "", {}))
    return LoaderSeen(
        name=pod.name,
        ready=pod.ready,
        revision=status.revision,
        config=said.config,
        config_error=said.config_error,
        versions=said.versions,
        free_memory=status.free_memory,
    )


def _free_memory(engine: Mapping[str, Any]) -> int | None:
    memory = members(engine, "gpuMemory")
    if not memory:
        return None
    return max(0, whole(memory, "totalBytes") - whole(memory, "usedBytes"))


def _model(model: Mapping[str, Any]) -> ModelStatus:
    versions = members(model, "versions")
    return ModelStatus(
        config=text(model, "config"),
        config_error=text(model, "configError"),
        versions={name: _version(members(versions, name)) for name in versions},
    )


def _version(version: Mapping[str, Any]) -> VersionSeen:
    return VersionSeen(
        digest=text(version, "digest"),
        loaded=is_said(version, "loaded"),
        proven=is_said(version, "proven"),
        failed=is_said(version, "failed"),
        error=text(version, "error"),
        requests=whole(version, "requests"),
    )
