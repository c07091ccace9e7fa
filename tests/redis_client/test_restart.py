"""A live queue goes on when its server restarts, loads, forgets scripts or is demoted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from airflow_provider_chasqui.core.errors import ConnectionFailed
from tests.conftest import Server
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.servers import RedisServer


def test_a_restart_under_a_live_queue(open_queue: Open, own_binary: Path, queue_name: str) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, own.url)
        queue.add_many([{"payload": n} for n in range(500)])
        own.restart()
        queue.add_many([{"payload": n} for n in range(500)])
        assert stream_length(own, queue_name) == 1000


def test_adds_go_on_while_the_server_is_away(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, "--appendfsync", "always", aof=True) as own:
        queue = open_queue(queue_name, own.url)
        queue.add(0)

        def power_cut() -> None:
            for _ in range(3):
                time.sleep(0.1)
                own.kill()
                own.restart()

        cutter = threading.Thread(target=power_cut)
        cutter.start()
        added = 1
        while cutter.is_alive():
            queue.add(added)
            added += 1
        cutter.join()
        queue.add_batch(range(1000), batch_id="b")
        # What was answered is on disk, and what was not was sent again: each job once.
        assert stream_length(own, queue_name) == added + 1000


@contextmanager
def loading(server: RedisServer, keys: int) -> Iterator[None]:
    """The server is loading its data, slowly, while the block runs."""
    with admin(server, socket_timeout=None) as client, admin(server) as other:
        slowly = {"key-load-delay": 200, "loading-process-events-interval-bytes": 1024}
        for name, value in slowly.items():
            client.config_set(name, value)
        client.execute_command("DEBUG", "POPULATE", keys, "junk", 100)
        reload = threading.Thread(target=lambda: client.execute_command("DEBUG", "RELOAD"))
        reload.start()
        deadline = time.monotonic() + 10
        while not other.info("persistence")["loading"]:
            assert time.monotonic() < deadline
        yield
        reload.join()


def test_a_server_that_loads_its_data_is_waited_for(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, own.url)
        queue.add(0)
        with loading(own, 2000):
            assert queue.add(1).fresh
        assert stream_length(own, queue_name) == 2


def test_the_first_contact_with_a_loading_server_is_not_taken_for_an_old_one(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, f"{own.url}?retries=1")
        with loading(own, 3000), pytest.raises(ConnectionFailed, match="is still loading its data"):
            queue.add(1)
        assert queue.add(1).fresh


def test_a_script_flush(open_queue: Open, own_binary: Path, queue_name: str) -> None:
    with RedisServer.start(own_binary) as own:
        queue = open_queue(queue_name, own.url)
        with admin(own) as client:
            for turn in range(3):
                queue.add_many([{"payload": n} for n in range(600)])
                queue.add_batch(range(600), batch_id=f"b{turn}")
                client.script_flush()
        assert stream_length(own, queue_name) == 3 * 1200


def test_a_master_that_becomes_a_replica_is_waited_for(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as other, RedisServer.start(own_binary) as own:
        queue = open_queue(queue_name, own.url)
        queue.add(0)
        with admin(own) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", other.port)

            def promote() -> None:
                time.sleep(0.3)
                client.execute_command("REPLICAOF", "NO", "ONE")

            later = threading.Thread(target=promote)
            later.start()
            assert queue.add(1).fresh
            later.join()


def test_a_busy_script_is_waited_for(open_queue: Open, own_binary: Path, queue_name: str) -> None:
    with RedisServer.start(own_binary, "--busy-reply-threshold", "50") as own:
        queue = open_queue(queue_name, own.url)
        queue.dialect()
        with admin(own) as client, admin(own) as other:
            spin = "local t = redis.call('TIME')[1]; repeat until redis.call('TIME')[1] - t > 1"
            busy = threading.Thread(target=lambda: client.eval(spin, 0))
            busy.start()
            deadline = time.monotonic() + 10
            while _answers(other):
                assert time.monotonic() < deadline
            assert queue.add(1).fresh
            busy.join()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ResponseError:
        return False


def test_forgotten_scripts_on_every_server(
    open_queue: Open, server: Server, queue_name: str
) -> None:
    queue = open_queue(queue_name, server.url, dialect=server.dialect)
    # Every queue begins with scripts that this server may not know; a batch needs two of them.
    assert queue.add_batch(range(300)).total == 300
