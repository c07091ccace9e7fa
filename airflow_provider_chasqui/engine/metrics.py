"""Metrics of a worker: plain numbers that can be merged over processes.

`engine/prometheus.py` exports them.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K")

_SECONDS_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
_READ_SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
# Producers choose job names. A producer that puts ids into them must not exhaust the memory.
MAX_LABEL_VALUES = 1000
OVERFLOW_LABEL = "(other)"
# A leader sets its gauges continuously. Older values come from a process that no longer leads.
_GAUGE_MAX_AGE_S = 15.0
_SUM_GAUGES = frozenset({"running"})
# The time of the last read: of several processes, the oldest counts.
_MIN_GAUGES = frozenset({"read_at"})


class Histogram:
    """Histogram with fixed buckets, cheap enough to update for every job."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, values: Sequence[float]) -> None:
        """Count several values; faster than one call of `observe` per value."""
        ordered, counted = sorted(values), 0
        for bucket, bound in enumerate(self.bounds):
            end = bisect_right(ordered, bound, counted)
            self.counts[bucket] += end - counted
            if (counted := end) == len(ordered):
                break
        self.counts[-1] += len(ordered) - counted
        self.total += sum(ordered)

    def merge(self, counts: Iterable[int], total: float) -> None:
        """Add the counts and the sum of another histogram with the same buckets."""
        self.counts = [count + other for count, other in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, as Prometheus expects them."""
        cumulative, buckets = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        return buckets


class BoundedCounter(Counter[K], Generic[K]):
    """Counter of at most `MAX_LABEL_VALUES` keys; all further keys share one overflow key."""

    def __init__(self, overflow_key: K):
        super().__init__()
        self._overflow_key = overflow_key

    def __setitem__(self, key: K, value: int) -> None:
        if key in self or len(self) < MAX_LABEL_VALUES or key == self._overflow_key:
            super().__setitem__(key, value)
        else:
            super().__setitem__(self._overflow_key, self[self._overflow_key] + value)


class Gauges(dict[str, float]):
    """Latest values, each with the time it was set (`time.monotonic()`)."""

    def __init__(self) -> None:
        super().__init__()
        self.set_at: dict[str, float] = {}

    def __setitem__(self, key: str, value: float) -> None:
        self.set_at[key] = time.monotonic()
        super().__setitem__(key, value)

    def merge(self, other: Mapping[str, tuple[float, float]]) -> None:
        """Merge gauges of another process of this machine: (value, time set) by key."""
        for key, (value, set_at) in other.items():
            current = self.get(key)
            if current is None:
                pass
            elif key in _SUM_GAUGES:
                value, set_at = current + value, max(set_at, self.set_at[key])
            elif key in _MIN_GAUGES:
                value, set_at = min(current, value), max(set_at, self.set_at[key])
            elif self.set_at[key] >= set_at:
                continue
            super().__setitem__(key, value)
            self.set_at[key] = set_at

    def recent(self) -> dict[str, float]:
        """Return the values that were set recently."""
        now = time.monotonic()
        return {
            key: value
            for key, value in dict(self).items()
            if now - self.set_at[key] < _GAUGE_MAX_AGE_S
        }


class Metrics:
    """Metrics of one consumer, or the sum over several consumers of a queue.

    `counts` and `gauges` are keyed by plain strings; `engine/prometheus.py` lists them.
    """

    def __init__(self, queue_name: str):
        self.queue_name = queue_name
        self.completed: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.failed: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.retried: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.dead_lettered: Counter[tuple[str, str]] = BoundedCounter(
            (OVERFLOW_LABEL, OVERFLOW_LABEL)
        )
        self.errors: Counter[tuple[str, str]] = BoundedCounter((OVERFLOW_LABEL, OVERFLOW_LABEL))
        self.duration: dict[str, Histogram] = {}
        self.backoff: dict[str, Histogram] = {}
        self.read_sizes = Histogram(_READ_SIZE_BUCKETS)
        self.counts: Counter[str] = Counter()
        self.gauges = Gauges()

    def record_run(self, job_name: str, seconds: float, ok: bool) -> None:
        """Count a run and its duration."""
        (self.completed if ok else self.failed)[job_name] += 1
        _histogram(self.duration, job_name).observe(seconds)

    def record_runs(self, job_name: str, seconds: Sequence[float], ok: bool) -> None:
        """Count several runs of one job name."""
        (self.completed if ok else self.failed)[job_name] += len(seconds)
        _histogram(self.duration, job_name).observe_many(seconds)

    def record_backoff(self, job_name: str, seconds: float) -> None:
        """Count a retry and its delay."""
        _histogram(self.backoff, job_name).observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """Return all numbers as JSON values, for `merge` in another process."""
        gauges = self.gauges
        return {
            "queue": self.queue_name,
            "completed": dict(self.completed),
            "failed": dict(self.failed),
            "retried": dict(self.retried),
            "dead_lettered": [[*key, count] for key, count in dict(self.dead_lettered).items()],
            "errors": [[*key, count] for key, count in dict(self.errors).items()],
            "duration": _serialize(self.duration),
            "backoff": _serialize(self.backoff),
            "read_sizes": [list(self.read_sizes.counts), self.read_sizes.total],
            "counts": dict(self.counts),
            "gauges": {key: [value, gauges.set_at[key]] for key, value in dict(gauges).items()},
        }

    def merge(self, snapshot: Mapping[str, Any], *, gauges: bool = True) -> None:
        """Add the numbers of another process.

        :param snapshot: the return value of `snapshot`.
        :param gauges: whether to merge the gauges; False for a process that has ended.
        """
        for counter, other in (
            (self.completed, snapshot["completed"]),
            (self.failed, snapshot["failed"]),
            (self.retried, snapshot["retried"]),
            (self.counts, snapshot["counts"]),
        ):
            for key, count in other.items():
                counter[key] += count
        for reason, name, count in snapshot["dead_lettered"]:
            self.dead_lettered[reason, name] += count
        for name, error, count in snapshot["errors"]:
            self.errors[name, error] += count
        for attribute in ("duration", "backoff"):
            for name, (counts, total) in snapshot[attribute].items():
                _histogram(getattr(self, attribute), name).merge(counts, total)
        self.read_sizes.merge(*snapshot["read_sizes"])
        if gauges:
            self.gauges.merge(snapshot["gauges"])


def _histogram(histograms: dict[str, Histogram], job_name: str) -> Histogram:
    histogram = histograms.get(job_name)
    if histogram is None:
        histogram = histograms.setdefault(
            job_name if len(histograms) < MAX_LABEL_VALUES else OVERFLOW_LABEL, Histogram()
        )
    return histogram


def _serialize(histograms: dict[str, Histogram]) -> dict[str, list[Any]]:
    return {
        name: [list(histogram.counts), histogram.total]
        for name, histogram in dict(histograms).items()
    }


def merge_by_queue(snapshots: Iterable[tuple[Mapping[str, Any], bool]]) -> list[Metrics]:
    """Return one Metrics per queue.

    :param snapshots: pairs of a snapshot and whether its process is still running.
    """
    by_queue: dict[str, Metrics] = {}
    for snapshot, alive in snapshots:
        queue = snapshot["queue"]
        if queue not in by_queue:
            by_queue[queue] = Metrics(queue)
        by_queue[queue].merge(snapshot, gauges=alive)
    return list(by_queue.values())
