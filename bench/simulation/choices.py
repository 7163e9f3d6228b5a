"""The ways to choose an engine that are compared: Tidegate's own, and three well-known ones."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

from tidegate_gateway.balancing import Cause, Outcome, Peer, Pool, Rules, Ticket, subset

KEY = ("model", "1")
T = TypeVar("T")


class Choice(Protocol[T]):
    """What one gateway knows of the engines, and which one it takes next.

    `T` is what it wants to have back when an attempt ends.
    """

    connections: Sequence[str]
    """The engines that the gateway is connected to."""

    def follow(self, engines: Sequence[str], now: float, /) -> None:
        """These are the engines from now on."""

    def begin(self, now: float, excluding: str, /) -> tuple[str, T]:
        """The engine for an attempt that starts: another one than `excluding`."""

    def end(self, attempt: T, now: float, outcome: Outcome, /) -> None:
        """That attempt has ended."""

    def probe(self, answers: Callable[[str], bool], now: float, /) -> None:
        """The time to ask those that are left out whether they answer."""


class Tidegate:
    """The gateway's own pool, with connections to `size` engines, or to all where that is 0."""

    def __init__(self, name: str, random: Random, size: int) -> None:
        self.connections: Sequence[str] = ()
        self._name = name
        self._size = size
        self._pool = Pool(Rules(), random)

    def follow(self, engines: Sequence[str], now: float) -> None:
        """As in `Choice`, and so are the others."""
        before, self.connections = self.connections, subset(engines, self._name, self._size)
        for gone in set(before).difference(self.connections):
            self._pool.remove(gone)
        known = set(before)
        for name in self.connections:
            if name not in known:
                peer = self._pool.add(name)
                peer.connected_since(now)
                peer.set_serves(KEY, True)

    def begin(self, now: float, excluding: str) -> tuple[str, tuple[Peer, Ticket]]:
        """A choice of the pool."""
        peer = self._pool.choose(KEY, now, excluding=(excluding,))
        if peer is None:
            raise ValueError("there are no engines")
        return peer.name, (peer, peer.begin(KEY, now))

    def end(self, attempt: tuple[Peer, Ticket], now: float, outcome: Outcome) -> None:
        """Counted and judged, as in the gateway."""
        peer, ticket = attempt
        peer.end(ticket, now, outcome)
        self._pool.judge(peer, KEY, now)

    def probe(self, answers: Callable[[str], bool], now: float) -> None:
        """Those that answer are back."""
        for peer, key in self._pool.due(now):
            if answers(peer.name):
                self._pool.readmit(peer, key, now)
            else:
                self._pool.eject(peer, key, Cause.PROBE, now)


class _Plain:
    """What the others share: connections to all engines, and no health."""

    def __init__(self, random: Random) -> None:
        self.connections: Sequence[str] = ()
        self._random = random

    def follow(self, engines: Sequence[str], _now: float) -> None:
        """In an order of its own, as a DNS server answers."""
        self.connections = self._random.sample(engines, len(engines))

    def probe(self, _answers: Callable[[str], bool], _now: float) -> None:
        """Nothing is ever left out."""

    def _draw(self, excluding: str) -> str:
        while True:
            name = self.connections[int(self._random.random() * len(self.connections))]
            if name != excluding:
                return name


class AnyOne(_Plain):
    """One at random."""

    def begin(self, _now: float, excluding: str) -> tuple[str, None]:
        """Whatever chance gives."""
        return self._draw(excluding), None

    def end(self, _attempt: None, _now: float, _outcome: Outcome) -> None:
        """There is nothing to learn."""


class RoundRobin(_Plain):
    """One after the other."""

    _turn = 0

    def begin(self, _now: float, excluding: str) -> tuple[str, None]:
        """The next one."""
        self._turn = (self._turn + 1) % len(self.connections)
        name = self.connections[self._turn]
        return self.begin(_now, excluding) if name == excluding else (name, None)

    def end(self, _attempt: None, _now: float, _outcome: Outcome) -> None:
        """There is nothing to learn."""


class LeastRequest(_Plain):
    """Of two at random the one where fewer of this gateway's own requests are in flight, as
    Envoy's LEAST_REQUEST and gRPC's least_request do."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._in_flight: dict[str, int] = {}

    def begin(self, _now: float, excluding: str) -> tuple[str, str]:
        """The one with fewer."""
        first, second = self._draw(excluding), self._draw(excluding)
        fewer = self._in_flight.get(first, 0) <= self._in_flight.get(second, 0)
        name = first if fewer else second
        self._in_flight[name] = self._in_flight.get(name, 0) + 1
        return name, name

    def end(self, attempt: str, _now: float, _outcome: Outcome) -> None:
        """One fewer there."""
        self._in_flight[attempt] -= 1
