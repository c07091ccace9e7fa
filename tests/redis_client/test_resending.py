"""Commands that are sent again: their order, another dialect, and a server that stood still."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.commands import enqueue, inspect
from airflow_provider_chasqui.core.commands.consumer_group import NO_SIZE_LIMIT, parse_entry
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import ConnectionFailed, InvalidArgument
from airflow_provider_chasqui.core.job import Job, NewJob, StreamEntry
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server
from tests.redis_client.conftest import Open, SyncAdapter, admin, stream_length
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer, valkey_binary


def job_ids(queue: SyncAdapter) -> list[str]:
    """Return the ids of the jobs in the stream, in their order."""
    entries = queue.run(inspect.read_entries(queue.keys, "-", 10_000))
    parsed = [parse_entry(entry, NO_SIZE_LIMIT) for entry in entries]
    return [entry.job.id for entry in parsed if isinstance(entry, StreamEntry)]


@pytest.mark.parametrize("count", [257, 513, 600])
def test_one_call_keeps_its_order_when_the_scripts_are_not_loaded(
    open_queue: Open, own_binary: Path, queue_name: str, count: int
) -> None:
    with RedisServer.start(own_binary) as own, admin(own) as client:
        queue = open_queue(queue_name, own.url)
        queue.dialect()
        client.script_flush()
        ids = [f"j{number}" for number in range(count)]
        assert queue.add_many([NewJob(0, job_id=job_id) for job_id in ids]).job_ids == ids
        assert job_ids(queue) == ids
        client.script_flush()
        more = queue.add_many([{"payload": number} for number in range(count)]).job_ids
        assert job_ids(queue) == [*ids, *more]


def test_a_chunk_is_refused_if_the_one_before_was_not_added(queue: Queue, server: Server) -> None:
    """A cluster that migrates the queue may refuse one chunk of a pipeline and run the next."""
    job = EncodedJob("j", b"", b"\x94", None, 0, True)
    simple = enqueue.SimpleJobs([b"1"], [""])
    commands = [
        enqueue.add_jobs(queue.keys, [job], 0, "second", "first"),
        enqueue.add_simple_chunk(queue.keys, simple, ["i" * 26], 9, "third", "first"),
    ]
    for error in queue.client.pipeline_with_errors(commands):
        assert "were not added" in str(error)
    assert queue.depth().waiting == 0
    queue.client.execute(enqueue.add_jobs(queue.keys, [job], 0, "first"))
    assert queue.client.pipeline_with_errors(commands) == [[True], ["i" * 26]]
    assert queue.depth().waiting == 3


def test_another_dialect_at_the_same_address(
    open_queue: Open, redis86_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(redis86_binary) as own:
        queue = open_queue(queue_name, own.url)
        queue.add(0)
        assert queue.dialect() == "native"
        own.kill()
        own.binary = valkey_binary()
        own.restart()
        assert queue.add(1).created
        assert queue.dialect() == "portable"
        assert len(queue.add_many([{"payload": n} for n in range(300)]).job_ids) == 300
        assert queue.add(1, delay=timedelta(hours=1)).created
        assert (queue.depth().waiting, queue.depth().delayed) == (301, 1)


async def test_a_worker_notices_another_dialect_at_the_same_address(
    redis86_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(redis86_binary) as own:
        done: list[int] = []
        finished = asyncio.Event()

        async def handle(job: Job) -> None:
            done.append(job.payload)
            if len(done) == 2:
                finished.set()

        async with AsyncQueue(queue_name, own.url) as queue:
            consumer = Consumer(
                queue, handle, ConsumerConfig(block_timeout=timedelta(milliseconds=200))
            )
            task = asyncio.create_task(consumer.run())
            await queue.add(1)
            async with asyncio.timeout(20):
                while done != [1]:
                    await asyncio.sleep(0.01)
                own.kill()
                own.binary = valkey_binary()
                await asyncio.to_thread(own.restart)
                await queue.add(2)
                await finished.wait()
            consumer.stop()
            await task
        assert done == [1, 2]


def test_a_server_that_stands_still_receives_no_second_copy_of_an_add(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    """A copy would be added a second time after the idempotency id has expired.

    Every new connection begins with a round trip. A server that stands still does not complete it,
    so the add is not sent again.
    """
    with RedisServer.start(own_binary) as own, TcpProxy(own.url) as proxy, admin(own) as client:
        queue = open_queue(queue_name, f"{proxy.url}?timeout=0.3&connect_timeout=0.3&retries=4")
        queue.add(0)
        client.config_resetstat()
        proxy.hold_replies()

        def stand_still() -> None:
            proxy.wait_for_reply()
            own.pause()
            proxy.disconnect_all()

        stopper = threading.Thread(target=stand_still)
        stopper.start()
        with pytest.raises(ConnectionFailed):
            queue.add(1)
        stopper.join()
        own.resume()
        assert queue.depth().waiting == 2
        calls = client.info("commandstats")
        assert calls["cmdstat_xadd"]["calls"] == 1
        assert calls.get("cmdstat_evalsha", {"calls": 0})["calls"] <= 1
        assert stream_length(own, queue_name) == 2


def test_a_repeat_that_never_runs_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        queue.repeat(1, Every(1000), limit=0)
