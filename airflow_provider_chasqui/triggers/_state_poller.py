"""Looking for many jobs at once: by bits and results in one pipeline, or in one pass.

Looking after everybody who waits on one queue: who is to be looked at, and what is seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_delayed_member
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    DialectCommand,
    as_int,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.commands import batches, dead_letters, delayed, inspect
from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
from airflow_provider_chasqui.core.errors import BatchNotFound, DecodeError
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.job import DeadLetter, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.triggers._event_follower import (
    BatchSnapshot,
    BatchWaiter,
    JobWaiter,
    JobWaitResult,
    RecentEvents,
    Waiter,
    parse_stream_id,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient
if TYPE_CHECKING:
    from airflow_provider_chasqui.core.batch import BatchProgress
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.triggers._event_follower import EventFollower


_PIPELINE_SIZE = 1000


async def run_in_lockstep(client: AsyncRedisClient, flows: Sequence[CommandFlow[Any]]) -> list[Any]:
    """Run flows in step: what they ask at the same time travels in one pipeline."""
    answers: list[Any] = [None] * len(flows)
    waiting: dict[int, Any] = {}

    def go_on(index: int, answer: Any) -> None:
        try:
            waiting[index] = flows[index].send(answer)
        except StopIteration as end:
            waiting.pop(index, None)
            answers[index] = end.value

    for index in range(len(flows)):
        go_on(index, None)
    while waiting:
        asked = dict(list(waiting.items())[:_PIPELINE_SIZE])
        ops: list[Any] = []
        for step in asked.values():
            ops += [step] if isinstance(step, Command | DialectCommand) else step
        replies = iter(await client.pipeline(ops))
        for index, step in asked.items():
            one = isinstance(step, Command | DialectCommand)
            go_on(index, next(replies) if one else [next(replies) for _ in step])
    return answers


def job_state(keys: Keys, waiter: JobWaiter) -> CommandFlow[str]:
    """Return done, dead, open, or gone if the job's batch is not there."""
    if waiter.position is None:
        kept = yield redis_command("EXISTS", keys.result(waiter.job_id), parse=as_int)
        return "done" if kept else "unfinished"
    done, dead, there = yield [
        *batches.completion_bits(keys, waiter.position),
        redis_command("EXISTS", keys.batch(waiter.position.batch_id), parse=as_int),
    ]
    if done or dead:
        return "done" if done else "dead"
    return "unfinished" if there else "unknown"


def read_batch_bits(keys: Keys, batch_id: str, part: int) -> CommandFlow[tuple[bytes, bytes]]:
    """Return the done and the dead bits of one part of a batch."""
    done, dead = yield [
        redis_command("GET", keys.batch_done(batch_id, part), parse=as_raw),
        redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw),
    ]
    return done or b"", dead or b""


def find_dead_letters(keys: Keys, job_ids: frozenset[str]) -> CommandFlow[dict[str, DeadLetter]]:
    """Return the newest letter of each job that has one, in one pass of the DLQ."""
    found: dict[str, DeadLetter] = {}
    cursor = "+"
    while len(found) < len(job_ids) and (
        page := (yield dead_letters.page_newest_first(keys, cursor))
    ):
        for letter in page:
            if letter.job_id in job_ids:
                found.setdefault(letter.job_id, letter)
        cursor = page[-1].id
    return found


@dataclass(slots=True)
class QueueScan:
    """Which of the wanted jobs are on the queue, and how many of each wanted batch."""

    job_ids: set[str] = field(default_factory=set)
    batch_counts: Counter[str] = field(default_factory=Counter)

    def add(self, job_id: str, job_ids: frozenset[str], batch_ids: frozenset[str]) -> None:
        if job_id in job_ids:
            self.job_ids.add(job_id)
        place = parse_batch_job_id(job_id) if batch_ids else None
        if place and place.batch_id in batch_ids:
            self.batch_counts[place.batch_id] += 1


def scan_queue(
    keys: Keys, job_ids: frozenset[str], batch_ids: frozenset[str]
) -> CommandFlow[QueueScan]:
    """Pass once over the stream, then over the delayed set, then over the stream's new end.

    A retry moves a job from the stream to the delayed set, so that order meets it; a promotion
    moves it to the stream's end, which is why the end is read last.
    """
    seen = QueueScan()
    start = yield from _scan_entries(keys, "-", seen, job_ids, batch_ids)
    at = 0
    while members := (yield delayed.members_page(keys, at)):
        for member, _ in members:
            try:
                seen.add(decode_delayed_member(member).id, job_ids, batch_ids)
            except DecodeError:
                continue
        at += len(members)
    yield from _scan_entries(keys, start, seen, job_ids, batch_ids)
    return seen


def _scan_entries(
    keys: Keys, start: str, scan: QueueScan, job_ids: frozenset[str], batch_ids: frozenset[str]
) -> CommandFlow[str]:
    while raw := (yield inspect.read_entries(keys, start)):
        for each in raw:
            entry = parse_entry(each, 2**62)
            if isinstance(entry, StreamEntry):
                scan.add(entry.job.id, job_ids, batch_ids)
        start = f"({raw[-1][0].decode()}"
    return start


WaiterT = TypeVar("WaiterT", bound=Waiter)

log = logging.getLogger(__name__)

_MAX_MISSES = 2
CANCELLED = "cancelled"


class StatePoller:
    """Looks at the watches of one follower whenever that may tell something new."""

    def __init__(self, follower: EventFollower, queue: AsyncQueue, recent_events: RecentEvents):
        self._follower = follower
        self._intervals = follower.intervals
        self._queue = queue
        self._client = queue.client
        self._keys = queue.keys
        self._recent_events = recent_events
        self._clock = asyncio.get_running_loop().time
        self._next_scan_at = 0.0

    async def run(self) -> None:
        while True:
            await self._follower.wait_for_wakeup(self._seconds_until_next())
            await asyncio.sleep(self._intervals.coalesce_delay)
            await self._poll_jobs()
            await self._poll_batches()
            await self._poll_depths()
            await self._scan_queue()

    def _seconds_until_next(self) -> float:
        now = self._clock()
        times = [now + self._intervals.poll_interval]
        for watch in self._follower.waiters():
            if not (isinstance(watch, JobWaiter) and watch.future.done()):
                times += (watch.next_check_at, max(watch.next_scan_at, self._next_scan_at))
        return max(0.0, min(times) - now)

    def _due_waiters(self, waiters: Iterable[WaiterT]) -> list[WaiterT]:
        """Return those to be looked at now, and set when they are to be looked at again."""
        now = self._clock()
        due = [watch for watch in waiters if watch.next_check_at <= now]
        for watch in due:
            watch.checked_at = now
            watch.next_check_at = now + self._intervals.jitter(self._intervals.poll_interval)
        return due

    async def _poll_jobs(self) -> None:
        groups = self._follower.job_waiters.values()
        due = self._due_waiters(w for group in groups for w in group if not w.future.done())
        if due:
            still_open = await self._resolve_from_state(due)
            older = await self._read_older_events(still_open)
            await self._resolve_from_events(still_open, older)

    async def _resolve_from_state(self, waiters: list[JobWaiter]) -> list[JobWaiter]:
        """Answer those whose bits or results tell the end; return the others."""
        states = await run_in_lockstep(
            self._client, [job_state(self._keys, watch) for watch in waiters]
        )
        dead, still_open = [], []
        for watch, state in zip(waiters, states, strict=True):
            if state == "done":
                _resolve(watch, JobWaitResult(watch.job_id, "done"))
            elif state == "unknown":
                _resolve(watch, JobWaitResult(watch.job_id, "unknown"))
            elif state == "dead":
                dead.append(watch)
            else:
                still_open.append(watch)
        if dead:
            letters = await self._dead_letters(dead)
            for watch in dead:
                _resolve(
                    watch, JobWaitResult.from_dead_letter(watch.job_id, letters.get(watch.job_id))
                )
        return still_open

    async def _dead_letters(self, waiters: list[JobWaiter]) -> dict[str, DeadLetter]:
        wanted = frozenset(watch.job_id for watch in waiters)
        return await self._client.run_flow(find_dead_letters(self._keys, wanted))

    async def _read_older_events(self, waiters: Sequence[Waiter]) -> dict[str, Event]:
        """Return the last events of jobs from before the follower's time, where somebody new
        needs them; they are read once for all of these."""
        behind = [
            w.events_after
            for w in waiters
            if w.is_new and not self._recent_events.covers(w.events_after)
        ]
        for watch in waiters:
            watch.is_new = False
        last: dict[str, Event] = {}
        if not behind:
            return last
        cursor = begin = min(behind, key=parse_stream_id)
        end = parse_stream_id(self._recent_events.start_id)
        while events := await self._queue.events(after=cursor, limit=1000):
            for event in events:
                if parse_stream_id(event.entry_id) <= end:
                    last[event.job_id] = event
                    self._follower.on_event(event)
            cursor = events[-1].entry_id
            if parse_stream_id(cursor) >= end:
                break
        self._recent_events.prepend(begin, last)
        return last

    async def _resolve_from_events(
        self, waiters: list[JobWaiter], older_events: dict[str, Event]
    ) -> None:
        """Answer those whose end was only said in an event: their worker sets no bits."""
        heard = [
            (watch, event)
            for watch in waiters
            if (
                event := self._recent_events.last_event(watch.job_id)
                or older_events.get(watch.job_id)
            )
            and event.name in FINAL_EVENTS
        ]
        dead = [watch for watch, event in heard if event.name == "dlq"]
        letters = await self._dead_letters(dead) if dead else {}
        for watch, event in heard:
            if event.name == "completed":
                self._resolve_completed(watch)
            elif watch.job_id in letters or event.reason == CANCELLED:
                letter = letters.get(watch.job_id)
                _resolve(watch, JobWaitResult.from_dead_letter(watch.job_id, letter, event.reason))
            else:
                # Its letter is gone: replayed, so the job lives; or purged, which the census tells.
                self._recent_events.discard(watch.job_id)
                watch.next_scan_at = self._clock()

    def _resolve_completed(self, waiter: JobWaiter) -> None:
        if waiter.position is not None:
            if self._within_bit_delay(waiter):
                return
            _warn_no_batch_bits(self._keys.queue_name)
        _resolve(waiter, JobWaitResult(waiter.job_id, "done"))

    def _within_bit_delay(self, waiter: Waiter) -> bool:
        """Whether the bit that an event speaks of may still be on its way."""
        now = self._clock()
        waiter.first_event_at = waiter.first_event_at or now
        early = now - waiter.first_event_at < self._intervals.bit_delay
        if early:
            waiter.next_check_at = min(waiter.next_check_at, now + self._intervals.bit_delay)
        return early

    async def _poll_batches(self) -> None:
        due = self._due_waiters(w for group in self._follower.batch_waiters.values() for w in group)
        if not due:
            return
        await self._read_older_events(due)
        found = await run_in_lockstep(
            self._client, [batches.progress(self._keys, watch.batch_id) for watch in due]
        )
        for watch, progress in zip(due, found, strict=True):
            if progress is None:
                _fail_unknown_batch(watch, self._keys.queue_name)
            else:
                watch.update(await self._batch_snapshot(watch, progress))

    async def _batch_snapshot(self, waiter: BatchWaiter, progress: BatchProgress) -> BatchSnapshot:
        done, dead = progress.done, progress.dead
        if waiter.observed.done <= done and waiter.observed.dead <= dead:
            waiter.first_event_at = None
        elif not self._within_bit_delay(waiter):
            for part in waiter.observed.parts:
                bits = await self._client.run_flow(
                    read_batch_bits(self._keys, waiter.batch_id, part)
                )
                more_done, more_dead = waiter.observed.not_in_bits(part, *bits)
                done += more_done
                dead += more_dead
            if done > progress.done and not waiter.bits_missing:
                waiter.bits_missing = True
                _warn_no_batch_bits(self._keys.queue_name)
        return BatchSnapshot(progress, done, dead)

    async def _poll_depths(self) -> None:
        due = self._due_waiters(self._follower.depth_waiters)
        if not due:
            return
        depth = await self._queue.depth()
        for watch in due:
            watch.next_check_at = watch.checked_at + self._intervals.jitter(watch.poll_interval)
            watch.next_scan_at = watch.next_check_at + self._intervals.poll_interval
            watch.update(depth)

    async def _scan_queue(self) -> None:
        """Look whether jobs that nobody heard of are on the queue at all."""
        now = self._clock()
        jobs = [
            watch
            for group in self._follower.job_waiters.values()
            for watch in group
            if watch.next_scan_at <= now and not watch.future.done()
        ]
        flocks = [
            watch
            for group in self._follower.batch_waiters.values()
            for watch in group
            if watch.next_scan_at <= now
        ]
        if now < self._next_scan_at or not (jobs or flocks):
            return
        seen = await self._client.run_flow(
            scan_queue(
                self._keys,
                frozenset(watch.job_id for watch in jobs),
                frozenset(watch.batch_id for watch in flocks),
            )
        )
        # A pass over a deep queue costs: it may take a twentieth of the time, not more.
        self._next_scan_at = self._clock() + 20 * (self._clock() - now)
        missing = [
            watch
            for watch in jobs
            if not self._record_presence(watch, watch.job_id in seen.job_ids)
        ]
        if missing:
            await self._resolve_missing_jobs(missing)
        for flock in flocks:
            if not self._record_presence(flock, bool(seen.batch_counts[flock.batch_id])):
                await self._resolve_missing_batch(flock)

    def _record_presence(self, waiter: Waiter, found: bool) -> bool:
        """Note whether it is on the queue; what is missing is looked for again before it counts."""
        span = self._intervals.scan_interval if found else self._intervals.first_scan_delay
        waiter.next_scan_at = self._clock() + self._intervals.jitter(span)
        waiter.misses = 0 if found else waiter.misses + 1
        return found

    async def _resolve_missing_jobs(self, missing: list[JobWaiter]) -> None:
        still_open = await self._resolve_from_state(missing)
        letters = await self._dead_letters(still_open) if still_open else {}
        for watch in still_open:
            if watch.job_id in letters:
                _resolve(watch, JobWaitResult.from_dead_letter(watch.job_id, letters[watch.job_id]))
            elif watch.misses >= _MAX_MISSES:
                _resolve(watch, JobWaitResult(watch.job_id, "unknown"))

    async def _resolve_missing_batch(self, waiter: BatchWaiter) -> None:
        """Nothing of an unfinished batch is left on the queue: say what became of the rest."""
        progress = await self._client.run_flow(batches.progress(self._keys, waiter.batch_id))
        if progress is None or progress.total is None or waiter.misses < _MAX_MISSES:
            return
        sight = await self._batch_snapshot(waiter, progress)
        rest = progress.total - sight.done - sight.dead
        if rest <= 0:
            waiter.update(sight)
        elif waiter.bits_missing:
            # The worker sets no bits and some of its events are trimmed away: what is neither on
            # the queue nor among the letters is done.
            letters = await self._queue.dead_letters(limit=progress.total, batch_id=waiter.batch_id)
            waiter.update(BatchSnapshot(progress, progress.total - len(letters), len(letters)))
        else:
            waiter.update(BatchSnapshot(progress, sight.done, sight.dead, rest))


def _resolve(waiter: JobWaiter, result: JobWaitResult) -> None:
    if not waiter.future.done():
        waiter.future.set_result(result)


def _fail_unknown_batch(waiter: BatchWaiter, queue_name: str) -> None:
    if not waiter.future.done():
        waiter.future.set_exception(
            BatchNotFound(
                f"there is no batch {waiter.batch_id!r}, or it has expired", queue_name=queue_name
            )
        )


def _warn_no_batch_bits(queue_name: str) -> None:
    log.warning(
        "A worker of the queue %r sets no batch bits (a stock ChasquiMQ worker does not), so its "
        "jobs are followed by the events stream, which remembers about 100 000 events",
        queue_name,
    )
