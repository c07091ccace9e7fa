"""How full queues were lately, as far as this process has looked at them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.commands.inspect import Depth, ThroughputBucket

_MAX_SAMPLES = 240
_MIN_SAMPLE_INTERVAL_MS = 4_000
_MAX_QUEUES = 500


@dataclass(frozen=True, slots=True)
class DepthSample:
    """A look at a queue. `added` is how many entries its stream has ever had."""

    sampled_at_ms: int
    waiting: int
    running: int
    delayed: int
    dead: int
    entries_added: int | None


class DepthHistory:
    """The last looks at each queue; more than a few in one moment count as one."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[DepthSample]] = {}

    def record(
        self,
        connection_id: str,
        queue_name: str,
        depth: Depth,
        entries_added: int | None,
        now_ms: int,
    ) -> None:
        """Remember a look."""
        key = (connection_id, queue_name)
        if key not in self._samples and len(self._samples) >= _MAX_QUEUES:
            self._samples.pop(next(iter(self._samples)))
        kept = self._samples.setdefault(key, deque(maxlen=_MAX_SAMPLES))
        if kept and now_ms - kept[-1].sampled_at_ms < _MIN_SAMPLE_INTERVAL_MS:
            return
        kept.append(
            DepthSample(
                now_ms, depth.waiting, depth.running, depth.delayed, depth.dead, entries_added
            )
        )

    def samples(self, connection_id: str, queue_name: str) -> list[DepthSample]:
        return list(self._samples.get((connection_id, queue_name), ()))

    def added_per_second(self, connection_id: str, queue_name: str, now_ms: int) -> float | None:
        """Return how many jobs came in per second over the last minute; None if not known."""
        recent = [
            each
            for each in self.samples(connection_id, queue_name)
            if each.entries_added is not None and now_ms - each.sampled_at_ms <= 60_000
        ]
        if len(recent) < 2 or recent[-1].sampled_at_ms == recent[0].sampled_at_ms:
            return None
        first, last = recent[0], recent[-1]
        assert first.entries_added is not None
        assert last.entries_added is not None
        gained = max(0, last.entries_added - first.entries_added)
        return round(gained * 1000 / (last.sampled_at_ms - first.sampled_at_ms), 2)


class ThroughputCache:
    """The last pulse of each queue, and whose is the stalest."""

    def __init__(self) -> None:
        self._cached: dict[tuple[str, str], tuple[float, list[ThroughputBucket]]] = {}

    def stale(
        self, connection_id: str, queue_names: Sequence[str], limit: int, max_age_s: float
    ) -> list[str]:
        """Return the queues whose pulse should be taken now, stalest first."""
        now = time.monotonic()
        taken = {
            name: self._cached.get((connection_id, name), (0.0, []))[0] for name in queue_names
        }
        stale = [name for name, at in taken.items() if now - at >= max_age_s]
        return sorted(stale, key=lambda name: taken[name])[:limit]

    def store(self, connection_id: str, queue_name: str, buckets: list[ThroughputBucket]) -> None:
        """Remember a pulse."""
        if len(self._cached) >= _MAX_QUEUES:
            self._cached.clear()
        self._cached[connection_id, queue_name] = (time.monotonic(), buckets)

    def get(self, connection_id: str, queue_name: str) -> list[ThroughputBucket]:
        return self._cached.get((connection_id, queue_name), (0.0, []))[1]


def samples_json(samples: list[DepthSample]) -> list[dict[str, Any]]:
    return [
        {
            "at": each.sampled_at_ms,
            "waiting": each.waiting,
            "running": each.running,
            "delayed": each.delayed,
            "dead": each.dead,
        }
        for each in samples
    ]
