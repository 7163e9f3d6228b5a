"""Deadlines: the absolute time by which a client wants its answer.

A deadline is fixed once, when the request arrives, and only ever shortened on the way down; so
every wait below asks it what is left, and no wait can outlive the client's patience.
"""

import asyncio
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from tidegate_gateway.errors import DeadlineExceeded, InvalidInput

T = TypeVar("T")

TIMEOUT_HEADER = "tidegate-timeout"
"""HTTP header and gRPC metadata with the seconds that the client is ready to wait."""

# Digits enough for any wait, and no exponent, sign or name such as inf that float() would take.
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock.

    Attributes:
        at: seconds on `time.monotonic`.
        given: seconds that the request had when it arrived, for messages.
    """

    at: float
    given: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The deadline `seconds` from now."""
        return cls(at=time.monotonic() + seconds, given=seconds)

    @classmethod
    def requested(cls, text: str | None, *, default: float, most: float) -> "Deadline":
        """The deadline that a client asks for with `tidegate-timeout`.

        Args:
            text: the header's value, decimal seconds above 0, or None for a client that sent none.
            default: seconds for such a client.
            most: seconds that no client may exceed; a longer wish is shortened to it.

        Raises:
            InvalidInput: `text` is no such number.
        """
        if text is None:
            return cls.after(min(default, most))
        if not _SECONDS.fullmatch(text) or float(text) <= 0:
            raise InvalidInput(
                f"{TIMEOUT_HEADER}: expected decimal seconds above 0, such as 2.5, got {text!r}"
            )
        return cls.after(min(float(text), most))

    def earlier(self, seconds: float | None) -> "Deadline":
        """This deadline, or the one `seconds` from now if that is earlier."""
        if seconds is None or seconds >= self.remaining():
            return self
        return Deadline.after(max(0.0, seconds))

    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())

    def exceeded(self) -> DeadlineExceeded:
        """The error for a request whose time is up."""
        return DeadlineExceeded(f"no answer within the deadline of {self.given:g} s")

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable` for as long as there is time left.

        Raises:
            DeadlineExceeded: the time was up first; `awaitable` has been cancelled.
        """
        timeout = asyncio.timeout(self.remaining())
        try:
            async with timeout:
                return await awaitable
        except TimeoutError:
            if timeout.expired():
                raise self.exceeded() from None
            raise  # The awaitable's own, as is every other exception of it.
