"""The loader at work: has `Bookkeeping` decide, does what it says, and tells it what came of it.

One task for each action, one for each golden request that is on its way: a slow load holds up
neither another model's proofs nor the report, and a slow fetch no load.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tidegate_engine.loader import proof, triton
from tidegate_engine.loader.bookkeeping import Bookkeeping, Verdict
from tidegate_engine.loader.errors import LoaderError, NotFetched, TritonFailed, TritonSilent, plain
from tidegate_engine.loader.memory import Memory
from tidegate_engine.loader.plan import Action, Discard, Fetch, Listed, Load, Prove, Unload
from tidegate_engine.loader.repository import Repository
from tidegate_engine.loader.triton import Answer, Triton
from tidegate_table.document import Table

_log = logging.getLogger(__name__)

# Answers of HTTP that say nothing of the version: it is not there (the index will tell), or its
# queue is full, or Triton is leaving.
_NO_VERDICT = {404, 429, 503}


class Loader:
    """Follows a table in one engine; see `tidegate_table.following.Holder`.

    Args:
        book: knows nothing yet.
        repository: the local one, with nobody else writing to it.
        engine: the Triton that reads it.
        watched: host:port of Triton's metrics, where a connection tells whether it runs.
        poll_s: seconds between two questions to Triton what it has.
        connect_pause_s: seconds between two tries to connect to a Triton that does not run.
        proof_timeout_s: seconds for a golden request.
    """

    def __init__(  # noqa: PLR0913  keywords
        self,
        book: Bookkeeping,
        repository: Repository,
        engine: Triton,
        *,
        watched: str,
        poll_s: float,
        connect_pause_s: float,
        proof_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book = book
        self._repository = repository
        self._triton = engine
        self._watched = watched
        self._poll_s = poll_s
        self._connect_pause_s = connect_pause_s
        self._proof_timeout_s = proof_timeout_s
        self._now = clock
        self._wake = asyncio.Event()
        self._boots = 0
        self._ended_calls = 0  # loads and unloads that Triton has answered
        self._remembered = Memory()
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def table(self) -> Table | None:
        """The table in force."""
        return self.book.table

    def apply(self, table: Table) -> None:
        """Go by `table` from now on."""
        self.book.applied(table)
        _log.info(
            "routing table applied",
            extra={"table_revision": table.revision, "ignored": table.ignored()},
        )
        self._wake.set()

    async def begin(self) -> None:
        """Find out what an earlier loader left; to be awaited before anything else.

        Raises:
            OSError: the local repository cannot be read or written.
        """
        await asyncio.to_thread(self._repository.clear_leftovers)
        memory = await asyncio.to_thread(self._repository.recall)
        found = await asyncio.to_thread(self._repository.scan, memory)
        self.book.restored(memory, found)

    async def run(self) -> None:
        """Keep the engine as the table wants it; never ends by itself."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                triton.watch(
                    self._watched,
                    started=self._started,
                    gone=self._gone,
                    pause_s=self._connect_pause_s,
                )
            )
            tasks.create_task(self._poll())
            await self._work(tasks)

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            begun = []
            for model in self.book.models:
                # Two at most: a fetch, and what may go on beside it.
                while (action := self.book.next_action(model, self._now())) is not None:
                    self.book.begun(action)
                    begun.append((action, self.book.boot))
            # A load that is begun has to be known before it can bring anything down.
            await self._remember()
            for action, boot in begun:
                tasks.create_task(self._do(action, boot))
            for prove in self.book.due_proofs(self._now()):
                self.book.asked(prove)
                tasks.create_task(self._prove(prove))
            await self._wake.wait()

    async def _remember(self) -> None:
        memory = self.book.memory()
        if memory == self._remembered:
            return
        try:
            await asyncio.to_thread(self._repository.remember, memory)
        except OSError as error:
            _log.error("what the loader knows cannot be written: %s", error)
            return
        self._remembered = memory

    # --- Triton's comings and goings ------------------------------------------------------------

    def _started(self) -> None:
        self._boots += 1
        self.book.started(self._boots)
        _log.info("Triton runs")
        self._wake.set()

    def _gone(self) -> None:
        _log.warning("Triton has ended")
        self.book.gone()
        self._wake.set()

    async def _poll(self) -> None:
        while True:
            if self.book.boot:
                await self._ask()
            self._wake.set()
            await asyncio.sleep(self._poll_s)

    async def _ask(self) -> None:
        boot, ended_calls = self.book.boot, self._ended_calls
        try:
            listing = await self._triton.index()
            requests = await self._triton.requests()
        except TritonFailed as failure:
            _log.debug("Triton does not tell what it has: %s", failure)
            return
        memory = None
        with suppress(TritonFailed):  # metrics may be switched off
            memory = await self._triton.gpu_memory()
        if boot != self.book.boot:
            return
        self.book.counted(requests)
        self.book.gpu_memory = memory
        # What was listed before a load ended is no longer so.
        if ended_calls == self._ended_calls:
            self.book.listed(listing, self._now())

    # --- Actions --------------------------------------------------------------------------------

    async def _do(self, action: Action, boot: int) -> None:
        if isinstance(action, Fetch):
            await self._fetch(action)
        else:
            # One that began under an earlier Triton may not have ended yet.
            async with self._locks[action.model]:
                if isinstance(action, Discard):
                    await self._discard(action)
                else:
                    await self._change(action, boot)
        self._wake.set()

    async def _discard(self, action: Discard) -> None:
        try:
            await asyncio.to_thread(self._repository.discard, action.model, action.version)
        except OSError as error:
            # It takes up room, and is in nobody's way; a restart of the loader tries again.
            _log.error("a version cannot be removed: %s", error.strerror)
        self.book.discarded(action)

    async def _fetch(self, action: Fetch) -> None:
        about = {"model": action.model, "version": action.version}
        try:
            copy, config = await asyncio.to_thread(
                self._repository.fetch, action.model, action.version, action.digest
            )
        except NotFetched as failure:
            _log.warning("version not fetched: %s", failure, extra=about)
            self.book.not_fetched(action, str(failure), self._now())
        else:
            _log.info("version fetched", extra={**about, "digest": copy.digest})
            self.book.fetched(action, copy, config, self._now())

    async def _change(self, action: Load | Unload, boot: int) -> None:
        error = ""
        try:
            if isinstance(action, Load):
                await asyncio.to_thread(
                    self._repository.write_config, action.model, action.config, action.versions
                )
                await self._call(self._triton.load, action.model, boot)
            else:
                await self._call(self._triton.unload, action.model, boot)
            listing = await self._triton.index()
        except TritonSilent:
            listing = None
        except TritonFailed as failure:
            error = plain(str(failure))
            listing = await self._listing()
        except OSError as failure:
            error = f"its configuration cannot be written: {failure.strerror}"
            listing = await self._listing()
        self._tell(action, boot, error, None if listing is None else listing.get(action.model, {}))

    async def _call(self, call: Callable[[str], Any], model: str, boot: int) -> None:
        if boot != self.book.boot:
            raise TritonSilent("Triton has ended")
        try:
            await call(model)
        finally:
            self._ended_calls += 1

    async def _listing(self) -> Mapping[str, Mapping[str, Listed]] | None:
        try:
            return await self._triton.index()
        except TritonFailed:
            return None

    def _tell(
        self, action: Load | Unload, boot: int, error: str, found: Mapping[str, Listed] | None
    ) -> None:
        about = {"model": action.model, "error": error}
        if isinstance(action, Load):
            about |= {"versions": ", ".join(action.versions), "added": action.added}
        if found is None:
            _log.warning("Triton did not answer", extra=about)
        else:
            _log.log(logging.WARNING if error else logging.INFO, "Triton was told", extra=about)
        if found is None:
            self.book.unanswered(action, boot)
        elif isinstance(action, Load):
            self.book.load_ended(action, boot, error, found, self._now())
        else:
            self.book.unload_ended(action, boot, error, found, self._now())

    # --- Proofs ---------------------------------------------------------------------------------

    async def _prove(self, prove: Prove) -> None:
        verdict, why = Verdict.NONE, "no answer in time"
        try:
            async with asyncio.timeout(self._proof_timeout_s):
                verdict, why = await self._proof(prove)
        except TimeoutError:
            pass
        except LoaderError as failure:
            why = str(failure)
        except (ValueError, TypeError, LookupError) as error:
            # What is expected, or what came, is in a form that nobody has thought of.
            verdict, why = Verdict.BAD, f"the golden request cannot be judged: {error}"
        if verdict is not Verdict.GOOD:
            _log.warning(
                "golden request: %s",
                why,
                extra={"model": prove.model, "version": prove.version, "verdict": verdict.value},
            )
        self.book.answered(prove, verdict, why, self._now())
        self._wake.set()

    async def _proof(self, prove: Prove) -> tuple[Verdict, str]:
        model, version = prove.model, prove.version
        metadata = await self._triton.metadata(model, version)
        if prove.reference:
            reference = await self._triton.metadata(model, prove.reference)
            if why := proof.difference(metadata, reference):
                return Verdict.BAD, why
        try:
            golden = proof.golden(await self._triton.config(model, version), prove.proof)
        except proof.InvalidGolden as invalid:
            return Verdict.BAD, str(invalid)
        answer = await self._triton.infer(model, version, golden.head, golden.tensors)
        if answer.head is None:
            return await self._judged(prove, golden, answer)
        why = await asyncio.to_thread(proof.fault, golden, answer.head, answer.tensors, metadata)
        return (Verdict.BAD, why) if why else (Verdict.GOOD, "")

    async def _judged(
        self, prove: Prove, golden: proof.Golden, answer: Answer
    ) -> tuple[Verdict, str]:
        """What an error says in place of an answer."""
        said = plain(answer.error)
        if answer.status in _NO_VERDICT:
            return Verdict.NONE, said
        if not golden.may_be_refused or proof.DEAD_BACKEND.search(answer.error):
            return Verdict.BAD, f"the golden request failed: {said}"
        if not prove.reference:
            return Verdict.GOOD, ""
        other = await self._triton.infer(prove.model, prove.reference, golden.head, golden.tensors)
        if other.head is not None:
            return Verdict.BAD, f"zeros failed, which version {prove.reference} answers: {said}"
        if other.status in _NO_VERDICT:
            return Verdict.NONE, f"version {prove.reference} cannot be asked the same"
        return Verdict.GOOD, ""
