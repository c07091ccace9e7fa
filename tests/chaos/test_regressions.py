"""Errors that the fault harness found, one test each."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.chaos.harness.environment import TIMEOUT_S, Environment
from tests.conftest import Server
from tests.engine.conftest import working
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with (
        RedisServer.start(valkey_binary()) as server,
        Environment(server, "portable", tmp_path) as environment,
    ):
        yield environment


def test_the_supervisor_stops_cleanly_while_it_replaces_a_killed_process(
    environment: Environment,
) -> None:
    """SIGTERM ends the new process during its imports. It has no jobs, so that is no failure."""
    environment.start_workers(1)
    (victim,) = environment.worker_pids()
    os.kill(victim, signal.SIGKILL)
    wait_until(
        lambda: environment.children() not in ([], [victim]),
        TIMEOUT_S,
        "the supervisor starts another process",
        interval=0.05,
    )
    environment.stop_workers()


@pytest.mark.parametrize("fixture", ["native_server", "portable_server"])
async def test_a_failed_run_does_not_requeue_a_job_that_another_worker_claimed(
    request: pytest.FixtureRequest, fixture: str, queue_name: str
) -> None:
    """Otherwise the job would run twice at the same time, with the same attempt number."""
    server: Server = request.getfixturevalue(fixture)
    began, proceed = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        began.set()
        await proceed.wait()
        raise ValueError("too late")

    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        with plain_client(server.url) as client:
            await queue.add("once", job_id="j")
            async with working(queue, handle) as consumer:
                await asyncio.wait_for(began.wait(), 30)
                [entry] = client.xpending_range(queue.keys.stream, "default", "-", "+", 9)
                client.xclaim(queue.keys.stream, "default", "other", 0, [entry["message_id"]])
                proceed.set()
                counts = consumer.metrics.counts
                await wait_until_async(lambda: counts["already_acked"] == 1)
                assert client.zcard(queue.keys.delayed) == 0
                [entry] = client.xpending_range(queue.keys.stream, "default", "-", "+", 9)
                assert entry["consumer"] == b"other"


async def test_a_reader_without_free_capacity_waits_and_does_not_spin(
    portable_server: Server, queue_name: str
) -> None:
    """The prefetch is reduced to 0 while every handler is busy."""
    async with AsyncQueue(queue_name, portable_server.url) as queue:
        state = ConsumerState(queue, ConsumerConfig(concurrency=2))
        state.finished_runs = 100  # in a very short time, so the prefetch is large
        assert await state.wait_for_capacity() > 2
        state.reserve(2)
        state.prefetch = 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(state.wait_for_capacity(), 0.2)
