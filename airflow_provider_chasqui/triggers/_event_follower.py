"""The events stream of a queue, read once for all waits of a process.

There is one `EventFollower` per event loop, connection and queue, however many tasks wait for that
queue. It uses at most two connections: one blocks on the events stream, the other one reads state.

Events wake waiters. The state in Redis (batch bits, results, dead letters) decides whether a job
has finished, and `StatePoller` also reads it periodically. A lost event therefore only delays the
end of the wait. The exception is a job without a batch and without a stored result: its completion
is known only from its event.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.commands import events
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
)
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.triggers._state_poller import (
    BatchSnapshot,
    BatchWaiter,
    DepthWaiter,
    JobWaiter,
    JobWaitResult,
    StatePoller,
    Waiter,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

__all__ = [
    "BatchSnapshot",
    "EventFollower",
    "JobWaitResult",
    "PollIntervals",
    "RecentEvents",
    "shared_follower",
]

log = logging.getLogger(__name__)

MAX_RECENT_EVENTS = 20_000
_PAGE_SIZE = 1000
_MAX_RECONNECT_DELAY = 30.0
_MAX_AUTH_FAILURES = 3


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """The timing of a follower. All values are in seconds.

    :param poll_interval: time between two reads of the state of a waiter without events.
    :param first_scan_delay: time until the first scan of the whole queue for a job without events.
    :param scan_interval: time between two scans of the whole queue.
    :param batch_poll_interval: minimum time between two reads of a batch that emits events.
    :param bit_delay: time to wait after an event for the batch bit of the job to be set.
    :param coalesce_delay: time in which waiters are collected to be read together.
    :param block_timeout: BLOCK timeout of a read of the events stream.
    """

    poll_interval: float = 15.0
    first_scan_delay: float = 10.0
    scan_interval: float = 300.0
    batch_poll_interval: float = 0.5
    bit_delay: float = 1.0
    coalesce_delay: float = 0.05
    block_timeout: float = 5.0

    def jitter(self, interval: float) -> float:
        """Return `interval` changed by up to 20 percent, so that polls do not synchronize."""
        return interval * random.uniform(0.8, 1.2)


class RecentEvents:
    """The last final event of each of the most recent jobs, complete after `start_id`.

    A new waiter whose job finished after `start_id` needs no second read of the events stream.
    """

    def __init__(self, start_id: str, max_events: int = MAX_RECENT_EVENTS):
        self.start_id = start_id
        self._max_events = max_events
        self._events: dict[str, Event] = {}
        self._order: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def covers(self, events_after: str) -> bool:
        """Return whether every final event after `events_after` is included."""
        return StreamId.parse(self.start_id) <= StreamId.parse(events_after)

    def add(self, event: Event) -> None:
        """Add an event that is newer than all events added before it."""
        if event.name in FINAL_EVENTS:
            self._events[event.job_id] = event
            self._order.append(event)
            if len(self._order) > self._max_events:
                oldest = self._order.popleft()
                self.start_id = oldest.entry_id
                if self._events.get(oldest.job_id) is oldest:
                    del self._events[oldest.job_id]
        elif self._events.get(event.job_id) is not None and event.name != "drained":
            del self._events[event.job_id]  # the job was requeued, so it is no longer finished

    def prepend(self, start_id: str, last_events: dict[str, Event]) -> None:
        """Add the last events of jobs from before `self.start_id`, which becomes `start_id`."""
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


class EventFollower:
    """Registers the waiters of one queue, reads its events stream and wakes the waiters.

    The follower owns the registered waiters, the position in the events stream and the recent
    events, and it reconnects after errors. Whether a job has finished is decided by the
    `StatePoller`, from the state or from the recent events. The follower runs it next to the read
    of the events.

    :param open_queue: returns a new queue; called again for every connection attempt.
    :param intervals: the timing; the default is `PollIntervals()`.
    """

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

    def waiters(self) -> list[Waiter]:
        jobs = [waiter for group in self.job_waiters.values() for waiter in group]
        batches = [waiter for group in self.batch_waiters.values() for waiter in group]
        return [*jobs, *batches, *self.depth_waiters]

    async def wait_for_job(self, job_id: str, events_after: str) -> JobWaitResult:
        """Wait until a job has finished and return how.

        :param job_id: the id of the job.
        :param events_after: an id in the events stream from before the job was added.
        :return: the status `done` or `dead`, or `unknown` if Redis has no record of the job.
        :raises ChasquiError: if the follower stopped because of a permanent error.
        """
        waiter = JobWaiter(events_after, job_id=job_id)
        group = self.job_waiters.setdefault(job_id, set())
        group.add(waiter)
        self._register(waiter)
        try:
            result: JobWaitResult = await waiter.future
            return result
        finally:
            group.discard(waiter)
            if not group and self.job_waiters.get(job_id) is group:
                del self.job_waiters[job_id]

    async def batch_snapshots(
        self, batch_id: str, events_after: str
    ) -> AsyncGenerator[BatchSnapshot, None]:
        """Yield the state of a batch after every change, until all of its jobs have finished.

        :param batch_id: the id of the batch.
        :param events_after: an id in the events stream from before the batch was added.
        :raises BatchNotFound: if there is no such batch.
        :raises ChasquiError: if the follower stopped because of a permanent error.
        """
        waiter = BatchWaiter(events_after, batch_id=batch_id)
        group = self.batch_waiters.setdefault(batch_id, set())
        group.add(waiter)
        self._register(waiter)
        try:
            while True:
                await waiter.future
                waiter.future = asyncio.Future()
                assert waiter.snapshot is not None
                yield waiter.snapshot
                if waiter.snapshot.finished:
                    return
        finally:
            group.discard(waiter)
            if not group and self.batch_waiters.get(batch_id) is group:
                del self.batch_waiters[batch_id]

    async def depth_samples(self, poll_interval: float) -> AsyncGenerator[Depth, None]:
        """Yield the depth of the queue periodically. Waiters that are due together share a read.

        :param poll_interval: seconds between two samples.
        :raises ChasquiError: if the follower stopped because of a permanent error.
        """
        waiter = DepthWaiter("0-0", poll_interval=poll_interval)
        self.depth_waiters.add(waiter)
        self._register(waiter)
        try:
            while True:
                await waiter.future
                waiter.future = asyncio.Future()
                assert waiter.depth is not None
                yield waiter.depth
        finally:
            self.depth_waiters.discard(waiter)

    async def close(self) -> None:
        """Stop reading and close the connections."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def on_event(self, event: Event) -> None:
        """Schedule a read of the state of the waiters that an event concerns."""
        now = asyncio.get_running_loop().time()
        final = event.name in FINAL_EVENTS
        for waiter in self.job_waiters.get(event.job_id, ()):
            waiter.next_scan_at = max(waiter.next_scan_at, now + self.intervals.scan_interval)
            waiter.misses = 0
            if final:
                waiter.next_check_at = 0.0
                self._wake.set()
        if final and self.batch_waiters and (position := parse_batch_job_id(event.job_id)):
            for batch_waiter in self.batch_waiters.get(position.batch_id, ()):
                batch_waiter.observed.add(position, event.name == "completed")
                batch_waiter.next_scan_at = max(
                    batch_waiter.next_scan_at, now + self.intervals.scan_interval
                )
                batch_waiter.misses = 0
                # A busy batch emits an event per millisecond, so its reads are rate limited.
                check_at = max(now, batch_waiter.checked_at + self.intervals.batch_poll_interval)
                if check_at < batch_waiter.next_check_at:
                    batch_waiter.next_check_at = check_at
                    self._wake.set()

    async def wait_for_wakeup(self, timeout: float) -> None:
        """Return when an event or a new waiter needs a read, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    def _register(self, waiter: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        waiter.next_scan_at = now + self.intervals.jitter(self.intervals.first_scan_delay)
        self._wake.set()
        if self._task is None or self._task.done():
            # An empty context, because the task's log lines do not belong to the first waiter.
            context = contextvars.Context()
            self._task = asyncio.get_running_loop().create_task(self._run(), context=context)

    async def _run(self) -> None:
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            started_at = clock()
            try:
                async with await self._open_queue() as queue:
                    await self._follow_queue(queue)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures = 1 if clock() - started_at > _MAX_RECONNECT_DELAY else failures + 1
                if not _is_transient(error, failures):
                    return self._fail_waiters(error)
                delay = min(_MAX_RECONNECT_DELAY, 0.5 * 2**failures) * random.uniform(0.5, 1.0)
                log.warning("event follower: failed, retrying in %.1f s: %s", delay, error)
                await asyncio.sleep(delay)

    async def _follow_queue(self, queue: AsyncQueue) -> None:
        """Read events and poll state on one connection pool until one of the two fails."""
        await asyncio.sleep(self.intervals.coalesce_delay)  # many triggers start together
        if self.recent_events is None:
            oldest_id = min(
                (waiter.events_after for waiter in self.waiters()),
                key=StreamId.parse,
                default="0-0",
            )
            self.recent_events = RecentEvents(oldest_id)
            self._cursor = oldest_id
        for waiter in self.waiters():
            waiter.next_check_at = 0.0
        reader = asyncio.create_task(self._read_events(queue, self.recent_events))
        poller = asyncio.create_task(StatePoller(self, queue, self.recent_events).run())
        try:
            done, _ = await asyncio.wait({reader, poller}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reader.cancel()
            poller.cancel()
            await asyncio.gather(reader, poller, return_exceptions=True)

    async def _read_events(self, queue: AsyncQueue, recent_events: RecentEvents) -> None:
        block_ms = int(self.intervals.block_timeout * 1000)
        while True:
            command = events.wait_for_events(queue.keys, self._cursor, _PAGE_SIZE, block_ms)
            for event in await queue.client.execute(command):
                self._cursor = event.entry_id
                recent_events.add(event)
                self.on_event(event)

    def _fail_waiters(self, error: Exception) -> None:
        for waiter in self.waiters():
            if not waiter.future.done():
                waiter.future.set_exception(error)


def _is_transient(error: Exception, failures: int) -> bool:
    """Return whether a retry may help; a rejected password may be updated in the connection."""
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
    """Return the follower that all users of a queue in this event loop share.

    The first user creates the follower and the last one to leave the context closes it.

    :param conn_id: the id of the Airflow connection.
    :param queue_name: the name of the queue.
    :param open_queue: returns a new queue of that connection.
    :param load_intervals: returns the timing of a new follower; the default is `PollIntervals`.
    """
    followers = _followers.setdefault(asyncio.get_running_loop(), {})
    key = (conn_id, queue_name)
    follower = followers.get(key)
    if follower is None:
        follower = followers[key] = EventFollower(open_queue, load_intervals())
    try:
        follower.user_count += 1
        yield follower
    finally:
        follower.user_count -= 1
        if not follower.user_count:
            if followers.get(key) is follower:
                del followers[key]
            await follower.close()
