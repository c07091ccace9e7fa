"""The servers of the tests: private, restartable, and ended together with the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis

from tests.support.servers import Certificates, RedisServer, valkey_binary
from tests.support.waiting import wait_until


def client(server: RedisServer, **options: object) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=5, **options)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_shared_server_replies(
    redis86_server: RedisServer, valkey_server: RedisServer, redis7_server: RedisServer
) -> None:
    for server in (redis86_server, valkey_server, redis7_server):
        with client(server) as connection:
            assert connection.info("server")["process_id"] == server.pid


def test_data_survives_a_kill_only_with_an_append_only_file() -> None:
    for aof in (True, False):
        with RedisServer.start(valkey_binary(), "--appendfsync", "always", aof=aof) as server:
            port, first = server.port, server.pid
            with client(server) as connection:
                connection.set("k", "v")
            server.kill()
            assert not server.alive
            server.restart()
            assert server.port == port
            assert server.pid != first
            with client(server) as connection:
                assert connection.get("k") == (b"v" if aof else None)


def test_a_paused_server_replies_after_resume() -> None:
    with RedisServer.start(valkey_binary()) as server:
        server.pause()
        with (
            redis.Redis.from_url(server.url, socket_timeout=0.1, retry=None) as connection,
            pytest.raises(redis.TimeoutError),
        ):
            connection.ping()
        server.resume()
        with client(server) as connection:
            assert connection.ping()


def test_tls_works_with_and_without_a_client_certificate(
    redis86_binary: Path, certificates: Certificates
) -> None:
    trust = {"ssl_ca_certs": str(certificates.ca)}
    identity = {
        "ssl_certfile": str(certificates.client),
        "ssl_keyfile": str(certificates.client_key),
    }
    with (
        RedisServer.start(redis86_binary, tls=certificates) as server,
        client(server, **trust) as connection,
    ):
        assert connection.ping()
    with RedisServer.start(redis86_binary, tls=certificates, client_certificate=True) as server:
        with client(server, **trust, **identity) as connection:
            assert connection.ping()
        with client(server, **trust) as connection, pytest.raises(redis.ConnectionError):
            connection.ping()


def test_a_sentinel_knows_its_master(redis86_binary: Path) -> None:
    with RedisServer.start(redis86_binary) as master:
        config = f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
        with RedisServer.start(redis86_binary, "--sentinel", config=config) as sentinel:
            with client(sentinel) as connection:
                address = connection.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
            assert [str(part).strip("b'") for part in address] == ["127.0.0.1", str(master.port)]


def test_a_single_cluster_node_serves_all_slots(redis86_binary: Path) -> None:
    with (
        RedisServer.start(redis86_binary, "--cluster-enabled", "yes") as server,
        client(server) as connection,
    ):
        connection.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(
            lambda: connection.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
            10,
            "the cluster state is ok",
        )


def test_the_error_of_a_server_that_cannot_start_has_its_output() -> None:
    with pytest.raises(RuntimeError, match="no-such-option"):
        RedisServer.start(valkey_binary(), "--no-such-option", "1")


def test_a_server_outlives_the_thread_that_started_it() -> None:
    started: list[RedisServer] = []
    thread = threading.Thread(target=lambda: started.append(RedisServer.start(valkey_binary())))
    thread.start()
    thread.join()
    with started[0] as server, client(server) as connection:
        time.sleep(0.1)
        assert connection.ping()


def test_close_ends_the_process_and_removes_the_folder() -> None:
    server = RedisServer.start(valkey_binary())
    pid, folder = server.pid, server.folder
    server.close()
    server.close()
    assert not alive(pid)
    assert not folder.exists()


def test_a_server_ends_with_a_killed_test_process() -> None:
    program = (
        "import time; from tests.support.servers import RedisServer, valkey_binary;"
        "print(RedisServer.start(valkey_binary()).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    ) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert alive(pid)
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(pid), 10, "the server has ended")
