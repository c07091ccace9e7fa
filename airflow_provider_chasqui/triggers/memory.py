"""What was heard on the events stream lately, so that a late comer need not read it again."""

from __future__ import annotations

from collections import deque

from airflow_provider_chasqui.core.batch import Place
from airflow_provider_chasqui.core.event import FINAL, Event

KEPT = 20_000


def position(entry_id: str) -> tuple[int, int]:
    """Return an entry id as a value that sorts as Redis sorts it."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


class Memory:
    """The last final event of each of the most recent jobs, complete from `start` on."""

    def __init__(self, start: str, kept: int = KEPT):
        self.start = start
        self._kept = kept
        self._events: dict[str, Event] = {}
        self._order: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def reaches(self, since: str) -> bool:
        """Whether everything behind `since` that can still be known is known."""
        return position(self.start) <= position(since)

    def hear(self, event: Event) -> None:
        """Note an event that is newer than all noted before it."""
        if event.name in FINAL:
            self._events[event.job_id] = event
            self._order.append(event)
            if len(self._order) > self._kept:
                oldest = self._order.popleft()
                self.start = oldest.entry_id
                if self._events.get(oldest.job_id) is oldest:
                    del self._events[oldest.job_id]
        elif self._events.get(event.job_id) is not None and event.name != "drained":
            del self._events[event.job_id]  # it was put back: what was final is so no more

    def prepend(self, begin: str, last: dict[str, Event]) -> None:
        """Note the last events of jobs from before `start`; memory then begins at `begin`."""
        for event in reversed(last.values()):
            if len(self._order) >= self._kept:
                return
            if event.name in FINAL and event.job_id not in self._events:
                self._events[event.job_id] = event
                self._order.appendleft(event)
        self.start = begin

    def last(self, job_id: str) -> Event | None:
        return self._events.get(job_id)

    def forget(self, job_id: str) -> None:
        self._events.pop(job_id, None)


class Heard:
    """Which jobs of one batch were said to have ended: for workers that set no bits."""

    def __init__(self) -> None:
        self._ends: dict[int, bytearray] = {}
        self.done = 0
        self.dead = 0

    def hear(self, place: Place, done: bool) -> None:
        """Note an end; done is for good, dead is not: a letter can be replayed."""
        ends = self._ends.setdefault(place.part, bytearray())
        if len(ends) <= place.index:
            ends.extend(bytes(max(place.index + 1 - len(ends), len(ends))))
        before = ends[place.index]
        if before == 1:
            return
        self.done += done
        self.dead += (not done) - (before == 2)
        ends[place.index] = 1 if done else 2

    def missing(self, part: int, done_bits: bytes, dead_bits: bytes) -> tuple[int, int]:
        """Return how many ends, done and dead, were heard of that the bits do not show."""
        done = dead = 0
        for index, end in enumerate(self._ends.get(part, b"")):
            if end and not _bit(done_bits, index) and not _bit(dead_bits, index):
                done += end == 1
                dead += end == 2
        return done, dead

    @property
    def parts(self) -> list[int]:
        return sorted(self._ends)


def _bit(bits: bytes, index: int) -> bool:
    byte = index >> 3
    return byte < len(bits) and bool(bits[byte] >> (7 - (index & 7)) & 1)
