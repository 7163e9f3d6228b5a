"""Which operator acts: a Lease of coordination.k8s.io, signed by one and renewed.

The Lease keeps two operators from working against each other; that neither undoes what the other
has done is the business of the resourceVersion that every write carries. So a Lease that changes
hands in the midst of a write does no harm, and none is written in doubt: a write begins only while
the Lease is ours for as long as the write may take.

No clock is compared with another machine's. Whoever does not hold the Lease watches it, and takes
it once it has stayed as it is for its whole duration, by the own monotonic clock.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate_operator.errors import Conflict

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """A Lease as the API server has it.

    Attributes:
        version: its resource version.
        holder: who has signed it; "" when it has been given back.
        duration_s: how long it is valid without being renewed, as its holder says.
        transitions: how often it has changed hands.
    """

    version: str
    holder: str
    duration_s: float
    transitions: int


class Claims(Protocol):
    """Where the Lease is kept."""

    async def claim(self) -> Claim | None:
        """The Lease as it is; None where there is none."""

    async def write_claim(self, holder: str, duration_s: int, over: Claim | None) -> Claim:
        """Sign it, if it is still as `over` was; None makes it.

        Raises:
            Conflict: it is not.
        """


class Lease:
    """Our side of the Lease.

    Args:
        claims: where it is kept.
        holder: how we sign it.
        duration_s: how long it is valid without being renewed.
        renew_s: after which time it is renewed.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        claims: Claims,
        *,
        holder: str,
        duration_s: int,
        renew_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claims = claims
        self._holder = holder
        self._duration_s = duration_s
        self._renew_s = renew_s
        self._clock = clock
        self._signed: Claim | None = None
        self._signed_at = 0.0
        self._watched: Claim | None = None
        self._watched_at = 0.0

    def is_held(self, for_s: float = 0.0) -> bool:
        """Whether it is ours, and stays so for `for_s` seconds whatever happens."""
        return (
            self._signed is not None and self._clock() + for_s < self._signed_at + self._duration_s
        )

    async def hold(self) -> bool:
        """Take it if it can be had, renew it when that is due; returns whether it is ours.

        Raises:
            ClusterFailed: the API server could not be asked; it may be ours still, see `is_held`.
        """
        if self.is_held() and self._clock() < self._signed_at + self._renew_s:
            return True
        found = await self._claims.claim()
        if found is not None and not self._may_take(found):
            self._lose(found)
            return False
        try:
            await self._sign(found)
        except Conflict:
            # Another operator was quicker; the next look tells which.
            self._lose(found)
            return False
        return True

    async def release(self) -> None:
        """Give it back, if it is ours, so that another operator need not wait.

        Raises:
            ClusterFailed: the API server could not be asked.
        """
        signed, self._signed = self._signed, None
        if signed is not None:
            try:
                await self._claims.write_claim("", self._duration_s, signed)
            except Conflict:
                _log.info("the Lease has been taken over before it was given back")

    def _may_take(self, found: Claim) -> bool:
        if found.holder in ("", self._holder):
            return True
        if self._watched is None or self._watched.version != found.version:
            self._watched, self._watched_at = found, self._clock()
        return self._clock() >= self._watched_at + found.duration_s

    async def _sign(self, found: Claim | None) -> None:
        is_new = self._signed is None
        # From before the write: it counts at the API server at some time after that.
        began = self._clock()
        self._signed = await self._claims.write_claim(self._holder, self._duration_s, found)
        self._signed_at = began
        self._watched = None
        if is_new:
            before = found.holder if found is not None else ""
            _log.info("the Lease is ours", extra={"holder": self._holder, "before": before})

    def _lose(self, found: Claim | None) -> None:
        if self._signed is not None:
            holder = found.holder if found is not None else ""
            _log.warning("the Lease is lost: nothing is written", extra={"holder": holder})
        self._signed = None
