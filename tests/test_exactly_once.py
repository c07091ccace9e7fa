"""Lost replies, concurrent producers and repeated batches: every job is added exactly once."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import decode_delayed_member, decode_envelope
from airflow_provider_chasqui.core.commands.batches import MAX_CHUNK_JOBS
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BatchConflict, QueueFull
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.support.producers import add_unique, in_processes, send_batch
from tests.support.proxy import Cut, CutPolicy, TcpProxy
from tests.support.redis_state import plain_client

HOUR = timedelta(hours=1)

# Processes are slow to start, so these tests run on one server per dialect.
two_servers = pytest.mark.parametrize("server", ["redis8-native", "valkey"], indirect=True)


def waiting(client: Any, queue: Any) -> Counter[Any]:
    """Return the payloads on the stream with their number."""
    rows = client.execute_command("XRANGE", queue.keys.stream, "-", "+")
    return Counter(decode_envelope(fields[1]).payload for _, fields in rows)


def delayed(client: Any, queue: Any) -> Counter[Any]:
    """Return the payloads of the delayed jobs with their number."""
    members = client.zrange(queue.keys.delayed, 0, -1)
    return Counter(decode_delayed_member(member).payload for member in members)


def once(count: int) -> Counter[int]:
    """Return the expected counter: every payload from 0 occurs once."""
    return Counter(range(count))


def cuts(seed: int, up: int, down: int, connections: int = 5) -> CutPolicy:
    """Cut the first connections after a random number of bytes, and no later one."""
    generator = random.Random(seed)

    def policy(number: int) -> Cut | None:
        if number >= connections:
            return None
        if generator.random() < 0.5:
            return Cut("up", generator.randrange(1, up))
        return Cut("down", generator.randrange(1, down))

    return policy


@pytest.mark.parametrize("seed", range(8))
def test_single_adds_are_exact_when_the_connection_is_cut(server, client, queue_name, seed):
    with (
        TcpProxy(server.url, cuts(seed, 2000, 80, 6)) as proxy,
        Queue(queue_name, proxy.url, dialect=server.dialect) as queue,
    ):
        for i in range(20):
            assert queue.add(i, job_name="x").created
        for i in range(20):
            assert queue.add(i, delay=HOUR).created
            assert queue.add(20 + i, job_id=f"id-{i}", delay=HOUR).created
        for i in range(20):
            assert queue.add(20 + i, job_id=f"u-{i}", dedup_ttl=HOUR).created
        assert waiting(client, queue) == once(40)
        assert delayed(client, queue) == once(40)
        assert proxy.cuts > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_bulk_of_ten_thousand_jobs_is_exact_when_the_connection_is_cut(
    server, client, queue_name, seed
):
    jobs = [{"payload": i, "delay": HOUR if i % 2 else None} for i in range(10_000)]
    with (
        TcpProxy(server.url, cuts(seed, 500_000, 5000)) as proxy,
        Queue(queue_name, proxy.url, dialect=server.dialect) as queue,
    ):
        results = queue.add_many(jobs)
        assert len(set(results.job_ids)) == 10_000
        assert all(result.created for result in results)
        assert waiting(client, queue) == Counter(range(0, 10_000, 2))
        assert delayed(client, queue) == Counter(range(1, 10_000, 2))
        assert proxy.cuts > 0


def test_the_jobs_of_one_call_keep_their_order(server, client, queue_name):
    with (
        TcpProxy(server.url, cuts(7, 200_000, 3000)) as proxy,
        Queue(queue_name, proxy.url, dialect=server.dialect) as queue,
    ):
        results = queue.add_many({"payload": i} for i in range(5000))
        assert list(waiting(client, queue)) == list(range(5000))
        assert results.job_ids == sorted(results.job_ids)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delay", [None, HOUR], ids=["now", "delayed"])
def test_a_batch_is_exact_when_the_connection_is_cut(server, client, queue_name, seed, delay):
    options: dict[str, Any] = {} if delay is None else {"delay": delay}
    with (
        TcpProxy(server.url, cuts(seed, 150_000, 60)) as proxy,
        Queue(queue_name, proxy.url, dialect=server.dialect) as queue,
    ):
        assert queue.add_batch(range(3000), batch_id="b", **options).total == 3000
        assert (waiting if delay is None else delayed)(client, queue) == once(3000)
        assert queue.batch_progress("b").total == 3000
        assert proxy.cuts > 0


async def test_concurrent_adds_are_exact_when_their_replies_are_lost(server, client, queue_name):
    """Redis remembers 100 ids per producer id. With one producer id, jobs would be added twice."""
    generator = random.Random(1)

    def policy(number: int) -> Cut | None:
        # The first replies belong to the handshake. The reply to the add comes after them.
        return Cut("down", generator.randrange(8, 34)) if number < 300 else None

    with TcpProxy(server.url, policy) as proxy:
        async with AsyncQueue(queue_name, proxy.url, dialect=server.dialect) as queue:
            await asyncio.gather(*(queue.add(i) for i in range(250)))
            assert waiting(client, queue) == once(250)
            assert proxy.cuts > 100


def test_max_len_is_exact_with_eight_producers(server, client, queue_name):
    max_len = 500
    added, exceeded = [0] * 8, []
    start = threading.Barrier(9)
    done = threading.Event()

    def produce(number: int) -> None:
        config = QueueConfig(max_len=max_len)
        with Queue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
            start.wait()
            for turn in range(200):
                try:
                    if number % 2:
                        size = 1 + turn % 7
                        added[number] += len(queue.add_many({"payload": i} for i in range(size)))
                    else:
                        queue.add(turn)
                        added[number] += 1
                except QueueFull as error:
                    assert error.code == "CMQ-300"  # noqa: PT017

    def check_length() -> None:
        with plain_client(server.url) as observer:
            start.wait()
            while not done.is_set():
                length = observer.xlen(f"{{chasqui:{queue_name}}}:stream")
                if length > max_len:
                    exceeded.append(length)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    checker = threading.Thread(target=check_length)
    for thread in (*threads, checker):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    checker.join()
    stream = f"{{chasqui:{queue_name}}}:stream"
    assert exceeded == []
    assert client.xlen(stream) == sum(added) == max_len
    assert client.xinfo_stream(stream)["max-deleted-entry-id"] == b"0-0"


def test_a_bulk_that_fills_the_queue_adds_its_first_jobs(server, client, queue_name):
    config = QueueConfig(max_len=600)
    with Queue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        with pytest.raises(QueueFull, match=r"512 of 1000 jobs were added"):
            queue.add_many({"payload": i} for i in range(1000))
        assert waiting(client, queue) == once(512)
        with pytest.raises(QueueFull):
            queue.add_batch(range(100), batch_id="b")
        assert client.xlen(queue.keys.stream) == 512


TOTAL = 700
BOUNDARIES = [
    0,
    1,
    MAX_CHUNK_JOBS - 1,
    MAX_CHUNK_JOBS,
    MAX_CHUNK_JOBS + 1,
    2 * MAX_CHUNK_JOBS,
    2 * MAX_CHUNK_JOBS + 1,
    TOTAL,
]


class Interrupted(Exception):
    """Interruption of a producer between two payloads."""


@pytest.mark.parametrize("position", BOUNDARIES)
def test_an_interrupted_batch_continues(server, client, queue_name, position):
    def payloads(until: int) -> Iterator[int]:
        for i in range(TOTAL):
            if i == until:
                raise Interrupted
            yield i
        raise Interrupted

    # With max_len each chunk is sent alone, so the interruption falls between two chunks.
    config = QueueConfig(max_len=10_000)
    with Queue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        for until in (position, position + 1):
            with pytest.raises(Interrupted):
                queue.add_batch(payloads(until), batch_id="b")
        progress = client.exists(queue.keys.batch("b")) and queue.batch_progress("b")
        assert not progress or not progress.finished
        for _ in range(2):
            assert queue.add_batch(range(TOTAL), batch_id="b").total == TOTAL
        assert waiting(client, queue) == once(TOTAL)
        for other in (TOTAL - 1, TOTAL + 1, TOTAL + 600):
            with pytest.raises(BatchConflict):
                queue.add_batch(range(other), batch_id="b")
        assert client.xlen(queue.keys.stream) == TOTAL


@two_servers
@pytest.mark.timeout(120)
def test_a_batch_sent_by_four_processes_is_added_once(server, client, queue_name):
    args = (server.url, server.dialect, queue_name, "b", 20_000)
    assert in_processes(4, send_batch, *args) == [(20_000, 1)] * 4
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        assert waiting(client, queue) == once(20_000)
        assert queue.batch_progress("b").total == 20_000


@two_servers
@pytest.mark.timeout(120)
def test_a_unique_id_is_added_once_across_processes(server, client, queue_name):
    created = in_processes(4, add_unique, server.url, server.dialect, queue_name, 200)
    assert sum(created) == 600
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        assert waiting(client, queue) == Counter([*range(200), *range(200)])
        assert delayed(client, queue) == once(200)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_queue_may_be_used_on_both_sides_of_a_fork(server, client, queue_name):
    """With the same idempotency ids, Redis would drop the adds of the children as duplicates."""
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        queue.add(0)
        for child in range(1, 4):
            if not (pid := os.fork()):
                try:
                    queue.add(child)
                    queue.add_many([{"payload": child * 10 + i} for i in range(3)])
                finally:
                    os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        queue.add(9)
        expected = [0, 9, *(child for child in range(1, 4))]
        expected += [child * 10 + i for child in range(1, 4) for i in range(3)]
        assert waiting(client, queue) == Counter(expected)
        rows = client.execute_command("XRANGE", queue.keys.stream, "-", "+")
        assert len({entry_id for entry_id, _ in rows}) == 14


def test_the_same_id_twice_is_two_jobs_without_a_dedup_ttl(server, client, queue_name):
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        assert [queue.add(i, job_id="same").created for i in range(2)] == [True, True]
        unique = [queue.add(i, job_id="other", dedup_ttl=HOUR).created for i in range(2)]
        assert unique == [True, False]
        results = queue.add_many([{"payload": 1, "job_id": "same"}] * 2)
        assert [result.created for result in results] == [True, True]
        assert client.xlen(queue.keys.stream) == 5
