"""Redis Cluster: three masters, slots that migrate, and a node that dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager
from airflow_provider_chasqui.redis_client.target import from_url
from tests.redis_client.conftest import Open, admin
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

SHARES = [(0, 5460), (5461, 10922), (10923, 16383)]


@dataclass
class Cluster:
    """A running cluster. Its first three nodes are masters."""

    nodes: list[RedisServer]

    def url(self, **options: object) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"redis+cluster://{hosts}/?{query}"

    def id_of(self, node: RedisServer) -> str:
        with admin(node) as client:
            raw = client.execute_command("CLUSTER", "MYID")
        return raw.decode() if isinstance(raw, bytes) else str(raw)

    def owner(self, queue: str) -> RedisServer:
        """Return the node that holds a queue."""

        def find() -> RedisServer | None:
            for node in self.nodes:
                if not node.alive:
                    continue
                with admin(node) as client, suppress(redis.ResponseError):
                    client.execute_command("EXISTS", f"{{chasqui:{queue}}}:stream")
                    return node
            return None

        # Shortly after a change, every node may redirect to another one.
        node = wait_until(find, 15, f"a node holding the queue {queue}", interval=0.05)
        assert node is not None
        return node

    def length(self, queue: str) -> int:
        with admin(self.owner(queue)) as client:
            return int(client.xlen(f"{{chasqui:{queue}}}:stream"))


@contextmanager
def started(binary: Path, replicas: int = 0) -> Iterator[Cluster]:
    """Start a cluster of three masters, and replicas of the first ones."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
    options += ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
    options += ("--cluster-replica-validity-factor", "0")
    nodes: list[RedisServer] = []
    try:
        while len(nodes) < 3 + replicas:
            nodes.append(RedisServer.start(binary, *options))
        for number, (first, last) in enumerate(SHARES):
            with admin(nodes[number]) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            with admin(nodes[0]) as client:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        cluster = Cluster(nodes)
        for node in nodes:
            wait_until(lambda node=node: _knows(node, len(nodes)), 30, "the meeting of the nodes")
        for number, replica in enumerate(nodes[3:]):
            with admin(replica) as client:
                client.execute_command("CLUSTER", "REPLICATE", cluster.id_of(nodes[number]))
            wait_until(lambda replica=replica: _replicates(replica), 30, "the replication")
        yield cluster
    finally:
        for node in nodes:
            node.close()


def _knows(node: RedisServer, count: int) -> bool:
    with admin(node) as client:
        client.set_response_callback("CLUSTER INFO", bytes)
        info = client.execute_command("CLUSTER INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % count in info


def _replicates(node: RedisServer) -> bool:
    with admin(node) as client:
        return bool(client.info("replication").get("master_link_status") == "up")


@pytest.fixture(scope="module")
def cluster(redis86_binary: Path) -> Iterator[Cluster]:
    with started(redis86_binary) as cluster:
        yield cluster


def test_queues_are_distributed_over_the_nodes(cluster: Cluster, queue_name: str) -> None:
    manager = ConnectionManager(from_url(cluster.url()))
    names = [f"{queue_name}-{number}" for number in range(12)]
    for name in names:
        with Queue(name, manager) as queue:
            queue.add_many([{"payload": n} for n in range(5)])
            assert queue.depth().waiting == 5
    assert {cluster.owner(name).port for name in names} == {node.port for node in cluster.nodes}
    manager.close()


def test_every_method_uses_one_slot(open_queue: Open, cluster: Cluster, queue_name: str) -> None:
    queue = open_queue(queue_name, cluster.url())
    hour = timedelta(hours=1)
    assert queue.dialect() == "native"
    job = queue.add({"a": 1}, job_name="n")
    assert queue.add(1, job_id="u", dedup_ttl=hour).created
    assert not queue.add(1, job_id="u", dedup_ttl=hour).created
    assert (
        len(queue.add_many([{"payload": n, "job_id": f"d{n}", "delay": hour} for n in range(9)]))
        == 9
    )
    assert queue.cancel("d0") == "cancelled"
    assert queue.reschedule("d1", delay=hour)
    batch = queue.add_batch(range(3000), batch_id="b")
    assert queue.add_batch(range(3000), batch_id="b") == batch
    assert queue.batch_progress("b").enqueued == 3000
    assert queue.job_status(job.job_id).state == "waiting"
    assert queue.depth().waiting == 3002
    assert queue.depth().delayed == 8


def test_threads_use_queues_on_all_nodes(cluster: Cluster, queue_name: str) -> None:
    manager = ConnectionManager(from_url(cluster.url()))

    def work(number: int) -> int:
        with Queue(f"{queue_name}-{number}", manager) as queue:
            for turn in range(20):
                queue.add(turn)
            return queue.depth().waiting

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [20] * 16
    manager.close()


def test_adds_continue_while_the_keys_of_a_slot_migrate(
    open_queue: Open, cluster: Cluster, queue_name: str
) -> None:
    queue = open_queue(queue_name, cluster.url(retries=30))
    queue.add_batch(range(500), batch_id="before")
    slot = key_slot(queue.keys.hash_tag.encode())
    old = cluster.owner(queue_name)
    new = next(node for node in cluster.nodes if node.port != old.port)
    with admin(old) as source, admin(new) as sink:
        sink.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
        # The stream is still at the old node, and a new key is created at the other one (ASK).
        queue.add(1)
        queue.run(redis_command("SET", queue.keys.result("x"), b"\x07", "EX", 60, parse=as_raw))
        assert queue.result("x") == 7
        assert sink.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
        # A call that needs keys of both nodes waits until the migration is done (TRYAGAIN).
        done = threading.Event()

        def move() -> None:
            time.sleep(0.3)
            while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
            for client in (sink, source):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
            done.set()

        mover = threading.Thread(target=move)
        mover.start()
        queue.add_batch(range(500, 1000), batch_id="during")
        assert done.wait(20)
        mover.join()
    # Now the slot is at the other node (MOVED).
    queue.add(2)
    queue.add_batch(range(500), batch_id="after")
    assert cluster.owner(queue_name).port == new.port
    assert cluster.length(queue_name) == 500 + 1 + 500 + 1 + 500
    assert queue.result("x") == 7


@pytest.mark.parametrize("dialect", ["native", "portable"])
async def test_a_worker_runs_jobs_while_the_keys_of_a_slot_migrate(
    cluster: Cluster, queue_name: str, dialect: str
) -> None:
    """The slot belongs to the old node, and the stream is already at the new one (ASK)."""
    started_jobs: list[str] = []

    async def handle(job) -> None:
        started_jobs.append(job.id)

    async with AsyncQueue(queue_name, cluster.url(), dialect=dialect) as queue:
        await queue.add(1, job_id="before")
        # Without a promoter: its script needs keys of both nodes and waits for the migration.
        config = ConsumerConfig(promoter=None, scheduler=None, claim_after=timedelta(seconds=1))
        consumer = Consumer(queue, handle, config)
        task = asyncio.create_task(consumer.run())
        await wait_until_async(lambda: started_jobs == ["before"])
        stream, slot = queue.keys.stream, key_slot(queue.keys.hash_tag.encode())
        old = cluster.owner(queue_name)
        new = next(node for node in cluster.nodes if node.port != old.port)
        with admin(old) as source, admin(new) as sink:
            sink.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
            source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
            source.execute_command("MIGRATE", "127.0.0.1", new.port, stream, 0, 5000)
            for number in range(3):
                sink.execute_command("ASKING")
                sink.xadd(stream, {"d": encode_job(Job(f"during-{number}", b"\x01", 1))})
                await wait_until_async(lambda number=number: started_jobs[-1] == f"during-{number}")
            while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
            for client in (sink, source):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
        await queue.add(2, job_id="after")
        await wait_until_async(lambda: started_jobs[-1] == "after")
        consumer.stop()
        await task


def test_adds_continue_while_a_slot_migrates_atomically(
    open_queue: Open, cluster: Cluster, queue_name: str
) -> None:
    queue = open_queue(queue_name, cluster.url(retries=30))
    slot = key_slot(queue.keys.hash_tag.encode())
    queue.add(0)
    old = cluster.owner(queue_name)
    new = next(node for node in cluster.nodes if node.port != old.port)
    with admin(new) as client:
        client.execute_command("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
    added = 1
    deadline = time.monotonic() + 30
    while cluster.owner(queue_name).port == old.port:
        assert time.monotonic() < deadline, f"slot {slot} was not migrated within 30 s"
        queue.add(added)
        queue.add_many([{"payload": n} for n in range(300)])
        added += 301
    queue.add(added)
    assert cluster.length(queue_name) == added + 1


def test_connections_to_a_node_that_left_the_cluster_are_closed(
    cluster: Cluster, valkey_server: RedisServer, queue_name: str
) -> None:
    manager = ConnectionManager(from_url(cluster.url()))
    with Queue(queue_name, manager) as queue:
        queue.add(1)
        # A connection to a server that is not in the slot table, as after CLUSTER FORGET.
        former = manager.pool_for_node(("127.0.0.1", valkey_server.port))
        former.release(former.acquire())
        manager.invalidate_topology()
        in_use = former.acquire()
        queue.add(2)
        assert ("127.0.0.1", valkey_server.port) not in manager._pools
        former.release(in_use)
        assert not former._idle
        assert queue.depth().waiting == 2
    manager.close()


def test_a_stale_slot_table_is_read_again(cluster: Cluster, queue_name: str) -> None:
    with Queue(queue_name, cluster.url()) as first, Queue(queue_name, cluster.url()) as second:
        first.add(0)
        second.add(0)
        slot = key_slot(first.keys.hash_tag.encode())
        old = cluster.owner(queue_name)
        new = next(node for node in cluster.nodes if node.port != old.port)
        with admin(old) as source, admin(new) as sink:
            sink.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
            source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
            while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
            for client in (sink, source):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
        for queue in (first, second):
            queue.add(1)
            queue.add_many([{"payload": n} for n in range(600)])
        assert cluster.length(queue_name) == 2 + 2 * 601


@pytest.mark.parametrize("replicas", [0, 3], ids=["without a replica", "with a replica"])
def test_a_queue_whose_node_dies_moves_to_the_replica_or_fails(
    open_queue: Open, redis86_binary: Path, queue_name: str, replicas: int
) -> None:
    with started(redis86_binary, replicas) as cluster:
        # The node that dies is also the first one in the URL.
        names = (f"{queue_name}-{n}" for n in range(99))
        name = next(name for name in names if _slot_of(name) <= SHARES[0][1])
        queue = open_queue(name, cluster.url(retries=30 if replicas else 3, timeout=2))
        queue.add_many([{"payload": n} for n in range(100)])
        with admin(cluster.nodes[0]) as client:
            if replicas:
                assert client.execute_command("WAIT", 1, 5000) == 1
        cluster.nodes[0].kill()
        if replicas:
            queue.add(100)
            queue.add_batch(range(300), batch_id="b")
            assert queue.depth().waiting == 401
        else:
            with pytest.raises(ConnectionFailed) as info:
                queue.add(100)
            assert str(info.value).startswith("[CMQ-001]")
            # The queues of the other nodes are not affected.
            names = (f"{queue_name}-o{n}" for n in range(99))
            other = next(name for name in names if _slot_of(name) > SHARES[0][1])
            assert open_queue(other, cluster.url(retries=30)).add(1).created


def _slot_of(queue: str) -> int:
    return int(key_slot(f"{{chasqui:{queue}}}".encode()))
