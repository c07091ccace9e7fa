"""ChasquiConsumeOperator: run a handler over a queue inside a task, or lease jobs for others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.outcome import Snooze
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.engine.consumer import Consumer
    from airflow_provider_chasqui.engine.handlers import Handlers
    from airflow_provider_chasqui.queue_async import AsyncQueue

_POLL_INTERVAL_S = 0.2
_DUE_SOON_MS = 2000


class ChasquiConsumeOperator(BaseOperator):
    """Runs a handler over a queue with the full engine: retries, renewal, results, dead letters.

    It ends after `max_jobs`, after `max_duration`, or with `stop_when_empty` once nothing waits, runs
    here or becomes due within two seconds; whichever comes first. Returns how many runs ended well
    and how many did not.

    With `max_leases` it runs nothing: it leases up to so many jobs and returns them, each with the token
    by which another task settles it (`ChasquiHook().lease_queue(...).ack(token)`).

    :param handler: `def handle(job)` or `async def handle(job)`, also with (job, context); or its
        name as "package.module:function".
    :param config: a ConsumerConfig, for concurrency, results and the like.
    :param lease_ttl: how long the leases stand (timedelta or seconds).
    :param lease_wait_timeout: how long to wait for the first job to lease.
    """

    template_fields: Sequence[str] = (
        "queue_name", "max_jobs", "max_duration", "max_leases", "lease_ttl", "lease_wait_timeout",
        "chasqui_conn_id",
    )  # fmt: skip
    ui_color = "#d9e4f0"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        handler: Handlers | Callable[..., Any] | str | None = None,
        max_jobs: int | str | None = None,
        max_duration: Any = None,
        stop_when_empty: bool = True,
        config: ConsumerConfig | None = None,
        max_leases: int | str | None = None,
        lease_ttl: Any = timedelta(seconds=30),
        lease_wait_timeout: Any = None,
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
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            if self.max_leases is not None:
                return self._lease_jobs(hook, derive_id(context["ti"], per_try=True))
            return asyncio.run(self._consume(hook))

    def on_kill(self) -> None:
        """Finish what runs, hand back the rest."""
        if self._consumer is not None:
            self._consumer.stop()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell OpenLineage that this task reads from the queue."""
        from airflow_provider_chasqui.assets.chasqui import queue_lineage

        return queue_lineage(self.chasqui_conn_id, self.queue_name, output=False)

    def _lease_jobs(self, hook: ChasquiHook, consumer_name: str) -> list[dict[str, Any]]:
        span = _parsing.parse_duration(self.lease_ttl, "lease_ttl")
        wait = _parsing.parse_duration(self.lease_wait_timeout, "lease_wait_timeout")
        with hook.lease_queue(self.queue_name) as queue:
            leases = queue.lease(
                consumer_name, int(self.max_leases or 1), wait=wait, visibility_timeout=span
            )
        self.log.info("Leased %d job(s) of the queue %r", len(leases), queue.name)
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
        count = RunLimiter(None if self.max_jobs is None else int(self.max_jobs))
        config = self.config or ConsumerConfig(group=hook.settings.config.group)
        name = config.consumer_id or f"task-{time.time_ns():x}"
        config = replace(config, consumer_id=name)
        started = time.monotonic()
        async with await hook.async_queue(self.queue_name) as queue:
            from airflow_provider_chasqui.engine.consumer import Consumer

            consumer = self._consumer = Consumer(queue, count.wrap(self._load_handlers()), config)
            count.on_limit = consumer.stop
            watching = asyncio.create_task(self._stop_when_done(queue, consumer, name))
            try:
                await consumer.run()
            finally:
                watching.cancel()
        seconds = round(time.monotonic() - started, 3)
        report = {"queue_name": queue.name, "done": count.done, "failed": count.failed}
        self.log.info("Ran %d job(s), %d of them failed", count.started, count.failed)
        task_stats.incr("jobs_done", count.done, queue.name)
        task_stats.incr("jobs_failed", count.failed, queue.name)
        return report | {"seconds": seconds}

    async def _stop_when_done(
        self, queue: AsyncQueue, consumer: Consumer, consumer_name: str
    ) -> None:
        """Stop the consumer when its time is up or nothing is left to do."""
        span = _parsing.parse_duration(self.max_duration, "max_duration")
        deadline = None if span is None else time.monotonic() + span.total_seconds()
        idle = 0
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if deadline is not None and time.monotonic() >= deadline:
                break
            idle = idle + 1 if self.stop_when_empty and await _is_idle(queue, consumer_name) else 0
            if idle > 1:  # twice: between two looks a job may be on its way from one place to next
                break
        consumer.stop()

    def _load_handlers(self) -> Handlers:
        from airflow_provider_chasqui.engine.handlers import Handlers

        if self.handler is None:
            raise InvalidArgument("give a handler, or max_leases= to lease jobs for other tasks")
        if isinstance(self.handler, str):
            return Handlers.from_callable(_import_handler(self.handler))
        return Handlers.from_callable(self.handler)


async def _is_idle(queue: AsyncQueue, consumer_name: str) -> bool:
    """Whether nothing waits, is due soon (such as a retry), or is held by this consumer."""
    depth = await queue.depth()
    if depth.waiting or (depth.next_due_ms or 2**63) <= time.time_ns() // 1_000_000 + _DUE_SOON_MS:
        return False
    return not any(each.pending for each in await queue.consumers() if each.name == consumer_name)


class RunLimiter:
    """Counts runs, and lets no more begin than are allowed."""

    def __init__(self, max_runs: int | None):
        if max_runs is not None and max_runs < 1:
            raise InvalidArgument(f"max_jobs is at least 1, not {max_runs}")
        self.max_runs = max_runs
        self.started = self.done = self.failed = 0
        self.on_limit: Callable[[], None] = lambda: None
        self._lock = Lock()  # plain handlers run in threads

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return the same handlers, counted."""
        from airflow_provider_chasqui.engine.handlers import Handlers

        default = handlers.get("\\0")
        counted = Handlers(self._wrap_handler(default) if default else None)
        for name in handlers.job_names:
            handler = handlers.get(name)
            assert handler is not None
            span = None if handler.timeout_s is None else timedelta(seconds=handler.timeout_s)
            counted.on(name, timeout=span)(self._wrap_handler(handler))
        return counted

    def _wrap_handler(self, handler: Any) -> Callable[..., Any]:
        def arguments(job: Any, context: Any) -> tuple[Any, ...]:
            return (job, context) if handler.accepts_context else (job,)

        async def run(job: Any, context: Any) -> Any:
            if not self._try_start():
                return Snooze(timedelta(0))
            with self._record_run():
                return await handler.call(*arguments(job, context))

        def run_plain(job: Any, context: Any) -> Any:
            if not self._try_start():
                return Snooze(timedelta(0))
            with self._record_run():
                return handler.call(*arguments(job, context))

        return run if handler.is_async else run_plain

    def _try_start(self) -> bool:
        with self._lock:
            if self.max_runs is not None and self.started >= self.max_runs:
                return False  # it was taken before the stop was heard: others run it
            self.started += 1
            if self.started == self.max_runs:
                self.on_limit()
        return True

    def record(self, succeeded: bool) -> None:
        with self._lock:
            self.done += succeeded
            self.failed += not succeeded

    def _record_run(self) -> RunRecorder:
        return RunRecorder(self)


class RunRecorder:
    """Notes how one run ends."""

    def __init__(self, limiter: RunLimiter):
        self._limiter = limiter

    def __enter__(self) -> None:
        return None

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._limiter.record(error_type is None)


def _import_handler(name: str) -> Any:
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidArgument(f"name a handler as package.module:function, not {name!r}")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as cause:
        raise InvalidArgument(f"there is no handler {name!r}: {cause}") from cause
