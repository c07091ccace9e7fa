"""Fixtures of the Redis client: one test for both kinds of queues, and servers to break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.command import Command
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.support.servers import RedisServer, valkey_binary


class SyncAdapter:
    """Adapter of a Queue or an AsyncQueue whose methods are called without await."""

    def __init__(self, queue: Queue | AsyncQueue, loop: asyncio.AbstractEventLoop | None):
        self.queue = queue
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.queue, name)
        if self.loop is None or not asyncio.iscoroutinefunction(attribute):
            return attribute
        loop = self.loop
        return lambda *args, **options: loop.run_until_complete(attribute(*args, **options))

    def run(self, command: Command[Any]) -> Any:
        """Execute one command and return its parsed reply."""
        result = self.queue.client.execute(command)
        return self.loop.run_until_complete(result) if self.loop else result


Open = Callable[..., SyncAdapter]


@pytest.fixture(params=["blocking", "asyncio"])
def open_queue(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that opens a queue of the kind under test. All are closed at the end."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else None
    queues: list[SyncAdapter] = []

    def open_one(name: str, server: Any, **options: Any) -> SyncAdapter:
        queue_class = AsyncQueue if loop else Queue
        queues.append(SyncAdapter(queue_class(name, server, **options), loop))
        return queues[-1]

    yield open_one
    for queue in queues:
        queue.close()
    if loop:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def admin(server: RedisServer | int, **options: Any) -> Iterator[redis.Redis]:
    """Open a plain client of redis-py, to inspect the server independently."""
    port = server if isinstance(server, int) else server.port
    options = {"protocol": 2} | options
    with redis.Redis(host="127.0.0.1", port=port, **options) as client:
        yield client


def stream_length(server: RedisServer | int, queue_name: str, **options: Any) -> int:
    """Return the number of entries in the stream of a queue."""
    with admin(server, **options) as client:
        return int(client.xlen(f"{{chasqui:{queue_name}}}:stream"))


@pytest.fixture(params=["redis8", "valkey"])
def own_binary(request: pytest.FixtureRequest) -> Path:
    """Return a server binary. The test runs on its own Redis 8.6 and on its own Valkey."""
    if request.param == "valkey":
        return valkey_binary()
    binary: Path = request.getfixturevalue("redis86_binary")
    return binary
