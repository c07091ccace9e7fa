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
from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.outcome import Snooze
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.operators import options
from airflow_provider_chasqui.operators.identity import derived_id
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.engine.consumer import Consumer
    from airflow_provider_chasqui.engine.handlers import Handlers
    from airflow_provider_chasqui.queue import AsyncQueue

_LOOK_S = 0.2
_SOON_MS = 2000


class ChasquiConsumeOperator(BaseOperator):
    """Runs a handler over a queue with the full engine: retries, renewal, results, dead letters.

    It ends after `max_jobs`, after `max_time`, or with `until_drained` once nothing waits, runs
    here or becomes due within two seconds; whichever comes first. Returns how many runs ended well
    and how many did not.

    With `lease` it runs nothing: it leases up to so many jobs and returns them, each with the token
    by which another task settles it (`ChasquiHook().lease_queue(...).ack(token)`).

    :param handler: `def handle(job)` or `async def handle(job)`, also with (job, context); or its
        name as "package.module:function".
    :param config: a ConsumerConfig, for concurrency, results and the like.
    :param lease_time: how long the leases stand (timedelta or seconds).
    :param lease_wait: how long to wait for the first job to lease.
    """

    template_fields: Sequence[str] = (
        "queue_name", "max_jobs", "max_time", "lease", "lease_time", "lease_wait",
        "chasqui_conn_id",
    )  # fmt: skip
    ui_color = "#d9e4f0"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        handler: Handlers | Callable[..., Any] | str | None = None,
        max_jobs: int | str | None = None,
        max_time: Any = None,
        until_drained: bool = True,
        config: ConsumerConfig | None = None,
        lease: int | str | None = None,
        lease_time: Any = timedelta(seconds=30),
        lease_wait: Any = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.handler = handler
        self.max_jobs = max_jobs
        self.max_time = max_time
        self.until_drained = until_drained
        self.config = config
        self.lease = lease
        self.lease_time = lease_time
        self.lease_wait = lease_wait
        self.chasqui_conn_id = chasqui_conn_id
        self._consumer: Consumer | None = None

    def execute(self, context: Context) -> Any:
        with no_retry_of_bad_input(), ChasquiHook(self.chasqui_conn_id) as hook:
            if self.lease is not None:
                return self._lease(hook, derived_id(context["ti"], with_try=True))
            return asyncio.run(self._consume(hook))

    def on_kill(self) -> None:
        """Finish what runs, hand back the rest."""
        if self._consumer is not None:
            self._consumer.stop()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell OpenLineage that this task reads from the queue."""
        from airflow_provider_chasqui.assets.chasqui import lineage_of_queue

        return lineage_of_queue(self.chasqui_conn_id, self.queue_name, output=False)

    def _lease(self, hook: ChasquiHook, consumer: str) -> list[dict[str, Any]]:
        span = options.span(self.lease_time, "lease_time")
        wait = options.span(self.lease_wait, "lease_wait")
        with hook.lease_queue(self.queue_name) as queue:
            leases = queue.lease(consumer, int(self.lease or 1), wait=wait, visibility_timeout=span)
        self.log.info("Leased %d job(s) of the queue %r", len(leases), queue.name)
        return [
            {
                "token": lease.token,
                "job_id": lease.job.id,
                "name": lease.job.name,
                "payload": lease.payload,
                "deliveries": lease.deliveries,
            }
            for lease in leases
        ]

    async def _consume(self, hook: ChasquiHook) -> dict[str, Any]:
        count = Count(None if self.max_jobs is None else int(self.max_jobs))
        config = self.config or ConsumerConfig(group=hook.settings.config.group)
        name = config.consumer_id or f"task-{time.time_ns():x}"
        config = replace(config, consumer_id=name)
        started = time.monotonic()
        async with await hook.async_queue(self.queue_name) as queue:
            from airflow_provider_chasqui.engine.consumer import Consumer

            consumer = self._consumer = Consumer(queue, count.over(self._handlers()), config)
            count.full = consumer.stop
            watching = asyncio.create_task(self._watch(queue, consumer, name))
            try:
                await consumer.run()
            finally:
                watching.cancel()
        seconds = round(time.monotonic() - started, 3)
        report = {"queue_name": queue.name, "done": count.done, "failed": count.failed}
        self.log.info("Ran %d job(s), %d of them failed", count.begun, count.failed)
        in_task.count("jobs_done", count.done, queue.name)
        in_task.count("jobs_failed", count.failed, queue.name)
        return report | {"seconds": seconds}

    async def _watch(self, queue: AsyncQueue, consumer: Consumer, name: str) -> None:
        """Stop the consumer when its time is up or nothing is left to do."""
        span = options.span(self.max_time, "max_time")
        deadline = None if span is None else time.monotonic() + span.total_seconds()
        idle = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            if deadline is not None and time.monotonic() >= deadline:
                break
            idle = idle + 1 if self.until_drained and await _drained(queue, name) else 0
            if idle > 1:  # twice: between two looks a job may be on its way from one place to next
                break
        consumer.stop()

    def _handlers(self) -> Handlers:
        from airflow_provider_chasqui.engine.handlers import Handlers

        if self.handler is None:
            raise BadInput("give a handler, or lease= to lease jobs for other tasks")
        if isinstance(self.handler, str):
            return Handlers.of(_load(self.handler))
        return Handlers.of(self.handler)


async def _drained(queue: AsyncQueue, name: str) -> bool:
    """Whether nothing waits, is due soon (such as a retry), or is held by this consumer."""
    depth = await queue.depth()
    if depth.waiting or (depth.next_due_ms or 2**63) <= time.time_ns() // 1_000_000 + _SOON_MS:
        return False
    return not any(each.pending for each in await queue.consumers() if each.name == name)


class Count:
    """Counts runs, and lets no more begin than are allowed."""

    def __init__(self, most: int | None):
        if most is not None and most < 1:
            raise BadInput(f"max_jobs is at least 1, not {most}")
        self.most = most
        self.begun = self.done = self.failed = 0
        self.full: Callable[[], None] = lambda: None
        self._lock = Lock()  # plain handlers run in threads

    def over(self, handlers: Handlers) -> Handlers:
        """Return the same handlers, counted."""
        from airflow_provider_chasqui.engine.handlers import Handlers

        default = handlers.get("\\0")
        counted = Handlers(self._counted(default) if default else None)
        for name in handlers.names:
            handler = handlers.get(name)
            assert handler is not None
            span = None if handler.timeout_s is None else timedelta(seconds=handler.timeout_s)
            counted.on(name, timeout=span)(self._counted(handler))
        return counted

    def _counted(self, handler: Any) -> Callable[..., Any]:
        def arguments(job: Any, context: Any) -> tuple[Any, ...]:
            return (job, context) if handler.wants_context else (job,)

        async def run(job: Any, context: Any) -> Any:
            if not self._may_begin():
                return Snooze(timedelta(0))
            with self._noting():
                return await handler.call(*arguments(job, context))

        def run_plain(job: Any, context: Any) -> Any:
            if not self._may_begin():
                return Snooze(timedelta(0))
            with self._noting():
                return handler.call(*arguments(job, context))

        return run if handler.is_async else run_plain

    def _may_begin(self) -> bool:
        with self._lock:
            if self.most is not None and self.begun >= self.most:
                return False  # it was taken before the stop was heard: others run it
            self.begun += 1
            if self.begun == self.most:
                self.full()
        return True

    def note(self, good: bool) -> None:
        with self._lock:
            self.done += good
            self.failed += not good

    def _noting(self) -> Noting:
        return Noting(self)


class Noting:
    """Notes how one run ends."""

    def __init__(self, count: Count):
        self._count = count

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._count.note(kind is None)


def _load(name: str) -> Any:
    module, colon, function = name.partition(":")
    if not colon:
        raise BadInput(f"name a handler as package.module:function, not {name!r}")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as cause:
        raise BadInput(f"there is no handler {name!r}: {cause}") from cause
