"""What was heard on the events stream lately, so that a late comer need not read it again.

What is being waited for, and what became of it.

One follower per connection and queue in a process, however many tasks wait there.

It reads the events stream once for everybody and holds at most two connections: one that listens
and one that looks. Events are hints; what decides are the batch bits, the results and the letters,
which are looked at again from time to time, so that a lost event delays an answer but never loses
it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_chasqui.core.batch import BatchPosition, BatchProgress, parse_batch_job_id
from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
)
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.job import DeadLetter

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue


MAX_RECENT_EVENTS = 20_000


def parse_stream_id(entry_id: str) -> tuple[int, int]:
    """Return an entry id as a value that sorts as Redis sorts it."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


class RecentEvents:
    """The last final event of each of the most recent jobs, complete from `start` on."""

    def __init__(self, start_id: str, max_events: int = MAX_RECENT_EVENTS):
        self.start_id = start_id
        self._max_events = max_events
        self._events: dict[str, Event] = {}
        self._order: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def covers(self, events_after: str) -> bool:
        """Whether everything behind `since` that can still be known is known."""
        return parse_stream_id(self.start_id) <= parse_stream_id(events_after)

    def add(self, event: Event) -> None:
        """Note an event that is newer than all noted before it."""
        if event.name in FINAL_EVENTS:
            self._events[event.job_id] = event
            self._order.append(event)
            if len(self._order) > self._max_events:
                oldest = self._order.popleft()
                self.start_id = oldest.entry_id
                if self._events.get(oldest.job_id) is oldest:
                    del self._events[oldest.job_id]
        elif self._events.get(event.job_id) is not None and event.name != "drained":
            del self._events[event.job_id]  # it was put back: what was final is so no more

    def prepend(self, start_id: str, last_events: dict[str, Event]) -> None:
        """Note the last events of jobs from before `start`; memory then begins at `begin`."""
        for event in reversed(last_events.values()):
            if len(self._order) >= self._max_events:
                return
            if event.name in FINAL_EVENTS and event.job_id not in self._events:
                self._events[event.job_id] = event
                self._order.appendleft(event)
        self.start_id = start_id

    def last_event(self, job_id: str) -> Event | None:
        return self._events.get(job_id)

    def discard(self, job_id: str) -> None:
        self._events.pop(job_id, None)


class ObservedOutcomes:
    """Which jobs of one batch were said to have ended: for workers that set no bits."""

    def __init__(self) -> None:
        self._outcomes: dict[int, bytearray] = {}
        self.done = 0
        self.dead = 0

    def add(self, position: BatchPosition, done: bool) -> None:
        """Note an end; done is for good, dead is not: a letter can be replayed."""
        ends = self._outcomes.setdefault(position.part, bytearray())
        if len(ends) <= position.index:
            ends.extend(bytes(max(position.index + 1 - len(ends), len(ends))))
        before = ends[position.index]
        if before == 1:
            return
        self.done += done
        self.dead += (not done) - (before == 2)
        ends[position.index] = 1 if done else 2

    def not_in_bits(self, part: int, done_bits: bytes, dead_bits: bytes) -> tuple[int, int]:
        """Return how many ends, done and dead, were heard of that the bits do not show."""
        done = dead = 0
        for index, end in enumerate(self._outcomes.get(part, b"")):
            if end and not _is_bit_set(done_bits, index) and not _is_bit_set(dead_bits, index):
                done += end == 1
                dead += end == 2
        return done, dead

    @property
    def parts(self) -> list[int]:
        return sorted(self._outcomes)


def _is_bit_set(bits: bytes, index: int) -> bool:
    byte = index >> 3
    return byte < len(bits) and bool(bits[byte] >> (7 - (index & 7)) & 1)


@dataclass(frozen=True, slots=True)
class JobWaitResult:
    """How a job ended: done, dead, or unknown if no trace of it is left."""

    job_id: str
    status: str
    reason: str | None = None
    error: str | None = None
    attempts: int | None = None

    @classmethod
    def from_dead_letter(
        cls, job_id: str, dead_letter: DeadLetter | None, reason: str | None = None
    ) -> JobWaitResult:
        if dead_letter is None:
            return cls(job_id, "dead", reason)
        error = dead_letter.error or dead_letter.detail
        return cls(job_id, "dead", dead_letter.reason or None, error, dead_letter.attempts)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(eq=False)
class Waiter:
    """Somebody waits. Times are of the event loop's clock."""

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
    """Somebody waits for a job."""

    job_id: str = ""
    position: BatchPosition | None = None

    def __post_init__(self) -> None:
        self.position = parse_batch_job_id(self.job_id)


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
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
class BatchWaiter(Waiter):
    """Somebody waits for a batch; `answer` is renewed whenever it was taken."""

    batch_id: str = ""
    snapshot: BatchSnapshot | None = None
    observed: ObservedOutcomes = field(default_factory=ObservedOutcomes)
    bits_missing: bool = False

    def update(self, snapshot: BatchSnapshot) -> None:
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            if not self.future.done():
                self.future.set_result(None)


@dataclass(eq=False)
class DepthWaiter(Waiter):
    """Somebody waits for the next look at the queue's depth."""

    poll_interval: float = 5.0
    depth: Depth | None = None

    def update(self, depth: Depth) -> None:
        self.depth = depth
        if not self.future.done():
            self.future.set_result(None)


log = logging.getLogger(__name__)

_PAGE_SIZE = 1000
_MAX_RECONNECT_DELAY = 30.0
_MAX_AUTH_FAILURES = 3


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """How often is looked, in seconds.

    `recheck` is for bits and results; `census` is the pass over the whole queue that tells whether
    a job which nobody heard of is still there, the first one coming early.
    """

    poll_interval: float = 15.0
    first_scan_delay: float = 10.0
    scan_interval: float = 300.0
    batch_poll_interval: float = 0.5
    bit_delay: float = 1.0
    coalesce_delay: float = 0.05
    block_timeout: float = 5.0

    def jitter(self, interval: float) -> float:
        return interval * random.uniform(0.8, 1.2)


class EventFollower:
    """Follows one queue for everybody in this event loop who waits for something on it."""

    def __init__(
        self,
        open_queue: Callable[[], Awaitable[AsyncQueue]],
        intervals: PollIntervals | None = None,
    ):
        self._open_queue = open_queue
        self.intervals = intervals or PollIntervals()
        self.job_waiters: dict[str, set[JobWaiter]] = {}
        self.batch_waiters: dict[str, set[BatchWaiter]] = {}
        self.depth_waiters: set[DepthWaiter] = set()
        self.recent_events: RecentEvents | None = None
        self.user_count = 0
        self._cursor = "0-0"
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return not (self.job_waiters or self.batch_waiters or self.depth_waiters)

    def waiters(self) -> list[Waiter]:
        jobs = [watch for group in self.job_waiters.values() for watch in group]
        flocks = [watch for group in self.batch_waiters.values() for watch in group]
        return [*jobs, *flocks, *self.depth_waiters]

    async def wait_for_job(self, job_id: str, events_after: str) -> JobWaitResult:
        """Wait until a job has ended; `since` is a place in the events before it was added."""
        watch = JobWaiter(events_after, job_id=job_id)
        group = self.job_waiters.setdefault(job_id, set())
        group.add(watch)
        self._register(watch)
        try:
            end: JobWaitResult = await watch.future
            return end
        finally:
            group.discard(watch)
            if not group and self.job_waiters.get(job_id) is group:
                del self.job_waiters[job_id]

    async def batch_snapshots(
        self, batch_id: str, events_after: str
    ) -> AsyncGenerator[BatchSnapshot, None]:
        """Yield what is seen of a batch, at each change, until all of it has ended."""
        watch = BatchWaiter(events_after, batch_id=batch_id)
        group = self.batch_waiters.setdefault(batch_id, set())
        group.add(watch)
        self._register(watch)
        try:
            while True:
                await watch.future
                watch.future = asyncio.Future()
                assert watch.snapshot is not None
                yield watch.snapshot
                if watch.snapshot.finished:
                    return
        finally:
            group.discard(watch)
            if not group and self.batch_waiters.get(batch_id) is group:
                del self.batch_waiters[batch_id]

    async def depth_samples(self, poll_interval: float) -> AsyncGenerator[Depth, None]:
        """Yield the depth of the queue again and again; all who wait share each look."""
        watch = DepthWaiter("0-0", poll_interval=poll_interval)
        self.depth_waiters.add(watch)
        self._register(watch)
        try:
            while True:
                await watch.future
                watch.future = asyncio.Future()
                assert watch.depth is not None
                yield watch.depth
        finally:
            self.depth_waiters.discard(watch)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _register(self, waiter: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        waiter.next_scan_at = now + self.intervals.jitter(self.intervals.first_scan_delay)
        self._wake.set()
        if self._task is None or self._task.done():
            # A context of its own: this work is not the first waiter's, nor are its log lines.
            context = contextvars.Context()
            self._task = asyncio.get_running_loop().create_task(self._run(), context=context)

    async def _run(self) -> None:
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                async with await self._open_queue() as queue:
                    await self._follow_queue(queue)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures = 1 if clock() - started > _MAX_RECONNECT_DELAY else failures + 1
                if not _is_transient(error, failures):
                    return self._fail_waiters(error)
                pause = min(_MAX_RECONNECT_DELAY, 0.5 * 2**failures) * random.uniform(0.5, 1.0)
                log.warning("Following is interrupted, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _follow_queue(self, queue: AsyncQueue) -> None:
        from airflow_provider_chasqui.triggers._state_poller import StatePoller

        await asyncio.sleep(self.intervals.coalesce_delay)  # many triggers start together
        if self.recent_events is None:
            oldest = min(
                (watch.events_after for watch in self.waiters()), key=parse_stream_id, default="0-0"
            )
            self.recent_events = RecentEvents(oldest)
            self._cursor = oldest
        for watch in self.waiters():
            watch.next_check_at = 0.0
        listener = asyncio.create_task(self._read_events(queue, self.recent_events))
        tender = asyncio.create_task(StatePoller(self, queue, self.recent_events).run())
        try:
            done, _ = await asyncio.wait({listener, tender}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            listener.cancel()
            tender.cancel()
            await asyncio.gather(listener, tender, return_exceptions=True)

    async def _read_events(self, queue: AsyncQueue, recent_events: RecentEvents) -> None:
        block_ms = int(self.intervals.block_timeout * 1000)
        while True:
            wait = inspect.wait_for_events(queue.keys, self._cursor, _PAGE_SIZE, block_ms)
            for event in await queue.client.execute(wait):
                self._cursor = event.entry_id
                recent_events.add(event)
                self.on_event(event)

    def on_event(self, event: Event) -> None:
        """Tell those whom an event concerns; they are looked at soon."""
        now = asyncio.get_running_loop().time()
        final = event.name in FINAL_EVENTS
        for watch in self.job_waiters.get(event.job_id, ()):
            watch.next_scan_at = max(watch.next_scan_at, now + self.intervals.scan_interval)
            watch.misses = 0
            if final:
                watch.next_check_at = 0.0
                self._wake.set()
        if final and self.batch_waiters and (place := parse_batch_job_id(event.job_id)):
            for flock in self.batch_waiters.get(place.batch_id, ()):
                flock.observed.add(place, event.name == "completed")
                flock.next_scan_at = max(flock.next_scan_at, now + self.intervals.scan_interval)
                flock.misses = 0
                # A batch in full swing ends a job every millisecond: a look in a while is enough.
                soon = max(now, flock.checked_at + self.intervals.batch_poll_interval)
                if soon < flock.next_check_at:
                    flock.next_check_at = soon
                    self._wake.set()

    async def wait_for_wakeup(self, timeout: float) -> None:
        """Return when there is something to look at, at the latest after `timeout`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    def _fail_waiters(self, error: Exception) -> None:
        for watch in self.waiters():
            if not watch.future.done():
                watch.future.set_exception(error)


def _is_transient(error: Exception, failures: int) -> bool:
    """Whether the error may go away by itself. A new password may be in the connection by now."""
    if isinstance(error, AuthenticationFailed):
        return failures < _MAX_AUTH_FAILURES
    return isinstance(error, ConnectionFailed) or (
        isinstance(error, ChasquiError) and error.code == "CMQ-001"
    )


_followers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], EventFollower]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def shared_follower(
    conn_id: str,
    queue_name: str,
    open_queue: Callable[[], Awaitable[AsyncQueue]],
    load_intervals: Callable[[], PollIntervals] = PollIntervals,
) -> AsyncIterator[EventFollower]:
    """Lend the follower of a queue; the last one to leave closes it."""
    mine = _followers.setdefault(asyncio.get_running_loop(), {})
    key = (conn_id, queue_name)
    follower = mine.get(key)
    if follower is None:
        follower = mine[key] = EventFollower(open_queue, load_intervals())
    try:
        follower.user_count += 1
        yield follower
    finally:
        follower.user_count -= 1
        if not follower.user_count:
            if mine.get(key) is follower:
                del mine[key]
            await follower.close()
