"""A queue as its producers see it: `Queue` blocks, `AsyncQueue` awaits; otherwise they are equal.

    queue = Queue("emails", "redis://localhost")
    queue.add({"to": "ada@example.org"}, name="welcome", delay=timedelta(minutes=5))

Each method is one line over core.ops; tests/test_parity.py holds the two classes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import Batch, BatchProgress
from airflow_provider_chasqui.core.commands import consumer_group, inspect, watchers
from airflow_provider_chasqui.core.commands import delayed as repeating
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands.consumer_group import ConsumerStatus
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterReport
from airflow_provider_chasqui.core.commands.inspect import Depth, JobStatus
from airflow_provider_chasqui.core.commands.watchers import WatcherStatus
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Schedule
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import DeadLetter, EnqueueResult, EnqueueResults, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.queue_flows import (
    BatchOptions,
    CancelResult,
    DeadLetterQuery,
    QueueFlows,
)
from airflow_provider_chasqui.core.repeat import SKIP, MisfirePolicy, RepeatStatus
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.redis_client.client import AsyncRedisClient, RedisClient
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget

DEFAULT_URL = "redis://127.0.0.1:6379"
_DEFAULT_WAIT_TIMEOUT = timedelta(seconds=30)
_DEFAULT_BATCH_TIMEOUT = timedelta(hours=1)


def _make_flows(
    queue_name: str, config: QueueConfig | None, clock: Callable[[], int]
) -> QueueFlows:
    return QueueFlows(Keys(queue_name), config or QueueConfig(), clock)


class Queue:
    """A queue, blocking. `server` is a URL, a Target, or a link that several queues share."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | ConnectionManager = DEFAULT_URL,
        *,
        config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, ConnectionManager)
        self._connection_manager = ConnectionManager.from_server(server, dialect)
        self._flows = _make_flows(queue_name, config, clock)
        self._client = RedisClient(self._connection_manager, self._flows.keys)

    @property
    def name(self) -> str:
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        return self._flows.keys

    @property
    def config(self) -> QueueConfig:
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def client(self) -> RedisClient:
        """The driver, for those who run operations of their own (the engine, leases, Spark)."""
        return self._client

    def new_client(self, retries: int | None = None) -> RedisClient:
        """A driver with connections of its own; the caller closes it."""
        return RedisClient(self._connection_manager, self.keys, retries)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self._connection_manager.target.display_name!r})"

    def add(
        self,
        payload: Any,
        *,
        job_name: str = "",
        job_id: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        dedup_ttl: timedelta | None = None,
    ) -> EnqueueResult:
        """Add one job, now or later.

        `unique` keeps the id taken for that long, across processes and restarts: a second add of
        it within that time adds nothing and says `fresh=False`.
        """
        job = NewJob(payload, job_name, job_id, delay, run_at, retry, dedup_ttl)
        return self._client.run_flow(self._flows.add(job))

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> EnqueueResults:
        """Add jobs of any mix of options, in order, in as few round trips as can be.

        For very many, give a generator: then no more than their payloads is kept.
        """
        return self._client.run_flow(self._flows.add_many(jobs))

    def add_batch(
        self,
        payloads: Iterable[Any],
        *,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Hand off jobs that are awaited together; with a `batch_id`, exactly once.

        The same call again, after a crash or by a retry, goes on where the first one stopped.
        """
        return self._client.run_flow(self._flows.add_batch(payloads, batch_id, options))

    def add_batch_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        *,
        start_index: int = 0,
        **options: Unpack[BatchOptions],
    ) -> int:
        """Hand off one part of a batch that several producers send; returns where it ends."""
        flow = self._flows.add_part(batch_id, part, payloads, start_index, options)
        return self._client.run_flow(flow)

    def finalize_batch(
        self, batch_id: str, *, total: int, parts: int, **options: Unpack[BatchOptions]
    ) -> Batch:
        """Say that all parts were sent; refuses if they do not add up to the total."""
        return self._client.run_flow(self._flows.finalize_batch(batch_id, total, parts, options))

    def batch_progress(self, batch_id: str) -> BatchProgress:
        """Return how far a batch is."""
        return self._client.run_flow(self._flows.batch(batch_id))

    def dead_job_ids(self, batch_id: str, *, limit: int = 1000) -> list[str]:
        """Return the ids of a batch's dead jobs."""
        return self._client.run_flow(self._flows.failed_jobs(batch_id, limit))

    def wait_batch(
        self, batch_id: str, *, timeout: timedelta = _DEFAULT_BATCH_TIMEOUT
    ) -> BatchProgress:
        """Wait until every job of a batch is done or dead."""
        return self._client.run_flow(self._flows.wait_batch(batch_id, timeout))

    def cancel(self, job_id: str) -> CancelResult:
        """Cancel a job: at once if it is delayed, else ask the workers to drop or interrupt it."""
        return self._client.run_flow(self._flows.cancel(job_id))

    def reschedule(
        self, job_id: str, *, delay: timedelta | None = None, run_at: datetime | None = None
    ) -> bool:
        """Give a delayed job another due time; False if it is not delayed."""
        return self._client.run_flow(self._flows.reschedule(job_id, delay, run_at))

    def result(self, job_id: str, default: Any = None) -> Any:
        """Return what the handler returned, if it is kept."""
        return self._client.run_flow(self._flows.result(job_id, default))

    def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Return the results that are kept, by job id, in one round trip."""
        return self._client.run_flow(self._flows.results(job_ids))

    def progress(self, job_id: str) -> Any:
        """Return what the running handler last said about its progress, or None."""
        return self._client.execute(inspect.get_progress(self.keys, job_id))

    def wait(self, job_id: str, *, timeout: timedelta = _DEFAULT_WAIT_TIMEOUT) -> Any:
        """Wait until a job is done and return its result; raises JobFailed if it died."""
        return self._client.run_flow(self._flows.wait(job_id, timeout))

    def job_status(self, job_id: str) -> JobStatus:
        """Return where a job is: waiting, delayed, running, done, dead or unknown."""
        return self._client.run_flow(self._flows.get_status(job_id))

    def depth(self) -> Depth:
        """Return how full the queue is."""
        return self._client.run_flow(inspect.depth(self.keys, self.config.group))

    def consumers(self) -> list[ConsumerStatus]:
        """Return the members of the consumer group."""
        return self._client.execute(consumer_group.consumers(self.keys, self.config.group))

    def watcher_status(self) -> WatcherStatus:
        """Return how the watcher that starts DAG runs from this queue is doing."""
        return self._client.run_flow(watchers.get_status(self.keys, self.config.group))

    def events(self, *, after: str = "0-0", limit: int = 1000) -> list[Event]:
        """Return events behind the entry `after`, oldest first."""
        return self._client.execute(event_commands.events_after(self.keys, after, limit))

    def last_event_id(self) -> str:
        """Return the id of the newest event: a place to follow from."""
        return self._client.execute(event_commands.last_event_id(self.keys))

    def dead_letters(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = False,
        **filters: Unpack[DeadLetterQuery],
    ) -> list[DeadLetter]:
        """Return dead letters, a page at a time: `after` is the id of the last one seen."""
        flow = self._flows.dead_letters(limit, after, newest_first, filters)
        return self._client.run_flow(flow)

    def replay_dead_letters(
        self,
        *,
        limit: int | None = None,
        max_replays: int | None = None,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterQuery],
    ) -> DeadLetterReport:
        """Put dead jobs back with a fresh budget of attempts, each at most `budget` times."""
        return self._client.run_flow(self._flows.replay(limit, max_replays, dry_run, filters))

    def purge_dead_letters(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[DeadLetterQuery]
    ) -> DeadLetterReport:
        """Delete dead letters for good."""
        return self._client.run_flow(self._flows.purge(limit, dry_run, filters))

    def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        *,
        job_name: str = "",
        key: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        misfire: MisfirePolicy = SKIP,
    ) -> str:
        """Fire a job by a schedule, `Every` or `Cron`; returns the key that `delete_repeat` takes."""
        flow = self._flows.repeat(payload, schedule, job_name, key, limit, start, end, misfire)
        return self._client.run_flow(flow)

    def repeats(self, *, limit: int = 100) -> list[RepeatStatus]:
        """Return the repeats, next fire first."""
        return self._client.run_flow(repeating.list_repeats(self.keys, limit))

    def delete_repeat(self, key: str) -> bool:
        """Remove a repeat; False if there was none."""
        return self._client.execute(repeating.delete_repeat(self.keys, key))

    def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return self._client.dialect()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()
        if self._owns_connection_manager:
            self._connection_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncQueue:
    """A queue, awaited. `server` is a URL, a Target, or a link that several queues share."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | AsyncConnectionManager = DEFAULT_URL,
        *,
        config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, AsyncConnectionManager)
        self._connection_manager = AsyncConnectionManager.from_server(server, dialect)
        self._flows = _make_flows(queue_name, config, clock)
        self._client = AsyncRedisClient(self._connection_manager, self._flows.keys)

    @property
    def name(self) -> str:
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        return self._flows.keys

    @property
    def config(self) -> QueueConfig:
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def client(self) -> AsyncRedisClient:
        """The driver, for those who run operations of their own (the engine, leases, Spark)."""
        return self._client

    def new_client(self, retries: int | None = None) -> AsyncRedisClient:
        """A driver with connections of its own; the caller closes it."""
        return AsyncRedisClient(self._connection_manager, self.keys, retries)

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r}, {self._connection_manager.target.display_name!r})"

    async def add(
        self,
        payload: Any,
        *,
        job_name: str = "",
        job_id: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        dedup_ttl: timedelta | None = None,
    ) -> EnqueueResult:
        """Add one job, now or later.

        `unique` keeps the id taken for that long, across processes and restarts: a second add of
        it within that time adds nothing and says `fresh=False`.
        """
        job = NewJob(payload, job_name, job_id, delay, run_at, retry, dedup_ttl)
        return await self._client.run_flow(self._flows.add(job))

    async def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> EnqueueResults:
        """Add jobs of any mix of options, in order, in as few round trips as can be.

        For very many, give a generator: then no more than their payloads is kept.
        """
        return await self._client.run_flow(self._flows.add_many(jobs))

    async def add_batch(
        self,
        payloads: Iterable[Any],
        *,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Hand off jobs that are awaited together; with a `batch_id`, exactly once.

        The same call again, after a crash or by a retry, goes on where the first one stopped.
        """
        return await self._client.run_flow(self._flows.add_batch(payloads, batch_id, options))

    async def add_batch_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        *,
        start_index: int = 0,
        **options: Unpack[BatchOptions],
    ) -> int:
        """Hand off one part of a batch that several producers send; returns where it ends."""
        flow = self._flows.add_part(batch_id, part, payloads, start_index, options)
        return await self._client.run_flow(flow)

    async def finalize_batch(
        self, batch_id: str, *, total: int, parts: int, **options: Unpack[BatchOptions]
    ) -> Batch:
        """Say that all parts were sent; refuses if they do not add up to the total."""
        return await self._client.run_flow(
            self._flows.finalize_batch(batch_id, total, parts, options)
        )

    async def batch_progress(self, batch_id: str) -> BatchProgress:
        """Return how far a batch is."""
        return await self._client.run_flow(self._flows.batch(batch_id))

    async def dead_job_ids(self, batch_id: str, *, limit: int = 1000) -> list[str]:
        """Return the ids of a batch's dead jobs."""
        return await self._client.run_flow(self._flows.failed_jobs(batch_id, limit))

    async def wait_batch(
        self, batch_id: str, *, timeout: timedelta = _DEFAULT_BATCH_TIMEOUT
    ) -> BatchProgress:
        """Wait until every job of a batch is done or dead."""
        return await self._client.run_flow(self._flows.wait_batch(batch_id, timeout))

    async def cancel(self, job_id: str) -> CancelResult:
        """Cancel a job: at once if it is delayed, else ask the workers to drop or interrupt it."""
        return await self._client.run_flow(self._flows.cancel(job_id))

    async def reschedule(
        self, job_id: str, *, delay: timedelta | None = None, run_at: datetime | None = None
    ) -> bool:
        """Give a delayed job another due time; False if it is not delayed."""
        return await self._client.run_flow(self._flows.reschedule(job_id, delay, run_at))

    async def result(self, job_id: str, default: Any = None) -> Any:
        """Return what the handler returned, if it is kept."""
        return await self._client.run_flow(self._flows.result(job_id, default))

    async def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Return the results that are kept, by job id, in one round trip."""
        return await self._client.run_flow(self._flows.results(job_ids))

    async def progress(self, job_id: str) -> Any:
        """Return what the running handler last said about its progress, or None."""
        return await self._client.execute(inspect.get_progress(self.keys, job_id))

    async def wait(self, job_id: str, *, timeout: timedelta = _DEFAULT_WAIT_TIMEOUT) -> Any:
        """Wait until a job is done and return its result; raises JobFailed if it died."""
        return await self._client.run_flow(self._flows.wait(job_id, timeout))

    async def job_status(self, job_id: str) -> JobStatus:
        """Return where a job is: waiting, delayed, running, done, dead or unknown."""
        return await self._client.run_flow(self._flows.get_status(job_id))

    async def depth(self) -> Depth:
        """Return how full the queue is."""
        return await self._client.run_flow(inspect.depth(self.keys, self.config.group))

    async def consumers(self) -> list[ConsumerStatus]:
        """Return the members of the consumer group."""
        return await self._client.execute(consumer_group.consumers(self.keys, self.config.group))

    async def watcher_status(self) -> WatcherStatus:
        """Return how the watcher that starts DAG runs from this queue is doing."""
        return await self._client.run_flow(watchers.get_status(self.keys, self.config.group))

    async def events(self, *, after: str = "0-0", limit: int = 1000) -> list[Event]:
        """Return events behind the entry `after`, oldest first."""
        return await self._client.execute(event_commands.events_after(self.keys, after, limit))

    async def last_event_id(self) -> str:
        """Return the id of the newest event: a place to follow from."""
        return await self._client.execute(event_commands.last_event_id(self.keys))

    async def dead_letters(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = False,
        **filters: Unpack[DeadLetterQuery],
    ) -> list[DeadLetter]:
        """Return dead letters, a page at a time: `after` is the id of the last one seen."""
        flow = self._flows.dead_letters(limit, after, newest_first, filters)
        return await self._client.run_flow(flow)

    async def replay_dead_letters(
        self,
        *,
        limit: int | None = None,
        max_replays: int | None = None,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterQuery],
    ) -> DeadLetterReport:
        """Put dead jobs back with a fresh budget of attempts, each at most `budget` times."""
        return await self._client.run_flow(self._flows.replay(limit, max_replays, dry_run, filters))

    async def purge_dead_letters(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[DeadLetterQuery]
    ) -> DeadLetterReport:
        """Delete dead letters for good."""
        return await self._client.run_flow(self._flows.purge(limit, dry_run, filters))

    async def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        *,
        job_name: str = "",
        key: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        misfire: MisfirePolicy = SKIP,
    ) -> str:
        """Fire a job by a schedule, `Every` or `Cron`; returns the key that `delete_repeat` takes."""
        flow = self._flows.repeat(payload, schedule, job_name, key, limit, start, end, misfire)
        return await self._client.run_flow(flow)

    async def repeats(self, *, limit: int = 100) -> list[RepeatStatus]:
        """Return the repeats, next fire first."""
        return await self._client.run_flow(repeating.list_repeats(self.keys, limit))

    async def delete_repeat(self, key: str) -> bool:
        """Remove a repeat; False if there was none."""
        return await self._client.execute(repeating.delete_repeat(self.keys, key))

    async def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return await self._client.dialect()

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
