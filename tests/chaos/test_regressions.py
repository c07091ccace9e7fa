"""What the fault harness found, each as a test of its own."""

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
from tests.chaos.harness.environment import Stage, wait_for
from tests.conftest import Server
from tests.engine.conftest import until, working
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        RedisServer.start(valkey_binary()) as server,
        Stage(server, "portable", tmp_path) as made,
    ):
        yield made


def test_a_stop_while_a_killed_process_is_being_replaced_is_no_trouble(stage: Stage) -> None:
    """The new process still imports and dies of SIGTERM; it holds nothing, so all is well."""
    stage.start_workers(1)
    (victim,) = stage.worker_pids()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: stage.children() not in ([], [victim]), "no process takes its place")
    stage.stop_workers()


@pytest.mark.parametrize("fixture", ["native_server", "portable_server"])
async def test_a_failed_run_does_not_put_back_a_job_that_another_worker_took_over(
    request: pytest.FixtureRequest, fixture: str, queue_name: str
) -> None:
    """It ran again beside the other, with the number of a run that had been."""
    server: Server = request.getfixturevalue(fixture)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        began.set()
        await go_on.wait()
        raise ValueError("too late")

    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        with plain_client(server.url) as client:
            await queue.add("once", job_id="j")
            async with working(queue, handle) as consumer:
                await asyncio.wait_for(began.wait(), 30)
                [held] = client.xpending_range(queue.keys.stream, "default", "-", "+", 9)
                other = ("default", "other", 0, [held["message_id"]])
                client.xclaim(queue.keys.stream, *other)
                go_on.set()
                counts = consumer.metrics.counts
                await until(lambda: counts["already_acked"] == 1)
                assert client.zcard(queue.keys.delayed) == 0
                [still] = client.xpending_range(queue.keys.stream, "default", "-", "+", 9)
                assert still["consumer"] == b"other"


async def test_a_reader_without_room_waits_and_does_not_spin(
    portable_server: Server, queue_name: str
) -> None:
    """The keeper takes the read-ahead back while every worker is busy."""
    async with AsyncQueue(queue_name, portable_server.url) as queue:
        desk = ConsumerState(queue, ConsumerConfig(concurrency=2))
        desk.finished_runs = 100  # in no time, so that much is read ahead
        assert await desk.wait_for_capacity() > 2
        desk.reserve(2)
        desk.prefetch = 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(desk.wait_for_capacity(), 0.2)
