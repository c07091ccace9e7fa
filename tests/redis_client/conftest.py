"""One text for both colours, and servers that a test may break."""

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


class Blocking:
    """A Queue or an AsyncQueue whose methods are called alike."""

    def __init__(self, queue: Queue | AsyncQueue, loop: asyncio.AbstractEventLoop | None):
        self.queue = queue
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.queue, name)
        if self.loop is None or not asyncio.iscoroutinefunction(found):
            return found
        loop = self.loop
        return lambda *args, **options: loop.run_until_complete(found(*args, **options))

    def run(self, op: Command[Any]) -> Any:
        answer = self.queue.client.execute(op)
        return self.loop.run_until_complete(answer) if self.loop else answer


Open = Callable[..., Blocking]


@pytest.fixture(params=["blocking", "awaiting"])
def open_queue(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open a queue in the colour of the test; all are closed at its end."""
    loop = asyncio.new_event_loop() if request.param == "awaiting" else None
    opened: list[Blocking] = []

    def opens(name: str, server: Any, **options: Any) -> Blocking:
        kind = AsyncQueue if loop else Queue
        opened.append(Blocking(kind(name, server, **options), loop))
        return opened[-1]

    yield opens
    for each in opened:
        each.close()
    if loop:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def admin(server: RedisServer | int, **options: Any) -> Iterator[redis.Redis]:
    """A plain client of redis-py, to look at the server from outside."""
    port = server if isinstance(server, int) else server.port
    options = {"protocol": 2} | options
    with redis.Redis(host="127.0.0.1", port=port, **options) as client:
        yield client


def stream_length(server: RedisServer | int, queue: str, **options: Any) -> int:
    with admin(server, **options) as client:
        return int(client.xlen(f"{{chasqui:{queue}}}:stream"))


@pytest.fixture(params=["redis8", "valkey"])
def own_binary(request: pytest.FixtureRequest) -> Path:
    """The test runs on a Redis 8.6 and on a Valkey of its own."""
    if request.param == "valkey":
        return valkey_binary()
    binary: Path = request.getfixturevalue("redis86_binary")
    return binary
