"""Latencies in constant memory: a mean that follows, and quantiles of the last while.

Both take the time from their caller, in seconds of any clock that does not run backwards, and cost
a microsecond or so for each sample: they are asked at every request.
"""

import math

_ALPHA = 0.1
"""Least weight of a new sample in a moving mean: about the last ten samples count, however fast
they come, so that a rise shows within a few of them."""

_PRIOR = 2
"""As many samples as what they are set against counts for."""

_LEAST_S = 1e-4
_MOST_S = 600.0
_WIDTH = 1.05
"""Upper edge of a bucket over its lower one."""
_LOG_WIDTH = math.log(_WIDTH)
_BUCKETS = math.ceil(math.log(_MOST_S / _LEAST_S) / _LOG_WIDTH)
_LEAST_SAMPLES = 20
"""Fewer samples say nothing about a tail."""
_LONGEST_WINDOWS = 30
"""A window waits for its samples for so many times its length: with the defaults there are
quantiles at one request in 15 s."""
_READINGS = 40
"""A quantile is found anew so many times in a window, and remembered in between: to find it costs
as much as many samples."""


class Moving:
    """An exponentially weighted mean of latencies.

    A sample weighs what the time since the one before it has taken from the past, at least a tenth,
    and the first ones alike. So the mean spans `tau_s` where samples are rare and about ten of them
    where they are many.

    Args:
        tau_s: seconds after which the past counts for 1/e.
        fade_s: seconds without a sample after which the mean itself counts for 1/e, in `value`.
    """

    __slots__ = ("_fade_s", "_last", "_mean", "_tau_s", "samples")

    def __init__(self, *, tau_s: float = 10.0, fade_s: float = 10.0) -> None:
        self._tau_s = tau_s
        self._fade_s = fade_s
        self._mean = 0.0
        self._last = 0.0
        self.samples = 0
        """How many it has seen."""

    def observe(self, seconds: float, now: float) -> None:
        """Take in a latency of `seconds` that ended `now`."""
        self.samples += 1
        faded = 1.0 - math.exp((self._last - now) / self._tau_s)
        self._mean += max(faded, _ALPHA, 1.0 / self.samples) * (seconds - self._mean)
        self._last = now

    @property
    def mean(self) -> float | None:
        """Seconds, however old; None without samples."""
        return self._mean if self.samples else None

    def value(self, now: float, otherwise: float | None = None) -> float | None:
        """The mean in seconds, which fades towards `otherwise` as its last sample grows old, and is
        near it while samples are few: the first answer of an engine says little of the next.

        Without samples it is `otherwise`; where that is None, the mean does not fade.
        """
        if not self.samples or otherwise is None:
            return self._mean if self.samples else otherwise
        kept = math.exp((self._last - now) / self._fade_s) * self.samples / (self.samples + _PRIOR)
        return otherwise + kept * (self._mean - otherwise)


class Quantiles:
    """The distribution of recent latencies, in buckets 5 % wide from 0.1 ms to 600 s.

    Samples are kept in two windows that take turns: they count for one to two times `window_s`.
    Where requests are so rare that a window gets fewer than 20 samples, it stays longer.

    Args:
        window_s: seconds after which a window gives way to the next.
    """

    __slots__ = ("_before", "_counts", "_found", "_samples", "_since", "_window_s")

    def __init__(self, *, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._counts = [0] * _BUCKETS
        self._before = [0] * _BUCKETS
        self._samples = [0, 0]
        self._since = -math.inf
        self._found: dict[float, tuple[float, float]] = {}

    def observe(self, seconds: float, now: float) -> None:
        """Take in a latency of `seconds` that ended `now`; what is out of range counts as its
        edge."""
        self._turn(now)
        self._counts[_bucket(seconds)] += 1
        self._samples[0] += 1

    def quantile(self, q: float, now: float) -> float | None:
        """The latency in seconds that the share `q` (0 … 1) did not exceed.

        It is within 2.5 % of the sample of that rank, as it was at most a fortieth of a window ago.
        None while there are fewer than 20 samples.
        """
        self._turn(now)
        if sum(self._samples) < _LEAST_SAMPLES:
            return None
        until, value = self._found.get(q, (-math.inf, 0.0))
        if now >= until:
            value = self._find(q)
            self._found[q] = (now + self._window_s / _READINGS, value)
        return value

    def _find(self, q: float) -> float:
        missing = max(1, math.ceil(q * sum(self._samples)))
        for bucket, counts in enumerate(zip(self._counts, self._before, strict=True)):
            missing -= sum(counts)
            if missing <= 0:
                return _middle(bucket)
        raise AssertionError("the buckets hold fewer samples than were counted")

    def _turn(self, now: float) -> None:
        """Begin the next window if it is time."""
        age = now - self._since
        if age < self._window_s:
            return
        # Few samples are waited for, until those that are there are too old to say anything.
        stale = age >= self._window_s * _LONGEST_WINDOWS
        if self._samples[0] < _LEAST_SAMPLES and not stale:
            return
        self._before = [0] * _BUCKETS if stale else self._counts
        self._counts = [0] * _BUCKETS
        self._samples = [0, 0 if stale else self._samples[0]]
        self._since = now
        self._found.clear()


def _bucket(seconds: float) -> int:
    if seconds <= _LEAST_S:
        return 0
    return min(int(math.log(seconds / _LEAST_S) / _LOG_WIDTH), _BUCKETS - 1)


def _middle(bucket: int) -> float:
    """The geometric middle of a bucket: as far from either edge in proportion."""
    return _LEAST_S * math.exp((bucket + 0.5) * _LOG_WIDTH)
