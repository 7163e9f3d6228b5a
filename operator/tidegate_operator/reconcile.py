"""The loop: observe everything anew, decide for each model, do one thing, and again.

Nothing is handled as it happens. A change of a ModelRollout only begins a round sooner, and a round
begins from nothing that it could not lose: what the operator was away for is not missed, and a
round that fails is followed by one that knows no more than the first. What is kept from round to
round is measured time alone (`Memory`).

The order in a round matters. The Lease first: without it nothing is done. The table is read before
the pods are listed, so that no pod that follows an older table is overlooked. The table is written
at most once, over the very one that was read; what is told of it, in statuses and Events, is told
from what was read and decided.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tidegate_operator import conditions, gateways, loaders, recovery
from tidegate_operator.cluster import Cluster, Stored
from tidegate_operator.errors import ClusterFailed, Conflict, NotFound
from tidegate_operator.lease import Lease
from tidegate_operator.next_table import next_table
from tidegate_operator.plan import next_step
from tidegate_operator.resources import PodSeen, merge_patch, now
from tidegate_operator.settings import Settings
from tidegate_operator.sightings import (
    Claims,
    Document,
    InvalidProof,
    Pods,
    claims_of,
    generation_of,
    known_revision,
    name_of,
    proof_of,
    status_in,
)
from tidegate_operator.situation import Decision, Fail, Memory, Observed, Wait, Write
from tidegate_operator.spec import Rollout
from tidegate_process.asking import Asking, NoAnswer
from tidegate_table.document import InvalidTable, Loads, Phase, Proof, Table, read

_log = logging.getLogger(__name__)

T = TypeVar("T")

News = Fail | Wait | None
"""What people should look at, once it is in a status."""

# The reason of a write that people should look at.
_GOING_BACK = "RollingBack"


class NotDone(Exception):
    """A round that could not be finished; the message says why."""


class Reconciler:
    """The loop of one operator.

    Args:
        cluster: the API server.
        asking: asks pods.
        lease: says whether this operator acts.
        given: how eager and how patient it is, and where the pods answer.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        asking: Asking,
        lease: Lease,
        given: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._asking = asking
        self._lease = lease
        self._given = given
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self._silent: dict[str, str] = {}
        self._empty_since: float | None = None
        self._woken = asyncio.Event()
        self._began_at = clock()
        self._task: asyncio.Task[None] | None = None

    # Life

    def begin(self) -> None:
        """Begin the rounds."""
        self._began_at = self._clock()
        self._task = asyncio.create_task(self._run(), name="rounds")

    async def end(self) -> None:
        """End the rounds, give the Lease back and close all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self._lease.release()
        except ClusterFailed as error:
            _log.warning("the Lease could not be given back", extra={"reason": str(error)})
        await self._asking.close()
        await self._cluster.close()

    def wake(self) -> None:
        """Have the next round begin at once, unless the last one failed."""
        self._woken.set()

    def still_for_s(self) -> float:
        """Seconds since the last round began."""
        return self._clock() - self._began_at

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            self._began_at = self._clock()
            try:
                await self.round()
            # Whatever it is, the next round may do better, and knows nothing of it.
            except Exception as error:  # noqa: BLE001
                failures += 1
                _log_failure(error)
                await asyncio.sleep(self._pause_s(failures))
            else:
                failures = 0
                await self._idle()

    def _pause_s(self, failures: int) -> float:
        pace = self._given.pace
        # An exponent of a thousand would be no float any more.
        return min(pace.pause_most_s, pace.pause_first_s * 2.0 ** min(failures - 1, 30))

    async def _idle(self) -> None:
        try:
            async with asyncio.timeout(self._given.pace.interval_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    # A round

    async def round(self) -> None:
        """One round.

        Raises:
            NotDone: it could not be finished.
            ClusterFailed: the API server refuses, does not answer, or has a newer table.
        """
        # It counts only as far as no round in between has missed it.
        empty_since, self._empty_since = self._empty_since, None
        if not await self._lease.hold():
            self._memories.clear()
            return
        documents = await self._cluster.rollouts()
        stored = await self._cluster.table()
        pods = await self._pods()
        if pods.are_empty():
            self._empty_since = self._clock() if empty_since is None else empty_since
        table = await self._current(stored, documents, pods)
        if table is None or stored is None:
            return
        claims = claims_of(documents)
        seen = await self._observe(table, claims, pods)
        draft, decisions = next_table(table, self._decide(seen))
        try:
            if draft is not None:
                await self._write(draft, stored.version)
                await self._announce(decisions, claims, draft.revision)
        finally:
            await self._tell(_statuses(seen, decisions, claims))

    async def _pods(self) -> Pods:
        given = self._given
        engines = await self._cluster.pods(given.engines.selector)
        fronts = await self._cluster.pods(given.gateways.selector)
        statuses, routings = await asyncio.gather(
            self._ask_all(engines, given.engines.loader_port, loaders.ask),
            self._ask_all(fronts, given.gateways.admin_port, gateways.ask),
        )
        present = {pod.name for pod in (*engines, *fronts)}
        self._silent = {name: why for name, why in self._silent.items() if name in present}
        return Pods(
            list(zip(engines, statuses, strict=True)), list(zip(fronts, routings, strict=True))
        )

    async def _ask_all(
        self,
        pods: Sequence[PodSeen],
        port: int,
        ask: Callable[[Asking, PodSeen, int], Awaitable[T]],
    ) -> list[T | None]:
        async def answer(pod: PodSeen) -> T | None:
            try:
                said = await ask(self._asking, pod, port)
            except NoAnswer as silence:
                self._note(pod, str(silence))
                return None
            # Whatever a pod may say that nobody has thought of, it is no answer.
            except Exception as error:  # noqa: BLE001
                self._note(pod, repr(error))
                return None
            self._note(pod, "")
            return said

        return await asyncio.gather(*(answer(pod) for pod in pods))

    def _note(self, pod: PodSeen, why: str) -> None:
        """Log that a pod is silent, and that it is not any more, each once."""
        if why != self._silent.get(pod.name, ""):
            self._silent[pod.name] = why
            _log.info(
                "a pod is silent" if why else "a pod answers", extra={"pod": pod.name, "why": why}
            )

    async def _current(
        self, stored: Stored | None, documents: Iterable[Document], pods: Pods
    ) -> Table | None:
        """The table that counts; None where it had to be written anew, for the next round to read.

        Raises:
            NotDone: nobody who answers holds it.
        """
        found = _read(stored) if stored is not None else None
        held = pods.held_above(found.revision if found is not None else 0)
        known = max(known_revision(documents), pods.told_revision())
        spoilt = stored is not None and found is None
        match recovery.current(
            found, held, known, pods.silent(), self._empty_for_s(), spoilt=spoilt
        ):
            case recovery.Stands(table):
                return table
            case recovery.Lost(message):
                try:
                    await self._tell(_lost_statuses(documents, message))
                except NotDone as untold:
                    message = f"{message}; {untold}"
                raise NotDone(message)
            case recovery.Rewrite(table, message):
                level = logging.INFO if table.revision == 1 else logging.WARNING
                _log.log(level, message, extra={"revision": table.revision})
                await self._write(table, stored.version if stored is not None else None)
                self.wake()
        return None

    def _empty_for_s(self) -> float:
        return 0.0 if self._empty_since is None else max(0.0, self._clock() - self._empty_since)

    async def _observe(self, table: Table, claims: Claims, pods: Pods) -> dict[str, Observed]:
        seen = {}
        for model in sorted({*table.models, *table.loads, *claims.owners}):
            claimed = claims.owners.get(model)
            rollout = claimed.rollout if claimed is not None else None
            proof, proof_error = None, ""
            if isinstance(rollout, Rollout):
                proof, proof_error = await self._proof(table, rollout)
            seen[model] = Observed(
                model=model,
                table=table,
                rollout=rollout,
                loaders=pods.loaders_of(model),
                gateways=pods.gateways_of(model),
                proof=proof,
                proof_error=proof_error,
            )
        return seen

    async def _proof(self, table: Table, rollout: Rollout) -> tuple[Proof | None, str]:
        """The golden request of a version that is on its way or not in the table yet, and why it
        cannot be had. What is in the table for good has its own there."""
        source, loads = rollout.spec.proof, table.loads.get(rollout.spec.model)
        if source is None or (loads is not None and _is_there(loads, rollout.spec.version)):
            return None, ""
        try:
            return proof_of(source, await self._cluster.config(source.config_map)), ""
        except (InvalidProof, ClusterFailed) as error:
            # One that cannot be had is that model's business, and not that of all others.
            return None, str(error)

    def _decide(self, seen: Mapping[str, Observed]) -> dict[str, Decision]:
        decisions, memories = {}, {}
        for model, observed in seen.items():
            try:
                decisions[model], memories[model] = next_step(
                    observed, self._memories.get(model, Memory()), self._clock()
                )
            # One model that cannot be decided on is no reason to leave the others alone.
            except Exception:  # noqa: BLE001
                _log.exception("nothing is decided for a model", extra={"model": model})
        self._memories = memories
        return decisions

    # What is written

    async def _write(self, table: Table, over: str | None) -> None:
        self._fence()
        await self._cluster.write_table(table, over)

    def _fence(self) -> None:
        """Raises:
        NotDone: the Lease may not be ours until the next write is done.
        """
        if not self._lease.is_held(for_s=self._given.pace.write_timeout_s):
            raise NotDone("the Lease is about to expire: nothing is written")

    async def _announce(
        self, decisions: Mapping[str, Decision], claims: Claims, revision: int
    ) -> None:
        """Tell what the new table changes, in the log and as Events."""
        for model, decision in decisions.items():
            if isinstance(decision, Write):
                _log.info(
                    decision.message,
                    extra={"model": model, "reason": decision.reason, "revision": revision},
                )
                if (owner := claims.owners.get(model)) is not None:
                    is_bad = decision.reason == _GOING_BACK
                    await self._event(owner.document, decision, warning=is_bad)

    async def _tell(self, statuses: Iterable[tuple[Document, dict[str, Any], News]]) -> None:
        """Write the statuses that are not as they should be, and tell what is new in them.

        Raises:
            NotDone: some could not be written; all others are.
        """
        faults = []
        for document, after, news in statuses:
            try:
                is_written = await self._put(document, after)
            except ClusterFailed as error:
                faults.append(str(error))
                continue
            if is_written and news is not None:
                _log.warning(
                    news.message, extra={"rollout": name_of(document), "reason": news.reason}
                )
                await self._event(document, news, warning=True)
        if faults:
            raise NotDone("; ".join(faults))

    async def _put(self, document: Document, after: Mapping[str, Any]) -> bool:
        """Whether a status was not as it should be, and is now.

        Raises:
            ClusterFailed: it cannot be written.
        """
        patch = merge_patch(status_in(document), after)
        if not patch:
            return False
        self._fence()
        metadata = document["metadata"]
        try:
            await self._cluster.patch_status(metadata["name"], metadata["resourceVersion"], patch)
        except (Conflict, NotFound):
            return False  # It has changed since it was read; the next round reads it again.
        return True

    async def _event(self, document: Document, told: Decision, *, warning: bool) -> None:
        try:
            await self._cluster.post_event(
                document, warning=warning, reason=told.reason, message=told.message
            )
        # For people to read; nothing depends on it.
        except ClusterFailed as error:
            _log.warning("an Event is lost", extra={"reason": str(error), "event": told.message})


def _statuses(
    seen: Mapping[str, Observed], decisions: Mapping[str, Decision], claims: Claims
) -> Iterator[tuple[Document, dict[str, Any], News]]:
    """Each ModelRollout, the status that it should have, and what is new in it."""
    at = _time()
    for model, decision in decisions.items():
        owner = claims.owners.get(model)
        if owner is not None:
            document = owner.document
            before, generation = status_in(document), generation_of(document)
            try:
                after = conditions.status_of(seen[model], decision, generation, before, at)
            # A status that someone has spoilt is no reason to leave the others alone.
            except Exception:  # noqa: BLE001
                _log.exception("a status cannot be told", extra={"rollout": name_of(document)})
            else:
                yield document, after, decision if isinstance(decision, Fail) else None
    for document, winner in claims.others:
        before, generation = status_in(document), generation_of(document)
        yield document, conditions.conflict(generation, winner, before, at), None


def _lost_statuses(
    documents: Iterable[Document], message: str
) -> Iterator[tuple[Document, dict[str, Any], News]]:
    """As `_statuses`, while there is no table to go by."""
    at = _time()
    for document in documents:
        before = status_in(document)
        try:
            after = conditions.lost(generation_of(document), message, before, at)
            is_new = not conditions.is_lost(before)
        except Exception:  # noqa: BLE001
            _log.exception("a status cannot be told", extra={"rollout": name_of(document)})
        else:
            yield document, after, Wait(conditions.LOST, message) if is_new else None


def _time() -> str:
    return now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_there(loads: Loads, version: str) -> bool:
    """Whether a version is in the table, and not on its way into service."""
    roll = loads.roll
    is_coming = roll is not None and roll.target == version and roll.phase is not Phase.ROLLING_BACK
    return version in loads.versions and not is_coming


def _read(stored: Stored) -> Table | None:
    try:
        return read(stored.content)
    except InvalidTable as invalid:
        _log.warning(
            "the ConfigMap holds no routing table that can be read",
            extra={"faults": invalid.faults},
        )
        return None


def _log_failure(error: Exception) -> None:
    if isinstance(error, (NotDone, ClusterFailed)):
        _log.warning("a round failed", extra={"reason": str(error)})
    else:
        _log.error("a round failed", exc_info=error)
