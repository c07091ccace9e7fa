"""Partitions: keys keep their queue and order while consumers join, leave and crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidLeaseConfig, QueueExists
from airflow_provider_chasqui.core.partition import Assignment, PartitionTracker, partition_of
from airflow_provider_chasqui.lease import AsyncPartitionedQueue, LeaseConfig, PartitionedQueue
from tests.lease.conftest import LONG, MS
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
QUICK = timedelta(milliseconds=300)


@pytest.fixture
def partitioned(server: Any, queue_name: str) -> Iterator[Callable[..., PartitionedQueue]]:
    opened: list[PartitionedQueue] = []

    def open_one(partitions: int = 6) -> PartitionedQueue:
        opened.append(
            PartitionedQueue(queue_name, server.url, dialect=server.dialect, partitions=partitions)
        )
        return opened[-1]

    yield open_one
    for partitioned_queue in opened:
        partitioned_queue.close()


def test_the_partition_of_a_key_never_changes() -> None:
    """The partition is the CRC-32 of the UTF-8 bytes; these numbers must never change."""
    assert [partition_of(key, 16) for key in ("", "a", "customer-7", "ключ", b"a")] == [
        0, 3, 8, 10, 3,
    ]  # fmt: skip
    spread = [partition_of(f"key-{i}", 8) for i in range(8000)]
    assert all(800 < spread.count(partition) < 1200 for partition in range(8))
    with pytest.raises(InvalidArgument):
        partition_of(7, 8)  # type: ignore[arg-type]


def test_a_partition_is_released_only_after_it_is_drained() -> None:
    share = PartitionTracker(300)
    share.update(Assignment((0,), (1, 2), ("a", "b")), 1000)
    share._lease_deadlines = {1: {"5-0": 2000}}
    assert share.releasable(1500) == [2]
    assert share.releasable(2000) == [1, 2], "a lease that ran out holds nothing up"
    assert not share.is_expired(1299)
    assert share.is_expired(1300)


def test_partition_ranges_are_rebalanced(partitioned: Callable[..., PartitionedQueue]) -> None:
    queue = partitioned()
    with queue.join("a", session_timeout=QUICK) as a:
        assert a.partitions == (0, 1, 2, 3, 4, 5)
        with queue.join("b", session_timeout=QUICK) as b:
            wait_until(lambda: (a.partitions, b.partitions) == ((0, 1, 2), (3, 4, 5)))
            with queue.join("c", session_timeout=QUICK) as c:
                wait_until(lambda: (a.partitions, b.partitions, c.partitions)
                      == ((0, 1), (2, 3), (4, 5)))  # fmt: skip
                assert c.members == ("a", "b", "c")
            wait_until(lambda: (a.partitions, b.partitions) == ((0, 1, 2), (3, 4, 5)))
        wait_until(lambda: a.partitions == (0, 1, 2, 3, 4, 5))


def key_of(queue: PartitionedQueue, partition: int) -> str:
    return next(f"k{i}" for i in range(1000) if queue.partition_of(f"k{i}") == partition)


def test_active_leases_are_drained_before_a_partition_moves(
    partitioned: Callable[..., PartitionedQueue],
) -> None:
    queue = partitioned(2)
    for partition in (0, 1):
        queue.produce(key_of(queue, partition), [f"{partition}-{i}" for i in range(2)])
    with queue.join("a", session_timeout=QUICK) as a:
        leases = a.lease(2)
        moving = [lease for lease in leases if lease.payload.startswith("1-")]
        while not moving:
            leases += a.lease(2)
            moving = [lease for lease in leases if lease.payload.startswith("1-")]
        with queue.join("b", session_timeout=QUICK) as b:
            wait_until(lambda: a.partitions == (0,))
            assert b.partitions == (), "a still has work of it in hand"
            a.ack(*leases)
            wait_until(lambda: b.partitions == (1,))
            queue.produce(key_of(queue, 1), ["1-2"])
            got = b.lease(5, wait=LONG)
            assert [lease.payload for lease in got] == ["1-2"]
            b.ack(*got)


def test_a_dead_consumer_is_replaced_without_reordering(
    partitioned: Callable[..., PartitionedQueue],
) -> None:
    queue = partitioned(1)
    queue.produce("k", [0, 1])
    dead = queue.join("a", session_timeout=QUICK)
    dead.send_heartbeat()
    (held,) = dead.lease(visibility_timeout=timedelta(seconds=1))
    with queue.join("b", session_timeout=QUICK) as b:
        assert b.partitions == ()
        wait_until(lambda: b.partitions == (0,))
        assert b.lease() == [], "the lease of the dead still stands"
        first, second = b.lease(2, wait=LONG)
        assert [first.payload, second.payload] == [0, 1]
        assert first.fencing_token > held.fencing_token
        assert first.deliveries == 2


def test_all_clients_must_use_the_same_partition_count(
    partitioned: Callable[..., PartitionedQueue],
) -> None:
    with (
        partitioned(6).join("a"),
        pytest.raises(QueueExists, match="6 partitions"),
        partitioned(7).join("b"),
    ):
        pass
    for bad in (0, 5000, True):
        with pytest.raises(InvalidLeaseConfig):
            partitioned(bad)
    queue = partitioned(6)
    with pytest.raises(InvalidArgument):
        queue.queue(6)
    with queue.join("c") as consumer, pytest.raises(InvalidArgument):
        consumer.ack('["other#1","1-0","c",1,1,"","",1]')


async def test_the_asyncio_queue_behaves_the_same(server: Any, queue_name: str) -> None:
    queue = AsyncPartitionedQueue(queue_name, server.url, dialect=server.dialect, partitions=3)
    await queue.produce("k", ["x", "y"])
    async with queue.join("a", session_timeout=QUICK) as a:
        assert a.partitions == (0, 1, 2)
        got = []
        while len(got) < 2:
            got += await a.lease(2, wait=LONG)
        assert [lease.payload for lease in got] == ["x", "y"]
        await a.extend(*got)
        await a.ack(got[0].token)
        await a.nack(got[1], delay=100 * MS)
        (again,) = await a.lease(2, wait=LONG)
        await a.ack(again)
    assert sum(stats.length for stats in await queue.stats()) == 0
    await queue.close()


_CONSUME = """
import sys, threading, time
from datetime import timedelta
from airflow_provider_chasqui.core.errors import LeaseLost
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.lease import LeaseConfig, PartitionedQueue

url, name, consumer = sys.argv[1:]
GUARD = '''
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or '0') then return 'stale' end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
return 'ok'
'''
config = LeaseConfig(mode="exclusive", ordered=True, on_max_deliveries="block", max_deliveries=1000,
                     visibility_timeout=timedelta(milliseconds=800))
queue = PartitionedQueue(name, url, partitions=6, config=config)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
# Long enough for a busy machine: a process without heartbeats loses its leases.
with queue.join(consumer, session_timeout=timedelta(seconds=3)) as me:
    while not me.partitions:
        time.sleep(0.02)
        me.send_heartbeat()
    print("up", flush=True)
    while not stop.is_set():
        for lease in me.lease(4, wait=timedelta(milliseconds=200)):
            client = queue.queue(int(lease.handle.queue_name.rpartition('#')[2])).client
            tag = '{chasqui:' + lease.handle.queue_name + '}'
            guard = redis_command('EVAL', GUARD, 2, tag + ':guard', tag + ':log',
                            lease.fencing_token,
                            f"{lease.payload['key']} {lease.payload['n']} {consumer}", parse=as_raw)
            if client.execute(guard) == b'stale':
                break
            try:
                me.ack(lease)
            except LeaseLost:
                break
"""


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.xdist_group("lease-cluster")
def test_on_a_cluster_keys_keep_their_order_while_a_consumer_is_killed(
    redis86_binary: Path, queue_name: str
) -> None:
    """Three nodes, six partitions, three processes. One is killed and another one joins later."""
    from tests.redis_client.test_cluster import started

    keys = [f"key-{i}" for i in range(12)]
    with started(redis86_binary) as cluster:
        url = cluster.url()

        def start(name: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-c", _CONSUME, url, queue_name, name],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

        config = LeaseConfig(
            mode="exclusive", ordered=True, on_max_deliveries="block", max_deliveries=1000
        )
        with PartitionedQueue(queue_name, url, partitions=6, config=config) as queue:
            holders = {cluster.owner(f"{queue_name}#{i}").port for i in range(6)}
            assert len(holders) > 1, "all partitions are on one node"
            consumers = {name: start(name) for name in ("a", "b", "c")}
            for process in consumers.values():
                assert process.stdout.readline() == "up\n"

            def produce(first: int, last: int) -> None:
                for n in range(first, last):
                    for key in keys:
                        queue.produce(key, [{"key": key, "n": n}])

            def log() -> dict[int, list[list[str]]]:
                log_lines = {}
                for i in range(6):
                    partition_queue = queue.queue(i)
                    key = f"{partition_queue.keys.hash_tag}:log"
                    lines = partition_queue.client.execute(
                        redis_command("LRANGE", key, 0, -1, parse=as_raw)
                    )
                    log_lines[i] = [line.decode().split() for line in lines]
                return log_lines

            produce(0, 10)
            os.kill(consumers["b"].pid, signal.SIGKILL)
            produce(10, 20)
            consumers["d"] = start("d")
            produce(20, 25)
            wait_until(lambda: sum(stats.length for stats in queue.stats()) == 0, 60)
            for name in ("a", "c", "d"):
                consumers[name].communicate("stop\n", timeout=30)
                assert consumers[name].returncode == 0
            consumers["b"].communicate()
            order: dict[str, list[int]] = defaultdict(list)
            workers = set()
            for partition, lines in log().items():
                for key, n, worker in lines:
                    assert partition_of(key, 6) == partition
                    order[key].append(int(n))
                    workers.add(worker)
            assert set(order) == set(keys)
            for key, numbers in order.items():
                assert numbers == sorted(numbers), f"{key} out of order"
                assert list(dict.fromkeys(numbers)) == list(range(25)), f"{key} lost a message"
            assert {"a", "c"} <= workers
