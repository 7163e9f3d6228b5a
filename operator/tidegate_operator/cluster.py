"""The API server: what the operator reads there, and all that it writes.

Lists are read without a resource version, which the API server answers from a quorum of etcd and
never from a cache: a pod that was there when the table was written is in a list that is read after
the table. Every write carries the resource version of what was read, and is refused as a `Conflict`
when that has changed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient, SingleConfig
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import PatchType

from tidegate_operator.errors import ClusterFailed, Conflict, NotFound
from tidegate_operator.lease import Claim
from tidegate_operator.resources import (
    OPERATOR,
    TABLE_KEY,
    ModelRollout,
    PodSeen,
    claim_of,
    config_map_of,
    event_of,
    lease_of,
    now,
    pod_seen,
)
from tidegate_table.document import Table

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """The ConfigMap of the table.

    Attributes:
        content: the table in it as JSON, unread; b"" where it has none.
        version: its resource version.
    """

    content: bytes
    version: str


class Cluster:
    """One namespace of a cluster, through one API server.

    Args:
        config: where the API server is, and who we are to it.
        namespace: of the release.
        config_map: the name of the routing table's.
        lease: the name of the operators'.
        timeout_s: for each answer.
    """

    def __init__(
        self, config: SingleConfig, *, namespace: str, config_map: str, lease: str, timeout_s: float
    ) -> None:
        self._client = AsyncClient(
            config, namespace=namespace, timeout=httpx2.Timeout(timeout_s), field_manager=OPERATOR
        )
        self._namespace = namespace
        self._config_map = config_map
        self._lease = lease
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """End all connections."""
        await self._client.close()

    async def rollouts(self) -> list[dict[str, Any]]:
        """All ModelRollouts, as the API has them.

        Raises:
            ClusterFailed: it cannot be asked.
        """
        async with self._asked("list modelrollouts"):
            return [dict(each) async for each in self._client.list(ModelRollout)]

    async def table(self) -> Stored | None:
        """The ConfigMap of the table; None where there is none.

        Raises:
            ClusterFailed: it cannot be asked.
        """
        found = await self._found(self._config_map)
        if found is None:
            return None
        content = (found.data or {}).get(TABLE_KEY, "")
        version = (found.metadata.resourceVersion if found.metadata else None) or ""
        return Stored(content.encode(), version)

    async def config(self, name: str) -> Mapping[str, str] | None:
        """What a ConfigMap holds as text; None where there is no such ConfigMap.

        Raises:
            ClusterFailed: it cannot be asked.
        """
        found = await self._found(name)
        return None if found is None else found.data or {}

    async def write_table(self, table: Table, over: str | None) -> None:
        """Write the table over the ConfigMap of the resource version `over`; None: make it.

        Raises:
            Conflict: it has changed, or is there already.
            ClusterFailed: it refuses or does not answer; it may have been written nevertheless.
        """
        written = config_map_of(table, self._config_map, self._namespace, over)
        async with self._asked("write the routing table"):
            if over is None:
                await self._client.create(written)
            else:
                await self._client.replace(written)

    async def pods(self, selector: str) -> list[PodSeen]:
        """The pods that may still run, from a quorum read.

        Args:
            selector: key=value of their labels, several with commas between.

        Raises:
            ClusterFailed: it cannot be asked.
        """
        async with self._asked("list pods"):
            listed = self._client.list(Pod, labels=_labels(selector))
            found = [pod_seen(each) async for each in listed]
        return [each for each in found if each is not None]

    async def patch_status(self, name: str, version: str, patch: Mapping[str, Any]) -> None:
        """Change the status of a ModelRollout that is still of the resource version `version`.

        Args:
            patch: a JSON merge patch of the status.

        Raises:
            Conflict: it has changed.
            ClusterFailed: it refuses or does not answer.
        """
        body = {"metadata": {"resourceVersion": version}, "status": dict(patch)}
        async with self._asked("write the status of a modelrollout"):
            await self._client.patch(ModelRollout.Status, name, body, patch_type=PatchType.MERGE)

    async def post_event(
        self, rollout: Mapping[str, Any], *, warning: bool, reason: str, message: str
    ) -> None:
        """Tell an Event of a ModelRollout.

        Raises:
            ClusterFailed: it refuses or does not answer.
        """
        event = event_of(rollout, warning=warning, reason=reason, message=message, now=now())
        async with self._asked("write an event"):
            await self._client.create(event)

    async def claim(self) -> Claim | None:
        """See `lease.Claims`."""
        try:
            async with self._asked("read the lease"):
                return claim_of(await self._client.get(Lease, self._lease))
        except NotFound:
            return None

    async def write_claim(self, holder: str, duration_s: int, over: Claim | None) -> Claim:
        """See `lease.Claims`."""
        lease = lease_of(self._lease, self._namespace, holder, duration_s, over, now())
        async with self._asked("write the lease"):
            if over is None:
                return claim_of(await self._client.create(lease))
            return claim_of(await self._client.replace(lease))

    async def _found(self, name: str) -> ConfigMap | None:
        try:
            async with self._asked("read a configmap"):
                return await self._client.get(ConfigMap, name)
        except NotFound:
            return None

    @asynccontextmanager
    async def _asked(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except ApiError as error:
            raise _failure(what, error) from None
        except TimeoutError:
            raise ClusterFailed(f"{what}: no answer within {self._timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise ClusterFailed(f"{what}: {type(error).__name__}: {error}") from None


def _labels(selector: str) -> dict[str, Any]:
    return dict(each.split("=", 1) for each in selector.split(","))


def _failure(what: str, error: ApiError) -> ClusterFailed:
    code, message = error.status.code, error.status.message
    kind = {404: NotFound, 409: Conflict}.get(code or 0, ClusterFailed)
    return kind(f"{what}: {code}: {message}")
