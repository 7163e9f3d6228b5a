"""Which connection a request takes: kept ones, or each one for so many requests only.

Through a Kubernetes Service a connection stays with the pod that it was opened to. Kept connections
show what a long-lived client sees when its pod leaves; new ones every few requests show whether
pods that leave, or are not ready yet, still get new connections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate_traffic.outcomes import Answer


class Sender(Protocol):
    """One client connection (for HTTP/1.1: as many as it has requests at once)."""

    async def send(self, number: int, request_id: str) -> Answer:
        """Send request `number` of the run, once, and judge what comes. Raises nothing."""

    async def close(self) -> None:
        """Close it; no request of it is in flight."""


@dataclass(eq=False)
class Lease:
    """The use of a connection for one request."""

    connection: "_Connection"

    @property
    def sender(self) -> Sender:
        """What to send with."""
        return self.connection.sender


@dataclass(eq=False)
class _Connection:
    sender: Sender
    requests: int = 0
    in_flight: int = 0
    retired: bool = False


class Connections:
    """The connections of one route.

    Args:
        make: opens one.
        count: how many are used in turn.
        requests_each: after so many requests a connection is replaced by a new one, and closed
            when its last answer is there; 0 keeps it.
    """

    def __init__(self, make: Callable[[], Sender], count: int, requests_each: int) -> None:
        self._make = make
        self._requests_each = requests_each
        self._slots: list[_Connection | None] = [None] * count
        self._turn = 0

    def take(self) -> Lease:
        """The connection for the next request; it must be given back."""
        slot = self._turn
        self._turn = (slot + 1) % len(self._slots)
        connection = self._slots[slot]
        if connection is None:
            connection = self._slots[slot] = _Connection(self._make())
        connection.requests += 1
        connection.in_flight += 1
        if connection.requests == self._requests_each:
            connection.retired = True
            self._slots[slot] = None
        return Lease(connection)

    async def give_back(self, lease: Lease) -> None:
        """The request has ended."""
        connection = lease.connection
        connection.in_flight -= 1
        if connection.retired and connection.in_flight == 0:
            await connection.sender.close()

    async def close(self) -> None:
        """Close all; nothing is in flight."""
        for connection in self._slots:
            if connection is not None:
                await connection.sender.close()
