"""What runs again and what is missing after a server is restored from an older snapshot.

docs/backup.md describes what these tests show.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


@pytest.fixture
def own_server(valkey_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer.start(valkey_server.binary) as server:
        yield server


def snapshot(server: RedisServer) -> None:
    """Save a snapshot and keep it aside."""
    with redis.Redis(port=server.port) as client:
        client.save()
    shutil.copy(server.folder / "dump.rdb", server.folder / "backup.rdb")


def restore(server: RedisServer) -> None:
    server.kill()
    shutil.copy(server.folder / "backup.rdb", server.folder / "dump.rdb")
    server.restart()


def run_all(server: RedisServer, queue: Queue) -> list[Any]:
    """Run every job of the queue, and return the payloads in the order of the runs."""
    executed: list[Any] = []

    async def handle(job: Any) -> None:
        executed.append(job.payload)

    def is_empty() -> bool:
        depth = queue.depth()
        return depth.waiting + depth.running + depth.delayed == 0

    with working(Server(server.url, "portable"), queue.name, handle):
        wait_until(is_empty, 30, "an empty queue")
    return executed


def test_jobs_that_finished_after_the_snapshot_run_again(
    own_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, own_server.url) as queue:
        queue.add_many([{"payload": n} for n in range(10)])
        queue.add(10, delay=timedelta(milliseconds=50))
        snapshot(own_server)
        assert sorted(run_all(own_server, queue)) == list(range(11))
        restore(own_server)
        assert sorted(run_all(own_server, queue)) == list(range(11))


def test_jobs_that_were_added_after_the_snapshot_are_missing_until_they_are_sent_again(
    own_server: RedisServer, queue_name: str
) -> None:
    """Sending everything again under the same ids adds exactly what is missing."""
    ids = [f"order-{n}" for n in range(20)]

    def send(queue: Queue, count: int) -> None:
        for number in range(count):
            queue.add(number, job_id=ids[number], dedup_ttl=timedelta(hours=1))

    with Queue(queue_name, own_server.url) as queue:
        send(queue, 10)
        snapshot(own_server)
        send(queue, 20)
        restore(own_server)
        assert queue.depth().waiting == 10
        send(queue, 20)
        assert sorted(run_all(own_server, queue)) == list(range(20))


def test_a_batch_that_was_sent_after_the_snapshot_is_completed_by_the_same_call(
    own_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, own_server.url) as queue:
        queue.add_batch_part("orders", 0, range(600))
        snapshot(own_server)
        queue.add_batch(range(1000), batch_id="orders")
        restore(own_server)
        assert queue.depth().waiting == 600
        queue.add_batch(range(1000), batch_id="orders")
        assert sorted(run_all(own_server, queue)) == list(range(1000))
        progress = queue.batch_progress("orders")
        assert (progress.total, progress.done, progress.dead) == (1000, 1000, 0)


def test_an_airflow_wait_sees_the_restored_batch_and_not_the_lost_one(
    own_server: RedisServer, queue_name: str
) -> None:
    """Done bits of the lost time are gone as well, so a wait ends only after the second run."""
    with Queue(queue_name, own_server.url) as queue:
        queue.add_batch(range(30), batch_id="nightly")
        snapshot(own_server)
        run_all(own_server, queue)
        assert queue.batch_progress("nightly").done == 30
        restore(own_server)
        assert queue.batch_progress("nightly").done == 0
        run_all(own_server, queue)
        assert queue.batch_progress("nightly").done == 30
