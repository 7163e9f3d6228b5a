"""What engines say of their models, remembered for a while.

Each request needs its model's inputs and outputs, and asking the engine each time would double the
round trips. Descriptions are fetched once for all requests that wait for one, in a task of its own:
it belongs to no request, so a client that leaves, or one with little time, does not spoil it for
the others. Failures are not remembered: a model that is loaded now is served now.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidegate_gateway.deadline import Deadline

K = TypeVar("K")
V = TypeVar("V")


class Catalogue(Generic[K, V]):
    """Remembers what `fetch` says of a key.

    Args:
        fetch: asks the engine; what it raises goes to all that wait.
        ttl_s: seconds for which an answer is remembered.
        timeout_s: seconds that the engine has to answer.
    """

    def __init__(
        self, fetch: Callable[[K, Deadline], Awaitable[V]], *, ttl_s: float, timeout_s: float
    ) -> None:
        self._fetch = fetch
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._known: dict[K, tuple[float, V]] = {}
        # The newest question about each key; in `_tasks` are the forgotten ones as well.
        self._fetching: dict[K, asyncio.Task[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()

    async def get(self, key: K, deadline: Deadline) -> V:
        """What is known of `key`.

        Raises:
            DeadlineExceeded: it was not known by `deadline`.
            RequestError: what `fetch` raised.
        """
        known = self._known.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        task = self._fetching.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key))
            self._fetching[key] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._fetched(key, done))
        return await deadline.wait_for(asyncio.shield(task))

    def forget(self, key: K) -> None:
        """Ask anew at the next request; what has been asked before goes to those who wait for it,
        and is not remembered."""
        self._known.pop(key, None)
        self._fetching.pop(key, None)

    async def close(self) -> None:
        """End what is being asked."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: K) -> V:
        return await self._fetch(key, Deadline.after(self._timeout_s))

    def _fetched(self, key: K, task: asyncio.Task[V]) -> None:
        self._tasks.remove(task)
        newest = self._fetching.get(key) is task
        if newest:
            del self._fetching[key]
        # The exception is read so that asyncio does not report it once more when nobody waited any
        # longer.
        if task.cancelled() or task.exception() is not None or not newest:
            return
        now = time.monotonic()
        self._known = {known: entry for known, entry in self._known.items() if now < entry[0]}
        self._known[key] = (now + self._ttl_s, task.result())
