"""What a worker counts: plain numbers, added up over processes; exporter.py tells them."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K")

_SECONDS_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
_READ_SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
# Job names come from callers: one that puts an id into them must not fill the memory.
MAX_LABEL_VALUES = 1000
OVERFLOW_LABEL = "(other)"
# A part that leads sets its gauges all the time; one that no longer does is silent.
_GAUGE_MAX_AGE_S = 15.0
_SUM_GAUGES = frozenset({"running"})
# The moment of the last read: of several processes, the one that is worst off.
_MIN_GAUGES = frozenset({"read_at"})


class Histogram:
    """Counts of values by bucket, cheap enough to feed for every job."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, values: Sequence[float]) -> None:
        """The same for many at once: a sixth of the time of as many calls of `see`."""
        ordered, below = sorted(values), 0
        for place, edge in enumerate(self.bounds):
            upto = bisect_right(ordered, edge, below)
            self.counts[place] += upto - below
            if (below := upto) == len(ordered):
                break
        self.counts[-1] += len(ordered) - below
        self.total += sum(ordered)

    def merge(self, counts: Iterable[int], total: float) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        running, pairs = 0, []
        for edge, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            running += count
            pairs.append((edge, float(running)))
        return pairs


class BoundedCounter(Counter[K], Generic[K]):
    """A counter of at most so many names; what comes after them is counted as one."""

    def __init__(self, overflow_key: K):
        super().__init__()
        self._overflow_key = overflow_key

    def __setitem__(self, key: K, value: int) -> None:
        if key in self or len(self) < MAX_LABEL_VALUES or key == self._overflow_key:
            super().__setitem__(key, value)
        else:
            super().__setitem__(self._overflow_key, self[self._overflow_key] + value)


class Gauges(dict[str, float]):
    """Last values, each with the moment it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.set_at: dict[str, float] = {}

    def __setitem__(self, key: str, value: float) -> None:
        self.set_at[key] = time.monotonic()
        super().__setitem__(key, value)

    def merge(self, other: Mapping[str, tuple[float, float]]) -> None:
        """Take gauges of another process of this machine: (value, moment) by key."""
        for key, (value, set_at) in other.items():
            mine = self.get(key)
            if mine is None:
                pass
            elif key in _SUM_GAUGES:
                value, set_at = mine + value, max(set_at, self.set_at[key])
            elif key in _MIN_GAUGES:
                value, set_at = min(mine, value), max(set_at, self.set_at[key])
            elif self.set_at[key] >= set_at:
                continue
            super().__setitem__(key, value)
            self.set_at[key] = set_at

    def recent(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            key: value
            for key, value in dict(self).items()
            if now - self.set_at[key] < _GAUGE_MAX_AGE_S
        }


class Metrics:
    """Counters of one consumer."""

    def __init__(self, queue_name: str):
        self.queue_name = queue_name
        self.completed: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.failed: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.retried: Counter[str] = BoundedCounter(OVERFLOW_LABEL)
        self.dead_lettered: Counter[tuple[str, str]] = BoundedCounter(
            (OVERFLOW_LABEL, OVERFLOW_LABEL)
        )
        self.duration: dict[str, Histogram] = {}
        self.backoff: dict[str, Histogram] = {}
        self.read_sizes = Histogram(_READ_SIZE_BUCKETS)
        self.counts: Counter[str] = Counter()
        self.gauges = Gauges()

    def record_run(self, job_name: str, seconds: float, ok: bool) -> None:
        (self.completed if ok else self.failed)[job_name] += 1
        _histogram(self.duration, job_name).observe(seconds)

    def record_runs(self, job_name: str, seconds: Sequence[float], ok: bool) -> None:
        """The same for several runs of one name."""
        (self.completed if ok else self.failed)[job_name] += len(seconds)
        _histogram(self.duration, job_name).observe_many(seconds)

    def record_backoff(self, job_name: str, seconds: float) -> None:
        """A run that failed will be tried again after so long."""
        _histogram(self.backoff, job_name).observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """All numbers as JSON can carry them, to be added up by another process."""
        gauges = self.gauges
        return {
            "queue": self.queue_name,
            "completed": dict(self.completed),
            "failed": dict(self.failed),
            "retried": dict(self.retried),
            "buried": [[*key, count] for key, count in dict(self.dead_lettered).items()],
            "duration": _serialize(self.duration),
            "backoff": _serialize(self.backoff),
            "reads": [list(self.read_sizes.counts), self.read_sizes.total],
            "counts": dict(self.counts),
            "gauges": {key: [value, gauges.set_at[key]] for key, value in dict(gauges).items()},
        }

    def merge(self, snapshot: Mapping[str, Any], *, gauges: bool = True) -> None:
        """Add the numbers of another process. One that has ended counts, but has no gauges."""
        for mine, theirs in (
            (self.completed, snapshot["completed"]),
            (self.failed, snapshot["failed"]),
            (self.retried, snapshot["retried"]),
            (self.counts, snapshot["counts"]),
        ):
            for key, count in theirs.items():
                mine[key] += count
        for reason, name, count in snapshot["buried"]:
            self.dead_lettered[reason, name] += count
        for spans in ("duration", "backoff"):
            for name, (counts, total) in snapshot[spans].items():
                _histogram(getattr(self, spans), name).merge(counts, total)
        self.read_sizes.merge(*snapshot["reads"])
        if gauges:
            self.gauges.merge(snapshot["gauges"])


def _histogram(histograms: dict[str, Histogram], job_name: str) -> Histogram:
    found = histograms.get(job_name)
    if found is None:
        found = histograms.setdefault(
            job_name if len(histograms) < MAX_LABEL_VALUES else OVERFLOW_LABEL, Histogram()
        )
    return found


def _serialize(histograms: dict[str, Histogram]) -> dict[str, list[Any]]:
    return {name: [list(seen.counts), seen.total] for name, seen in dict(histograms).items()}


def merge_by_queue(snapshots: Iterable[tuple[Mapping[str, Any], bool]]) -> list[Metrics]:
    """Return one Metrics for each queue; the flag says whether the process still lives."""
    by_queue: dict[str, Metrics] = {}
    for snapshot, alive in snapshots:
        queue = snapshot["queue"]
        if queue not in by_queue:
            by_queue[queue] = Metrics(queue)
        by_queue[queue].merge(snapshot, gauges=alive)
    return list(by_queue.values())
