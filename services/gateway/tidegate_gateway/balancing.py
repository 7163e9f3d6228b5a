"""Which endpoint takes the next attempt, and which ones are left out for a while.

The load of an endpoint is what is in flight there times its moving latency, and of two endpoints
drawn at random the less loaded one is taken: two looks spread requests nearly as well as looking
at all of them, cost the same for four endpoints as for a thousand, and gateways that know nothing
of each other do not all run to the same one (Mitzenmacher, "The Power of Two Choices in Randomized
Load Balancing", 2001).

An endpoint that fails, or is slow, is ejected for one model and version: it gets nothing as long
as a well one is there, and is probed before it returns. Failures that its peers share are no
fault of its own. When all engines are slow, to leave some out would make the others slower still.

Nothing here waits or asks a clock: time, in seconds, and chance are the caller's. The gateway and
the simulation in bench/ run the same code.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from random import Random

from tidegate_gateway.hashing import unit
from tidegate_gateway.latency import Moving

Key = tuple[str, str]
"""Model and version."""

_UNKNOWN_S = 0.001
"""Latency, in seconds, while no endpoint has answered yet: so little that any request in flight
weighs more."""
_NOISE = 1.25
"""Loads that differ by less are taken as equal: of two idle endpoints the one that is faster by a
hair must not get all."""
_FADE_S = 6.0
"""Seconds without an answer after which an endpoint's latency counts for 1/e, as against the
others': what was slow, perhaps only in its first answer, is tried again."""
_TYPICAL_TTL_S = 0.25
"""Seconds for which the median of all latencies is remembered: finding it looks at each of them."""
_DRAWS = 8
"""Draws before all endpoints are looked at for the two that are wanted: enough unless most of them
are not to be had."""
_LEAST_SHARE = 0.1
"""An endpoint that has just come takes part in so many draws, or it would never show its
latency."""
_CHANCE = 1e-6
"""Failures of one endpoint that are more probable than this, going by how often the others fail at
that time, are no evidence. Five failures in a row are, while less than 6 % of the others' attempts
fail; at 1,000 requests a second chance alone ejects somebody in a quarter of an hour."""


class Outcome(StrEnum):
    """How an attempt ended, as far as it says something about the endpoint."""

    GOOD = "good"
    """An answer came."""
    FAILED = "failed"
    """It counts against the endpoint, for this model and version."""
    LATE = "late"
    """Overtaken by a further attempt, or out of time: counts as FAILED does, and what it took so
    far is the least that its latency can have been."""
    DROPPED = "dropped"
    """Cancelled for a reason that says nothing about the endpoint."""


class Cause(StrEnum):
    """Why an endpoint was ejected."""

    FAILURES = "failures"
    """Too many failures in a row."""
    ERRORS = "errors"
    """Too large a share of failures."""
    SLOW = "slow"
    """A latency far above the others'."""
    BACKEND = "backend"
    """The model's backend is dead there."""
    PROBE = "probe"
    """It did not answer a probe."""


_TIERS = 5
"""As many as `Peer.standing` tells apart."""

_NOBODYS: Key = ("", "")
"""Stands for every model and version that no endpoint has a record of."""

_PASSIVE = frozenset({Cause.FAILURES, Cause.ERRORS, Cause.SLOW})
"""What is only concluded from requests, so that it may not take out everybody."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers of this module; where no source is given they are ours, tried in the simulation.

    Attributes:
        slow_start_s: seconds over which the traffic of an endpoint that has come, or come back,
            grows to its share: the first inferences of an engine are slow.
        spill_over: the own zone is left for one request when the endpoint drawn there is so many
            times as loaded as the one drawn elsewhere.
        consecutive_failures: failures in a row that eject (Envoy's consecutive_5xx has 5).
        error_ratio: share of failures among the attempts of the last window that ejects, where
            there are `error_samples` of them; for failures with successes in between.
        error_samples: attempts in the window below which the share says nothing.
        window_s: seconds of that window.
        slow_factor: moving latency over the median of the others' that ejects. Below it the choice
            itself sends less there, in proportion.
        slow_least_s: seconds of moving latency below which nothing is too slow, whatever the
            others have.
        slow_samples: answers before a latency is judged.
        ejection_s: seconds of the first ejection. Each one after it is twice as long; and for each
            time as long as the last one that it then is well, one of them is forgotten.
        ejection_most_s: seconds of the longest.
        most_ejected: largest share of the endpoints that may be out because of failures, errors or
            slowness (rounded down); what was found by a probe is out in any case.
        max_keys: models and versions of which statistics are kept; the one that was used longest
            ago gives way.
        max_sequences: sequences whose endpoint is remembered; likewise.
        sequence_idle_s: seconds without a request after which the endpoint of a sequence is
            forgotten.
    """

    slow_start_s: float = 5.0
    spill_over: float = 2.0
    consecutive_failures: int = 5
    error_ratio: float = 0.5
    error_samples: int = 20
    window_s: float = 10.0
    slow_factor: float = 5.0
    slow_least_s: float = 0.25
    slow_samples: int = 10
    ejection_s: float = 5.0
    ejection_most_s: float = 60.0
    most_ejected: float = 0.5
    max_keys: int = 1000
    max_sequences: int = 10_000
    sequence_idle_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Ejection:
    """One endpoint is out for one model and version.

    Attributes:
        cause: why, for a metric's label.
        reason: the same in figures, for a log.
        at: when it began, in seconds of the caller's clock.
        until: when it is to be probed. It stays out until it is readmitted.
    """

    cause: Cause
    reason: str
    at: float
    until: float


class _Outcomes:
    """Attempts and failures of the last window, in two halves that take turns, and of all time.

    All halves of one window length begin at the same times, so that those of one endpoint can be
    taken from those of all.
    """

    __slots__ = ("_before", "_counts", "_half", "_half_s", "attempts", "failures")

    def __init__(self, window_s: float) -> None:
        self._half_s = window_s / 2
        self.attempts = 0
        self.failures = 0
        self.clear()

    def clear(self) -> None:
        self._half = 0
        self._counts = [0, 0]
        self._before = [0, 0]

    def count(self, failed: bool, now: float) -> None:
        self._turn(now)
        self._counts[0] += 1
        self._counts[1] += failed
        self.attempts += 1
        self.failures += failed

    def take_away(self, others: "_Outcomes", now: float) -> None:
        """Take the window of `others` out of this one."""
        self._turn(now)
        others._turn(now)
        for mine, theirs in ((self._counts, others._counts), (self._before, others._before)):
            for index, count in enumerate(theirs):
                mine[index] -= count

    def totals(self, now: float) -> tuple[int, int]:
        """Attempts of the window, and how many of them failed."""
        self._turn(now)
        return self._counts[0] + self._before[0], self._counts[1] + self._before[1]

    def _turn(self, now: float) -> None:
        half = int(now // self._half_s)
        if half == self._half:
            return
        self._before = self._counts if half == self._half + 1 else [0, 0]
        self._counts = [0, 0]
        self._half = half


class Ticket:
    """One attempt in flight; made by `Peer.begin`."""

    __slots__ = ("_record", "began", "key")

    def __init__(self, record: "_Record", key: Key, began: float) -> None:
        self._record = record
        self.key = key
        self.began = began


class _Record:
    """What is known of one endpoint for one model and version."""

    __slots__ = (
        "all_outcomes",
        "ejection",
        "last_s",
        "latency",
        "outcomes",
        "row",
        "row_from",
        "running",
        "serves",
        "since",
        "steps",
    )

    def __init__(self, rules: Rules, all_outcomes: _Outcomes) -> None:
        self.serves: bool | None = None
        self.latency = Moving(fade_s=_FADE_S)
        self.outcomes = _Outcomes(rules.window_s)
        self.all_outcomes = all_outcomes
        self.row = 0  # failures, the newest ones
        self.row_from = (0, 0)  # attempts and failures of all endpoints before its first one
        self.running: dict[Ticket, None] = {}  # the oldest first
        self.since = -math.inf  # when it last came back
        self.ejection: Ejection | None = None
        self.steps = 0  # how many ejections are not forgotten
        self.last_s = 0.0  # how long the last one was

    def renew(self, now: float) -> None:
        """What was before `now` says nothing any more."""
        self.forget_outcomes(now)
        self.latency = Moving(fade_s=_FADE_S)
        self.since = now

    def forget_outcomes(self, now: float) -> None:
        """The next ones are judged for themselves, and those so far are no measure for others."""
        self.all_outcomes.take_away(self.outcomes, now)
        self.outcomes.clear()
        self.row = 0

    def learn(self, outcome: Outcome, began: float, now: float) -> None:
        """Take in how an attempt ended."""
        if outcome is Outcome.DROPPED or began < self.since:
            return
        failed = outcome is not Outcome.GOOD
        if self.ejection is None:
            if self.row == 0:
                self.row_from = self.all_outcomes.attempts, self.all_outcomes.failures
            self.row = self.row + 1 if failed else 0
            self.outcomes.count(failed, now)
            self.all_outcomes.count(failed, now)
        # What was broken off might have taken longer: it can only raise the mean. And who fails
        # fast must not look fast, or it would draw all requests to it.
        seconds = now - began
        if not failed or seconds > (self.latency.mean or 0.0):
            self.latency.observe(seconds, now)

    def others_in_window(self, now: float) -> tuple[int, int]:
        """Attempts and failures of the other endpoints in the window."""
        attempts, failures = self.outcomes.totals(now)
        all_attempts, all_failures = self.all_outcomes.totals(now)
        return all_attempts - attempts, all_failures - failures

    def others_in_row(self) -> tuple[int, int]:
        """Attempts and failures of the other endpoints since the failures in a row began."""
        attempts, failures = self.row_from
        return (
            self.all_outcomes.attempts - attempts - self.row,
            self.all_outcomes.failures - failures - self.row,
        )


class Peer:
    """One endpoint as the balancer sees it; made by `Pool.add`.

    Attributes:
        name: its identity in the pool.
        zone: "" where unknown.
        in_flight: attempts that run there, of all models.
    """

    __slots__ = ("_connected_at", "_leaving", "_pool", "_records", "in_flight", "name", "zone")

    def __init__(self, pool: "Pool", name: str, zone: str) -> None:
        self.name = name
        self.zone = zone
        self.in_flight = 0
        self._pool = pool
        self._connected_at: float | None = None
        self._leaving = False
        self._records: dict[Key, _Record] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a connection to it."""
        return self._connected_at is not None

    def connected_since(self, now: float) -> None:
        """There is a connection: slow start begins, failures before it are forgotten, and what it
        is ejected for is to be probed at once, since a new process may be behind it."""
        self._connected_at = now
        for record in self._records.values():
            record.renew(now)
            if record.ejection is not None:
                ejection = record.ejection
                record.ejection = Ejection(ejection.cause, ejection.reason, ejection.at, now)
        self._pool._changed()

    def disconnected(self) -> None:
        """The connection is gone: nothing is sent there."""
        self._connected_at = None
        self._pool._changed()

    @property
    def leaving(self) -> bool:
        """Whether its pod is terminating, so that it gets no new requests."""
        return self._leaving

    @leaving.setter
    def leaving(self, leaving: bool) -> None:
        self._leaving = leaving
        self._pool._changed()

    def serves(self, key: Key) -> bool | None:
        """Whether it serves that model and version; None where that is not known."""
        record = self._records.get(key)
        return None if record is None else record.serves

    def set_serves(self, key: Key, serves: bool | None) -> None:
        """What it said when it was asked."""
        record = self._record(key)
        if record.serves is not serves:
            record.serves = serves
            self._pool._changed()

    def forget_versions(self) -> None:
        """Nothing is known any more of what it serves."""
        for record in self._records.values():
            record.serves = None
        self._pool._changed()

    def failures_in_a_row(self, key: Key) -> int:
        """How many of its newest attempts have failed."""
        record = self._records.get(key)
        return 0 if record is None else record.row

    def ejection(self, key: Key) -> Ejection | None:
        """The ejection that it is under."""
        record = self._records.get(key)
        return None if record is None else record.ejection

    def begin(self, key: Key, now: float) -> Ticket:
        """An attempt starts there."""
        record = self._record(key)
        ticket = Ticket(record, key, now)
        record.running[ticket] = None
        self.in_flight += 1
        return ticket

    def end(self, ticket: Ticket, now: float, outcome: Outcome) -> None:
        """An attempt has ended; the second end of one is ignored. `Pool.judge` is to follow."""
        record = ticket._record
        if ticket not in record.running:
            return
        del record.running[ticket]
        self.in_flight -= 1
        record.learn(outcome, ticket.began, now)

    def latency(self, key: Key, now: float) -> float:
        """Seconds that an answer takes there: the moving mean, or the age of the oldest request in
        flight if that is more, so that an endpoint that stalls grows heavy at once.

        A mean without new samples fades towards the median of all, where endpoints without any
        samples are: one that was slow is tried again.
        """
        typical = self._pool._typical(key, now)
        record = self._records.get(key)
        if record is None:
            return _UNKNOWN_S if typical is None else typical
        mean = record.latency.value(now, typical)
        oldest = next(iter(record.running), None)
        age = 0.0 if oldest is None else now - oldest.began
        return max(_UNKNOWN_S if mean is None else mean, age)

    def load(self, key: Key, now: float) -> float:
        """What an attempt would wait for: all in flight and itself, each as long as `latency`."""
        return (self.in_flight + 1) * self.latency(key, now)

    def new_since(self, key: Key) -> float:
        """When it came, or came back, for that model and version."""
        record = self._records.get(key)
        came = -math.inf if self._connected_at is None else self._connected_at
        return came if record is None else max(came, record.since)

    def mean(self, key: Key) -> float | None:
        """Moving latency in seconds, however old; None without answers."""
        record = self._records.get(key)
        return None if record is None else record.latency.mean

    def standing(self, key: Key) -> int | None:
        """How good a choice it is; None while it is not connected.

        0: it is well: not leaving, serves `key`, not ejected. 1: not known to serve it. 2: ejected.
        3: leaving. 4: it does not serve it.
        """
        if self._connected_at is None:
            return None
        record = self._records.get(key)
        if record is not None and record.serves is False:
            return 4
        if self._leaving:
            return 3
        if record is not None and record.ejection is not None:
            return 2
        return 0 if record is not None and record.serves else 1

    def _record(self, key: Key) -> _Record:
        record = self._records.get(key)
        if record is None:
            record = self._pool._new_record(key)
            self._records[key] = record
        return record


@dataclass(slots=True)
class _Tier:
    """Endpoints that are as good as each other, those of the gateway's zone apart.

    `eldest` is when the one that is there longest came, `youngest` when the last one did.
    """

    own: list[Peer] = field(default_factory=list)
    others: list[Peer] = field(default_factory=list)
    eldest: float = math.inf
    youngest: float = -math.inf

    def add(self, peer: Peer, key: Key, zone: str) -> None:
        (self.own if zone and peer.zone == zone else self.others).append(peer)
        since = peer.new_since(key)
        self.eldest = min(self.eldest, since)
        self.youngest = max(self.youngest, since)

    def peers(self) -> list[Peer]:
        return [*self.own, *self.others]


class _Group:
    """All endpoints together, for one model and version.

    The tiers are sorted anew when something has changed that decides who is in them, which is rare,
    and not at each choice.
    """

    __slots__ = ("outcomes", "room", "sorted_at", "tiers", "typical", "typical_until")

    def __init__(self, rules: Rules) -> None:
        self.outcomes = _Outcomes(rules.window_s)
        self.sorted_at = -1
        self.tiers = [_Tier() for _ in range(_TIERS)]
        self.room = 0
        self.typical: float | None = None
        self.typical_until = -math.inf

    def sort(self, peers: Iterable[Peer], key: Key, rules: Rules, zone: str) -> None:
        """Put the endpoints into their tiers, and count how many more may be ejected for what is
        only concluded from requests."""
        self.tiers = [_Tier() for _ in range(_TIERS)]
        out = 0
        for peer in peers:
            standing = peer.standing(key)
            if standing is None:
                continue
            self.tiers[standing].add(peer, key, zone)
            ejection = peer.ejection(key) if standing == 2 and peer.serves(key) else None
            if ejection is not None and ejection.cause in _PASSIVE:
                out += 1
        well = len(self.tiers[0].own) + len(self.tiers[0].others)
        self.room = math.floor(rules.most_ejected * (well + out)) - out
        self.typical_until = -math.inf

    def find_typical(self, key: Key) -> None:
        """The median of the latencies, the lower one of two: for an endpoint that is slower than it
        this is the median of the others."""
        means = [peer.mean(key) for peer in self.tiers[0].peers()]
        known = sorted(mean for mean in means if mean is not None)
        self.typical = known[(len(known) - 1) // 2] if known else None


class Pool:
    """The endpoints of one gateway, and the choice among them.

    Args:
        rules: the numbers.
        random: chance; a seeded one gives the same choices each time.
        zone: the gateway's own, "" where unknown: then all zones are alike.
    """

    def __init__(self, rules: Rules, random: Random, *, zone: str = "") -> None:
        self._rules = rules
        self._random = random
        self._zone = zone
        self._peers: dict[str, Peer] = {}
        self._groups: OrderedDict[Key, _Group] = OrderedDict()  # the least used first
        self._out: dict[tuple[Peer, Key], None] = {}
        self._sequences: OrderedDict[tuple[Key, str], tuple[str, float]] = OrderedDict()
        self._changes = 0

    def add(self, name: str, *, zone: str = "") -> Peer:
        """A new endpoint, not connected yet.

        Raises:
            ValueError: there is one of that name.
        """
        if name in self._peers:
            raise ValueError(f"endpoint {name} is in the pool already")
        peer = Peer(self, name, zone)
        self._peers[name] = peer
        self._changed()
        return peer

    def remove(self, name: str) -> None:
        """It is gone; attempts that run there may still end.

        Raises:
            KeyError: there is none of that name.
        """
        removed = self._peers.pop(name)
        self._out = {(peer, key): None for peer, key in self._out if peer is not removed}
        self._changed()

    def choose(self, key: Key, now: float, *, excluding: Collection[str] = ()) -> Peer | None:
        """The endpoint for the next attempt; None while nothing is connected.

        Those that are well come first; where there is none, those that may serve `key`, since to
        try is better than to refuse (`Peer.standing`). Those named in `excluding`, where the
        request has been already, come after them, and last those that said that they do not serve
        it.
        """
        *serving, others = self._sorted_group(key).tiers
        for tier in serving:
            chosen = self._from_zones(tier, key, now, excluding)
            if chosen is not None:
                return chosen
        if excluding:
            return self.choose(key, now)
        return self._from_zones(others, key, now, excluding)

    def stay(self, key: Key, sequence: str, now: float) -> Peer | None:
        """The endpoint that has the state of `sequence`; None while nothing is connected.

        A new one is placed by rendezvous hashing, so that gateways that see the same endpoints
        place it alike. It stays as long as its endpoint is connected and serves `key`, ejected or
        leaving: the state is nowhere else.
        """
        known = self._sequences.pop((key, sequence), None)
        self._expire(now)
        peer = None if known is None else self._peers.get(known[0])
        if peer is None or not peer.connected or peer.serves(key) is False:
            peer = self._place(key, sequence)
        if peer is not None:
            self._sequences[key, sequence] = peer.name, now
        return peer

    def forget(self, key: Key, sequence: str) -> None:
        """The sequence has ended."""
        self._sequences.pop((key, sequence), None)

    def is_served(self, key: Key) -> bool:
        """Whether an endpoint is well for that model and version."""
        well = self._sorted_group(key).tiers[0]
        return bool(well.own or well.others)

    def judge(self, peer: Peer, key: Key, now: float) -> Ejection | None:
        """Eject `peer` if its answers say so; to be asked after each attempt that ended there.

        Returns:
            The new ejection, or None: it is well, or out already, or too many others are out.
        """
        if self._sorted_group(key).room < 1 or not self._has(peer) or peer.standing(key) != 0:
            return None
        fault = self._fault(peer._record(key), self._typical(key, now), now)
        return None if fault is None else self._eject(peer, key, *fault, now)

    def eject(self, peer: Peer, key: Key, cause: Cause, now: float) -> Ejection:
        """Eject `peer` for what the caller has found out, however many others are out. One that is
        out already stays so for longer: so ends a probe that failed."""
        row = f"{peer.failures_in_a_row(key)} failures in a row"
        reason = row if cause is Cause.FAILURES else f"{cause} failed"
        return self._eject(peer, key, cause, reason, now)

    def due(self, now: float) -> list[tuple[Peer, Key]]:
        """Ejections whose time is up. The caller probes each of them, and then readmits or ejects
        it."""
        return [
            (peer, key)
            for peer, key in self._out
            if (ejection := peer.ejection(key)) is not None and ejection.until <= now
        ]

    def readmit(self, peer: Peer, key: Key, now: float) -> None:
        """A probe was answered: the endpoint is back, without a past and with slow start."""
        record = peer._record(key)
        record.renew(now)
        record.ejection = None
        self._out.pop((peer, key), None)
        self._changed()

    def keep_only(self, peer: Peer, keys: Collection[Key]) -> None:
        """Forget what is known of other models and versions there, unless they are in flight: they
        are not asked about any more, and may have come or gone since."""
        for key in [key for key in peer._records if key not in keys]:
            if not peer._records[key].running:
                del peer._records[key]
                self._out.pop((peer, key), None)
                self._changed()

    # Who may be chosen

    def _has(self, peer: Peer) -> bool:
        return self._peers.get(peer.name) is peer

    def _changed(self) -> None:
        self._changes += 1

    def _group(self, key: Key) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self._rules)
            if len(self._groups) > self._rules.max_keys:
                self._drop(next(iter(self._groups)))
        else:
            self._groups.move_to_end(key)
        return group

    def _sorted_group(self, key: Key) -> _Group:
        # Names that clients invent leave nothing behind, and drive nothing out: where no endpoint
        # has a record, all of them are alike.
        key = key if key in self._groups else _NOBODYS
        group = self._group(key)
        if group.sorted_at != self._changes:
            group.sorted_at = self._changes
            group.sort(self._peers.values(), key, self._rules, self._zone)
        return group

    def _drop(self, key: Key) -> None:
        del self._groups[key]
        for peer in self._peers.values():
            peer._records.pop(key, None)
            self._out.pop((peer, key), None)

    def _new_record(self, key: Key) -> _Record:
        return _Record(self._rules, self._group(key).outcomes)

    def _typical(self, key: Key, now: float) -> float | None:
        group = self._sorted_group(key)
        if now >= group.typical_until:
            group.find_typical(key)
            group.typical_until = now + _TYPICAL_TTL_S
        return group.typical

    # The choice

    def _from_zones(
        self, tier: _Tier, key: Key, now: float, excluding: Collection[str]
    ) -> Peer | None:
        own = self._less_loaded(tier, tier.own, key, now, excluding)
        other = self._less_loaded(tier, tier.others, key, now, excluding)
        if own is not None and other is not None:
            spills = own.load(key, now) > self._rules.spill_over * other.load(key, now)
            return other if spills else own
        if own is not None or other is not None:
            return own or other
        # Perhaps there are new ones alone, and chance was against each of them.
        left = [peer for peer in tier.peers() if peer.name not in excluding]
        return self._random.choice(left) if left else None

    def _less_loaded(
        self, tier: _Tier, peers: list[Peer], key: Key, now: float, excluding: Collection[str]
    ) -> Peer | None:
        drawn = self._draw(tier, peers, key, now, excluding)
        if len(drawn) < 2:
            return drawn[0] if drawn else None
        first, second = drawn
        return second if first.load(key, now) > _NOISE * second.load(key, now) else first

    def _draw(
        self, tier: _Tier, peers: list[Peer], key: Key, now: float, excluding: Collection[str]
    ) -> list[Peer]:
        """Up to two different endpoints at random, none of them in `excluding`; new ones by their
        share."""
        drawn: list[Peer] = []
        if not peers:
            return drawn
        seen = set(excluding)
        for _ in range(_DRAWS):
            peer = peers[int(self._random.random() * len(peers))]
            if peer.name in seen:
                continue
            seen.add(peer.name)
            if self._takes_part(peer, tier, key, now):
                drawn.append(peer)
                if len(drawn) == 2:
                    return drawn
        rest = [peer for peer in peers if peer.name not in seen]
        self._random.shuffle(rest)
        present = (peer for peer in rest if self._takes_part(peer, tier, key, now))
        return [*drawn, *islice(present, 2 - len(drawn))]

    def _takes_part(self, peer: Peer, tier: _Tier, key: Key, now: float) -> bool:
        """Slow start: chance by age, in proportion to the one that is there longest, so that
        endpoints that came together are not held back."""
        if now - tier.youngest >= self._rules.slow_start_s:
            return True
        share = self._share(peer.new_since(key), now)
        return self._random.random() * self._share(tier.eldest, now) < share

    def _share(self, since: float, now: float) -> float:
        if now - since >= self._rules.slow_start_s:
            return 1.0
        return max(_LEAST_SHARE, (now - since) / self._rules.slow_start_s)

    # Sequences

    def _place(self, key: Key, sequence: str) -> Peer | None:
        for tier in self._sorted_group(key).tiers:
            best = max(tier.peers(), key=lambda peer: unit(*key, sequence, peer.name), default=None)
            if best is not None:
                return best
        return None

    def _expire(self, now: float) -> None:
        while self._sequences:
            oldest = next(iter(self._sequences))
            idle = now - self._sequences[oldest][1]
            full = len(self._sequences) >= self._rules.max_sequences
            if idle < self._rules.sequence_idle_s and not full:
                return
            del self._sequences[oldest]

    # Ejection

    def _fault(
        self, record: _Record, typical: float | None, now: float
    ) -> tuple[Cause, str] | None:
        """What is wrong with an endpoint, going by its answers and those of the others."""
        rules = self._rules
        attempts, failures = record.outcomes.totals(now)
        others = record.others_in_window(now)
        row = record.row
        # Where all begin to fail at once, the window still remembers how well they did before.
        if (
            row >= rules.consecutive_failures
            and _tells(row, row, *others)
            and _tells(row, row, *record.others_in_row())
        ):
            return Cause.FAILURES, f"{row} failures in a row"
        enough = attempts >= rules.error_samples and failures >= rules.error_ratio * attempts
        if enough and _tells(attempts, failures, *others):
            return Cause.ERRORS, f"{failures} of {attempts} attempts failed"
        mean = record.latency.mean
        if mean is None or typical is None or record.latency.samples < rules.slow_samples:
            return None
        if mean > max(rules.slow_factor * typical, rules.slow_least_s):
            return Cause.SLOW, f"{mean:.3f} s for an answer, the others {typical:.3f} s"
        return None

    def _eject(self, peer: Peer, key: Key, cause: Cause, reason: str, now: float) -> Ejection:
        rules = self._rules
        record = peer._record(key)
        if record.ejection is None and record.steps:
            well_s = now - record.since
            record.steps = max(0, record.steps - int(well_s / record.last_s))
        record.last_s = min(rules.ejection_most_s, rules.ejection_s * 2**record.steps)
        if record.last_s < rules.ejection_most_s:
            record.steps += 1
        record.forget_outcomes(now)
        record.ejection = Ejection(cause, reason, at=now, until=now + record.last_s)
        if self._has(peer):
            self._out[peer, key] = None
        self._changed()
        return record.ejection


def _tells(attempts: int, failures: int, their_attempts: int, their_failures: int) -> bool:
    """Whether so many failures say something of an endpoint, when the others have theirs.

    It is Chernoff's bound for the probability of as many at the others' rate; for failures in a
    row it is that probability itself.
    """
    # Half a failure more than they had (Jeffreys' prior): few attempts without any prove little.
    ratio, rate = failures / attempts, (their_failures + 0.5) / (their_attempts + 1)
    if ratio <= rate:
        return False
    distance = ratio * math.log(ratio / rate)
    if ratio < 1:
        distance += (1 - ratio) * math.log((1 - ratio) / (1 - rate))
    return math.exp(-attempts * distance) <= _CHANCE


def subset(names: Collection[str], of: str, size: int) -> list[str]:
    """The endpoints that one gateway connects to, where there are too many for all.

    Rendezvous hashing: each gateway has its own, always the same ones, and when one endpoint comes
    or goes at most one of them is exchanged.

    Args:
        names: all endpoints.
        of: the gateway's own name.
        size: how many; 0 for all of them.
    """
    ranked = sorted(names, key=lambda name: unit(of, name), reverse=True)
    return ranked[:size] if size else ranked
