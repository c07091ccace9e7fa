"""A queue as its producers see it: `Queue` blocks, `AsyncQueue` awaits; otherwise they are equal.

    queue = Queue("emails", "redis://localhost")
    queue.add({"to": "ada@example.org"}, name="welcome", delay=timedelta(minutes=5))

Each method is one line over core.ops; tests/test_parity.py holds the two classes together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from airflow_provider_chasqui.core.batch import Batch, BatchProgress
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import Added, AddedJobs, Letter, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.ops import delivery, looking, watching
from airflow_provider_chasqui.core.ops import repeats as repeating
from airflow_provider_chasqui.core.ops.delivery import ConsumerStatus
from airflow_provider_chasqui.core.ops.letters import LetterReport
from airflow_provider_chasqui.core.ops.looking import Depth, Found
from airflow_provider_chasqui.core.ops.watching import WatcherStatus
from airflow_provider_chasqui.core.plan import Cancelled, JobOptions, LetterFilter, Plan
from airflow_provider_chasqui.core.policy import RetryPolicy
from airflow_provider_chasqui.core.repeat import SKIP, Missed, RepeatStatus
from airflow_provider_chasqui.core.schedule import Schedule
from airflow_provider_chasqui.store.connect import AsyncLink, Link
from airflow_provider_chasqui.store.drive import AsyncDriver, Driver
from airflow_provider_chasqui.store.target import Target

LOCAL = "redis://127.0.0.1:6379"
_HALF_MINUTE = timedelta(seconds=30)
_HOUR = timedelta(hours=1)


def wall_clock() -> int:
    """The time in ms."""
    return time.time_ns() // 1_000_000


def _plan(name: str, config: QueueConfig | None, clock: Callable[[], int]) -> Plan:
    return Plan(Keys(name), config or QueueConfig(), clock)


class Queue:
    """A queue, blocking. `server` is a URL, a Target, or a link that several queues share."""

    def __init__(
        self,
        name: str,
        server: str | Target | Link = LOCAL,
        *,
        config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = wall_clock,
    ):
        self._owns_link = not isinstance(server, Link)
        self._link = Link.of(server, dialect)
        self._plan = _plan(name, config, clock)
        self._drive = Driver(self._link, self._plan.keys)

    @property
    def name(self) -> str:
        return self.keys.queue

    @property
    def keys(self) -> Keys:
        return self._plan.keys

    @property
    def config(self) -> QueueConfig:
        return self._plan.config

    @property
    def target(self) -> Target:
        return self._link.target

    @property
    def drive(self) -> Driver:
        """The driver, for those who run operations of their own (the engine, leases, Spark)."""
        return self._drive

    def another_drive(self, retries: int | None = None) -> Driver:
        """A driver with connections of its own; the caller closes it."""
        return Driver(self._link, self.keys, retries)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self._link.target.where!r})"

    def add(
        self,
        payload: Any,
        *,
        name: str = "",
        id: str | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        retry: RetryPolicy | None = None,
        unique: timedelta | None = None,
    ) -> Added:
        """Add one job, now or later.

        `unique` keeps the id taken for that long, across processes and restarts: a second add of
        it within that time adds nothing and says `fresh=False`.
        """
        job = NewJob(payload, name, id, delay, at, retry, unique)
        return self._drive.flow(self._plan.add(job))

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> AddedJobs:
        """Add jobs of any mix of options, in order, in as few round trips as can be.

        For very many, give a generator: then no more than their payloads is kept.
        """
        return self._drive.flow(self._plan.add_many(jobs))

    def add_batch(
        self,
        payloads: Iterable[Any],
        *,
        batch_id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Batch:
        """Hand off jobs that are awaited together; with a `batch_id`, exactly once.

        The same call again, after a crash or by a retry, goes on where the first one stopped.
        """
        return self._drive.flow(self._plan.add_batch(payloads, batch_id, options))

    def add_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        *,
        first: int = 0,
        **options: Unpack[JobOptions],
    ) -> int:
        """Hand off one part of a batch that several producers send; returns where it ends."""
        flow = self._plan.add_part(batch_id, part, payloads, first, options)
        return self._drive.flow(flow)

    def seal_batch(
        self, batch_id: str, *, total: int, parts: int, **options: Unpack[JobOptions]
    ) -> Batch:
        """Say that all parts were sent; refuses if they do not add up to the total."""
        return self._drive.flow(self._plan.seal_batch(batch_id, total, parts, options))

    def batch(self, batch_id: str) -> BatchProgress:
        """Return how far a batch is."""
        return self._drive.flow(self._plan.batch(batch_id))

    def dead_in_batch(self, batch_id: str, *, limit: int = 1000) -> list[str]:
        """Return the ids of a batch's dead jobs."""
        return self._drive.flow(self._plan.dead_in_batch(batch_id, limit))

    def wait_batch(self, batch_id: str, *, timeout: timedelta = _HOUR) -> BatchProgress:
        """Wait until every job of a batch is done or dead."""
        return self._drive.flow(self._plan.wait_batch(batch_id, timeout))

    def cancel(self, job_id: str) -> Cancelled:
        """Cancel a job: at once if it is delayed, else ask the workers to drop or interrupt it."""
        return self._drive.flow(self._plan.cancel(job_id))

    def reschedule(
        self, job_id: str, *, delay: timedelta | None = None, at: datetime | None = None
    ) -> bool:
        """Give a delayed job another due time; False if it is not delayed."""
        return self._drive.flow(self._plan.reschedule(job_id, delay, at))

    def result(self, job_id: str, default: Any = None) -> Any:
        """Return what the handler returned, if it is kept."""
        return self._drive.flow(self._plan.result(job_id, default))

    def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Return the results that are kept, by job id, in one round trip."""
        return self._drive.flow(self._plan.results(job_ids))

    def progress(self, job_id: str) -> Any:
        """Return what the running handler last said about its progress, or None."""
        return self._drive.run(looking.progress(self.keys, job_id))

    def wait(self, job_id: str, *, timeout: timedelta = _HALF_MINUTE) -> Any:
        """Wait until a job is done and return its result; raises JobDead if it died."""
        return self._drive.flow(self._plan.wait(job_id, timeout))

    def find(self, job_id: str) -> Found:
        """Return where a job is: waiting, delayed, running, done, dead or unknown."""
        return self._drive.flow(self._plan.find(job_id))

    def depth(self) -> Depth:
        """Return how full the queue is."""
        return self._drive.flow(looking.depth(self.keys, self.config.group))

    def consumers(self) -> list[ConsumerStatus]:
        """Return the members of the consumer group."""
        return self._drive.run(delivery.consumers(self.keys, self.config.group))

    def watcher(self) -> WatcherStatus:
        """Return how the watcher that starts DAG runs from this queue is doing."""
        return self._drive.flow(watching.status(self.keys, self.config.group))

    def events(self, *, after: str = "0-0", limit: int = 1000) -> list[Event]:
        """Return events behind the entry `after`, oldest first."""
        return self._drive.run(looking.events_after(self.keys, after, limit))

    def events_tail(self) -> str:
        """Return the id of the newest event: a place to follow from."""
        return self._drive.run(looking.events_tail(self.keys))

    def letters(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = False,
        **filters: Unpack[LetterFilter],
    ) -> list[Letter]:
        """Return dead letters, a page at a time: `after` is the id of the last one seen."""
        flow = self._plan.letters(limit, after, newest_first, filters)
        return self._drive.flow(flow)

    def replay(
        self,
        *,
        limit: int | None = None,
        budget: int | None = None,
        dry_run: bool = False,
        **filters: Unpack[LetterFilter],
    ) -> LetterReport:
        """Put dead jobs back with a fresh budget of attempts, each at most `budget` times."""
        return self._drive.flow(self._plan.replay(limit, budget, dry_run, filters))

    def purge(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[LetterFilter]
    ) -> LetterReport:
        """Delete dead letters for good."""
        return self._drive.flow(self._plan.purge(limit, dry_run, filters))

    def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        *,
        name: str = "",
        key: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        missed: Missed = SKIP,
    ) -> str:
        """Fire a job by a schedule, `Every` or `Cron`; returns the key that `drop_repeat` takes."""
        flow = self._plan.repeat(payload, schedule, name, key, limit, start, end, missed)
        return self._drive.flow(flow)

    def repeats(self, *, limit: int = 100) -> list[RepeatStatus]:
        """Return the repeats, next fire first."""
        return self._drive.flow(repeating.list_all(self.keys, limit))

    def drop_repeat(self, key: str) -> bool:
        """Remove a repeat; False if there was none."""
        return self._drive.run(repeating.drop(self.keys, key))

    def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return self._drive.dialect()

    def close(self) -> None:
        """Give the connections back."""
        self._drive.close()
        if self._owns_link:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncQueue:
    """A queue, awaited. `server` is a URL, a Target, or a link that several queues share."""

    def __init__(
        self,
        name: str,
        server: str | Target | AsyncLink = LOCAL,
        *,
        config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = wall_clock,
    ):
        self._owns_link = not isinstance(server, AsyncLink)
        self._link = AsyncLink.of(server, dialect)
        self._plan = _plan(name, config, clock)
        self._drive = AsyncDriver(self._link, self._plan.keys)

    @property
    def name(self) -> str:
        return self.keys.queue

    @property
    def keys(self) -> Keys:
        return self._plan.keys

    @property
    def config(self) -> QueueConfig:
        return self._plan.config

    @property
    def target(self) -> Target:
        return self._link.target

    @property
    def drive(self) -> AsyncDriver:
        """The driver, for those who run operations of their own (the engine, leases, Spark)."""
        return self._drive

    def another_drive(self, retries: int | None = None) -> AsyncDriver:
        """A driver with connections of its own; the caller closes it."""
        return AsyncDriver(self._link, self.keys, retries)

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r}, {self._link.target.where!r})"

    async def add(
        self,
        payload: Any,
        *,
        name: str = "",
        id: str | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        retry: RetryPolicy | None = None,
        unique: timedelta | None = None,
    ) -> Added:
        """Add one job, now or later.

        `unique` keeps the id taken for that long, across processes and restarts: a second add of
        it within that time adds nothing and says `fresh=False`.
        """
        job = NewJob(payload, name, id, delay, at, retry, unique)
        return await self._drive.flow(self._plan.add(job))

    async def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> AddedJobs:
        """Add jobs of any mix of options, in order, in as few round trips as can be.

        For very many, give a generator: then no more than their payloads is kept.
        """
        return await self._drive.flow(self._plan.add_many(jobs))

    async def add_batch(
        self,
        payloads: Iterable[Any],
        *,
        batch_id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Batch:
        """Hand off jobs that are awaited together; with a `batch_id`, exactly once.

        The same call again, after a crash or by a retry, goes on where the first one stopped.
        """
        return await self._drive.flow(self._plan.add_batch(payloads, batch_id, options))

    async def add_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        *,
        first: int = 0,
        **options: Unpack[JobOptions],
    ) -> int:
        """Hand off one part of a batch that several producers send; returns where it ends."""
        flow = self._plan.add_part(batch_id, part, payloads, first, options)
        return await self._drive.flow(flow)

    async def seal_batch(
        self, batch_id: str, *, total: int, parts: int, **options: Unpack[JobOptions]
    ) -> Batch:
        """Say that all parts were sent; refuses if they do not add up to the total."""
        return await self._drive.flow(self._plan.seal_batch(batch_id, total, parts, options))

    async def batch(self, batch_id: str) -> BatchProgress:
        """Return how far a batch is."""
        return await self._drive.flow(self._plan.batch(batch_id))

    async def dead_in_batch(self, batch_id: str, *, limit: int = 1000) -> list[str]:
        """Return the ids of a batch's dead jobs."""
        return await self._drive.flow(self._plan.dead_in_batch(batch_id, limit))

    async def wait_batch(self, batch_id: str, *, timeout: timedelta = _HOUR) -> BatchProgress:
        """Wait until every job of a batch is done or dead."""
        return await self._drive.flow(self._plan.wait_batch(batch_id, timeout))

    async def cancel(self, job_id: str) -> Cancelled:
        """Cancel a job: at once if it is delayed, else ask the workers to drop or interrupt it."""
        return await self._drive.flow(self._plan.cancel(job_id))

    async def reschedule(
        self, job_id: str, *, delay: timedelta | None = None, at: datetime | None = None
    ) -> bool:
        """Give a delayed job another due time; False if it is not delayed."""
        return await self._drive.flow(self._plan.reschedule(job_id, delay, at))

    async def result(self, job_id: str, default: Any = None) -> Any:
        """Return what the handler returned, if it is kept."""
        return await self._drive.flow(self._plan.result(job_id, default))

    async def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Return the results that are kept, by job id, in one round trip."""
        return await self._drive.flow(self._plan.results(job_ids))

    async def progress(self, job_id: str) -> Any:
        """Return what the running handler last said about its progress, or None."""
        return await self._drive.run(looking.progress(self.keys, job_id))

    async def wait(self, job_id: str, *, timeout: timedelta = _HALF_MINUTE) -> Any:
        """Wait until a job is done and return its result; raises JobDead if it died."""
        return await self._drive.flow(self._plan.wait(job_id, timeout))

    async def find(self, job_id: str) -> Found:
        """Return where a job is: waiting, delayed, running, done, dead or unknown."""
        return await self._drive.flow(self._plan.find(job_id))

    async def depth(self) -> Depth:
        """Return how full the queue is."""
        return await self._drive.flow(looking.depth(self.keys, self.config.group))

    async def consumers(self) -> list[ConsumerStatus]:
        """Return the members of the consumer group."""
        return await self._drive.run(delivery.consumers(self.keys, self.config.group))

    async def watcher(self) -> WatcherStatus:
        """Return how the watcher that starts DAG runs from this queue is doing."""
        return await self._drive.flow(watching.status(self.keys, self.config.group))

    async def events(self, *, after: str = "0-0", limit: int = 1000) -> list[Event]:
        """Return events behind the entry `after`, oldest first."""
        return await self._drive.run(looking.events_after(self.keys, after, limit))

    async def events_tail(self) -> str:
        """Return the id of the newest event: a place to follow from."""
        return await self._drive.run(looking.events_tail(self.keys))

    async def letters(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = False,
        **filters: Unpack[LetterFilter],
    ) -> list[Letter]:
        """Return dead letters, a page at a time: `after` is the id of the last one seen."""
        flow = self._plan.letters(limit, after, newest_first, filters)
        return await self._drive.flow(flow)

    async def replay(
        self,
        *,
        limit: int | None = None,
        budget: int | None = None,
        dry_run: bool = False,
        **filters: Unpack[LetterFilter],
    ) -> LetterReport:
        """Put dead jobs back with a fresh budget of attempts, each at most `budget` times."""
        return await self._drive.flow(self._plan.replay(limit, budget, dry_run, filters))

    async def purge(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[LetterFilter]
    ) -> LetterReport:
        """Delete dead letters for good."""
        return await self._drive.flow(self._plan.purge(limit, dry_run, filters))

    async def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        *,
        name: str = "",
        key: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        missed: Missed = SKIP,
    ) -> str:
        """Fire a job by a schedule, `Every` or `Cron`; returns the key that `drop_repeat` takes."""
        flow = self._plan.repeat(payload, schedule, name, key, limit, start, end, missed)
        return await self._drive.flow(flow)

    async def repeats(self, *, limit: int = 100) -> list[RepeatStatus]:
        """Return the repeats, next fire first."""
        return await self._drive.flow(repeating.list_all(self.keys, limit))

    async def drop_repeat(self, key: str) -> bool:
        """Remove a repeat; False if there was none."""
        return await self._drive.run(repeating.drop(self.keys, key))

    async def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return await self._drive.dialect()

    async def close(self) -> None:
        """Give the connections back."""
        await self._drive.close()
        if self._owns_link:
            await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
