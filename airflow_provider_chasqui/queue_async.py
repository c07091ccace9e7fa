"""Queue for producers and for inspection.

The blocking class in `queue.py` is generated from the asyncio class in `queue_async.py`, so both
have the same methods. Example::

    async with AsyncQueue("emails", "redis://localhost") as queue:
        await queue.add({"to": "ada@example.org"}, job_name="welcome", delay=timedelta(minutes=5))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from airflow_provider_chasqui.clock import current_time_ms, monotonic_seconds
from airflow_provider_chasqui.core.batch import Batch, BatchProgress, EncodedChunk
from airflow_provider_chasqui.core.commands import (
    consumer_group,
    delayed,
    flow_control,
    inspect,
    watchers,
)
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands.batches import CancelBatchResult
from airflow_provider_chasqui.core.commands.consumer_group import ConsumerStatus
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterReport
from airflow_provider_chasqui.core.commands.flow_control import PauseState
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
from airflow_provider_chasqui.core.rate_limit import RateLimitGrant, RateLimits
from airflow_provider_chasqui.core.repeat import SKIP, MisfirePolicy, RepeatStatus
from airflow_provider_chasqui.core.results import DEFAULT_PAGE_SIZE, BatchResult
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.deadline import limit_duration
from airflow_provider_chasqui.redis_client.target import DEFAULT_URL, RedisTarget


class AsyncQueue:
    """Queue of jobs on a Redis stream.

    An asyncio queue belongs to one event loop. A blocking queue may be used by several threads, and
    after a fork. Every method raises a ChasquiError if the server refuses a command or stays
    unreachable.

    :param queue_name: the name of the queue.
    :param server: a URL, a RedisTarget, or a connection manager that several queues share.
    :param config: limits and options of the producer. Default: `QueueConfig()`.
    :param dialect: "native" or "portable". None detects it at the first command.
    :param clock: a function that returns the time in milliseconds since the epoch.
    :raises InvalidArgument: if the name, the URL or the dialect is not valid.
    """

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
        self._flows = QueueFlows(Keys(queue_name), config or QueueConfig(), clock)
        self._client = AsyncRedisClient(self._connection_manager, self._flows.keys)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        """The Redis keys of the queue."""
        return self._flows.keys

    @property
    def config(self) -> QueueConfig:
        """The limits and options of the producer."""
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        """The server."""
        return self._connection_manager.target

    @property
    def client(self) -> AsyncRedisClient:
        """The Redis client, for code that runs its own commands."""
        return self._client

    def new_client(self, retries: int | None = None) -> AsyncRedisClient:
        """Return a client with its own connections. The caller closes it.

        :param retries: the number of resends after a failure. Default: the value of the target.
        """
        return AsyncRedisClient(self._connection_manager, self.keys, retries)

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r}, {self._connection_manager.target.display_name!r})"

    # Jobs

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
        """Add one job.

        :param payload: the argument of the handler: any value that MessagePack can encode.
        :param job_name: the name by which the worker selects the handler.
        :param job_id: the id of the job. None generates a ULID.
        :param delay: the time from now until the job becomes due.
        :param run_at: the time at which the job becomes due, instead of `delay`.
        :param retry: the retry policy. None uses the defaults of the worker.
        :param dedup_ttl: how long the id stays reserved, also across processes and restarts. A
            second add of the same id within this time adds nothing and returns `created=False`.
        :return: the id of the job, and whether this call created it.
        :raises InvalidArgument: if an argument is not valid or the payload is too large.
        :raises QueueFull: if the queue has `max_len` jobs.
        :raises ReplicationTimeout: if the configured write concern is not met in time.
        """
        job = NewJob(payload, job_name, job_id, delay, run_at, retry, dedup_ttl)
        return await self._client.run_flow(self._flows.add(job))

    async def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> EnqueueResults:
        """Add jobs with any mix of options, in order, in as few round trips as possible.

        :param jobs: NewJobs, or mappings of their fields. For a very large number pass a generator,
            then only the encoded payloads are in memory.
        :return: one result per job, in the same order.
        :raises InvalidArgument: if a job is not valid. Then no job is added.
        :raises QueueFull: if the queue has `max_len` jobs.
        :raises ReplicationTimeout: if the configured write concern is not met in time.
        """
        return await self._client.run_flow(self._flows.add_many(jobs))

    async def cancel(self, job_id: str) -> CancelResult:
        """Cancel a job.

        :param job_id: the id of the job.
        :return: "cancelled" if the job was delayed and is deleted. Otherwise "requested": workers
            are asked to drop or interrupt it.
        """
        return await self._client.run_flow(self._flows.cancel(job_id))

    async def reschedule(
        self, job_id: str, *, delay: timedelta | None = None, run_at: datetime | None = None
    ) -> bool:
        """Change the due time of a delayed job.

        :param job_id: the id of the job.
        :param delay: the time from now until the job becomes due.
        :param run_at: the time at which the job becomes due, instead of `delay`.
        :return: False if the job is not delayed.
        :raises InvalidArgument: if neither or both of `delay` and `run_at` are given.
        """
        return await self._client.run_flow(self._flows.reschedule(job_id, delay, run_at))

    async def job_status(self, job_id: str) -> JobStatus:
        """Return the state of a job: waiting, delayed, running, done, dead or unknown.

        :param job_id: the id of the job.
        """
        return await self._client.run_flow(self._flows.get_status(job_id))

    async def wait(self, job_id: str, *, timeout: timedelta = timedelta(seconds=30)) -> Any:
        """Wait until a job is completed, and return its result.

        :param job_id: the id of the job.
        :param timeout: the longest wait. The default is 30 seconds.
        :return: the return value of the handler, or None if it is not stored.
        :raises JobFailed: if the job is dead.
        :raises WaitTimeout: if the job is not completed in time.
        """
        with limit_duration(timeout.total_seconds()):
            return await self._client.run_flow(self._flows.wait(job_id, timeout, monotonic_seconds))

    async def progress(self, job_id: str) -> Any:
        """Return the last progress value that the running handler reported, or None.

        :param job_id: the id of the job.
        """
        return await self._client.execute(inspect.get_progress(self.keys, job_id))

    async def result(self, job_id: str, default: Any = None) -> Any:
        """Return the stored result of a job.

        :param job_id: the id of the job.
        :param default: the value to return if no result is stored.
        """
        return await self._client.run_flow(self._flows.result(job_id, default))

    async def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Return the stored results of jobs, in one round trip.

        :param job_ids: the ids of the jobs.
        :return: results by job id. A job without a stored result is left out.
        """
        return await self._client.run_flow(self._flows.results(job_ids))

    # Batches

    async def add_batch(
        self,
        payloads: Iterable[Any],
        *,
        batch_id: str | None = None,
        keys: Iterable[Any] | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Add jobs that are awaited together.

        With a `batch_id` the jobs are added exactly once: the same call again, after a crash or by
        a retry, continues after the last job that was sent.

        :param payloads: one payload per job.
        :param batch_id: the id of the batch. None generates one.
        :param keys: one key per payload, for example the primary key of its row. Keys are stored
            with the batch and are returned with its results. They count as part of the payload when
            a second send is compared with the first.
        :param options: job_name, delay, run_at, retry, source, ttl and owner of the batch.
        :raises InvalidArgument: if an argument is not valid.
        :raises BatchChanged: if the batch was sent with other payloads. Then nothing is written.
        :raises BatchCancelled: if the batch is cancelled. Then nothing is written.
        :raises QueueFull: if the queue has `max_len` jobs.
        """
        flow = self._flows.add_batch(payloads, keys, batch_id, options)
        return await self._client.run_flow(flow)

    async def add_encoded_batch(
        self,
        chunks: Iterable[EncodedChunk],
        *,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Add jobs whose payloads are already encoded; otherwise the same as `add_batch`.

        The chunks are read one after the other, so the memory does not depend on their number. The
        sizes of the chunks do not matter: a second send may cut the same jobs differently.

        :param chunks: the jobs, in a stable order.
        :param batch_id: the id of the batch. None generates one.
        :param options: job_name, delay, run_at, retry, source, ttl and owner of the batch.
        :raises InvalidArgument: if an argument is not valid.
        :raises BatchChanged: if the batch was sent with other payloads. Then nothing is written.
        :raises BatchCancelled: if the batch is cancelled. Then nothing is written.
        :raises QueueFull: if the queue has `max_len` jobs.
        """
        return await self._client.run_flow(self._flows.add_encoded_batch(chunks, batch_id, options))

    async def add_batch_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        *,
        start_index: int = 0,
        keys: Iterable[Any] | None = None,
        **options: Unpack[BatchOptions],
    ) -> int:
        """Add jobs to one part of a batch that several producers send.

        :param batch_id: the id of the batch.
        :param part: the number of the part, from 0.
        :param payloads: one payload per job.
        :param start_index: the index of the first payload within the part.
        :param keys: one key per payload; see `add_batch`.
        :param options: job_name, delay, run_at, retry, source, ttl and owner of the batch.
        :return: the index after the last job.
        :raises BatchConflict: if the batch is finalized, or `start_index` leaves a gap.
        :raises BatchChanged: if the part was sent with other payloads. Then nothing is written.
        :raises BatchCancelled: if the batch is cancelled. Then nothing is written.
        :raises QueueFull: if the queue has `max_len` jobs.
        """
        flow = self._flows.add_part(batch_id, part, payloads, keys, start_index, options)
        return await self._client.run_flow(flow)

    async def finalize_batch(
        self, batch_id: str, *, total: int, parts: int, **options: Unpack[BatchOptions]
    ) -> Batch:
        """Declare that all parts of a batch were sent.

        :param batch_id: the id of the batch.
        :param total: the number of jobs in all parts.
        :param parts: the number of parts.
        :param options: source, ttl and owner of the batch.
        :raises BatchConflict: if the parts do not add up to the total.
        :raises BatchCancelled: if the batch is cancelled.
        """
        return await self._client.run_flow(
            self._flows.finalize_batch(batch_id, total, parts, options)
        )

    async def batch_progress(self, batch_id: str) -> BatchProgress:
        """Return the progress of a batch.

        :param batch_id: the id of the batch.
        :raises BatchNotFound: if the batch does not exist or has expired.
        """
        return await self._client.run_flow(self._flows.batch(batch_id))

    async def attach_batch(self, batch_id: str, owner: str) -> BatchProgress | None:
        """Become the owner of a batch. Earlier owners cannot cancel it any more.

        :param batch_id: the id of the batch.
        :param owner: the new owner, for example the id of a task's try.
        :return: the progress of the batch, or None if it does not exist.
        """
        return await self._client.run_flow(self._flows.attach_batch(batch_id, owner))

    async def cancel_batch(self, batch_id: str, *, owner: str | None = None) -> CancelBatchResult:
        """Cancel a batch: its unfinished jobs do not run, and running ones are interrupted.

        The cost does not depend on the number of jobs. Workers notice the cancel within about a
        second and drop the jobs: they count neither as done nor as dead and leave no dead letter.
        A cancelled batch accepts no more jobs and stays cancelled as long as it is stored.

        :param batch_id: the id of the batch.
        :param owner: cancel only if this is the owner of the batch. None cancels it in any case.
        :return: "cancelled", "already_cancelled", "finished" if every job had finished before, or
            "not_owner".
        :raises BatchNotFound: if the batch does not exist or has expired.
        """
        return await self._client.run_flow(self._flows.cancel_batch(batch_id, owner))

    async def dead_job_ids(self, batch_id: str, *, limit: int = 1000) -> list[str]:
        """Return the ids of the dead jobs of a batch.

        :param batch_id: the id of the batch.
        :param limit: the maximum number of ids.
        :raises BatchNotFound: if the batch does not exist or has expired.
        """
        return await self._client.run_flow(self._flows.failed_jobs(batch_id, limit))

    async def batch_results(
        self, batch_id: str, *, page_size: int = DEFAULT_PAGE_SIZE
    ) -> AsyncIterator[BatchResult]:
        """Yield the outcome of every job of a batch, in the order of parts and indexes.

        Jobs that have not finished are included, with the status `pending`. Only one page is in
        memory at a time.

        :param batch_id: the id of the batch.
        :param page_size: the maximum number of outcomes that one round trip reads.
        :raises BatchNotFound: if the batch does not exist, or expires while it is being read.
        :raises DecodeError: if a stored result is not readable.
        """
        async for page in self.batch_result_pages(batch_id, page_size=page_size):
            for result in page:
                yield result

    async def batch_result_pages(
        self, batch_id: str, *, page_size: int = DEFAULT_PAGE_SIZE
    ) -> AsyncIterator[list[BatchResult]]:
        """Yield the outcomes of a batch in lists, which is faster than one by one.

        :param batch_id: the id of the batch.
        :param page_size: the maximum length of a list. Large results make shorter lists.
        :raises BatchNotFound: if the batch does not exist, or expires while it is being read.
        :raises DecodeError: if a stored result is not readable.
        """
        reader = self._flows.batch_result_reader(batch_id, page_size)
        while page := await self._client.run_flow(reader.next_page()):
            yield page

    async def wait_batch(
        self,
        batch_id: str,
        *,
        timeout: timedelta = timedelta(hours=1),
        on_progress: Callable[[BatchProgress], None] | None = None,
    ) -> BatchProgress:
        """Wait until every job of a batch is completed or dead.

        :param batch_id: the id of the batch.
        :param timeout: the longest wait. The default is one hour.
        :param on_progress: a function that is called with the progress each time it was read.
        :raises BatchNotFound: if the batch does not exist or has expired.
        :raises BatchCancelled: if the batch is cancelled.
        :raises WaitTimeout: if the batch is not finished in time.
        """
        with limit_duration(timeout.total_seconds()):
            return await self._client.run_flow(
                self._flows.wait_batch(batch_id, timeout, monotonic_seconds, on_progress)
            )

    # State of the queue

    async def depth(self) -> Depth:
        """Return the number of waiting, running, delayed and dead jobs."""
        return await self._client.run_flow(inspect.depth(self.keys, self.config.group))

    async def pause(self, job_name: str | None = None) -> None:
        """Pause the queue or one job name, until it is resumed.

        Workers notice it within about a second: they start no further jobs, and running ones end.
        Producers, delayed jobs and repeatable jobs go on. Jobs of a paused name are moved aside,
        so that the others run. Pausing twice has no further effect.

        :param job_name: the name of the jobs to pause. None pauses the whole queue.
        """
        await self._client.run_flow(self._flows.pause(job_name))

    async def resume(self, job_name: str | None = None) -> None:
        """End a pause.

        :param job_name: the name of the jobs to resume; their jobs return to the end of the queue,
            in order. None resumes the queue; job names that were paused stay paused.
        """
        await self._client.run_flow(self._flows.resume(job_name))

    async def paused(self) -> PauseState:
        """Return whether the queue is paused, and which job names are. It is false if none is."""
        return await self._client.run_flow(flow_control.pause_state(self.keys))

    async def rate_limit(
        self,
        name: str,
        rates: RateLimits,
        *,
        weight: int | Sequence[int] = 1,
        timeout: timedelta | None = None,
    ) -> RateLimitGrant:
        """Wait until a rate limit allows the next call. No worker is needed.

        All processes that use the same name of this queue share the limit. The server's clock
        decides, and callers get their turn in the order of their calls.

        :param name: the name of the limit, for example that of the API that is called.
        :param rates: text such as "600/minute", a `RateLimit`, or a list; then all must allow it.
        :param weight: what the call costs, for example the number of tokens; an integer, or a list
            with one per rate.
        :param timeout: the longest wait. None: no limit.
        :return: the permission, which the blocking queue can use in a `with` statement.
        :raises InvalidArgument: if an argument is not valid.
        :raises RateLimitTimeout: if the wait would be longer than `timeout`. It is raised at once,
            and nothing is reserved.
        """
        flow = self._flows.rate_limit(name, rates, weight, timeout)
        wait_us = await self._client.run_flow(flow)
        if wait_us:
            await asyncio.sleep(wait_us / 1_000_000)
        return RateLimitGrant(name, timedelta(microseconds=wait_us))

    async def pause_rate_limit(self, name: str, duration: timedelta) -> None:
        """Allow no call of a rate limit for some time, for example after an HTTP 429.

        Calls that already wait keep their time. A shorter pause does not end a longer one.

        :param name: the name of the limit.
        :param duration: how long, for example the value of the header Retry-After.
        """
        await self._client.run_flow(self._flows.pause_rate_limit(name, duration))

    async def consumers(self) -> list[ConsumerStatus]:
        """Return the members of the consumer group."""
        return await self._client.execute(consumer_group.consumers(self.keys, self.config.group))

    async def watcher_status(self) -> WatcherStatus:
        """Return the status of the watcher that starts DAG runs from this queue."""
        return await self._client.run_flow(watchers.get_status(self.keys, self.config.group))

    async def events(self, *, after: str = "0-0", limit: int = 1000) -> list[Event]:
        """Return events, oldest first.

        :param after: the entry id of the last event that was seen.
        :param limit: the maximum number of events.
        """
        return await self._client.execute(event_commands.events_after(self.keys, after, limit))

    async def last_event_id(self) -> str:
        """Return the entry id of the newest event, to be passed to `events`."""
        return await self._client.execute(event_commands.last_event_id(self.keys))

    # Dead letters

    async def dead_letters(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = False,
        **filters: Unpack[DeadLetterQuery],
    ) -> list[DeadLetter]:
        """Return one page of dead letters.

        :param limit: the maximum number of dead letters.
        :param after: the id of the last dead letter of the previous page.
        :param newest_first: reverse the order.
        :param filters: ids, job_ids, reason, job_name, older_than, newer_than, text, batch_id.
        """
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
        """Move dead jobs back to the queue. Their attempts start again.

        :param limit: the maximum number of dead letters. None: no limit.
        :param max_replays: skip jobs that were replayed this often. Default: the value of the
            configuration.
        :param dry_run: change nothing and report what would be done.
        :param filters: ids, job_ids, reason, job_name, older_than, newer_than, text, batch_id.
        """
        return await self._client.run_flow(self._flows.replay(limit, max_replays, dry_run, filters))

    async def purge_dead_letters(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[DeadLetterQuery]
    ) -> DeadLetterReport:
        """Delete dead letters. This cannot be undone.

        :param limit: the maximum number of dead letters. None: no limit.
        :param dry_run: change nothing and report what would be done.
        :param filters: ids, job_ids, reason, job_name, older_than, newer_than, text, batch_id.
        """
        return await self._client.run_flow(self._flows.purge(limit, dry_run, filters))

    # Repeatable jobs

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
        """Create or replace a repeatable job.

        :param payload: the payload of each job.
        :param schedule: `Every` or `Cron`.
        :param job_name: the name of each job.
        :param key: the key of the repeatable job. None derives it from the name and the schedule.
        :param limit: the maximum number of fires. None: no limit.
        :param start: the time before which nothing fires.
        :param end: the time after which nothing fires.
        :param misfire: what happens to fires that were missed while no leader was running.
        :return: the key, which `delete_repeat` takes.
        :raises InvalidArgument: if an argument is not valid.
        """
        flow = self._flows.repeat(payload, schedule, job_name, key, limit, start, end, misfire)
        return await self._client.run_flow(flow)

    async def repeats(self, *, limit: int = 100) -> list[RepeatStatus]:
        """Return the repeatable jobs, ordered by their next fire.

        :param limit: the maximum number of repeatable jobs.
        """
        return await self._client.run_flow(delayed.list_repeats(self.keys, limit))

    async def delete_repeat(self, key: str) -> bool:
        """Delete a repeatable job.

        :param key: the key that `repeat` returned.
        :return: False if it does not exist.
        """
        return await self._client.execute(delayed.delete_repeat(self.keys, key))

    # Connection

    async def dialect(self) -> str:
        """Connect to the server and return its dialect, "native" or "portable"."""
        return await self._client.dialect()

    async def close(self) -> None:
        """Release the connections. Those of a shared connection manager stay open."""
        await self._client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
