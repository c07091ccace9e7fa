"""Sentinel: the master is killed, the replica is promoted, and adds continue, each once."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@dataclass
class Fleet:
    """A master, a replica, and three sentinels that monitor them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    def url(self, **options: object) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"redis+sentinel://:pw@{hosts}/main/0?{query}"

    def address(self) -> int:
        """Return the port of the master that the sentinels report."""
        for sentinel in self.sentinels:
            try:
                with admin(sentinel) as client:
                    reply = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
                    return int(reply[1])
            except redis.ConnectionError:
                continue
        raise AssertionError("no sentinel replies")


def start_sentinel(binary: Path, port: int) -> RedisServer:
    config = "\n".join(
        [
            f"sentinel monitor main 127.0.0.1 {port} 2",
            "sentinel auth-pass main pw",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 3000",
            "sentinel parallel-syncs main 1",
        ]
    )
    return RedisServer.start(binary, "--sentinel", config=config + "\n")


@pytest.fixture
def fleet(redis86_binary: Path) -> Iterator[Fleet]:
    login = ("--requirepass", "pw", "--masterauth", "pw")
    servers: list[RedisServer] = []
    try:
        master = RedisServer.start(redis86_binary, *login, "--repl-diskless-sync-delay", "0")
        servers.append(master)
        replica_options = ("--replicaof", "127.0.0.1", str(master.port))
        replica = RedisServer.start(redis86_binary, *login, *replica_options)
        servers.append(replica)
        with admin(replica, password="pw") as client:
            wait_until(
                lambda: client.info("replication")["master_link_status"] == "up",
                20,
                "the replication",
            )
        sentinels = [start_sentinel(redis86_binary, master.port) for _ in range(3)]
        servers += sentinels
        _wait_for_quorum(sentinels)
        yield Fleet(master, replica, sentinels)
    finally:
        for server in servers:
            server.close()


def _wait_for_quorum(sentinels: list[RedisServer]) -> None:
    for sentinel in sentinels:
        with admin(sentinel) as client:
            wait_until(
                lambda client=client: _known_peers(client) == ("2", "1"),
                30,
                "the discovery of two sentinels and one replica",
                interval=0.05,
            )


def _known_peers(sentinel: redis.Redis) -> tuple[str, str]:
    """Return how many other sentinels and replicas a sentinel knows."""
    reply: Any = sentinel.execute_command("SENTINEL", "MASTER", "main")
    pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    fields = {_text(key): _text(value) for key, value in pairs.items()}
    return fields["num-other-sentinels"], fields["num-slaves"]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_adds_continue_after_the_master_is_killed(
    open_queue: Open, fleet: Fleet, queue_name: str
) -> None:
    queue = open_queue(queue_name, fleet.url(retries=40, timeout=2))
    added = [queue.add({"n": n}).job_id for n in range(20)]
    with admin(fleet.master, password="pw") as client:
        assert client.execute_command("WAIT", 1, 5000) == 1
    kill = threading.Timer(0.2, fleet.master.kill)
    kill.start()
    deadline = time.monotonic() + 60
    while fleet.address() != fleet.replica.port:
        assert time.monotonic() < deadline, "the replica was not promoted within 60 s"
        added.append(queue.add({"n": len(added)}).job_id)
        time.sleep(0.01)  # the replica keeps up, so at most the last add can be lost
    kill.join()
    added += [queue.add({"n": n}).job_id for n in range(20)]
    added += queue.add_many([{"payload": n} for n in range(600)]).job_ids
    batch = queue.add_batch(range(600), batch_id="b")
    assert batch.total == 600
    assert len(set(added)) == len(added)
    length = stream_length(fleet.replica, queue_name, password="pw")
    # Replication is asynchronous: the last add before the kill may be lost. None exists twice.
    assert len(added) + 600 - 1 <= length <= len(added) + 600


def test_adds_continue_after_a_manual_failover(
    open_queue: Open, fleet: Fleet, queue_name: str
) -> None:
    queue = open_queue(queue_name, fleet.url(retries=40, timeout=2))
    queue.add(0)
    with admin(fleet.sentinels[0]) as client:
        client.execute_command("SENTINEL", "FAILOVER", "main")
    added = 1
    deadline = time.monotonic() + 60
    while fleet.address() != fleet.replica.port:
        assert time.monotonic() < deadline, "the replica was not promoted within 60 s"
        queue.add_many([{"payload": n} for n in range(10)])
        added += 10
    with admin(fleet.master, password="pw") as client:
        wait_until(lambda: client.info("replication")["role"] != "master", 60, "the demotion")
    before = stream_length(fleet.replica, queue_name, password="pw")
    # Adds to the old master before its demotion may be lost. None exists twice.
    assert 1 <= before <= added
    queue.add_many([{"payload": n} for n in range(50)])
    assert stream_length(fleet.replica, queue_name, password="pw") == before + 50


def test_a_dead_sentinel_is_skipped(open_queue: Open, fleet: Fleet, queue_name: str) -> None:
    fleet.sentinels[0].kill()
    started_at = time.monotonic()
    assert open_queue(queue_name, fleet.url()).add(1).created
    assert time.monotonic() - started_at < 5


def test_an_unknown_master_and_unreachable_sentinels_are_named(
    fleet: Fleet, queue_name: str
) -> None:
    url = fleet.url(retries=1).replace("/main/", "/unknown/")
    with Queue(queue_name, url) as queue, pytest.raises(ConnectionFailed, match="'unknown'"):
        queue.add(1)
    for sentinel in fleet.sentinels:
        sentinel.kill()
    with (
        Queue(queue_name, fleet.url(retries=1)) as queue,
        pytest.raises(ConnectionFailed, match="master 'main' of sentinels") as info,
    ):
        queue.add(1)
    assert "no reachable sentinel knows the master" in str(info.value)
    assert "redis.client" not in "".join(traceback.format_exception(info.value))


async def test_concurrent_discoveries_lose_no_sentinel(fleet: Fleet) -> None:
    """The first sentinel is down, so every discovery finds the master at another sentinel."""
    fleet.sentinels[0].kill()
    connections = AsyncConnectionManager(RedisTarget.coerce(fleet.url(connect_timeout=2)))
    pool = await connections.pool_for_tag("any")
    manager = pool.factory.sentinel_manager
    before = list(manager.sentinels)
    try:
        addresses = await asyncio.gather(*(manager.discover_master("main") for _ in range(20)))
        assert {port for _, port in addresses} == {fleet.master.port}
        assert sorted(map(id, manager.sentinels)) == sorted(map(id, before))
    finally:
        await connections.close()
