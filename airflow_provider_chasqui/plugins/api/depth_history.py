"""Recent depth and throughput of queues, kept in the memory of this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.commands.counters import ThroughputBucket
from airflow_provider_chasqui.core.commands.inspect import Depth

_MAX_SAMPLES = 240
_MIN_SAMPLE_INTERVAL_MS = 4_000
_MAX_QUEUES = 500


@dataclass(frozen=True, slots=True)
class DepthSample:
    """The depth of a queue at one time.

    `entries_added` is the number of entries that were ever added to the stream.
    """

    sampled_at_ms: int
    waiting: int
    running: int
    delayed: int
    dead: int
    entries_added: int | None


class DepthHistory:
    """The newest depth samples of each queue, at most one every four seconds."""

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
        """Add a sample.

        :param connection_id: the id of the Airflow connection.
        :param queue_name: the name of the queue.
        :param depth: the depth of the queue.
        :param entries_added: the number of entries ever added to its stream, if known.
        :param now_ms: the current time in milliseconds.
        """
        key = (connection_id, queue_name)
        if key not in self._samples and len(self._samples) >= _MAX_QUEUES:
            self._samples.pop(next(iter(self._samples)))
        samples = self._samples.setdefault(key, deque(maxlen=_MAX_SAMPLES))
        if samples and now_ms - samples[-1].sampled_at_ms < _MIN_SAMPLE_INTERVAL_MS:
            return
        samples.append(
            DepthSample(
                now_ms, depth.waiting, depth.running, depth.delayed, depth.dead, entries_added
            )
        )

    def samples(self, connection_id: str, queue_name: str) -> list[DepthSample]:
        """Return the samples of a queue, oldest first."""
        return list(self._samples.get((connection_id, queue_name), ()))

    def added_per_second(self, connection_id: str, queue_name: str, now_ms: int) -> float | None:
        """Return the jobs added per second over the last minute, or None if it is not known."""
        recent = [
            sample
            for sample in self.samples(connection_id, queue_name)
            if sample.entries_added is not None and now_ms - sample.sampled_at_ms <= 60_000
        ]
        if len(recent) < 2 or recent[-1].sampled_at_ms == recent[0].sampled_at_ms:
            return None
        first, last = recent[0], recent[-1]
        assert first.entries_added is not None
        assert last.entries_added is not None
        added = max(0, last.entries_added - first.entries_added)
        return round(added * 1000 / (last.sampled_at_ms - first.sampled_at_ms), 2)


class ThroughputCache:
    """The last throughput of each queue and when it was read."""

    def __init__(self) -> None:
        self._cached: dict[tuple[str, str], tuple[float, list[ThroughputBucket]]] = {}

    def stale(
        self, connection_id: str, queue_names: Sequence[str], limit: int, max_age_s: float
    ) -> list[str]:
        """Return the queues whose throughput should be read again, oldest first.

        :param connection_id: the id of the Airflow connection.
        :param queue_names: the queues to consider.
        :param limit: the maximum number of queues to return.
        :param max_age_s: the age in seconds from which a cached throughput is stale.
        """
        now = time.monotonic()
        read_at = {
            name: self._cached.get((connection_id, name), (0.0, []))[0] for name in queue_names
        }
        stale = [name for name, at in read_at.items() if now - at >= max_age_s]
        return sorted(stale, key=lambda name: read_at[name])[:limit]

    def store(self, connection_id: str, queue_name: str, buckets: list[ThroughputBucket]) -> None:
        """Save the throughput of a queue."""
        if len(self._cached) >= _MAX_QUEUES:
            self._cached.clear()
        self._cached[connection_id, queue_name] = (time.monotonic(), buckets)

    def get(self, connection_id: str, queue_name: str) -> list[ThroughputBucket]:
        """Return the cached throughput of a queue; an empty list if there is none."""
        return self._cached.get((connection_id, queue_name), (0.0, []))[1]


def samples_json(samples: list[DepthSample]) -> list[dict[str, Any]]:
    """Return depth samples as JSON values."""
    return [
        {
            "sampled_at": sample.sampled_at_ms,
            "waiting": sample.waiting,
            "running": sample.running,
            "delayed": sample.delayed,
            "dead": sample.dead,
        }
        for sample in samples
    ]
