"""Latencies in buckets: a fixed size whatever their number, and a known error."""

import math
from collections import Counter
from dataclasses import dataclass

# The upper bound of a bucket is this much above its lower bound: percentiles are at most 1 % high.
_GROWTH = 1.01
_SMALLEST_S = 1e-6


@dataclass(frozen=True)
class Latency:
    """Latencies in milliseconds; all 0 when `count` is. Percentiles are at most 1 % high."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Histogram:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._sum = 0.0
        self._most = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; negative ones count as 0."""
        seconds = max(seconds, 0.0)
        self._buckets[_bucket(seconds)] += 1
        self._sum += seconds
        self._most = max(self._most, seconds)

    def percentile(self, percent: float) -> float:
        """The nearest-rank percentile in seconds, at most 1 % (or a microsecond) high; 0 if empty.

        Args:
            percent: above 0, at most 100.
        """
        rank = math.ceil(self._buckets.total() * percent / 100)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(_upper_bound(bucket), self._most)
        return 0.0

    def latency(self) -> Latency:
        """Its figures."""
        count = self._buckets.total()
        return Latency(
            count=count,
            mean_ms=_ms(self._sum / count) if count else 0.0,
            p50_ms=_ms(self.percentile(50)),
            p90_ms=_ms(self.percentile(90)),
            p99_ms=_ms(self.percentile(99)),
            p999_ms=_ms(self.percentile(99.9)),
            max_ms=_ms(self._most),
        )


def _bucket(seconds: float) -> int:
    if seconds <= _SMALLEST_S:
        return 0
    return math.ceil(math.log(seconds / _SMALLEST_S, _GROWTH))


def _upper_bound(bucket: int) -> float:
    return float(_SMALLEST_S * _GROWTH**bucket)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
