"""Workers on servers that refuse CLIENT ID or CLIENT UNBLOCK, and on servers that change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio

from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.conftest import Server
from tests.engine.conftest import settings
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until_async

LONG_BLOCK = timedelta(seconds=20)


@pytest.fixture(params=["redis8-native", "valkey"])
def private_servers(request: pytest.FixtureRequest) -> Iterator[list[RedisServer]]:
    """Two servers of one kind that no other test uses."""
    native = request.param == "redis8-native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as first, RedisServer.start(binary) as second:
        yield [first, second]


@asynccontextmanager
async def strangers(server: RedisServer, count: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Block connections of another program, which have the lowest client ids of the server."""
    client = redis.asyncio.Redis.from_url(server.url, max_connections=count)
    tasks = [asyncio.create_task(client.blpop(["other"], timeout=60)) for _ in range(count)]

    def blocked() -> bool:
        with plain_client(server.url) as plain:
            return plain.info("clients")["blocked_clients"] >= count

    try:
        await wait_until_async(blocked)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.aclose()


@pytest.mark.parametrize("refused", ["-client|id", "-client|unblock", "-client"])
async def test_a_worker_needs_no_client_commands(
    server: Server, queue_name: str, refused: str
) -> None:
    with plain_client(server.url) as admin:
        admin.execute_command(
            *("ACL", "SETUSER", queue_name, "reset", "on", ">pw", "allkeys", "+@all", refused)
        )
        ran: list[int] = []

        async def handle(job: Any) -> None:
            ran.append(job.payload)

        url = server.url.replace("redis://", f"redis://{queue_name}:pw@")
        async with AsyncQueue(queue_name, url, dialect=server.dialect) as queue:
            consumer = Consumer(queue, handle, settings(block_timeout=LONG_BLOCK))
            running = asyncio.create_task(consumer.run())
            for n in range(3):
                await queue.add(n)
                await wait_until_async(lambda n=n: len(ran) == n + 1 or running.done())
                await asyncio.sleep(0.1)
            assert ran == [0, 1, 2]
            started = time.monotonic()
            consumer.stop()
            await asyncio.wait_for(running, 10)
            assert time.monotonic() - started < 2.5
            # The read ended in order: no read on the server takes the next job.
            await queue.add(3)
            depth = await queue.depth()
            assert (depth.waiting, depth.running) == (1, 0)
        admin.execute_command("ACL", "DELUSER", queue_name)


async def test_a_worker_unblocks_no_stranger_after_a_restart(
    private_servers: list[RedisServer], queue_name: str
) -> None:
    """Client ids start again from the lowest one, so an old id belongs to another program."""
    server = private_servers[0]
    ran: list[int] = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    async with AsyncQueue(queue_name, server.url) as queue:
        consumer = Consumer(queue, handle, settings(block_timeout=LONG_BLOCK))
        running = asyncio.create_task(consumer.run())
        await queue.add(0)
        await wait_until_async(lambda: ran == [0])
        server.kill()
        await asyncio.to_thread(server.restart)
        async with strangers(server, 60) as others:
            await wait_until_async(lambda: _add_until_run(queue, ran))
            consumer.stop()
            await asyncio.wait_for(running, 10)
            assert not any(task.done() for task in others)


async def _add_until_run(queue: AsyncQueue, ran: list[int]) -> bool:
    await queue.add(1)
    return 1 in ran


async def test_a_worker_unblocks_no_stranger_on_another_server(
    private_servers: list[RedisServer], queue_name: str
) -> None:
    """The old master hangs and another server has its role, as after a failover."""
    first, second = private_servers
    ran: list[int] = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    async with AsyncQueue(queue_name, first.url) as queue, strangers(second, 60) as others:
        consumer = Consumer(queue, handle, settings(block_timeout=LONG_BLOCK))
        running = asyncio.create_task(consumer.run())
        await queue.add(0)
        await wait_until_async(lambda: ran == [0])
        await asyncio.sleep(0.2)
        first.pause()
        try:
            manager = queue._connection_manager
            await manager.invalidate_topology()
            manager.target = RedisTarget((("127.0.0.1", second.port),))
            await queue.client._disconnect()
            consumer.stop()
            await asyncio.wait_for(running, 20)
            assert not any(task.done() for task in others)
        finally:
            first.resume()
