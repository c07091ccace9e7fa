"""A program that uses OpenTelemetry: it adds jobs inside a span and runs them.

Arguments: server URL, dialect, queue name. Prints its spans and the span of each run as JSON.
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


def record_span(job: Any) -> None:
    context = trace.get_current_span().get_span_context()
    seen[f"{job.id}/{job.attempt + 1}"] = f"{context.trace_id:032x}/{context.span_id:016x}"


@handlers.on("plain")
def plain(job: Any) -> None:
    record_span(job)


@handlers.on("twice")
async def twice(job: Any) -> None:
    record_span(job)
    if job.attempt == 0:
        raise ValueError("the first attempt fails")


@handlers.on()
async def anything(job: Any) -> None:
    record_span(job)


def add_jobs(queue: Queue) -> None:
    tracer = trace.get_tracer("a DAG run")
    with tracer.start_as_current_span("task"):
        enqueue_once(
            queue, EnqueueRequest(payloads=lambda: [1, 2, 3], batch_id="b", job_name="plain")
        )
        enqueue_once(
            queue,
            EnqueueRequest(payloads=lambda: [1], batch_id="again", job_name="twice", retry=None),
        )
        delay = timedelta(milliseconds=50)
        enqueue_once(
            queue,
            EnqueueRequest(
                payloads=lambda: [1], batch_id="", job_id="one", job_name="async", delay=delay
            ),
        )
        propagate_trace(queue, "propagated")
        queue.add("explicit call", job_id="propagated")
    queue.add("outside of a span", job_id="orphan")
    enqueue_once(queue, EnqueueRequest(payloads=lambda: [1], batch_id="untraced"))


async def run_jobs(url: str, dialect: str, name: str, runs: int) -> None:
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
        add_jobs(queue)
    asyncio.run(run_jobs(url, dialect, name, 9))
    spans = [json.loads(span.to_json(indent=None)) for span in exporter.get_finished_spans()]
    print(json.dumps({"spans": spans, "seen": seen}))


main()
