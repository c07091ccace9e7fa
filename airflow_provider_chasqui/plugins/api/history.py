"""How full queues were lately, as far as this process has looked at them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.core.ops.pulse import Beat

_KEPT = 240
_APART_MS = 4_000
_QUEUES = 500


@dataclass(frozen=True, slots=True)
class Moment:
    """A look at a queue. `added` is how many entries its stream has ever had."""

    at_ms: int
    waiting: int
    running: int
    delayed: int
    dead: int
    added: int | None


class History:
    """The last looks at each queue; more than a few in one moment count as one."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, str], deque[Moment]] = {}

    def note(
        self, connection_id: str, queue: str, depth: Depth, added: int | None, now_ms: int
    ) -> None:
        """Remember a look."""
        key = (connection_id, queue)
        if key not in self._moments and len(self._moments) >= _QUEUES:
            self._moments.pop(next(iter(self._moments)))
        kept = self._moments.setdefault(key, deque(maxlen=_KEPT))
        if kept and now_ms - kept[-1].at_ms < _APART_MS:
            return
        kept.append(Moment(now_ms, depth.waiting, depth.running, depth.delayed, depth.dead, added))

    def of(self, connection_id: str, queue: str) -> list[Moment]:
        return list(self._moments.get((connection_id, queue), ()))

    def added_per_second(self, connection_id: str, queue: str, now_ms: int) -> float | None:
        """Return how many jobs came in per second over the last minute; None if not known."""
        recent = [
            each
            for each in self.of(connection_id, queue)
            if each.added is not None and now_ms - each.at_ms <= 60_000
        ]
        if len(recent) < 2 or recent[-1].at_ms == recent[0].at_ms:
            return None
        first, last = recent[0], recent[-1]
        assert first.added is not None
        assert last.added is not None
        gained = max(0, last.added - first.added)
        return round(gained * 1000 / (last.at_ms - first.at_ms), 2)


class Pulses:
    """The last pulse of each queue, and whose is the stalest."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[float, list[Beat]]] = {}

    def due(
        self, connection_id: str, queues: Sequence[str], at_most: int, kept_s: float
    ) -> list[str]:
        """Return the queues whose pulse should be taken now, stalest first."""
        now = time.monotonic()
        taken = {name: self._kept.get((connection_id, name), (0.0, []))[0] for name in queues}
        stale = [name for name, at in taken.items() if now - at >= kept_s]
        return sorted(stale, key=lambda name: taken[name])[:at_most]

    def keep(self, connection_id: str, queue: str, beats: list[Beat]) -> None:
        """Remember a pulse."""
        if len(self._kept) >= _QUEUES:
            self._kept.clear()
        self._kept[connection_id, queue] = (time.monotonic(), beats)

    def of(self, connection_id: str, queue: str) -> list[Beat]:
        return self._kept.get((connection_id, queue), (0.0, []))[1]


def as_json(moments: list[Moment]) -> list[dict[str, Any]]:
    return [
        {
            "at": each.at_ms,
            "waiting": each.waiting,
            "running": each.running,
            "delayed": each.delayed,
            "dead": each.dead,
        }
        for each in moments
    ]
