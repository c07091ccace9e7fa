"""A queue continues after its server restarts, loads data, loses scripts or becomes a replica."""

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


def test_a_queue_continues_after_a_restart(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, own.url)
        queue.add_many([{"payload": n} for n in range(500)])
        own.restart()
        queue.add_many([{"payload": n} for n in range(500)])
        assert stream_length(own, queue_name) == 1000


def test_adds_continue_while_the_server_crashes_and_restarts(
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
        # A confirmed job is on disk, and an unconfirmed one was sent again: each job exists once.
        assert stream_length(own, queue_name) == added + 1000


@contextmanager
def loading(server: RedisServer, keys: int) -> Iterator[None]:
    """Let the server load its data, slowly, while the block runs."""
    with admin(server, socket_timeout=None) as client, admin(server) as other:
        settings = {"key-load-delay": 200, "loading-process-events-interval-bytes": 1024}
        for name, value in settings.items():
            client.config_set(name, value)
        client.execute_command("DEBUG", "POPULATE", keys, "junk", 100)
        reload = threading.Thread(target=lambda: client.execute_command("DEBUG", "RELOAD"))
        reload.start()
        deadline = time.monotonic() + 10
        while not other.info("persistence")["loading"]:
            assert time.monotonic() < deadline, "the server did not begin to load within 10 s"
        yield
        reload.join()


def test_a_call_waits_for_a_server_that_loads_its_data(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, own.url)
        queue.add(0)
        with loading(own, 2000):
            assert queue.add(1).created
        assert stream_length(own, queue_name) == 2


def test_a_server_that_loads_its_data_is_not_reported_as_too_old(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, aof=True) as own:
        queue = open_queue(queue_name, f"{own.url}?retries=1")
        with loading(own, 3000), pytest.raises(ConnectionFailed, match="is still loading its data"):
            queue.add(1)
        assert queue.add(1).created


def test_scripts_are_loaded_again_after_a_script_flush(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as own:
        queue = open_queue(queue_name, own.url)
        with admin(own) as client:
            for turn in range(3):
                queue.add_many([{"payload": n} for n in range(600)])
                queue.add_batch(range(600), batch_id=f"b{turn}")
                client.script_flush()
        assert stream_length(own, queue_name) == 3 * 1200


def test_a_call_waits_while_the_master_is_a_replica(
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

            promotion = threading.Thread(target=promote)
            promotion.start()
            assert queue.add(1).created
            promotion.join()


def test_a_call_waits_for_a_busy_script(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, "--busy-reply-threshold", "50") as own:
        queue = open_queue(queue_name, own.url)
        queue.dialect()
        with admin(own) as client, admin(own) as other:
            spin = "local t = redis.call('TIME')[1]; repeat until redis.call('TIME')[1] - t > 1"
            busy = threading.Thread(target=lambda: client.eval(spin, 0))
            busy.start()
            deadline = time.monotonic() + 10
            while _replies_to_ping(other):
                assert time.monotonic() < deadline, "the script did not block the server"
            assert queue.add(1).created
            busy.join()


def _replies_to_ping(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ResponseError:
        return False


def test_unknown_scripts_are_loaded_on_every_server(
    open_queue: Open, server: Server, queue_name: str
) -> None:
    queue = open_queue(queue_name, server.url, dialect=server.dialect)
    # The server may not know the scripts of a new queue; a batch needs two of them.
    assert queue.add_batch(range(300)).total == 300
