"""OpenTelemetry tracing: the producer's span is the parent of the span around each run.

OpenTelemetry is used only if the process has imported it. Otherwise nothing is imported and no
command is sent.
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
    """Return the current span as a W3C traceparent, or None if no span is being recorded."""
    api = sys.modules.get("opentelemetry.trace")
    span = api.get_current_span() if api else None
    if span is None or not span.is_recording():
        return None
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def propagate_trace(
    queue: Queue, job_id: str | None = None, *, batch_id: str | None = None
) -> None:
    """Make the current span the parent of a job's runs. Call it before adding the job.

    Does nothing if no span is being recorded.

    :param queue: the queue that the job will be added to.
    :param job_id: the id of the job; unused if `batch_id` is given.
    :param batch_id: the id of a batch, for all jobs of the batch.
    :raises ChasquiError: if the server cannot store the span.
    """
    traceparent = current_traceparent()
    if traceparent is None:
        return
    keys = queue.keys
    key = keys.batch_trace(batch_id) if batch_id else enqueue.trace_key(keys, job_id or "")
    queue.client.execute(enqueue.save_traceparent(key, traceparent))


def wrap_handlers(handlers: Handlers, queue: AsyncQueue) -> Handlers:
    """Return the handlers with a span around each run.

    :param handlers: the handlers.
    :param queue: the queue that they consume.
    :return: wrapped handlers; the same object if their `tracing_enabled` is false or if the
        process has not configured the OpenTelemetry SDK.
    """
    if handlers.tracing_enabled and _sdk_configured():
        return handlers.wrap(HandlerTracer(queue).wrap)
    return handlers


def _sdk_configured() -> bool:
    """Return whether the process has configured the SDK; without it spans are not recorded."""
    api, sdk = (sys.modules.get(f"opentelemetry{part}.trace") for part in ("", ".sdk"))
    if api is None or sdk is None:
        return False
    return isinstance(api.get_tracer_provider(), sdk.TracerProvider)


class HandlerTracer:
    """Creates the spans around the runs of one consumer.

    :param queue: the queue of the consumer. Create the tracer in the consumer's event loop.
    """

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
        """Return a function that runs the handler in a span; a wrapper for `Handlers.wrap`."""

        async def run(job: Job, context: Any) -> Any:
            with self._span(job, await self._load_parent(job)):
                return await handler.invoke(job, context)

        def run_sync(job: Job, context: Any) -> Any:
            future = asyncio.run_coroutine_threadsafe(self._load_parent(job), self._loop)
            parent = None
            with suppress(TimeoutError):  # the event loop is blocked: run without a parent
                parent = future.result(_LOOKUP_TIMEOUT_S)
            with self._span(job, parent):
                return handler.invoke(job, context)

        return run if handler.is_async else run_sync

    @contextmanager
    def _span(self, job: Job, parent: str | None) -> Iterator[None]:
        attributes: dict[str, str | int] = {
            "messaging.system": "chasqui",
            "messaging.destination.name": self._queue.name,
            "messaging.message.id": job.id,
            "chasqui.job.name": job.name,
            "chasqui.job.attempt": job.attempt + 1,
        }
        with self._tracer.start_as_current_span(
            f"process {job.name or self._queue.name}",
            context=self._extract({"traceparent": parent}) if parent else None,
            kind=self._span_kind,
            attributes=attributes,
        ):
            yield

    async def _load_parent(self, job: Job) -> str | None:
        """Return the traceparent that the producer stored; cached per batch."""
        key = enqueue.trace_key(self._queue.keys, job.id)
        cache = self._batch_parents
        if key in cache:
            return cache[key]
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S / 2):
                parent = await self._queue.client.execute(enqueue.load_traceparent(key))
        except (ChasquiError, TimeoutError):
            return None  # run without a parent
        if key != self._queue.keys.trace(job.id):  # the key of a batch
            if len(cache) >= _MAX_CACHED_BATCHES:
                cache.clear()
            cache[key] = parent
        return parent
