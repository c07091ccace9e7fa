"""Sentinel: the master is killed, a replica takes over, and adds go on, each once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@dataclass
class Fleet:
    """A master, a replica, and three sentinels that watch them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    def url(self, **options: object) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"redis+sentinel://:pw@{hosts}/main/0?{query}"

    def address(self) -> int:
        for each in self.sentinels:
            try:
                with admin(each) as client:
                    reply = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
                    return int(reply[1])
            except redis.ConnectionError:
                continue
        raise AssertionError("no sentinel answers")


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
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        replica = RedisServer.start(redis86_binary, *login, *follow)
        servers.append(replica)
        with admin(replica, password="pw") as client:
            deadline = time.monotonic() + 20
            while client.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.02)
        sentinels = [start_sentinel(redis86_binary, master.port) for _ in range(3)]
        servers += sentinels
        _wait_for_quorum(sentinels)
        yield Fleet(master, replica, sentinels)
    finally:
        for each in servers:
            each.close()


def _wait_for_quorum(sentinels: list[RedisServer]) -> None:
    deadline = time.monotonic() + 30
    for each in sentinels:
        with admin(each) as client:
            while True:
                raw = client.execute_command("SENTINEL", "MASTER", "main")
                told = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
                info = {_text(key): _text(value) for key, value in told.items()}
                known = (info["num-other-sentinels"], info["num-slaves"])
                if known == ("2", "1"):
                    break
                assert time.monotonic() < deadline, known
                time.sleep(0.05)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_failover_under_a_live_queue(open_queue: Open, fleet: Fleet, queue_name: str) -> None:
    queue = open_queue(queue_name, fleet.url(retries=40, timeout=2))
    added = [queue.add({"n": n}).id for n in range(20)]
    with admin(fleet.master, password="pw") as client:
        assert client.execute_command("WAIT", 1, 5000) == 1
    kill = threading.Timer(0.2, fleet.master.kill)
    kill.start()
    deadline = time.monotonic() + 60
    while fleet.address() != fleet.replica.port:
        assert time.monotonic() < deadline
        added.append(queue.add({"n": len(added)}).id)
        time.sleep(0.01)  # so that the replica keeps up, and at most the last one can be lost
    kill.join()
    added += [queue.add({"n": n}).id for n in range(20)]
    added += [each.id for each in queue.add_many([{"payload": n} for n in range(600)])]
    batch = queue.add_batch(range(600), batch_id="b")
    assert batch.total == 600
    assert len(set(added)) == len(added)
    length = stream_length(fleet.replica, queue_name, password="pw")
    # Replication does not wait: the last add before the kill may be lost, and none is there twice.
    assert len(added) + 600 - 1 <= length <= len(added) + 600


def test_a_polite_failover_is_followed(open_queue: Open, fleet: Fleet, queue_name: str) -> None:
    queue = open_queue(queue_name, fleet.url(retries=40, timeout=2))
    queue.add(0)
    with admin(fleet.sentinels[0]) as client:
        client.execute_command("SENTINEL", "FAILOVER", "main")
    added = 1
    deadline = time.monotonic() + 60
    while fleet.address() != fleet.replica.port:
        assert time.monotonic() < deadline
        queue.add_many([{"payload": n} for n in range(10)])
        added += 10
    with admin(fleet.master, password="pw") as client:
        while client.info("replication")["role"] == "master":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    before = stream_length(fleet.replica, queue_name, password="pw")
    # What the old master took until it was told may be lost; none is there twice.
    assert 1 <= before <= added
    queue.add_many([{"payload": n} for n in range(50)])
    assert stream_length(fleet.replica, queue_name, password="pw") == before + 50


def test_a_dead_sentinel_is_passed_over(open_queue: Open, fleet: Fleet, queue_name: str) -> None:
    fleet.sentinels[0].kill()
    began = time.monotonic()
    assert open_queue(queue_name, fleet.url()).add(1).fresh
    assert time.monotonic() - began < 5


def test_what_sentinels_do_not_know_is_said(fleet: Fleet, queue_name: str) -> None:
    url = fleet.url(retries=1).replace("/main/", "/nobody/")
    with Queue(queue_name, url) as queue, pytest.raises(ConnectionFailed, match="'nobody'"):
        queue.add(1)
    for each in fleet.sentinels:
        each.kill()
    with (
        Queue(queue_name, fleet.url(retries=1)) as queue,
        pytest.raises(ConnectionFailed, match="master 'main' of sentinels"),
    ):
        queue.add(1)


async def test_many_that_ask_at_once_lose_no_sentinel(fleet: Fleet) -> None:
    """The first one is down, so that all of them find the master at another place of the list."""
    fleet.sentinels[0].kill()
    link = AsyncConnectionManager(RedisTarget.coerce(fleet.url(connect_timeout=2)))
    pool = await link.pool_for_tag("any")
    manager = pool.sentinel_manager
    before = list(manager.sentinels)
    try:
        found = await asyncio.gather(*(manager.discover_master("main") for _ in range(20)))
        assert {port for _, port in found} == {fleet.master.port}
        assert sorted(map(id, manager.sentinels)) == sorted(map(id, before))
    finally:
        await link.close()
