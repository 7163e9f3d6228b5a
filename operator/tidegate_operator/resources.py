"""Kubernetes objects: pure, from what the operator means to what the API has, and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.core_v1 import (
    ContainerStatus,
    EventSource,
    ObjectReference,
    PodCondition,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Pod

from tidegate_operator.lease import Claim
from tidegate_table.document import Table, write

GROUP = "tidegate.dev"
VERSION = "v1alpha1"
PLURAL = "modelrollouts"
TABLE_KEY = "table.json"
"""The key of the ConfigMap under which the routing table is."""

OPERATOR = "tidegate-operator"
"""What the operator calls itself in what it writes."""

# What the API server takes: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/
# event-v1/ has 1024 characters for `note`, which is the same member.
_LONGEST_MESSAGE = 1024

ModelRollout = create_namespaced_resource(GROUP, VERSION, "ModelRollout", PLURAL)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that may still run.

    Attributes:
        name: its own.
        uid: that of this pod; another one may have had the name.
        address: its IP; "" while it has none.
        ready: whether it is, and does not leave.
        started: whether any of its containers has ever started, as far as is known.
        was_ready: whether it is ready or may have been before.
    """

    name: str
    uid: str
    address: str
    ready: bool
    started: bool
    was_ready: bool = True


def pod_seen(pod: Pod) -> PodSeen | None:
    """What counts of a pod; None for one that has ended for good (Succeeded or Failed)."""
    metadata, status = pod.metadata, pod.status
    if metadata is None or status is None or status.phase in ("Succeeded", "Failed"):
        return None
    readiness = next((each for each in status.conditions or () if each.type == "Ready"), None)
    is_ready = readiness is not None and readiness.status == "True"
    containers = [*(status.containerStatuses or ()), *(status.initContainerStatuses or ())]
    return PodSeen(
        name=metadata.name or "",
        uid=metadata.uid or "",
        address=status.podIP or "",
        ready=is_ready and metadata.deletionTimestamp is None,
        started=any(_has_started(each) for each in containers),
        was_ready=is_ready or _has_changed(readiness, status.startTime),
    )


def _has_changed(readiness: PodCondition | None, began: datetime | None) -> bool:
    """Whether a pod's readiness may have been another one before. The kubelet sets the time of the
    condition, and then that of the pod's start, in the first status that it writes, and the former
    again whenever it changes: `updateStatusInternal` in Kubernetes 1.34's
    pkg/kubelet/status/status_manager.go."""
    changed = readiness.lastTransitionTime if readiness is not None else None
    return changed is None or began is None or changed > began


def _has_started(container: ContainerStatus) -> bool:
    # Only what says that it waits for its first start has surely not started.
    state, before = container.state, container.lastState
    is_waiting = state is None or (state.running is None and state.terminated is None)
    has_run = container.restartCount > 0 or (before is not None and before.terminated is not None)
    return has_run or not is_waiting


def table_text(table: Table) -> str:
    """A table as the ConfigMap has it."""
    return json.dumps(write(table), separators=(",", ":"), ensure_ascii=False)


def config_map_of(table: Table, name: str, namespace: str, version: str | None) -> ConfigMap:
    """The ConfigMap with a table.

    Args:
        version: the resource version that it replaces; None where it is to be made.
    """
    labels = {"app.kubernetes.io/managed-by": OPERATOR, "app.kubernetes.io/part-of": "tidegate"}
    metadata = ObjectMeta(name=name, namespace=namespace, resourceVersion=version, labels=labels)
    return ConfigMap(metadata=metadata, data={TABLE_KEY: table_text(table)})


def claim_of(lease: Lease) -> Claim:
    """What a Lease says; one that says nothing is nobody's."""
    spec = lease.spec or LeaseSpec()
    metadata = lease.metadata or ObjectMeta()
    return Claim(
        version=metadata.resourceVersion or "",
        holder=spec.holderIdentity or "",
        duration_s=spec.leaseDurationSeconds or 0,
        transitions=spec.leaseTransitions or 0,
    )


def lease_of(  # noqa: PLR0913, PLR0917 - what a Lease has
    name: str, namespace: str, holder: str, duration_s: int, over: Claim | None, now: datetime
) -> Lease:
    """A Lease signed by `holder` over the one before, if there was one.

    Args:
        now: for people to read; no operator decides by it.
    """
    changes = over is not None and over.holder != holder
    return Lease(
        metadata=ObjectMeta(
            name=name, namespace=namespace, resourceVersion=over.version if over else None
        ),
        spec=LeaseSpec(
            holderIdentity=holder,
            leaseDurationSeconds=duration_s,
            leaseTransitions=(over.transitions if over else 0) + changes,
            # The API wants microseconds, which are left out where there are none.
            renewTime=now.replace(microsecond=now.microsecond or 1),
        ),
    )


def event_of(
    rollout: Mapping[str, Any], *, warning: bool, reason: str, message: str, now: datetime
) -> Event:
    """An Event about a ModelRollout, which is as the API has it."""
    metadata = rollout["metadata"]
    return Event(
        metadata=ObjectMeta(
            generateName=f"{metadata['name'][:200]}.", namespace=metadata["namespace"]
        ),
        involvedObject=ObjectReference(
            apiVersion=f"{GROUP}/{VERSION}",
            kind="ModelRollout",
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            resourceVersion=metadata["resourceVersion"],
        ),
        type="Warning" if warning else "Normal",
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        firstTimestamp=now,
        lastTimestamp=now,
        count=1,
        source=EventSource(component=OPERATOR),
        reportingComponent=OPERATOR,
    )


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) that makes `after` of `before`; {} where they are alike."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        known = before.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if inner := merge_patch(known, value):
                patch[name] = inner
        elif name not in before or known != value:
            patch[name] = value
    return patch


def now() -> datetime:
    """The time of day, for people to read."""
    return datetime.now(UTC)
