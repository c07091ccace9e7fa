"""ChasquiConsumeOperator: run a handler over a queue in a task, or lease jobs for other tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import (
    BatchFailed,
    BatchNotFound,
    ChasquiError,
    InvalidArgument,
    JobFailed,
)
from airflow_provider_chasqui.core.lease import LeaseConfig
from airflow_provider_chasqui.core.outcome import Retry, Snooze
from airflow_provider_chasqui.core.validation import parse_int
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.engine.consumer import Consumer
    from airflow_provider_chasqui.engine.handlers import Handler, Handlers, NamedHandler
    from airflow_provider_chasqui.queue_async import AsyncQueue

_POLL_INTERVAL_S = 0.2
_DUE_SOON_MS = 2000


class ChasquiConsumeOperator(QueueLineage, BaseOperator):
    """Operator that runs a worker inside a task, with retries, results and dead letters.

    With `until_batch` the task ends when every job of the batch is done or dead, also if other
    workers run some of them and if retries must be awaited. Otherwise it ends, with
    `stop_when_empty`, when no job is waiting, running in this task or due within two seconds. In
    both cases it ends at the latest after `max_jobs` runs or `max_duration`. It returns
    `queue_name`, the number of successful runs (`done`), the number of failed runs (`failed`) and
    the duration (`seconds`). A run that returns `Retry` has failed; one that returns `Snooze`
    counts as neither.

    With `max_leases` the task runs no handler. It leases jobs and returns a list of mappings with
    `token`, `job_id`, `job_name`, `payload` and `deliveries`. Another task acks a job with its
    token: `ChasquiHook().lease_queue(...).ack(token)`.

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the queue. Default: the queue of the declared job, or the `queue_name` of the
        connection. (templated)
    :param handler: a declared job (`@job`); the name of a module with declared jobs, as text; or
        `Handlers`, a function that takes a job, or the name of either as "package.module:name".
        Required without `max_leases`.
    :param max_jobs: the maximum number of runs. Default: no limit. (templated)
    :param max_duration: the maximum time (duration). Default: no limit. (templated)
    :param stop_when_empty: whether to stop when the queue is empty. Default: True.
    :param until_batch: run until this batch has finished: the handle that ChasquiEnqueueOperator
        returned, or a batch id. Replaces `stop_when_empty`. The task also ends if the batch is
        cancelled. Default: None. (templated)
    :param max_failed: with `until_batch`, fail the task with BatchFailed as soon as more jobs of
        the batch are dead. Otherwise, fail the task at its end if more jobs failed and no later run
        in this task completed them; the counts are in the XCom `counts`. In both cases the task is
        not retried. Default: None, no limit. (templated)
    :param progress_interval: the time between two log lines about the progress of the batch
        (duration). Default: 30 seconds.
    :param worker_number: the number of this worker, to run several with dynamic task mapping:
        `ChasquiConsumeOperator.partial(...).expand(worker_number=[1, 2, 3])`. It is part of the
        name of the consumer. Default: None.
    :param config: the worker's settings, such as concurrency. Default: `ConsumerConfig()` with the
        consumer group of the connection.
    :param concurrency: how many jobs run at the same time. Default: that of `config`.
    :param store_results: whether the return values are stored. Default: that of `config`.
    :param max_leases: the maximum number of jobs to lease. Default: None, which runs the handler.
        (templated)
    :param lease_ttl: how long the leases are valid (duration). A worker of the same consumer group
        claims leased jobs after its own `claim_after` (30 seconds by default), so a queue with
        longer leases should have no workers. Default: 30 seconds. (templated)
    :param lease_wait_timeout: how long to wait for the first job to lease (duration). Default: do
        not wait. (templated)
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    writes_queue = False
    template_fields: Sequence[str] = (
        "queue_name",
        "max_jobs",
        "max_duration",
        "until_batch",
        "max_failed",
        "max_leases",
        "lease_ttl",
        "lease_wait_timeout",
        "chasqui_conn_id",
    )
    ui_color = "#d9e4f0"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        handler: NamedHandler | Handlers | Callable[..., Any] | str | None = None,
        max_jobs: int | str | None = None,
        max_duration: timedelta | float | str | None = None,
        stop_when_empty: bool = True,
        until_batch: Any = None,
        max_failed: int | str | None = None,
        progress_interval: timedelta | float | str = 30.0,
        worker_number: int | None = None,
        config: ConsumerConfig | None = None,
        concurrency: int | None = None,
        store_results: bool | None = None,
        max_leases: int | str | None = None,
        lease_ttl: timedelta | float | str = timedelta(seconds=30),
        lease_wait_timeout: timedelta | float | str | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.handler = handler
        self.max_jobs = max_jobs
        self.max_duration = max_duration
        self.stop_when_empty = stop_when_empty
        self.until_batch = until_batch
        self.max_failed = max_failed
        self.progress_interval = progress_interval
        self.worker_number = worker_number
        self.config = config
        self.concurrency = concurrency
        self.store_results = store_results
        self.max_leases = max_leases
        self.lease_ttl = lease_ttl
        self.lease_wait_timeout = lease_wait_timeout
        self.chasqui_conn_id = chasqui_conn_id
        self._consumer: Consumer | None = None
        self._killed = False

    def execute(self, context: Context) -> Any:
        """Run the worker, or lease jobs if `max_leases` is set."""
        with fail_without_retry(_is_final), ChasquiHook(self.chasqui_conn_id) as hook:
            if self.max_leases is not None:
                return self._lease_jobs(hook, derive_id(context["ti"], per_try=True))
            counts = asyncio.run(self._consume(hook))
            self._check_failures(context, counts)
            return {name: count for name, count in counts.items() if name != "failed_jobs"}

    def _check_failures(self, context: Context, counts: dict[str, Any]) -> None:
        """Fail the task if too many jobs failed. `until_batch` has its own check."""
        limit = _parsing.none_if_blank(self.max_failed)
        if limit is None or self.until_batch is not None:
            return
        if counts["failed_jobs"] > parse_int("max_failed", limit, 0):
            context["ti"].xcom_push(key="counts", value=counts)
            raise JobFailed(
                f"{counts['failed_jobs']} jobs failed and were not completed by a later run in "
                f"this task, and max_failed is {limit}; read the log of the task, or their dead "
                "letters",
                queue_name=counts["queue_name"],
            )

    def on_kill(self) -> None:
        """Stop the worker: finish the running jobs and return the others to the queue."""
        self._killed = True
        if self._consumer is not None:
            self._consumer.stop()

    def _lease_jobs(self, hook: ChasquiHook, consumer_name: str) -> list[dict[str, Any]]:
        lease_ttl = parse_duration(self.lease_ttl, "lease_ttl")
        config = LeaseConfig(
            group=hook.settings.config.group,
            visibility_timeout=lease_ttl,
            claim_after=max(lease_ttl, LeaseConfig().claim_after),
        )
        with hook.lease_queue(self.queue_name, config) as queue:
            leases = queue.lease(
                consumer_name,
                parse_int("max_leases", self.max_leases, minimum=1),
                wait=_parsing.parse_duration(self.lease_wait_timeout, "lease_wait_timeout"),
            )
        self.log.info("consume: leased %d job(s) of the queue %r", len(leases), queue.name)
        return [
            {
                "token": lease.token,
                "job_id": lease.job.id,
                "job_name": lease.job.name,
                "payload": lease.payload,
                "deliveries": lease.deliveries,
            }
            for lease in leases
        ]

    async def _consume(self, hook: ChasquiHook) -> dict[str, Any]:
        from airflow_provider_chasqui.engine.consumer import Consumer

        max_jobs = None if self.max_jobs is None else parse_int("max_jobs", self.max_jobs, 1)
        limiter = RunLimiter(max_jobs)
        queue_name, loaded_handlers = self._load_handlers()
        handlers = loaded_handlers.wrap(limiter.wrap)
        config = self.config or ConsumerConfig(group=hook.settings.config.group)
        number = "" if self.worker_number is None else f"{self.worker_number}-"
        consumer_id = config.consumer_id or f"task-{number}{time.time_ns():x}"
        max_duration = _parsing.parse_duration(self.max_duration, "max_duration")
        config = replace(config, consumer_id=consumer_id)
        if self.concurrency is not None:
            config = replace(config, concurrency=self.concurrency)
        if self.store_results is not None:
            config = replace(config, store_results=self.store_results)
        started = time.monotonic()
        batch = self._parse_batch(queue_name)
        if batch is not None and queue_name is None:
            queue_name = batch.queue_name
        async with await hook.async_queue(queue_name) as queue:
            self.used_queue_name = queue.name
            consumer = self._consumer = Consumer(queue, handlers, config)
            limiter.on_limit = consumer.stop
            end = batch or _EmptyQueue(consumer_id, self.stop_when_empty)
            stopper = asyncio.create_task(
                self._stop_when_done(queue, consumer, end.is_reached, max_duration)
            )
            try:
                await consumer.run()
            finally:
                stopper.cancel()
        if batch is not None and batch.error is not None:
            raise batch.error
        if self._killed:
            from airflow.providers.common.compat.sdk import AirflowException

            raise AirflowException(
                f"the task was stopped after {limiter.started} job(s), before its end condition "
                "was met; a retry continues"
            )
        seconds = round(time.monotonic() - started, 3)
        self.log.info("consume: ran %d job(s), %d of them failed", limiter.started, limiter.failed)
        task_stats.incr("jobs_done", limiter.done, queue.name)
        task_stats.incr("jobs_failed", limiter.failed, queue.name)
        return {
            "queue_name": queue.name,
            "done": limiter.done,
            "failed": limiter.failed,
            "failed_jobs": len(limiter.failed_jobs),
            "seconds": seconds,
        }

    def _parse_batch(self, queue_name: str | None) -> _BatchEnd | None:
        """Return the batch of `until_batch`, which is a handle or an id."""
        batch = self.until_batch
        if batch is None:
            return None
        max_failed = _parsing.none_if_blank(self.max_failed)
        limit = None if max_failed is None else parse_int("max_failed", max_failed, 0)
        interval_s = parse_duration(self.progress_interval, "progress_interval").total_seconds()
        batch_id, batch_queue = _parsing.parse_batch(batch, "until_batch")
        if queue_name is not None and batch_queue not in (None, queue_name):
            raise InvalidArgument(
                f"the batch {batch_id!r} is on the queue {batch_queue!r}, but this task consumes "
                f"{queue_name!r}"
            )
        must_exist = isinstance(batch, dict)
        return _BatchEnd(batch_id, batch_queue, must_exist, limit, interval_s, self.log.info)

    async def _stop_when_done(
        self,
        queue: AsyncQueue,
        consumer: Consumer,
        is_end_reached: Callable[[AsyncQueue], Awaitable[bool]],
        max_duration: timedelta | None,
    ) -> None:
        """Stop the consumer when `max_duration` has passed or the work is done."""
        deadline = None if max_duration is None else time.monotonic() + max_duration.total_seconds()
        failing = False
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if deadline is not None and time.monotonic() >= deadline:
                break
            try:
                done, failing = await is_end_reached(queue), False
            except ChasquiError as error:
                if not failing:
                    self.log.warning("consume: cannot read the queue, retrying: %s", error)
                done, failing = False, True
            if done:
                break
        consumer.stop()

    def _load_handlers(self) -> tuple[str | None, Handlers]:
        """Return the queue, None for that of the connection, and its handlers."""
        from airflow_provider_chasqui.engine.handler_loader import LoadedHandlers, load

        if self.handler is None:
            raise InvalidArgument(
                "handler is required; to lease jobs for other tasks, pass max_leases instead"
            )
        if isinstance(self.handler, str):
            loaded = load(self.handler)
        else:
            loaded = LoadedHandlers.from_callable(self.handler)
        if self.queue_name is None and loaded.default is not None:
            return None, loaded.default
        by_queue = loaded.for_queues([self.queue_name] if self.queue_name is not None else [])
        if len(by_queue) > 1:
            raise InvalidArgument(
                f"queue_name is required, because {self.handler!r} declares jobs of several "
                f"queues: {', '.join(sorted(by_queue))}"
            )
        return next(iter(by_queue.items()))


class _EmptyQueue:
    """The end of a task that stops when its queue is empty.

    :param consumer_id: the name of the task's consumer.
    :param enabled: whether the task stops.
    """

    def __init__(self, consumer_id: str, enabled: bool):
        self._consumer_id = consumer_id
        self._enabled = enabled
        self._idle_polls = 0

    async def is_reached(self, queue: AsyncQueue) -> bool:
        """Return whether the queue was idle twice: a job may be moving between two states."""
        is_idle = self._enabled and await self._is_idle(queue)
        self._idle_polls = self._idle_polls + 1 if is_idle else 0
        return self._idle_polls > 1

    async def _is_idle(self, queue: AsyncQueue) -> bool:
        """Return whether no job is waiting, due soon (such as a retry) or owned by the consumer."""
        depth = await queue.depth()
        if depth.waiting or (depth.next_due_ms or 2**63) <= current_time_ms() + _DUE_SOON_MS:
            return False
        consumers = await queue.consumers()
        name = self._consumer_id
        return not any(consumer.pending for consumer in consumers if consumer.name == name)


class _BatchEnd:
    """The end of a task that runs until a batch has finished.

    :param batch_id: the batch.
    :param queue_name: the queue of the batch, or None if it is not known.
    :param must_exist: whether a batch that does not exist is an error.
    :param max_failed: the maximum number of dead jobs, or None for no limit.
    :param log_interval_s: the time between two log lines.
    :param log: writes a log line.
    """

    def __init__(
        self,
        batch_id: str,
        queue_name: str | None,
        must_exist: bool,
        max_failed: int | None,
        log_interval_s: float,
        log: Callable[..., None],
    ):
        self.queue_name = queue_name
        self.error: ChasquiError | None = None
        self._batch_id = batch_id
        self._must_exist = must_exist
        self._max_failed = max_failed
        self._log_interval_s = log_interval_s
        self._log = log
        self._log_at = time.monotonic() + log_interval_s

    async def is_reached(self, queue: AsyncQueue) -> bool:
        """Return whether the batch has finished, was cancelled or has too many dead jobs."""
        try:
            progress = await queue.batch_progress(self._batch_id)
        except BatchNotFound as error:
            if self._must_exist:
                self.error = error
            return self._must_exist
        self._must_exist = True  # from now on a missing batch has expired
        if self._max_failed is not None and progress.dead > self._max_failed:
            self.error = BatchFailed(
                f"{progress.dead} jobs of the batch {self._batch_id} are dead, and max_failed is "
                f"{self._max_failed}; read their dead letters, fix the cause and replay them",
                queue_name=queue.name,
            )
            return True
        if progress.ended or time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + self._log_interval_s
            self._log(
                "consume: %d of %s jobs of the batch %s have finished, %d dead%s",
                progress.processed,
                progress.enqueued if progress.total is None else progress.total,
                self._batch_id,
                progress.dead,
                "; the batch is cancelled" if progress.cancelled else "",
            )
        return progress.ended


def _is_final(error: ChasquiError) -> bool:
    """Return whether a retry cannot resolve the error: dead jobs would not run again."""
    return isinstance(error, BatchFailed | JobFailed)


class RunLimiter:
    """Counts handler runs and stops the consumer at the maximum.

    :param max_runs: the maximum number of runs, or None for no limit.
    """

    def __init__(self, max_runs: int | None):
        self.max_runs = max_runs
        self.started = self.done = self.failed = 0
        self.failed_jobs: set[str] = set()
        self.on_limit: Callable[[], None] = lambda: None
        self._lock = Lock()  # handlers that are not async run in threads

    def wrap(self, handler: Handler) -> Callable[..., Any]:
        """Return a function that runs the handler and counts the run. Use it in `Handlers.wrap`.

        The function snoozes the job if the maximum is reached, so that another worker runs it.

        :param handler: the handler.
        """

        def arguments(job: Any, context: Any) -> tuple[Any, ...]:
            return (job, context) if handler.accepts_context else (job,)

        async def run_async(job: Any, context: Any) -> Any:
            if not self._try_start():
                return Snooze(timedelta(0))
            with self._count_failure(job):
                value = await handler.call(*arguments(job, context))
            return self._count_return(job, value)

        def run_sync(job: Any, context: Any) -> Any:
            if not self._try_start():
                return Snooze(timedelta(0))
            with self._count_failure(job):
                value = handler.call(*arguments(job, context))
            return self._count_return(job, value)

        return run_async if handler.is_async else run_sync

    def _try_start(self) -> bool:
        """Count a start, or return False if the maximum is reached."""
        with self._lock:
            if self.max_runs is not None and self.started >= self.max_runs:
                return False  # the worker had read the job before it stopped
            self.started += 1
            if self.started == self.max_runs:
                self.on_limit()
        return True

    @contextmanager
    def _count_failure(self, job: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._add_failure(job)
            raise

    def _add_failure(self, job: Any) -> None:
        with self._lock:
            self.failed += 1
            self.failed_jobs.add(job.id)

    def _count_return(self, job: Any, value: Any) -> Any:
        """Count a run that raised no error: `Retry` is a failure, `Snooze` is not counted."""
        if isinstance(value, Retry):
            self._add_failure(job)
        elif not isinstance(value, Snooze):
            with self._lock:
                self.done += 1
                self.failed_jobs.discard(job.id)
        return value
