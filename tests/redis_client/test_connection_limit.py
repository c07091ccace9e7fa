"""Number of connections: concurrent calls share them, and unused ones are closed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import events
from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client import connection_pool, connection_pool_async
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import from_url
from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient
from tests.conftest import Server
from tests.redis_client.conftest import admin
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until, wait_until_async


def connections(server: RedisServer, name: str) -> int:
    """Return the number of connections with a client name."""
    with admin(server) as client:
        return sum(row["name"] == name for row in client.client_list())


class PeakConnections(threading.Thread):
    """Thread that samples the number of connections with a client name."""

    def __init__(self, server: RedisServer, name: str):
        super().__init__(daemon=True)
        self._server = server
        self._name = name
        self._stopped = threading.Event()
        self.peak = 0

    def run(self) -> None:
        with admin(self._server) as client:
            while not self._stopped.is_set():
                rows = client.client_list()
                self.peak = max(self.peak, sum(row["name"] == self._name for row in rows))
                time.sleep(0.002)

    def __enter__(self) -> PeakConnections:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


async def test_concurrent_calls_share_one_connection(server: Server, queue_name: str) -> None:
    target = from_url(server.url, client_name=queue_name)
    async with AsyncQueue(queue_name, target, dialect=server.dialect) as queue:
        results = await asyncio.gather(*(queue.add(number) for number in range(1000)))
        assert len({result.job_id for result in results}) == 1000
        assert (await queue.depth()).waiting == 1000
        with redis.Redis.from_url(server.url) as client:
            assert sum(row["name"] == queue_name for row in client.client_list()) == 1


async def test_concurrent_long_pipelines_use_a_limited_number_of_connections(
    valkey_server: RedisServer, queue_name: str
) -> None:
    target = from_url(valkey_server.url, client_name=queue_name, max_connections=4)
    jobs = [{"payload": "x" * 3000} for _ in range(100)]
    with PeakConnections(valkey_server, queue_name) as sampler:
        async with AsyncQueue(queue_name, target) as queue:
            await asyncio.gather(*(queue.add_many(jobs) for _ in range(60)))
            assert (await queue.depth()).waiting == 6000
    assert 1 < sampler.peak <= 5


async def test_the_rsmq_client_shares_one_connection_and_keeps_the_order_of_calls(
    server: Server, valkey_server: RedisServer, queue_name: str
) -> None:
    target = from_url(server.url, client_name=queue_name)
    async with AsyncRsmqClient(target, namespace=queue_name) as rsmq:
        # A call whose script is unknown to the server is sent twice, so each script is loaded now.
        await rsmq.create_queue("q")
        await rsmq.send_message("q", "first")
        await rsmq.pop_message("q")
        await rsmq.delete_queue("q")
        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(rsmq.create_queue("q")))
            tasks += [asyncio.create_task(rsmq.send_message("q", f"{number}")) for _ in range(3)]
            tasks.append(asyncio.create_task(rsmq.pop_message("q")))
            tasks.append(asyncio.create_task(rsmq.delete_queue("q")))
        results = await asyncio.gather(*tasks)
        assert [message.message for message in results[4::6]] == [str(n) for n in range(200)]
        with redis.Redis.from_url(server.url) as client:
            assert sum(row["name"] == queue_name for row in client.client_list()) == 1


async def test_a_blocking_read_delays_no_other_call_of_its_client(
    valkey_server: RedisServer, queue_name: str
) -> None:
    async with AsyncQueue(queue_name, valkey_server.url) as queue:
        await queue.add(0)
        reads = [
            asyncio.create_task(
                queue.client.execute(events.wait_for_events(queue.keys, "0-0", 1, 2000))
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        started_at = time.monotonic()
        await asyncio.gather(*(queue.add(number) for number in range(50)))
        assert time.monotonic() - started_at < 1.5
        assert not any(read.done() for read in reads)
        assert await asyncio.gather(*reads) == [[]] * 3


async def test_cancelled_calls_disturb_no_call_that_shares_their_connection(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with TcpProxy(valkey_server.url) as proxy:
        async with AsyncQueue(queue_name, f"{proxy.url}?retries=0") as queue:
            await queue.add(0)
            for first_cancelled in (0, 1, 49):
                proxy.hold_replies()
                calls = [
                    asyncio.create_task(
                        queue.client.execute(redis_command("ECHO", number, parse=as_raw))
                    )
                    for number in range(50)
                ]
                await asyncio.to_thread(proxy.wait_for_reply)
                cancelled = calls[first_cancelled::7]
                for call in cancelled:
                    call.cancel()
                await asyncio.sleep(0)
                proxy.release_replies()
                replies = await asyncio.gather(*calls, return_exceptions=True)
                for number, (call, reply) in enumerate(zip(calls, replies, strict=True)):
                    expected = b"%d" % number
                    if call in cancelled:
                        assert isinstance(reply, asyncio.CancelledError)
                    else:
                        assert reply == expected
            assert proxy.connections == 1
            # If every call is cancelled, the connection is closed and the next call opens another.
            proxy.hold_replies()
            calls = [asyncio.create_task(queue.result("unknown")) for _ in range(5)]
            await asyncio.to_thread(proxy.wait_for_reply)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            proxy.release_replies()
            assert (await queue.depth()).waiting == 1


async def test_a_lost_connection_is_replaced_for_all_calls_that_shared_it(
    server: Server, queue_name: str
) -> None:
    with TcpProxy(server.url) as proxy:
        async with AsyncQueue(queue_name, proxy.url, dialect=server.dialect) as queue:
            await queue.add(0)
            for _ in range(5):
                proxy.hold_replies()
                calls = [asyncio.create_task(queue.add(number)) for number in range(100)]
                await asyncio.to_thread(proxy.wait_for_reply)
                proxy.disconnect_all()
                assert all(result.created for result in await asyncio.gather(*calls))
            assert (await queue.depth()).waiting == 501


async def test_calls_that_share_a_connection_have_the_usual_timeout(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with TcpProxy(valkey_server.url) as proxy:
        async with AsyncQueue(queue_name, f"{proxy.url}?retries=0&timeout=0.3") as queue:
            await queue.add(0)
            proxy.hold_replies()
            calls = [asyncio.create_task(queue.depth()) for _ in range(10)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, ConnectionFailed) for error in errors)
            assert all("did not reply in time" in str(error) for error in errors)
            proxy.release_replies()
            assert (await queue.depth()).waiting == 1


async def test_unused_connections_of_an_async_queue_are_closed(
    valkey_server: RedisServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = from_url(valkey_server.url, client_name=queue_name, max_connections=8)
    async with AsyncQueue(queue_name, target) as queue:
        reads = [
            queue.client.execute(events.wait_for_events(queue.keys, "0-0", 1, 300))
            for _ in range(40)
        ]
        assert await asyncio.gather(*reads) == [[]] * 40
        await wait_until_async(
            lambda: connections(valkey_server, queue_name) <= 9, message="at most 9 connections"
        )
        monkeypatch.setattr(connection_pool_async, "IDLE_TIMEOUT", 0.05)
        await asyncio.sleep(0.1)
        jobs = [{"payload": "x" * 3000} for _ in range(100)]
        await asyncio.gather(*(queue.add_many(jobs) for _ in range(2)))
        await wait_until_async(
            lambda: connections(valkey_server, queue_name) <= 2, message="at most 2 connections"
        )


def test_unused_connections_of_a_blocking_queue_are_closed(
    valkey_server: RedisServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = from_url(valkey_server.url, client_name=queue_name, max_connections=8)

    with Queue(queue_name, target) as queue:
        queue.dialect()
        blocked = events.wait_for_events(queue.keys, "0-0", 1, 300)

        def read_in_threads(count: int) -> None:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda _: queue.client.execute(blocked), range(count)))

        read_in_threads(40)
        wait_until(
            lambda: connections(valkey_server, queue_name) <= 9, message="at most 9 connections"
        )
        monkeypatch.setattr(connection_pool, "IDLE_TIMEOUT", 0.05)
        time.sleep(0.1)
        read_in_threads(2)
        wait_until(
            lambda: connections(valkey_server, queue_name) <= 2, message="at most 2 connections"
        )


async def test_a_connection_in_use_when_the_manager_closes_is_closed_on_return(
    valkey_server: RedisServer, queue_name: str
) -> None:
    manager = AsyncConnectionManager(from_url(valkey_server.url, client_name=queue_name))
    queue = AsyncQueue(queue_name, manager)
    await queue.dialect()
    read = asyncio.create_task(
        queue.client.execute(events.wait_for_events(queue.keys, "0-0", 1, 300))
    )
    await asyncio.sleep(0.1)
    await manager.close()
    assert await read == []
    await wait_until_async(
        lambda: connections(valkey_server, queue_name) == 0, message="no connection"
    )
    # The next call opens a new connection.
    assert (await queue.add(1)).created
    await queue.close()
    await manager.close()


_FEW_FILES = """
import asyncio, os, resource, sys
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient

async def main(url, namespace):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    async with AsyncRsmqClient(url, namespace=namespace) as rsmq:
        await rsmq.create_queue("q")
        ids = await asyncio.gather(*(rsmq.send_message("q", "x") for _ in range(500)))
        print(len(set(ids)), (await rsmq.get_queue_attributes("q")).msgs)
    files = []
    try:
        while True:
            files.append(os.dup(0))
    except OSError:
        pass
    async with AsyncRsmqClient(url + "?retries=0", namespace=namespace) as rsmq:
        for call in (rsmq.peek_messages("q"), rsmq.list_queues()):
            try:
                await call
            except ChasquiError as error:
                print(error)

asyncio.run(main(*sys.argv[1:]))
"""


def test_too_many_open_files_is_a_chasqui_error(
    valkey_server: RedisServer, queue_name: str
) -> None:
    arguments: list[Any] = [sys.executable, "-c", _FEW_FILES, valkey_server.url, queue_name]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    counts, *errors = result.stdout.splitlines()
    assert counts == "500 500"
    assert len(errors) == 2
    assert all(error.startswith("[CMQ-001]") for error in errors)
    assert all("Too many open files" in error and "ulimit -n" in error for error in errors)


async def test_an_unused_connection_that_was_closed_is_opened_again(
    server: Server, queue_name: str
) -> None:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        await queue.add(1)
        pool = await queue.client._connection_manager.pool_for_tag(queue.keys.hash_tag)
        await queue.client.close()
        for _, connection in pool._idle:
            await connection.abort()
        await queue.add(2)
        assert (await queue.depth()).waiting == 2
