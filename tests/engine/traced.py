"""A program that uses OpenTelemetry: it hands jobs off inside a span and runs them.

Called with a URL, a dialect and a queue; prints its spans as JSON, and what handlers saw.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_chasqui.core.config import ConsumerConfig, PromoterConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.engine.tracing import propagate_trace
from airflow_provider_chasqui.operators._enqueue import EnqueueRequest, enqueue_once
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue

handlers = Handlers()
seen: dict[str, str] = {}


def note(job: Any) -> None:
    context = trace.get_current_span().get_span_context()
    seen[f"{job.id}/{job.attempt}"] = f"{context.trace_id:032x}/{context.span_id:016x}"


@handlers.on("plain")
def plain(job: Any) -> None:
    note(job)


@handlers.on("twice")
async def twice(job: Any) -> None:
    note(job)
    if job.attempt == 0:
        raise ValueError("once more")


@handlers.on()
async def anything(job: Any) -> None:
    note(job)


def hand_off(queue: Queue) -> None:
    tracer = trace.get_tracer("a DAG run")
    with tracer.start_as_current_span("task"):
        enqueue_once(queue, EnqueueRequest(payloads=[1, 2, 3], batch_id="b", job_name="plain"))
        enqueue_once(
            queue, EnqueueRequest(payloads=[1], batch_id="again", job_name="twice", retry=None)
        )
        late = timedelta(milliseconds=50)
        enqueue_once(
            queue,
            EnqueueRequest(payloads=[1], batch_id="", job_id="one", job_name="async", delay=late),
        )
        propagate_trace(queue, "mine")
        queue.add("own code", job_id="mine")
    queue.add("nobody's", job_id="orphan")
    enqueue_once(queue, EnqueueRequest(payloads=[1], batch_id="untraced"))


async def work(url: str, dialect: str, name: str, runs: int) -> None:
    config = ConsumerConfig(
        promoter=PromoterConfig(poll_interval=timedelta(milliseconds=20)),
        scheduler=None,
        block_timeout=timedelta(milliseconds=200),
    )
    async with AsyncQueue(name, url, dialect=dialect) as queue:
        consumer = Consumer(queue, handlers, config)
        running = asyncio.create_task(consumer.run())
        async with asyncio.timeout(60):
            while len(seen) < runs:
                await asyncio.sleep(0.01)
        consumer.stop()
        await running


def main() -> None:
    url, dialect, name = sys.argv[1:]
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with Queue(name, url, dialect=dialect) as queue:
        hand_off(queue)
    asyncio.run(work(url, dialect, name, 9))
    spans = [json.loads(span.to_json(indent=None)) for span in exporter.get_finished_spans()]
    print(json.dumps({"spans": spans, "seen": seen}))


main()
