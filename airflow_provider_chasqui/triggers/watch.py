"""What is being waited for, and what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress, Place, place_of
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.triggers.memory import Heard


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: done, dead, or unknown if no trace of it is left."""

    job_id: str
    status: str
    reason: str | None = None
    error: str | None = None
    attempts: int | None = None

    @classmethod
    def dead(cls, job_id: str, letter: Letter | None, reason: str | None = None) -> JobEnd:
        if letter is None:
            return cls(job_id, "dead", reason)
        error = letter.error or letter.detail
        return cls(job_id, "dead", letter.reason or None, error, letter.attempts)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(eq=False)
class Watch:
    """Somebody waits. Times are of the event loop's clock."""

    since: str
    fresh: bool = True
    looked_at: float = 0.0
    check_at: float = 0.0
    census_at: float = 0.0
    heard_at: float | None = None
    strikes: int = 0
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)


@dataclass(eq=False)
class JobWatch(Watch):
    """Somebody waits for a job."""

    job_id: str = ""
    place: Place | None = None

    def __post_init__(self) -> None:
        self.place = place_of(self.job_id)


@dataclass(frozen=True, slots=True)
class BatchSight:
    """What is seen of a batch. `lost` jobs are gone from the queue and left no trace."""

    progress: BatchProgress
    done: int
    dead: int
    lost: int = 0

    @property
    def finished(self) -> bool:
        total = self.progress.total
        return total is not None and self.done + self.dead + self.lost >= total


@dataclass(eq=False)
class BatchWatch(Watch):
    """Somebody waits for a batch; `answer` is renewed whenever it was taken."""

    batch_id: str = ""
    sight: BatchSight | None = None
    heard: Heard = field(default_factory=Heard)
    without_bits: bool = False

    def see(self, sight: BatchSight) -> None:
        if sight != self.sight:
            self.sight = sight
            if not self.answer.done():
                self.answer.set_result(None)


@dataclass(eq=False)
class DepthWatch(Watch):
    """Somebody waits for the next look at the queue's depth."""

    every: float = 5.0
    depth: Depth | None = None

    def see(self, depth: Depth) -> None:
        self.depth = depth
        if not self.answer.done():
            self.answer.set_result(None)
