"""What a worker counts: plain numbers, added up over processes; exporter.py tells them."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K")

_SECONDS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
_ENTRIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
# Job names come from callers: one that puts an id into them must not fill the memory.
NAMES_MOST = 1000
OTHER = "(other)"
# A part that leads sets its gauges all the time; one that no longer does is silent.
_FRESH_S = 15.0
_SUMMED = frozenset({"running"})
# The moment of the last read: of several processes, the one that is worst off.
_OLDEST = frozenset({"read_at"})


class Histogram:
    """Counts of values by bucket, cheap enough to feed for every job."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...] = _SECONDS) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def see(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def see_all(self, values: Sequence[float]) -> None:
        """The same for many at once: a sixth of the time of as many calls of `see`."""
        ordered, below = sorted(values), 0
        for place, edge in enumerate(self.edges):
            upto = bisect_right(ordered, edge, below)
            self.counts[place] += upto - below
            if (below := upto) == len(ordered):
                break
        self.counts[-1] += len(ordered) - below
        self.total += sum(ordered)

    def absorb(self, counts: Iterable[int], total: float) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        running, pairs = 0, []
        for edge, count in zip([*map(str, self.edges), "+Inf"], self.counts, strict=True):
            running += count
            pairs.append((edge, float(running)))
        return pairs


class Tally(Counter[K], Generic[K]):
    """A counter of at most so many names; what comes after them is counted as one."""

    def __init__(self, other: K):
        super().__init__()
        self._other = other

    def __setitem__(self, key: K, value: int) -> None:
        if key in self or len(self) < NAMES_MOST or key == self._other:
            super().__setitem__(key, value)
        else:
            super().__setitem__(self._other, self[self._other] + value)


class Gauges(dict[str, float]):
    """Last values, each with the moment it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.set_at: dict[str, float] = {}

    def __setitem__(self, key: str, value: float) -> None:
        self.set_at[key] = time.monotonic()
        super().__setitem__(key, value)

    def absorb(self, theirs: Mapping[str, tuple[float, float]]) -> None:
        """Take gauges of another process of this machine: (value, moment) by key."""
        for key, (value, set_at) in theirs.items():
            mine = self.get(key)
            if mine is None:
                pass
            elif key in _SUMMED:
                value, set_at = mine + value, max(set_at, self.set_at[key])
            elif key in _OLDEST:
                value, set_at = min(mine, value), max(set_at, self.set_at[key])
            elif self.set_at[key] >= set_at:
                continue
            super().__setitem__(key, value)
            self.set_at[key] = set_at

    def fresh(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            key: value for key, value in dict(self).items() if now - self.set_at[key] < _FRESH_S
        }


class Metrics:
    """Counters of one consumer."""

    def __init__(self, queue: str):
        self.queue = queue
        self.completed: Counter[str] = Tally(OTHER)
        self.failed: Counter[str] = Tally(OTHER)
        self.retried: Counter[str] = Tally(OTHER)
        self.buried: Counter[tuple[str, str]] = Tally((OTHER, OTHER))
        self.duration: dict[str, Histogram] = {}
        self.backoff: dict[str, Histogram] = {}
        self.reads = Histogram(_ENTRIES)
        self.counts: Counter[str] = Counter()
        self.gauges = Gauges()

    def ran(self, name: str, seconds: float, ok: bool) -> None:
        (self.completed if ok else self.failed)[name] += 1
        _span(self.duration, name).see(seconds)

    def all_ran(self, name: str, seconds: Sequence[float], ok: bool) -> None:
        """The same for several runs of one name."""
        (self.completed if ok else self.failed)[name] += len(seconds)
        _span(self.duration, name).see_all(seconds)

    def backs_off(self, name: str, seconds: float) -> None:
        """A run that failed will be tried again after so long."""
        _span(self.backoff, name).see(seconds)

    def snapshot(self) -> dict[str, Any]:
        """All numbers as JSON can carry them, to be added up by another process."""
        gauges = self.gauges
        return {
            "queue": self.queue,
            "completed": dict(self.completed),
            "failed": dict(self.failed),
            "retried": dict(self.retried),
            "buried": [[*key, count] for key, count in dict(self.buried).items()],
            "duration": _plain(self.duration),
            "backoff": _plain(self.backoff),
            "reads": [list(self.reads.counts), self.reads.total],
            "counts": dict(self.counts),
            "gauges": {key: [value, gauges.set_at[key]] for key, value in dict(gauges).items()},
        }

    def absorb(self, snapshot: Mapping[str, Any], *, gauges: bool = True) -> None:
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
            self.buried[reason, name] += count
        for spans in ("duration", "backoff"):
            for name, (counts, total) in snapshot[spans].items():
                _span(getattr(self, spans), name).absorb(counts, total)
        self.reads.absorb(*snapshot["reads"])
        if gauges:
            self.gauges.absorb(snapshot["gauges"])


def _span(spans: dict[str, Histogram], name: str) -> Histogram:
    found = spans.get(name)
    if found is None:
        found = spans.setdefault(name if len(spans) < NAMES_MOST else OTHER, Histogram())
    return found


def _plain(spans: dict[str, Histogram]) -> dict[str, list[Any]]:
    return {name: [list(seen.counts), seen.total] for name, seen in dict(spans).items()}


def add_up(snapshots: Iterable[tuple[Mapping[str, Any], bool]]) -> list[Metrics]:
    """Return one Metrics for each queue; the flag says whether the process still lives."""
    by_queue: dict[str, Metrics] = {}
    for snapshot, alive in snapshots:
        queue = snapshot["queue"]
        if queue not in by_queue:
            by_queue[queue] = Metrics(queue)
        by_queue[queue].absorb(snapshot, gauges=alive)
    return list(by_queue.values())
