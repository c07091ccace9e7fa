"""Looking after everybody who waits on one queue: who is to be looked at, and what is seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_chasqui.core.errors import UnknownBatch
from airflow_provider_chasqui.core.event import FINAL, Event
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.ops import batches
from airflow_provider_chasqui.triggers import looks
from airflow_provider_chasqui.triggers.memory import Memory, position
from airflow_provider_chasqui.triggers.watch import BatchSight, BatchWatch, JobEnd, JobWatch, Watch

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.batch import BatchProgress
    from airflow_provider_chasqui.queue import AsyncQueue
    from airflow_provider_chasqui.triggers.follower import Follower

W = TypeVar("W", bound=Watch)

log = logging.getLogger(__name__)

_STRIKES = 2
CANCELLED = "cancelled"


class Tender:
    """Looks at the watches of one follower whenever that may tell something new."""

    def __init__(self, follower: Follower, queue: AsyncQueue, memory: Memory):
        self._follower = follower
        self._pace = follower.pace
        self._queue = queue
        self._drive = queue.drive
        self._keys = queue.keys
        self._memory = memory
        self._clock = asyncio.get_running_loop().time
        self._next_census = 0.0

    async def run(self) -> None:
        while True:
            await self._follower.woken(self._until_next())
            await asyncio.sleep(self._pace.gather)
            await self._jobs()
            await self._batches()
            await self._depths()
            await self._census()

    def _until_next(self) -> float:
        now = self._clock()
        times = [now + self._pace.recheck]
        for watch in self._follower.watches():
            if not (isinstance(watch, JobWatch) and watch.answer.done()):
                times += (watch.check_at, max(watch.census_at, self._next_census))
        return max(0.0, min(times) - now)

    def _due(self, watches: Iterable[W]) -> list[W]:
        """Return those to be looked at now, and set when they are to be looked at again."""
        now = self._clock()
        due = [watch for watch in watches if watch.check_at <= now]
        for watch in due:
            watch.looked_at = now
            watch.check_at = now + self._pace.jitter(self._pace.recheck)
        return due

    async def _jobs(self) -> None:
        groups = self._follower.jobs.values()
        due = self._due(w for group in groups for w in group if not w.answer.done())
        if due:
            still_open = await self._look(due)
            older = await self._catch_up(still_open)
            await self._trust_events(still_open, older)

    async def _look(self, due: list[JobWatch]) -> list[JobWatch]:
        """Answer those whose bits or results tell the end; return the others."""
        states = await looks.side_by_side(
            self._drive, [looks.state(self._keys, watch) for watch in due]
        )
        dead, still_open = [], []
        for watch, state in zip(due, states, strict=True):
            if state == "done":
                _answer(watch, JobEnd(watch.job_id, "done"))
            elif state == "gone":
                _answer(watch, JobEnd(watch.job_id, "unknown"))
            elif state == "dead":
                dead.append(watch)
            else:
                still_open.append(watch)
        if dead:
            letters = await self._letters(dead)
            for watch in dead:
                _answer(watch, JobEnd.dead(watch.job_id, letters.get(watch.job_id)))
        return still_open

    async def _letters(self, watches: list[JobWatch]) -> dict[str, Letter]:
        wanted = frozenset(watch.job_id for watch in watches)
        return await self._drive.flow(looks.letters_of(self._keys, wanted))

    async def _catch_up(self, watches: Sequence[Watch]) -> dict[str, Event]:
        """Return the last events of jobs from before the follower's time, where somebody new
        needs them; they are read once for all of these."""
        behind = [w.since for w in watches if w.fresh and not self._memory.reaches(w.since)]
        for watch in watches:
            watch.fresh = False
        last: dict[str, Event] = {}
        if not behind:
            return last
        cursor = begin = min(behind, key=position)
        end = position(self._memory.start)
        while events := await self._queue.events(after=cursor, limit=1000):
            for event in events:
                if position(event.entry_id) <= end:
                    last[event.job_id] = event
                    self._follower.notice(event)
            cursor = events[-1].entry_id
            if position(cursor) >= end:
                break
        self._memory.prepend(begin, last)
        return last

    async def _trust_events(self, watches: list[JobWatch], older: dict[str, Event]) -> None:
        """Answer those whose end was only said in an event: their worker sets no bits."""
        heard = [
            (watch, event)
            for watch in watches
            if (event := self._memory.last(watch.job_id) or older.get(watch.job_id))
            and event.name in FINAL
        ]
        dead = [watch for watch, event in heard if event.name == "dlq"]
        letters = await self._letters(dead) if dead else {}
        for watch, event in heard:
            if event.name == "completed":
                self._trust_completed(watch)
            elif watch.job_id in letters or event.reason == CANCELLED:
                letter = letters.get(watch.job_id)
                _answer(watch, JobEnd.dead(watch.job_id, letter, event.reason))
            else:
                # Its letter is gone: replayed, so the job lives; or purged, which the census tells.
                self._memory.forget(watch.job_id)
                watch.census_at = self._clock()

    def _trust_completed(self, watch: JobWatch) -> None:
        if watch.place is not None:
            if self._too_early(watch):
                return
            _say_no_bits(self._keys.queue)
        _answer(watch, JobEnd(watch.job_id, "done"))

    def _too_early(self, watch: Watch) -> bool:
        """Whether the bit that an event speaks of may still be on its way."""
        now = self._clock()
        watch.heard_at = watch.heard_at or now
        early = now - watch.heard_at < self._pace.bit_late
        if early:
            watch.check_at = min(watch.check_at, now + self._pace.bit_late)
        return early

    async def _batches(self) -> None:
        due = self._due(w for group in self._follower.batches.values() for w in group)
        if not due:
            return
        await self._catch_up(due)
        found = await looks.side_by_side(
            self._drive, [batches.progress(self._keys, watch.batch_id) for watch in due]
        )
        for watch, progress in zip(due, found, strict=True):
            if progress is None:
                _refuse(watch, self._keys.queue)
            else:
                watch.see(await self._sight(watch, progress))

    async def _sight(self, watch: BatchWatch, progress: BatchProgress) -> BatchSight:
        done, dead = progress.done, progress.dead
        if watch.heard.done <= done and watch.heard.dead <= dead:
            watch.heard_at = None
        elif not self._too_early(watch):
            for part in watch.heard.parts:
                bits = await self._drive.flow(looks.bits(self._keys, watch.batch_id, part))
                more_done, more_dead = watch.heard.missing(part, *bits)
                done += more_done
                dead += more_dead
            if done > progress.done and not watch.without_bits:
                watch.without_bits = True
                _say_no_bits(self._keys.queue)
        return BatchSight(progress, done, dead)

    async def _depths(self) -> None:
        due = self._due(self._follower.depths)
        if not due:
            return
        depth = await self._queue.depth()
        for watch in due:
            watch.check_at = watch.looked_at + self._pace.jitter(watch.every)
            watch.census_at = watch.check_at + self._pace.recheck
            watch.see(depth)

    async def _census(self) -> None:
        """Look whether jobs that nobody heard of are on the queue at all."""
        now = self._clock()
        jobs = [
            watch
            for group in self._follower.jobs.values()
            for watch in group
            if watch.census_at <= now and not watch.answer.done()
        ]
        flocks = [
            watch
            for group in self._follower.batches.values()
            for watch in group
            if watch.census_at <= now
        ]
        if now < self._next_census or not (jobs or flocks):
            return
        seen = await self._drive.flow(
            looks.census(
                self._keys,
                frozenset(watch.job_id for watch in jobs),
                frozenset(watch.batch_id for watch in flocks),
            )
        )
        # A pass over a deep queue costs: it may take a twentieth of the time, not more.
        self._next_census = self._clock() + 20 * (self._clock() - now)
        missing = [watch for watch in jobs if not self._there(watch, watch.job_id in seen.jobs)]
        if missing:
            await self._missing_jobs(missing)
        for flock in flocks:
            if not self._there(flock, bool(seen.batches[flock.batch_id])):
                await self._missing_rest(flock)

    def _there(self, watch: Watch, there: bool) -> bool:
        """Note whether it is on the queue; what is missing is looked for again before it counts."""
        span = self._pace.census if there else self._pace.first_census
        watch.census_at = self._clock() + self._pace.jitter(span)
        watch.strikes = 0 if there else watch.strikes + 1
        return there

    async def _missing_jobs(self, missing: list[JobWatch]) -> None:
        still_open = await self._look(missing)
        letters = await self._letters(still_open) if still_open else {}
        for watch in still_open:
            if watch.job_id in letters:
                _answer(watch, JobEnd.dead(watch.job_id, letters[watch.job_id]))
            elif watch.strikes >= _STRIKES:
                _answer(watch, JobEnd(watch.job_id, "unknown"))

    async def _missing_rest(self, watch: BatchWatch) -> None:
        """Nothing of an unfinished batch is left on the queue: say what became of the rest."""
        progress = await self._drive.flow(batches.progress(self._keys, watch.batch_id))
        if progress is None or progress.total is None or watch.strikes < _STRIKES:
            return
        sight = await self._sight(watch, progress)
        rest = progress.total - sight.done - sight.dead
        if rest <= 0:
            watch.see(sight)
        elif watch.without_bits:
            # The worker sets no bits and some of its events are trimmed away: what is neither on
            # the queue nor among the letters is done.
            letters = await self._queue.letters(limit=progress.total, batch=watch.batch_id)
            watch.see(BatchSight(progress, progress.total - len(letters), len(letters)))
        else:
            watch.see(BatchSight(progress, sight.done, sight.dead, rest))


def _answer(watch: JobWatch, end: JobEnd) -> None:
    if not watch.answer.done():
        watch.answer.set_result(end)


def _refuse(watch: BatchWatch, queue: str) -> None:
    if not watch.answer.done():
        watch.answer.set_exception(
            UnknownBatch(f"there is no batch {watch.batch_id!r}, or it has expired", queue=queue)
        )


def _say_no_bits(queue: str) -> None:
    log.warning(
        "A worker of the queue %r sets no batch bits (a stock ChasquiMQ worker does not), so its "
        "jobs are followed by the events stream, which remembers about 100 000 events",
        queue,
    )
