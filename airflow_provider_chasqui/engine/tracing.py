"""OpenTelemetry: the span of who handed a job off is the parent of the span around its handler.

Nothing here is imported, asked or sent unless the process uses OpenTelemetry itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.commands import enqueue
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.engine.handlers import Handler, Handlers

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.job import Job
    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.queue_async import AsyncQueue

_MAX_CACHED_BATCHES = 1000
_LOOKUP_TIMEOUT_S = 5.0


def current_traceparent() -> str | None:
    """The current span as W3C writes it; None where no span is being recorded."""
    api = sys.modules.get("opentelemetry.trace")
    span = api.get_current_span() if api else None
    if span is None or not span.is_recording():
        return None
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def propagate_trace(
    queue: Queue, job_id: str | None = None, *, batch_id: str | None = None
) -> None:
    """Let the current span be the parent of the job's runs; call it before the job is added.

    Give the id of a job or of a batch. Without a span that is being recorded nothing happens.
    """
    parent = current_traceparent()
    if parent is None:
        return
    keys = queue.keys
    key = keys.batch_trace(batch_id) if batch_id else enqueue.trace_key(keys, job_id or "")
    queue.client.execute(enqueue.save_traceparent(key, parent))


def wrap_handlers(handlers: Handlers, queue: AsyncQueue) -> Handlers:
    """Return the handlers with a span around each run, or as they are where nobody would see it."""
    return (
        handlers.wrap(HandlerTracer(queue).wrap)
        if handlers.tracing_enabled and _sdk_configured()
        else handlers
    )


def _sdk_configured() -> bool:
    """Whether the process has set the SDK up: only then somebody would see a span."""
    api, sdk = (sys.modules.get(f"opentelemetry{part}.trace") for part in ("", ".sdk"))
    if api is None or sdk is None:
        return False
    return isinstance(api.get_tracer_provider(), sdk.TracerProvider)


class HandlerTracer:
    """Makes the spans of one consumer's runs."""

    def __init__(self, queue: AsyncQueue):
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._tracer = trace.get_tracer("airflow-provider-chasqui")
        self._span_kind = trace.SpanKind.CONSUMER
        self._extract = TraceContextTextMapPropagator().extract
        self._batch_parents: dict[str, str | None] = {}

    def wrap(self, handler: Handler) -> Callable[..., Any]:
        def arguments(job: Job, context: Any) -> tuple[Any, ...]:
            return (job, context) if handler.accepts_context else (job,)

        async def run(job: Job, context: Any) -> Any:
            with self._span(job, await self._load_parent(job)):
                return await handler.call(*arguments(job, context))

        def run_plain(job: Job, context: Any) -> Any:
            asked = asyncio.run_coroutine_threadsafe(self._load_parent(job), self._loop)
            parent = None
            with suppress(TimeoutError):  # a loop that is blocked costs the parent, not the run
                parent = asked.result(_LOOKUP_TIMEOUT_S)
            with self._span(job, parent):
                return handler.call(*arguments(job, context))

        return run if handler.is_async else run_plain

    @contextmanager
    def _span(self, job: Job, parent: str | None) -> Iterator[None]:
        attributes: dict[str, str | int] = {
            "messaging.system": "chasqui",
            "messaging.destination.name": self._queue.name,
            "messaging.message.id": job.id,
            "chasqui.job.name": job.name,
            "chasqui.job.attempt": job.attempt,
        }
        with self._tracer.start_as_current_span(
            f"process {job.name or self._queue.name}",
            context=self._extract({"traceparent": parent}) if parent else None,
            kind=self._span_kind,
            attributes=attributes,
        ):
            yield

    async def _load_parent(self, job: Job) -> str | None:
        """What was left for the job; asked once for all jobs of a batch."""
        key = enqueue.trace_key(self._queue.keys, job.id)
        known = self._batch_parents
        if key in known:
            return known[key]
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S / 2):
                found = await self._queue.client.execute(enqueue.load_traceparent(key))
        except (ChasquiError, TimeoutError):
            return None  # the job runs, without a parent
        if key != self._queue.keys.trace(job.id):
            if len(known) >= _MAX_CACHED_BATCHES:
                known.clear()
            known[key] = found
        return found
