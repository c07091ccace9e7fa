"""A real worker for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue


@contextmanager
def working(
    url: str,
    queue_name: str,
    handler: Callable[..., Any],
    *,
    dialect: str | None = None,
    **config: Any,
) -> Iterator[None]:
    """Run a worker in another thread, with its own event loop, during the block."""
    started = threading.Event()
    parts: dict[str, Any] = {}

    async def run() -> None:
        async with AsyncQueue(queue_name, url, dialect=dialect) as queue:
            consumer = Consumer(
                queue,
                handler,
                ConsumerConfig(**{"block_timeout": timedelta(milliseconds=200)} | config),
            )
            parts.update(consumer=consumer, loop=asyncio.get_running_loop())
            started.set()
            await consumer.run()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(10), "the worker did not start within 10 s"
    try:
        yield
    finally:
        parts["loop"].call_soon_threadsafe(parts["consumer"].stop)
        thread.join(20)
        assert not thread.is_alive(), "the worker did not stop within 20 s"
