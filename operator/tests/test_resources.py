"""Kubernetes objects: what counts of a pod, and what is written."""

from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from tidegate_operator.lease import Claim
from tidegate_operator.resources import (
    claim_of,
    config_map_of,
    event_of,
    lease_of,
    merge_patch,
    pod_seen,
)
from tidegate_table.document import Table, read

T = TypeVar("T")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 1}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}


def pod(*containers: dict[str, Any], phase: str = "Running", **more: Any) -> Pod:
    statuses = [
        {"name": "c", "image": "", "imageID": "", "ready": True, "restartCount": 0, **each}
        for each in containers
    ]
    metadata = {"name": "p", "uid": "u", **more.pop("metadata", {})}
    status = {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": statuses, **more}
    return made(Pod, {"metadata": metadata, "status": status})


def made(kind: type[T], document: dict[str, Any]) -> T:
    """An object as lightkube reads it."""
    found = kind.from_dict(document)  # type: ignore[attr-defined]
    assert isinstance(found, kind)
    return found


@pytest.mark.parametrize(
    ("container", "started"),
    [
        ({"state": RUNNING}, True),
        ({"state": ENDED}, True),
        ({"state": WAITING}, False),
        ({"state": {}}, False),
        ({}, False),
        ({"state": WAITING, "lastState": ENDED}, True),
        ({"state": WAITING, "restartCount": 1}, True),
    ],
    ids=repr,
)
def test_a_pod_has_started_when_one_container_has(container: dict[str, Any], started: bool) -> None:
    found = pod_seen(pod({"state": WAITING}, container))

    assert found is not None
    assert found.started is started


def test_a_container_that_runs_before_the_others_counts_as_well() -> None:
    sidecar = {"name": "s", "image": "", "imageID": "", "ready": True, "restartCount": 0}
    found = pod_seen(pod({"state": WAITING}, initContainerStatuses=[{**sidecar, "state": RUNNING}]))

    assert found is not None
    assert found.started


@pytest.mark.parametrize(
    ("readiness", "changed", "was_ready"),
    [
        ("False", "2026-01-01T00:00:00Z", False),
        ("False", "2025-12-31T23:59:59Z", False),
        ("False", "2026-01-01T00:00:07Z", True),
        ("False", None, True),
        ("True", "2026-01-01T00:00:07Z", True),
    ],
)
def test_a_pod_whose_readiness_has_not_changed_since_it_began_has_never_been_ready(
    readiness: str, changed: str | None, *, was_ready: bool
) -> None:
    condition = {"type": "Ready", "status": readiness, "lastTransitionTime": changed}
    found = pod_seen(
        pod({"state": RUNNING}, conditions=[condition], startTime="2026-01-01T00:00:00Z")
    )

    assert found is not None
    assert (found.ready, found.was_ready) == (readiness == "True", was_ready)


def test_of_a_pod_that_tells_no_times_anything_may_be() -> None:
    found = pod_seen(pod({"state": RUNNING}))

    assert found is not None
    assert found.was_ready


def test_a_pod_that_no_node_has_yet_has_neither_started_nor_an_address() -> None:
    found = pod_seen(made(Pod, {"metadata": {"name": "p"}, "status": {"phase": "Pending"}}))

    assert found is not None
    assert (found.address, found.ready, found.started) == ("", False, False)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_for_good_does_not_count(phase: str) -> None:
    assert pod_seen(pod({"state": ENDED}, phase=phase)) is None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_every_other_pod_counts(phase: str) -> None:
    assert pod_seen(pod({"state": RUNNING}, phase=phase)) is not None


@pytest.mark.parametrize(
    ("status", "leaves", "ready"),
    [("True", False, True), ("True", True, False), ("False", False, False)],
)
def test_a_pod_that_leaves_is_not_ready(status: str, leaves: bool, ready: bool) -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaves else {}
    conditions = [{"type": "Ready", "status": status}]
    found = pod_seen(pod({"state": RUNNING}, conditions=conditions, metadata=going))

    assert found is not None
    assert found.ready is ready


def test_the_configmap_holds_the_table_and_what_it_replaces() -> None:
    table = Table(3, {}, unknown={"später": "ü"})

    found = config_map_of(table, "routing", "models", "17")

    assert found.metadata is not None
    assert (found.metadata.name, found.metadata.resourceVersion) == ("routing", "17")
    assert found.data is not None
    assert read(found.data["table.json"].encode()) == table


@pytest.mark.parametrize(
    ("over", "transitions"),
    [(None, 0), (Claim("5", "me", 15, 3), 3), (Claim("5", "other", 15, 3), 4)],
)
def test_a_lease_counts_how_often_it_changes_hands(over: Claim | None, transitions: int) -> None:
    signed = lease_of("l", "models", "me", 15, over, AT)

    assert claim_of(signed) == Claim(over.version if over else "", "me", 15, transitions)
    # The API refuses a time without microseconds.
    assert signed.spec is not None
    assert signed.spec.renewTime is not None
    assert signed.spec.renewTime.microsecond


def test_a_lease_that_says_nothing_is_nobodys() -> None:
    assert claim_of(made(Lease, {"metadata": {"resourceVersion": "5"}})) == Claim("5", "", 0, 0)


def test_an_event_is_about_the_modelrollout_and_not_too_long() -> None:
    metadata = {"name": "m" * 250, "namespace": "models", "uid": "u", "resourceVersion": "5"}

    event = event_of({"metadata": metadata}, warning=True, reason="R", message="x" * 2000, now=AT)

    assert event.involvedObject.uid == "u"
    assert (event.type, event.reason) == ("Warning", "R")
    assert len(event.message or "") == 1024
    # With the characters that the API server adds, at most 253.
    assert len(event.metadata.generateName or "") <= 247


JSON = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=5)


def merged(before: Any, patch: Any) -> Any:
    """As RFC 7396 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@settings(max_examples=300, deadline=None, database=None)
@given(OBJECTS, OBJECTS)
def test_a_merge_patch_makes_the_one_of_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merged(before, merge_patch(before, after)) == after
    assert merge_patch(after, after) == {}
