"""A real worker beside a test that is not asynchronous itself."""

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
    """Let a worker run in a thread and an event loop of its own."""
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
    assert started.wait(10)
    try:
        yield
    finally:
        parts["loop"].call_soon_threadsafe(parts["consumer"].stop)
        thread.join(20)
        assert not thread.is_alive()
