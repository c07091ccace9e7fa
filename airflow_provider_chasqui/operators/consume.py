"""ChasquiConsumeOperator: run a handler over a queue in a task, or lease jobs for other tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
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
    from airflow_provider_chasqui.engine.handlers import Handler, Handlers
    from airflow_provider_chasqui.queue_async import AsyncQueue

_POLL_INTERVAL_S = 0.2
_DUE_SOON_MS = 2000


class ChasquiConsumeOperator(BaseOperator):
    """Operator that runs a worker inside a task, with retries, results and dead letters.

    The task ends after `max_jobs` runs, after `max_duration`, or, with `stop_when_empty`, when no
    job is waiting, running in this task or due within two seconds. It returns `queue_name`, the
    number of successful runs (`done`), the number of failed runs (`failed`) and the duration
    (`seconds`). A run that returns `Retry` has failed; one that returns `Snooze` counts as neither.

    With `max_leases` the task runs no handler. It leases jobs and returns a list of mappings with
    `token`, `job_id`, `job_name`, `payload` and `deliveries`. Another task acks a job with its
    token: `ChasquiHook().lease_queue(...).ack(token)`.

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param handler: the function `handle(job)` or `handle(job, context)`, async or not; `Handlers`
        by job name; or the name of either as "package.module:function". Required without
        `max_leases`.
    :param max_jobs: the maximum number of runs. Default: no limit. (templated)
    :param max_duration: the maximum time (duration). Default: no limit. (templated)
    :param stop_when_empty: whether to stop when the queue is empty. Default: True.
    :param config: the worker's settings, such as concurrency. Default: `ConsumerConfig()` with the
        consumer group of the connection.
    :param max_leases: the maximum number of jobs to lease. Default: None, which runs the handler.
        (templated)
    :param lease_ttl: how long the leases are valid (duration). Default: 30 seconds. (templated)
    :param lease_wait_timeout: how long to wait for the first job to lease (duration). Default: do
        not wait. (templated)
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "max_jobs",
        "max_duration",
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
        handler: Handlers | Callable[..., Any] | str | None = None,
        max_jobs: int | str | None = None,
        max_duration: timedelta | float | str | None = None,
        stop_when_empty: bool = True,
        config: ConsumerConfig | None = None,
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
        self.config = config
        self.max_leases = max_leases
        self.lease_ttl = lease_ttl
        self.lease_wait_timeout = lease_wait_timeout
        self.chasqui_conn_id = chasqui_conn_id
        self._consumer: Consumer | None = None

    def execute(self, context: Context) -> Any:
        """Run the worker, or lease jobs if `max_leases` is set."""
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            if self.max_leases is not None:
                return self._lease_jobs(hook, derive_id(context["ti"], per_try=True))
            return asyncio.run(self._consume(hook))

    def on_kill(self) -> None:
        """Stop the worker: finish the running jobs and return the others to the queue."""
        if self._consumer is not None:
            self._consumer.stop()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the queue as an OpenLineage input.

        :param task_instance: the task instance. It is not used.
        """
        from airflow_provider_chasqui.assets.chasqui import queue_lineage

        return queue_lineage(self.chasqui_conn_id, self.queue_name, output=False)

    def _lease_jobs(self, hook: ChasquiHook, consumer_name: str) -> list[dict[str, Any]]:
        with hook.lease_queue(self.queue_name) as queue:
            leases = queue.lease(
                consumer_name,
                parse_int("max_leases", self.max_leases, minimum=1),
                wait=_parsing.parse_duration(self.lease_wait_timeout, "lease_wait_timeout"),
                visibility_timeout=_parsing.parse_duration(self.lease_ttl, "lease_ttl"),
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
        handlers = self._load_handlers().wrap(limiter.wrap)
        config = self.config or ConsumerConfig(group=hook.settings.config.group)
        consumer_id = config.consumer_id or f"task-{time.time_ns():x}"
        max_duration = _parsing.parse_duration(self.max_duration, "max_duration")
        config = replace(config, consumer_id=consumer_id)
        started = time.monotonic()
        async with await hook.async_queue(self.queue_name) as queue:
            consumer = self._consumer = Consumer(queue, handlers, config)
            limiter.on_limit = consumer.stop
            stopper = asyncio.create_task(
                self._stop_when_done(queue, consumer, consumer_id, max_duration)
            )
            try:
                await consumer.run()
            finally:
                stopper.cancel()
        seconds = round(time.monotonic() - started, 3)
        self.log.info("consume: ran %d job(s), %d of them failed", limiter.started, limiter.failed)
        task_stats.incr("jobs_done", limiter.done, queue.name)
        task_stats.incr("jobs_failed", limiter.failed, queue.name)
        return {
            "queue_name": queue.name,
            "done": limiter.done,
            "failed": limiter.failed,
            "seconds": seconds,
        }

    async def _stop_when_done(
        self,
        queue: AsyncQueue,
        consumer: Consumer,
        consumer_id: str,
        max_duration: timedelta | None,
    ) -> None:
        """Stop the consumer when `max_duration` has passed or the queue is empty."""
        deadline = None if max_duration is None else time.monotonic() + max_duration.total_seconds()
        idle_polls, failing = 0, False
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if deadline is not None and time.monotonic() >= deadline:
                break
            try:
                is_idle = self.stop_when_empty and await _is_idle(queue, consumer_id)
                failing = False
            except ChasquiError as error:
                if not failing:
                    self.log.warning("consume: cannot read the depth, retrying: %s", error)
                is_idle, failing = False, True
            idle_polls = idle_polls + 1 if is_idle else 0
            if idle_polls > 1:  # one poll is not enough: a job may be moving between two states
                break
        consumer.stop()

    def _load_handlers(self) -> Handlers:
        from airflow_provider_chasqui.engine.handlers import Handlers

        if self.handler is None:
            raise InvalidArgument(
                "handler is required; to lease jobs for other tasks, pass max_leases instead"
            )
        if isinstance(self.handler, str):
            return Handlers.from_callable(_import_handler(self.handler))
        return Handlers.from_callable(self.handler)


async def _is_idle(queue: AsyncQueue, consumer_id: str) -> bool:
    """Return whether no job is waiting, due soon (such as a retry) or owned by the consumer."""
    depth = await queue.depth()
    if depth.waiting or (depth.next_due_ms or 2**63) <= current_time_ms() + _DUE_SOON_MS:
        return False
    consumers = await queue.consumers()
    return not any(consumer.pending for consumer in consumers if consumer.name == consumer_id)


class RunLimiter:
    """Counts handler runs and stops the consumer at the maximum.

    :param max_runs: the maximum number of runs, or None for no limit.
    """

    def __init__(self, max_runs: int | None):
        self.max_runs = max_runs
        self.started = self.done = self.failed = 0
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
            with self._count_failure():
                value = await handler.call(*arguments(job, context))
            return self._count_return(value)

        def run_sync(job: Any, context: Any) -> Any:
            if not self._try_start():
                return Snooze(timedelta(0))
            with self._count_failure():
                value = handler.call(*arguments(job, context))
            return self._count_return(value)

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
    def _count_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self.failed += 1
            raise

    def _count_return(self, value: Any) -> Any:
        """Count a run that raised no error: `Retry` is a failure, `Snooze` is not counted."""
        with self._lock:
            if isinstance(value, Retry):
                self.failed += 1
            elif not isinstance(value, Snooze):
                self.done += 1
        return value


def _import_handler(name: str) -> Any:
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidArgument(f"handler must be named as package.module:function, not {name!r}")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"the handler {name!r} cannot be imported: {error}") from error
