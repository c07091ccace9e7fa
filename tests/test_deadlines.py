"""Calls with a timeout end at that time, also if the server does not reply at all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed, WaitTimeout
from airflow_provider_chasqui.lease import (
    AsyncLeaseQueue,
    AsyncPartitionedQueue,
    LeaseQueue,
    PartitionedQueue,
)
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.support.servers import RedisServer, valkey_binary

TIMEOUT = timedelta(seconds=0.5)
# The time that a reply may take after the timeout, and the time for a slow machine.
LATEST_END = 4.0


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    with RedisServer.start(valkey_binary()) as server:
        yield server


@pytest.fixture
def pausable(own_server: RedisServer) -> Iterator[RedisServer]:
    yield own_server
    own_server.resume()


def duration_of(error: type[ChasquiError], call: Callable[[], Any]) -> float:
    started_at = time.monotonic()
    with pytest.raises(error):
        call()
    return time.monotonic() - started_at


@pytest.mark.parametrize("state", ["new connection", "open connection", "blocked connection"])
def test_a_wait_ends_at_its_timeout_if_the_server_stops(
    state: str, pausable: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, pausable.url, dialect="portable") as queue:
        if state != "new connection":
            queue.add(1, job_id="j")
        timer = threading.Timer(0.25 if state == "blocked connection" else 0.0, pausable.pause)
        timer.start()
        if state != "blocked connection":
            timer.join()
        duration = duration_of(WaitTimeout, lambda: queue.wait("j", timeout=TIMEOUT))
        timer.join()
        assert TIMEOUT.total_seconds() <= duration < LATEST_END
        pausable.resume()
        assert queue.depth().waiting == (state != "new connection"), "the queue works again"


def test_blocking_calls_end_at_their_timeout(pausable: RedisServer, queue_name: str) -> None:
    with (
        Queue(queue_name, pausable.url) as queue,
        LeaseQueue(f"{queue_name}-leased", pausable.url) as leases,
        PartitionedQueue(f"{queue_name}-parts", pausable.url, partitions=2) as partitions,
    ):
        queue.add_batch([1], batch_id="b")
        leases.create()
        consumer = partitions.join("me")
        consumer.send_heartbeat()
        assert consumer.lease() == []
        pausable.pause()
        for error, call in (
            (WaitTimeout, lambda: queue.wait_batch("b", timeout=TIMEOUT)),
            (ConnectionFailed, lambda: leases.lease("me", wait=TIMEOUT)),
            (ConnectionFailed, lambda: consumer.lease(wait=TIMEOUT)),
        ):
            assert TIMEOUT.total_seconds() <= duration_of(error, call) < LATEST_END
        pausable.resume()
        assert leases.lease("me") == []


async def test_asyncio_calls_end_at_their_timeout(pausable: RedisServer, queue_name: str) -> None:
    async def duration(error: type[ChasquiError], call: Any) -> float:
        started_at = time.monotonic()
        with pytest.raises(error):
            await call
        return time.monotonic() - started_at

    async with (
        AsyncQueue(queue_name, pausable.url) as queue,
        AsyncQueue(queue_name, pausable.url, dialect="portable") as unconnected,
        AsyncLeaseQueue(f"{queue_name}-leased", pausable.url) as leases,
        AsyncPartitionedQueue(f"{queue_name}-parts", pausable.url, partitions=2) as partitions,
    ):
        await queue.add_batch([1], batch_id="b")
        await leases.create()
        consumer = partitions.join("me")
        await consumer.send_heartbeat()
        assert await consumer.lease() == []
        pausable.pause()
        add = asyncio.create_task(queue.add("shares the connection", job_id="j"))
        durations = await asyncio.gather(
            duration(WaitTimeout, queue.wait("j", timeout=TIMEOUT)),
            duration(WaitTimeout, unconnected.wait("j", timeout=TIMEOUT)),
            duration(WaitTimeout, queue.wait_batch("b", timeout=TIMEOUT)),
            duration(ConnectionFailed, leases.lease("me", wait=TIMEOUT)),
            duration(ConnectionFailed, consumer.lease(wait=TIMEOUT)),
        )
        assert not add.done(), "a call without a timeout continues"
        pausable.resume()
        assert (await add).job_id == "j"
        assert await leases.lease("me") == []
    for measured in durations:
        assert TIMEOUT.total_seconds() <= measured < LATEST_END
