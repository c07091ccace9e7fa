"""All waits of a process for one queue: one reader of events, one reader of state.

There is one `WaitRegistry` per event loop, connection and queue, however many tasks wait for that
queue. It uses at most two connections: one blocks on the events stream, the other one reads state.
Events only cause an early look. `core.waiting.next_state` decides from the state whether a wait has
ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.commands import (
    batches,
    consumer_group,
    events,
    flow_control,
    wait,
)
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.durations import format_duration
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    WaitTimeout,
)
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.event_outcomes import EventOutcomes
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.core.waiting import (
    BatchEnd,
    BatchObservation,
    BatchSnapshot,
    JobEnd,
    JobObservation,
    Pending,
    Wait,
    WaitIntervals,
    next_state,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

log = logging.getLogger(__name__)

# Jobs that are looked at in one pipeline. More would occupy the event loop for too long.
_JOBS_PER_LOOK = 200
_EVENTS_PER_PAGE = 500
_COALESCE_DELAY = 0.05
_BLOCK_TIMEOUT_MS = 5_000
# A search of a deep queue is expensive. The pause after it is this multiple of its duration.
_SCAN_PAUSE_FACTOR = 20
_MAX_CLOCK_SKEW_MS = 60_000
_OBSTACLES_TTL = 5.0
# A worker reads, or renews its claims, more often than this.
_MAX_CONSUMER_IDLE_MS = 60_000
_MAX_RECONNECT_DELAY = 30.0
_MAX_AUTH_FAILURES = 3
# The last look of a wait comes at its deadline. If the server is not reachable, the wait ends
# without a look after this many more seconds.
_LAST_LOOK_TIMEOUT = 5.0


@dataclass(eq=False)
class Waiter:
    """One wait that is registered, and when its state is read next.

    :param events_after: an id in the events stream from before the job or batch was added.
    :param wait: what the wait remembers between two looks.
    :param check_at: when the state is read next, of the event loop's clock.
    :param earliest_check_at: when the state is read next at the earliest, even after an event.
    :param events_read: whether the events between `events_after` and the registry's position in the
        stream were read.
    :param failed_attempts: how many attempts failed, according to events.
    :param last_error: the error of the last of them.
    :param latest: what was reported last to the task that waits.
    :param future: resolved when there is something new to report.
    """

    events_after: str
    wait: Wait
    check_at: float = 0.0
    earliest_check_at: float = 0.0
    events_read: bool = False
    failed_attempts: int = 0
    last_error: str | None = None
    latest: Any = None
    future: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    def on_event(self, event: Event) -> bool:
        """Note an event of the job or of a job of the batch. Return whether to look at the state.

        :param event: the event.
        """
        if event.name == "failed":
            self.failed_attempts += 1
            self.last_error = event.reason or self.last_error
        return event.name in FINAL_EVENTS

    def report(self, value: Any) -> None:
        """Pass a value to the task that waits. It replaces a value that was not read yet."""
        self.latest = value
        if not self.future.done():
            self.future.set_result(None)

    async def next_report(self) -> Any:
        """Wait for a value that was not read yet. Return None at the deadline of the wait."""
        deadline = self.wait.deadline
        try:
            async with asyncio.timeout_at(deadline and deadline + _LAST_LOOK_TIMEOUT):
                await self.future
        except TimeoutError:
            return None
        self.future = asyncio.Future()
        return self.latest


@dataclass(eq=False)
class JobWaiter(Waiter):
    """A wait for one job. `event` is its last final event."""

    job_id: str = ""
    event: Event | None = None

    def on_event(self, event: Event) -> bool:
        """Remember a final event; another event means that the job was enqueued again."""
        self.event = event if event.name in FINAL_EVENTS else None
        if event.name == "dlq":
            self.wait = replace(self.wait, next_scan_at=0.0)
        return super().on_event(event)


@dataclass(eq=False)
class BatchWaiter(Waiter):
    """A wait for a batch. `outcomes` are those that are known from events."""

    batch_id: str = ""
    snapshot: BatchSnapshot | None = None
    outcomes: EventOutcomes = field(default_factory=EventOutcomes)

    def on_event(self, event: Event) -> bool:
        """Count a final event, in case the worker sets no batch bits."""
        position = parse_batch_job_id(event.job_id)
        if position is not None and event.name in FINAL_EVENTS:
            self.outcomes.add(position, event.name == "completed")
        return super().on_event(event)


@dataclass(eq=False)
class DepthWaiter(Waiter):
    """A wait for the next sample of the queue's depth."""

    poll_interval: float = 5.0


class WaitRegistry:
    """The waits for one queue, its position in the events stream, and the connection.

    :param open_queue: returns a new queue; called again for every connection attempt.
    :param intervals: the timing; the default is `WaitIntervals()`.
    """

    def __init__(
        self,
        open_queue: Callable[[], Awaitable[AsyncQueue]],
        intervals: WaitIntervals | None = None,
    ):
        self._open_queue = open_queue
        self.intervals = intervals or WaitIntervals()
        self.waiters: dict[str, set[Waiter]] = {}
        self.cursor: str | None = None
        self.connection_error: Exception | None = None
        self.user_count = 0
        self._wake = asyncio.Event()
        self._next_scan_at = 0.0
        self._warned_no_bits = False
        self._queue: AsyncQueue | None = None
        self._obstacles: tuple[float, list[str]] = (-_OBSTACLES_TTL, [])
        self._task: asyncio.Task[None] | None = None

    # Waits

    async def wait_for_job(
        self,
        job_id: str,
        events_after: str,
        *,
        must_exist: bool = True,
        timeout: float | None = None,
    ) -> JobEnd:
        """Wait until a job has finished and return how.

        :param job_id: the id of the job.
        :param events_after: an id in the events stream from before the job was added.
        :param must_exist: whether the wait ends if there is no record of the job.
        :param timeout: how long to wait, in seconds; None for no limit.
        :return: the status `done` or `dead`, or `unknown` if Redis has no record of the job.
        :raises WaitTimeout: if the job has not finished in time.
        :raises ChasquiError: if the registry stopped because of a permanent error.
        """
        waiter = JobWaiter(events_after, self._new_wait(must_exist, timeout), job_id=job_id)
        with self._registered(job_id, waiter):
            end = await waiter.next_report()
        if end is None:
            raise WaitTimeout(f"the job did not finish within {timeout:g} s", job_id=job_id)
        return end  # type: ignore[no-any-return]

    async def batch_snapshots(
        self,
        batch_id: str,
        events_after: str,
        *,
        must_exist: bool = True,
        timeout: float | None = None,
    ) -> AsyncGenerator[BatchSnapshot, None]:
        """Yield the state of a batch after every change, until all of its jobs have finished.

        :param batch_id: the id of the batch.
        :param events_after: an id in the events stream from before the batch was added.
        :param must_exist: whether the wait ends if there is no such batch.
        :param timeout: how long to wait, in seconds; None for no limit.
        :raises BatchNotFound: if there is no such batch, or it expired during the wait.
        :raises BatchCancelled: if the batch was cancelled.
        :raises WaitTimeout: if the batch has not finished in time.
        :raises ChasquiError: if the registry stopped because of a permanent error.
        """
        waiter = BatchWaiter(events_after, self._new_wait(must_exist, timeout), batch_id=batch_id)
        with self._registered(f"batch:{batch_id}", waiter):
            while True:
                state = await waiter.next_report()
                if state is None:
                    snapshot = waiter.snapshot
                    if snapshot is not None:
                        raise wait.batch_timed_out(snapshot, timeout or 0.0, None)
                    raise WaitTimeout(f"batch {batch_id!r} did not exist within {timeout:g} s")
                if isinstance(state, BatchEnd):
                    if state.snapshot is not None:
                        yield state.snapshot
                    wait.raise_unless_finished(state, batch_id, None)
                    return
                yield state

    async def depth_samples(self, poll_interval: float) -> AsyncGenerator[Depth, None]:
        """Yield the depth of the queue periodically. Waiters that are due together share a read.

        :param poll_interval: seconds between two samples.
        :raises ChasquiError: if the registry stopped because of a permanent error.
        """
        waiter = DepthWaiter("0-0", Wait(), poll_interval=poll_interval)
        with self._registered("", waiter):
            while True:
                yield await waiter.next_report()

    async def obstacles(self) -> list[str]:
        """Return why the jobs of the queue may not make progress, as sentences for a log.

        All waits share one read per five seconds.
        """
        if self.connection_error is not None:
            return [f"the server is not reachable: {self.connection_error}"]
        read_at, sentences = self._obstacles
        if self._queue is not None and _now() - read_at >= _OBSTACLES_TTL:
            self._obstacles = (_now(), sentences)
            sentences = await find_obstacles(self._queue)
            self._obstacles = (_now(), sentences)
        return sentences

    def failures(self, key: str) -> tuple[int, str | None]:
        """Return how many attempts failed during a wait, and the last error.

        :param key: the id of the job, or `batch:` and the id of the batch.
        """
        waiters = self.waiters.get(key, ())
        return max(
            ((waiter.failed_attempts, waiter.last_error) for waiter in waiters),
            key=lambda failure: failure[0],
            default=(0, None),
        )

    async def close(self) -> None:
        """Stop reading and close the connections."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _new_wait(self, must_exist: bool, timeout: float | None) -> Wait:
        now = _now()
        return Wait(
            deadline=None if timeout is None else now + timeout,
            must_exist=must_exist,
            next_scan_at=now + _jitter(self.intervals.first_scan_delay),
        )

    @contextmanager
    def _registered(self, key: str, waiter: Waiter) -> Iterator[None]:
        group = self.waiters.setdefault(key, set())
        group.add(waiter)
        self._wake.set()
        if self._task is None or self._task.done():
            # An empty context, because the task's log lines do not belong to the first waiter.
            context = contextvars.Context()
            self._task = asyncio.get_running_loop().create_task(self._run(), context=context)
        try:
            yield
        finally:
            group.discard(waiter)
            if not group and self.waiters.get(key) is group:
                del self.waiters[key]

    def all_waiters(self) -> list[Waiter]:
        """Return the waits that have not ended."""
        return [waiter for group in self.waiters.values() for waiter in group]

    # Connection

    async def _run(self) -> None:
        failures = 0
        while True:
            started_at = _now()
            try:
                async with await self._open_queue() as queue:
                    await self._follow(queue)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures = 1 if _now() - started_at > _MAX_RECONNECT_DELAY else failures + 1
                if not _is_transient(error, failures):
                    for waiter in self.all_waiters():
                        if not waiter.future.done():
                            waiter.future.set_exception(error)
                    return
                self.connection_error = error
                delay = min(_MAX_RECONNECT_DELAY, 0.5 * 2**failures) * random.uniform(0.5, 1.0)
                log.warning("wait: connection failed, retrying in %.1f s: %s", delay, error)
                await asyncio.sleep(delay)

    async def _follow(self, queue: AsyncQueue) -> None:
        """Read events and state until one of the two fails."""
        last_event_id = await queue.last_event_id()
        self.cursor = self.cursor or last_event_id
        self.connection_error = None
        self._queue = queue
        for waiter in self.all_waiters():
            waiter.check_at = 0.0
        tasks = [
            asyncio.create_task(self._read_events(queue)),
            asyncio.create_task(self._read_states(queue)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Events

    async def _read_events(self, queue: AsyncQueue) -> None:
        while True:
            assert self.cursor is not None
            command = events.wait_for_events(
                queue.keys, self.cursor, _EVENTS_PER_PAGE, _BLOCK_TIMEOUT_MS
            )
            for event in await queue.client.execute(command):
                self.cursor = event.entry_id
                self._dispatch(event)

    def _dispatch(self, event: Event, only: Sequence[Waiter] | None = None) -> None:
        """Pass an event to the waits that it concerns, and schedule a look at their state."""
        keys = [event.job_id]
        if position := parse_batch_job_id(event.job_id):
            keys.append(f"batch:{position.batch_id}")
        for key in keys:
            for waiter in self.waiters.get(key, ()):
                if (only is None or waiter in only) and waiter.on_event(event):
                    waiter.check_at = min(waiter.check_at, waiter.earliest_check_at)
                    self._wake.set()

    async def _read_older_events(self, queue: AsyncQueue, waiters: Iterable[Waiter]) -> None:
        """Read the events from before the registry's position in the stream, for new waits."""
        new = [waiter for waiter in waiters if not waiter.events_read]
        end = StreamId.parse(self.cursor or "0-0")
        for waiter in new:
            waiter.events_read = True
        new = [waiter for waiter in new if StreamId.parse(waiter.events_after) < end]
        if not new:
            return
        cursor = min((waiter.events_after for waiter in new), key=StreamId.parse)
        while page := await queue.events(after=cursor, limit=_EVENTS_PER_PAGE):
            for event in page:
                if StreamId.parse(event.entry_id) <= end:
                    self._dispatch(event, new)
            cursor = page[-1].entry_id
            if StreamId.parse(cursor) >= end:
                break

    # State

    async def _read_states(self, queue: AsyncQueue) -> None:
        while True:
            waiters = self.all_waiters()
            next_check = min((waiter.check_at for waiter in waiters), default=float("inf"))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(next_check - _now(), 60.0))):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(_COALESCE_DELAY)
            now = _now()
            due = [waiter for waiter in self.all_waiters() if waiter.check_at <= now]
            for waiter in due:
                waiter.check_at = float("inf")
            jobs = [w for w in due if isinstance(w, JobWaiter) and not w.future.done()]
            batch_waiters = [w for w in due if isinstance(w, BatchWaiter)]
            for start in range(0, len(jobs), _JOBS_PER_LOOK):
                await self._look_at_jobs(queue, jobs[start : start + _JOBS_PER_LOOK])
            await self._look_at_batches(queue, batch_waiters)
            await self._look_at_depth(queue, [w for w in due if isinstance(w, DepthWaiter)])

    async def _look_at_jobs(self, queue: AsyncQueue, waiters: Sequence[JobWaiter]) -> None:
        run, keys = queue.client.run_flow, queue.keys
        observed = await run(wait.observe_jobs(keys, [waiter.job_id for waiter in waiters]))
        unfinished = [
            waiter
            for waiter, observation in zip(waiters, observed, strict=True)
            if observation.outcome is None
            and (not observation.in_batch or waiter.wait.next_scan_at <= _now())
        ]
        await self._read_older_events(queue, unfinished)
        scan = await self._scan(queue, unfinished)
        observations = [
            self._job_observation(waiter, observation, scan)
            for waiter, observation in zip(waiters, observed, strict=True)
        ]
        may_be_dead = {
            job.job_id
            for job in observations
            if job.outcome == "dead" or job.event == "dlq" or job.place == "absent"
        }
        dead_letters_by_id = {}
        if may_be_dead:
            dead_letters_by_id = await run(wait.find_dead_letters(keys, may_be_dead))
        for waiter, observation in zip(waiters, observations, strict=True):
            observation = replace(observation, dead_letter=dead_letters_by_id.get(waiter.job_id))
            state = next_state(waiter.wait, observation, _now(), self.intervals)
            if isinstance(state, Pending):
                self._schedule(waiter, state)
            else:
                if isinstance(state, JobEnd) and state.status == "done" and observation.in_batch:
                    self._warn_no_bits(observation.outcome is None, queue.name)
                waiter.report(state if isinstance(state, JobEnd) else None)

    def _job_observation(
        self, waiter: JobWaiter, observation: JobObservation, scan: wait.QueueScan | None
    ) -> JobObservation:
        if waiter.event is not None:
            observation = replace(
                observation, event=waiter.event.name, event_reason=waiter.event.reason
            )
        if scan is None or observation.outcome is not None:
            return observation
        if waiter.job_id in scan.jobs:
            due_ms = scan.jobs[waiter.job_id]
            due_at = None if due_ms is None else _now() + (due_ms - current_time_ms()) / 1000
            return replace(observation, place="queue", due_at=due_at)
        searched = waiter.job_id in scan.wanted_jobs and scan.complete
        return replace(observation, place="absent" if searched else None)

    async def _look_at_batches(self, queue: AsyncQueue, waiters: Sequence[BatchWaiter]) -> None:
        run, keys = queue.client.run_flow, queue.keys
        progress_by_id = {}
        for batch_id in {waiter.batch_id for waiter in waiters}:
            progress_by_id[batch_id] = await run(batches.progress(keys, batch_id))
        unfinished = [
            waiter
            for waiter in waiters
            if (progress := progress_by_id[waiter.batch_id]) is not None and not progress.finished
        ]
        due = [waiter for waiter in unfinished if waiter.wait.next_scan_at <= _now()]
        await self._read_older_events(queue, due)
        found = [progress_by_id[waiter.batch_id] for waiter in due]
        created_ms = [progress.created_at_ms or 0 for progress in found if progress is not None]
        start_ms = min(created_ms, default=0) - _MAX_CLOCK_SKEW_MS
        scan = await self._scan(queue, due, f"{start_ms}-0" if start_ms > 0 else "-")
        for waiter in waiters:
            progress = progress_by_id[waiter.batch_id]
            observation = BatchObservation(progress)
            outcomes = waiter.outcomes
            if progress is not None and (
                outcomes.done > progress.done or outcomes.dead > progress.dead
            ):
                missing = await run(wait.count_missing_bits(keys, waiter.batch_id, outcomes))
                observation = BatchObservation(progress, *missing)
            if scan is not None and waiter in due:
                if waiter.batch_id in scan.batch_ids:
                    observation = replace(observation, place="queue")
                elif scan.complete:
                    count = None
                    if observation.event_done:  # a worker sets no bits
                        # A dry run counts the dead letters without loading them.
                        report = await queue.purge_dead_letters(
                            dry_run=True, batch_id=waiter.batch_id
                        )
                        count = report.matched
                    observation = replace(observation, place="absent", dead_letter_count=count)
                    # Jobs may have finished between the first look and the search.
                    latest = await run(batches.progress(keys, waiter.batch_id))
                    observation = replace(observation, progress=latest)
            state = next_state(waiter.wait, observation, _now(), self.intervals)
            if isinstance(state, Pending):
                self._schedule(waiter, state)
                snapshot = state.snapshot
                if snapshot is not None and snapshot != waiter.snapshot:
                    self._warn_no_bits(snapshot.done > snapshot.progress.done, queue.name)
                    waiter.snapshot = snapshot
                    waiter.report(snapshot)
            else:
                waiter.report(state if isinstance(state, BatchEnd) else None)

    async def _look_at_depth(self, queue: AsyncQueue, waiters: Sequence[DepthWaiter]) -> None:
        if not waiters:
            return
        depth = await queue.depth()
        for waiter in waiters:
            waiter.check_at = waiter.earliest_check_at = _now() + _jitter(waiter.poll_interval)
            waiter.report(depth)

    async def _scan(
        self, queue: AsyncQueue, waiters: Sequence[Waiter], start: str = "-"
    ) -> wait.QueueScan | None:
        """Search the queue for the waits whose search is due."""
        started_at = _now()
        due = [waiter for waiter in waiters if waiter.wait.next_scan_at <= started_at]
        if not due:
            return None
        if started_at < self._next_scan_at:
            for waiter in due:
                waiter.wait = replace(waiter.wait, next_scan_at=self._next_scan_at)
            return None
        scan = await queue.client.run_flow(
            wait.scan_queue(
                queue.keys,
                {waiter.job_id for waiter in due if isinstance(waiter, JobWaiter)},
                {waiter.batch_id for waiter in due if isinstance(waiter, BatchWaiter)},
                start,
            )
        )
        finished_at = _now()
        self._next_scan_at = finished_at + _SCAN_PAUSE_FACTOR * (finished_at - started_at)
        return scan

    def _schedule(self, waiter: Waiter, pending: Pending) -> None:
        now = _now()
        planned = now + _jitter(pending.check_at - now)
        if pending.wait.deadline is not None:
            planned = min(planned, pending.wait.deadline)
        waiter.wait = pending.wait
        waiter.earliest_check_at = pending.earliest_check_at
        waiter.check_at = max(min(waiter.check_at, planned), pending.earliest_check_at)

    def _warn_no_bits(self, missing: bool, queue_name: str) -> None:
        if missing and not self._warned_no_bits:
            self._warned_no_bits = True
            log.warning(
                "wait: a worker of the queue %r sets no batch bits (ChasquiMQ 1.3.0 workers do "
                "not); its jobs are followed through the events stream, which keeps about 100 000 "
                "events",
                queue_name,
            )


async def find_obstacles(queue: AsyncQueue) -> list[str]:
    """Return why the jobs of a queue may not make progress, as sentences for a log.

    :param queue: the queue.
    """
    consumers, *pause_replies = await queue.client.pipeline(
        [
            consumer_group.consumers(queue.keys, queue.config.group),
            *flow_control.pause_state_commands(queue.keys),
        ]
    )
    pauses = flow_control.parse_pause_state(*pause_replies)
    sentences = []
    if pauses.queue:
        sentences.append(f"the queue {queue.name!r} is paused")
    if pauses.job_names:
        names = ", ".join(map(repr, sorted(pauses.job_names)))
        sentences.append(f"these job names of the queue {queue.name!r} are paused: {names}")
    idle_ms = min((consumer.idle_ms for consumer in consumers), default=None)
    if idle_ms is None:
        sentences.append(f"no worker consumes the queue {queue.name!r}; start a worker for it")
    elif idle_ms > _MAX_CONSUMER_IDLE_MS:
        sentences.append(
            f"no worker consumes the queue {queue.name!r}: the last one was active "
            f"{format_duration(idle_ms)} ago; start a worker for it"
        )
    return sentences


def _now() -> float:
    return asyncio.get_running_loop().time()


def _jitter(interval: float) -> float:
    """Return `interval` changed by up to 20 percent, so that looks do not synchronize."""
    return interval * random.uniform(0.8, 1.2)


def _is_transient(error: Exception, failures: int) -> bool:
    """Return whether a retry may help; a rejected password may be updated in the connection."""
    if isinstance(error, AuthenticationFailed):
        return failures < _MAX_AUTH_FAILURES
    return isinstance(error, ConnectionFailed) or (
        isinstance(error, ChasquiError) and error.code == "CMQ-001"
    )


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], WaitRegistry]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def shared_registry(
    conn_id: str,
    queue_name: str,
    open_queue: Callable[[], Awaitable[AsyncQueue]],
    load_intervals: Callable[[], WaitIntervals] = WaitIntervals,
) -> AsyncIterator[WaitRegistry]:
    """Return the registry that all users of a queue in this event loop share.

    The first user creates the registry and the last one to leave the context closes it.

    :param conn_id: the id of the Airflow connection.
    :param queue_name: the name of the queue.
    :param open_queue: returns a new queue of that connection.
    :param load_intervals: returns the timing of a new registry; the default is `WaitIntervals`.
    """
    registries = _registries.setdefault(asyncio.get_running_loop(), {})
    key = (conn_id, queue_name)
    registry = registries.get(key)
    if registry is None:
        registry = registries[key] = WaitRegistry(open_queue, load_intervals())
    registry.user_count += 1
    try:
        yield registry
    finally:
        registry.user_count -= 1
        if not registry.user_count:
            if registries.get(key) is registry:
                del registries[key]
            await registry.close()
