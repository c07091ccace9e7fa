"""The state of awaited jobs, batches and queue depths, read from Redis for all waiters of a queue.

The module contains, in this order: the results of a wait, the waiters that an `EventFollower`
registers, the read commands, and the `StatePoller` that runs them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_chasqui.core.batch import BatchPosition, BatchProgress, parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_delayed_member
from airflow_provider_chasqui.core.command import CommandFlow, as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import batches, dead_letters, delayed, inspect
from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import BatchNotFound, DecodeError
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.job import DeadLetter, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.stream_id import StreamId

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.triggers._event_follower import EventFollower, RecentEvents

log = logging.getLogger(__name__)

CANCELLED = "cancelled"
_MAX_FLOWS_PER_PIPELINE = 1000
_MAX_MISSES = 2
# A scan of a deep queue is expensive. The pause after it is this multiple of its duration.
_SCAN_PAUSE_FACTOR = 20

WaiterT = TypeVar("WaiterT", bound="Waiter")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobWaitResult:
    """The outcome of a job.

    :param job_id: the id of the job.
    :param status: `done`, `dead`, or `unknown` if Redis has no record of the job.
    :param reason: the reason of the dead letter, e.g. `retries_exhausted`.
    :param error: the error of the last attempt.
    :param attempts: the number of attempts.
    """

    job_id: str
    status: str
    reason: str | None = None
    error: str | None = None
    attempts: int | None = None

    @classmethod
    def from_dead_letter(
        cls, job_id: str, dead_letter: DeadLetter | None, reason: str | None = None
    ) -> JobWaitResult:
        """Return the outcome of a dead job; `reason` is used if it has no dead letter."""
        if dead_letter is None:
            return cls(job_id, "dead", reason)
        error = dead_letter.error or dead_letter.detail
        return cls(job_id, "dead", dead_letter.reason or None, error, dead_letter.attempts)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as the payload of a trigger event."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """The state of a batch at one point in time.

    :param progress: the counts that Redis has.
    :param done: completed jobs, including those known only from events.
    :param dead: dead jobs, including those known only from events.
    :param lost: jobs that are not on the queue although they neither completed nor died.
    """

    progress: BatchProgress
    done: int
    dead: int
    lost: int = 0

    @property
    def finished(self) -> bool:
        total = self.progress.total
        return total is not None and self.done + self.dead + self.lost >= total


class ObservedOutcomes:
    """Outcomes of the jobs of one batch according to events, for workers that set no batch bits."""

    _DONE, _DEAD = 1, 2

    def __init__(self) -> None:
        self._outcomes: dict[int, bytearray] = {}
        self.done = 0
        self.dead = 0

    def add(self, position: BatchPosition, done: bool) -> None:
        """Record an outcome. A dead job may still complete after a replay, a done one is final."""
        outcomes = self._outcomes.setdefault(position.part, bytearray())
        if len(outcomes) <= position.index:
            outcomes.extend(bytes(max(position.index + 1 - len(outcomes), len(outcomes))))
        previous = outcomes[position.index]
        if previous == self._DONE:
            return
        self.done += done
        self.dead += (not done) - (previous == self._DEAD)
        outcomes[position.index] = self._DONE if done else self._DEAD

    def not_in_bits(self, part: int, done_bits: bytes, dead_bits: bytes) -> tuple[int, int]:
        """Return the numbers of done and dead jobs of a part for which no bit is set."""
        done = dead = 0
        for index, outcome in enumerate(self._outcomes.get(part, b"")):
            if outcome and not _is_bit_set(done_bits, index) and not _is_bit_set(dead_bits, index):
                done += outcome == self._DONE
                dead += outcome == self._DEAD
        return done, dead

    @property
    def parts(self) -> list[int]:
        return sorted(self._outcomes)


def _is_bit_set(bits: bytes, index: int) -> bool:
    byte = index >> 3
    return byte < len(bits) and bool(bits[byte] >> (7 - (index & 7)) & 1)


@dataclass(eq=False)
class Waiter:
    """A wait and its schedule. Times are those of the event loop's clock.

    `next_check_at` is the time of the next read of its state, `next_scan_at` the time of the next
    scan of the whole queue for it, and `misses` the number of consecutive scans that did not find
    it. `future` is resolved when there is a result.
    """

    events_after: str
    is_new: bool = True
    checked_at: float = 0.0
    next_check_at: float = 0.0
    next_scan_at: float = 0.0
    first_event_at: float | None = None
    misses: int = 0
    future: asyncio.Future[Any] = field(default_factory=asyncio.Future)


@dataclass(eq=False)
class JobWaiter(Waiter):
    """A wait for one job."""

    job_id: str = ""
    position: BatchPosition | None = None

    def __post_init__(self) -> None:
        self.position = parse_batch_job_id(self.job_id)

    def resolve(self, result: JobWaitResult) -> None:
        if not self.future.done():
            self.future.set_result(result)


@dataclass(eq=False)
class BatchWaiter(Waiter):
    """A wait for a batch; `future` is replaced each time its snapshot was consumed."""

    batch_id: str = ""
    snapshot: BatchSnapshot | None = None
    observed: ObservedOutcomes = field(default_factory=ObservedOutcomes)
    bits_missing: bool = False

    def update(self, snapshot: BatchSnapshot) -> None:
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            if not self.future.done():
                self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False)
class DepthWaiter(Waiter):
    """A wait for the next sample of the queue's depth; `future` is replaced after each sample."""

    poll_interval: float = 5.0
    depth: Depth | None = None

    def update(self, depth: Depth) -> None:
        self.depth = depth
        if not self.future.done():
            self.future.set_result(None)


def job_state(keys: Keys, waiter: JobWaiter) -> CommandFlow[str]:
    """Return `done`, `dead`, `unfinished`, or `unknown` if the job's batch does not exist."""
    if waiter.position is None:
        has_result = yield redis_command("EXISTS", keys.result(waiter.job_id), parse=as_int)
        return "done" if has_result else "unfinished"
    done, dead, batch_exists = yield [
        *batches.completion_bits(keys, waiter.position),
        redis_command("EXISTS", keys.batch(waiter.position.batch_id), parse=as_int),
    ]
    if done or dead:
        return "done" if done else "dead"
    return "unfinished" if batch_exists else "unknown"


def read_batch_bits(keys: Keys, batch_id: str, part: int) -> CommandFlow[tuple[bytes, bytes]]:
    """Return the done bits and the dead bits of one part of a batch."""
    done, dead = yield [
        redis_command("GET", keys.batch_done(batch_id, part), parse=as_raw),
        redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw),
    ]
    return done or b"", dead or b""


def find_dead_letters(keys: Keys, job_ids: frozenset[str]) -> CommandFlow[dict[str, DeadLetter]]:
    """Return the newest dead letter of each of the jobs that has one, in one pass over the DLQ."""
    matches: dict[str, DeadLetter] = {}
    cursor = "+"
    while len(matches) < len(job_ids) and (
        page := (yield dead_letters.page_newest_first(keys, cursor))
    ):
        for dead_letter in page:
            if dead_letter.job_id in job_ids:
                matches.setdefault(dead_letter.job_id, dead_letter)
        cursor = page[-1].id
    return matches


@dataclass(slots=True)
class QueueScan:
    """The awaited jobs that are on the queue, and the number of jobs of each awaited batch."""

    job_ids: set[str] = field(default_factory=set)
    batch_counts: Counter[str] = field(default_factory=Counter)

    def add(self, job_id: str, job_ids: frozenset[str], batch_ids: frozenset[str]) -> None:
        if job_id in job_ids:
            self.job_ids.add(job_id)
        position = parse_batch_job_id(job_id) if batch_ids else None
        if position and position.batch_id in batch_ids:
            self.batch_counts[position.batch_id] += 1


def scan_queue(
    keys: Keys, job_ids: frozenset[str], batch_ids: frozenset[str]
) -> CommandFlow[QueueScan]:
    """Scan the stream, then the delayed set, then the entries added to the stream since.

    A retry moves a job from the stream to the delayed set, therefore the delayed set is read after
    the stream. A promotion moves a job to the end of the stream, therefore the end is read last.
    """
    scan = QueueScan()
    start = yield from _scan_entries(keys, "-", scan, job_ids, batch_ids)
    offset = 0
    while members := (yield delayed.members_page(keys, offset)):
        for member, _ in members:
            try:
                scan.add(decode_delayed_member(member).id, job_ids, batch_ids)
            except DecodeError:
                continue
        offset += len(members)
    yield from _scan_entries(keys, start, scan, job_ids, batch_ids)
    return scan


def _scan_entries(
    keys: Keys, start: str, scan: QueueScan, job_ids: frozenset[str], batch_ids: frozenset[str]
) -> CommandFlow[str]:
    while raw_entries := (yield inspect.read_entries(keys, start)):
        for raw_entry in raw_entries:
            entry = parse_entry(raw_entry, 2**62)
            if isinstance(entry, StreamEntry):
                scan.add(entry.job.id, job_ids, batch_ids)
        start = f"({raw_entries[-1][0].decode()}"
    return start


class StatePoller:
    """Reads the state of the waiters of one follower and resolves those that have a result.

    The poller decides when a waiter is due, reads all due waiters together, and derives results in
    this order: batch bits and stored results, then events (for workers that set no bits), then a
    scan of the whole queue for jobs without events. It lives as long as one connection of the
    follower, which owns the waiters and receives the events.
    """

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
        """Poll until cancelled.

        :raises ChasquiError: if a read failed.
        """
        while True:
            await self._follower.wait_for_wakeup(self._seconds_until_next())
            await asyncio.sleep(self._intervals.coalesce_delay)
            await self._poll_jobs()
            await self._poll_batches()
            await self._poll_depths()
            await self._scan_queue()

    # Schedule

    def _seconds_until_next(self) -> float:
        now = self._clock()
        times = [now + self._intervals.poll_interval]
        for waiter in self._follower.waiters():
            if not (isinstance(waiter, JobWaiter) and waiter.future.done()):
                times += (waiter.next_check_at, max(waiter.next_scan_at, self._next_scan_at))
        return max(0.0, min(times) - now)

    def _due_waiters(self, waiters: Iterable[WaiterT]) -> list[WaiterT]:
        """Return the waiters whose check is due, and schedule their next check."""
        now = self._clock()
        due = [waiter for waiter in waiters if waiter.next_check_at <= now]
        for waiter in due:
            waiter.checked_at = now
            waiter.next_check_at = now + self._intervals.jitter(self._intervals.poll_interval)
        return due

    def _within_bit_delay(self, waiter: Waiter) -> bool:
        """Return whether the bit that belongs to an event may still be set by the worker."""
        now = self._clock()
        waiter.first_event_at = waiter.first_event_at or now
        early = now - waiter.first_event_at < self._intervals.bit_delay
        if early:
            waiter.next_check_at = min(waiter.next_check_at, now + self._intervals.bit_delay)
        return early

    def _unresolved_jobs(self) -> list[JobWaiter]:
        groups = self._follower.job_waiters.values()
        return [waiter for group in groups for waiter in group if not waiter.future.done()]

    def _batch_waiters(self) -> list[BatchWaiter]:
        return [waiter for group in self._follower.batch_waiters.values() for waiter in group]

    # Jobs

    async def _poll_jobs(self) -> None:
        due = self._due_waiters(self._unresolved_jobs())
        if due:
            unresolved = await self._resolve_from_state(due)
            older_events = await self._read_older_events(unresolved)
            await self._resolve_from_events(unresolved, older_events)

    async def _resolve_from_state(self, waiters: list[JobWaiter]) -> list[JobWaiter]:
        """Resolve jobs by their bits or results; return the waiters that remain unresolved."""
        states = await self._run_flows([job_state(self._keys, waiter) for waiter in waiters])
        dead, unresolved = [], []
        for waiter, state in zip(waiters, states, strict=True):
            if state in ("done", "unknown"):
                waiter.resolve(JobWaitResult(waiter.job_id, state))
            elif state == "dead":
                dead.append(waiter)
            else:
                unresolved.append(waiter)
        dead_letters_by_id = await self._dead_letters(dead)
        for waiter in dead:
            waiter.resolve(
                JobWaitResult.from_dead_letter(waiter.job_id, dead_letters_by_id.get(waiter.job_id))
            )
        return unresolved

    async def _read_older_events(self, waiters: Sequence[Waiter]) -> dict[str, Event]:
        """Return the last event of each job from before the recent events.

        The events are read only if a new waiter needs them, and once for all new waiters.
        """
        missing = [
            waiter.events_after
            for waiter in waiters
            if waiter.is_new and not self._recent_events.covers(waiter.events_after)
        ]
        for waiter in waiters:
            waiter.is_new = False
        last_events: dict[str, Event] = {}
        if not missing:
            return last_events
        cursor = start_id = min(missing, key=StreamId.parse)
        end = StreamId.parse(self._recent_events.start_id)
        while events := await self._queue.events(after=cursor, limit=1000):
            for event in events:
                if StreamId.parse(event.entry_id) <= end:
                    last_events[event.job_id] = event
                    self._follower.on_event(event)
            cursor = events[-1].entry_id
            if StreamId.parse(cursor) >= end:
                break
        self._recent_events.prepend(start_id, last_events)
        return last_events

    async def _resolve_from_events(
        self, waiters: list[JobWaiter], older_events: dict[str, Event]
    ) -> None:
        """Resolve jobs that have a final event but no bit or result."""
        finished = [
            (waiter, event)
            for waiter in waiters
            if (
                event := self._recent_events.last_event(waiter.job_id)
                or older_events.get(waiter.job_id)
            )
            and event.name in FINAL_EVENTS
        ]
        dead_letters_by_id = await self._dead_letters(
            [waiter for waiter, event in finished if event.name == "dlq"]
        )
        for waiter, event in finished:
            if event.name == "completed":
                self._resolve_completed(waiter)
            elif waiter.job_id in dead_letters_by_id or event.reason == CANCELLED:
                dead_letter = dead_letters_by_id.get(waiter.job_id)
                waiter.resolve(
                    JobWaitResult.from_dead_letter(waiter.job_id, dead_letter, event.reason)
                )
            else:
                # The dead letter was replayed or purged. The scan shows whether the job is back.
                self._recent_events.discard(waiter.job_id)
                waiter.next_scan_at = self._clock()

    def _resolve_completed(self, waiter: JobWaiter) -> None:
        if waiter.position is not None:
            if self._within_bit_delay(waiter):
                return
            _warn_no_batch_bits(self._keys.queue_name)
        waiter.resolve(JobWaitResult(waiter.job_id, "done"))

    async def _dead_letters(self, waiters: list[JobWaiter]) -> dict[str, DeadLetter]:
        if not waiters:
            return {}
        job_ids = frozenset(waiter.job_id for waiter in waiters)
        return await self._client.run_flow(find_dead_letters(self._keys, job_ids))

    # Batches and depths

    async def _poll_batches(self) -> None:
        due = self._due_waiters(self._batch_waiters())
        if not due:
            return
        await self._read_older_events(due)
        progress_by_waiter = await self._run_flows(
            [batches.progress(self._keys, waiter.batch_id) for waiter in due]
        )
        for waiter, progress in zip(due, progress_by_waiter, strict=True):
            if progress is not None:
                waiter.update(await self._batch_snapshot(waiter, progress))
            else:
                waiter.fail(
                    BatchNotFound(
                        f"there is no batch {waiter.batch_id!r}, or it has expired",
                        queue_name=self._keys.queue_name,
                    )
                )

    async def _batch_snapshot(self, waiter: BatchWaiter, progress: BatchProgress) -> BatchSnapshot:
        """Return the counts in Redis plus the outcomes that are known only from events."""
        done, dead = progress.done, progress.dead
        if waiter.observed.done <= done and waiter.observed.dead <= dead:
            waiter.first_event_at = None
        elif not self._within_bit_delay(waiter):
            for part in waiter.observed.parts:
                bits = await self._client.run_flow(
                    read_batch_bits(self._keys, waiter.batch_id, part)
                )
                extra_done, extra_dead = waiter.observed.not_in_bits(part, *bits)
                done += extra_done
                dead += extra_dead
            if done > progress.done and not waiter.bits_missing:
                waiter.bits_missing = True
                _warn_no_batch_bits(self._keys.queue_name)
        return BatchSnapshot(progress, done, dead)

    async def _poll_depths(self) -> None:
        due = self._due_waiters(self._follower.depth_waiters)
        if not due:
            return
        depth = await self._queue.depth()
        for waiter in due:
            waiter.next_check_at = waiter.checked_at + self._intervals.jitter(waiter.poll_interval)
            waiter.next_scan_at = waiter.next_check_at + self._intervals.poll_interval
            waiter.update(depth)

    # Scan of the whole queue

    async def _scan_queue(self) -> None:
        """Check whether the jobs that emitted no event are on the queue."""
        started_at = self._clock()
        jobs = [waiter for waiter in self._unresolved_jobs() if waiter.next_scan_at <= started_at]
        batch_waiters = [
            waiter for waiter in self._batch_waiters() if waiter.next_scan_at <= started_at
        ]
        if started_at < self._next_scan_at or not (jobs or batch_waiters):
            return
        scan = await self._client.run_flow(
            scan_queue(
                self._keys,
                frozenset(waiter.job_id for waiter in jobs),
                frozenset(waiter.batch_id for waiter in batch_waiters),
            )
        )
        finished_at = self._clock()
        self._next_scan_at = finished_at + _SCAN_PAUSE_FACTOR * (finished_at - started_at)
        missing = [
            waiter
            for waiter in jobs
            if not self._record_presence(waiter, waiter.job_id in scan.job_ids)
        ]
        if missing:
            await self._resolve_missing_jobs(missing)
        for batch_waiter in batch_waiters:
            if not self._record_presence(
                batch_waiter, bool(scan.batch_counts[batch_waiter.batch_id])
            ):
                await self._resolve_missing_batch(batch_waiter)

    def _record_presence(self, waiter: Waiter, present: bool) -> bool:
        """Count consecutive misses and schedule the next scan, which comes earlier after a miss."""
        delay = self._intervals.scan_interval if present else self._intervals.first_scan_delay
        waiter.next_scan_at = self._clock() + self._intervals.jitter(delay)
        waiter.misses = 0 if present else waiter.misses + 1
        return present

    async def _resolve_missing_jobs(self, missing: list[JobWaiter]) -> None:
        unresolved = await self._resolve_from_state(missing)
        dead_letters_by_id = await self._dead_letters(unresolved)
        for waiter in unresolved:
            dead_letter = dead_letters_by_id.get(waiter.job_id)
            if dead_letter is not None:
                waiter.resolve(JobWaitResult.from_dead_letter(waiter.job_id, dead_letter))
            elif waiter.misses >= _MAX_MISSES:
                waiter.resolve(JobWaitResult(waiter.job_id, "unknown"))

    async def _resolve_missing_batch(self, waiter: BatchWaiter) -> None:
        """Finish the wait for a batch that has unfinished jobs, none of which is on the queue."""
        progress = await self._client.run_flow(batches.progress(self._keys, waiter.batch_id))
        if progress is None or progress.total is None or waiter.misses < _MAX_MISSES:
            return
        snapshot = await self._batch_snapshot(waiter, progress)
        remaining = progress.total - snapshot.done - snapshot.dead
        if remaining <= 0:
            waiter.update(snapshot)
        elif waiter.bits_missing:
            # The worker sets no bits and some of its events were trimmed. Jobs that are neither on
            # the queue nor in the DLQ have completed.
            dead_count = len(
                await self._queue.dead_letters(limit=progress.total, batch_id=waiter.batch_id)
            )
            waiter.update(BatchSnapshot(progress, progress.total - dead_count, dead_count))
        else:
            waiter.update(BatchSnapshot(progress, snapshot.done, snapshot.dead, remaining))

    async def _run_flows(self, flows: Sequence[CommandFlow[R]]) -> list[R]:
        """Run flows in lockstep, in pipelines of bounded size."""
        results: list[R] = []
        for start in range(0, len(flows), _MAX_FLOWS_PER_PIPELINE):
            chunk = flows[start : start + _MAX_FLOWS_PER_PIPELINE]
            results += await self._client.run_flow(inspect.run_in_lockstep(chunk))
        return results


def _warn_no_batch_bits(queue_name: str) -> None:
    log.warning(
        "state poller: a worker of the queue %r sets no batch bits (ChasquiMQ 1.3.0 workers do "
        "not); its jobs are followed through the events stream, which keeps about 100 000 events",
        queue_name,
    )
