"""Errors of the server and the connection have a CMQ code and advice, and nothing is written."""

from __future__ import annotations

import http.server
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    KeyTypeMismatch,
    PersistenceFailed,
    QueueFull,
    RedisServerError,
    ServerTooOld,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.conftest import Server
from tests.redis_client.conftest import Open, SyncAdapter, admin, stream_length
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SECRET = "tr0ub4dor&3"
QUOTED = "tr0ub4dor%263"
WRONG = "not-the-passw0rd"


@pytest.fixture(scope="module")
def locked(valkey_server: RedisServer) -> Iterator[RedisServer]:
    """Start a server that requires a password."""
    with RedisServer.start(valkey_server.binary, "--requirepass", SECRET) as server:
        yield server


def everything_about(error: BaseException) -> str:
    """Return all text that a log or a terminal could show of an error and its causes."""
    text = "".join(traceback.format_exception(error))
    cause: BaseException | None = error
    while cause is not None:
        text += f"{cause!s} {cause!r} {cause.args!r}"
        cause = cause.__cause__ or cause.__context__
    return text


def add_error(queue: SyncAdapter, kind: type[ChasquiError]) -> str:
    """Add a job, expect an error without a secret, and return its message."""
    with pytest.raises(kind) as info:
        queue.add({"a": 1})
    assert type(info.value) is kind
    assert info.value.queue_name == queue.name
    text = everything_about(info.value)
    assert SECRET not in text
    assert WRONG not in text
    return str(info.value)


def test_without_a_server_the_error_names_the_address(open_queue: Open, queue_name: str) -> None:
    port = find_free_port()
    queue = open_queue(queue_name, f"redis://:{QUOTED}@127.0.0.1:{port}")
    started_at = time.monotonic()
    text = add_error(queue, ConnectionFailed)
    assert time.monotonic() - started_at < 5
    assert text.startswith(f"[CMQ-001] no connection to 127.0.0.1:{port}/0: ")
    assert "check that the server runs, and check host, port and TLS" in text


def test_an_unknown_host_is_a_connection_error(open_queue: Open, queue_name: str) -> None:
    queue = open_queue(queue_name, "redis://nowhere.invalid?retries=0")
    assert "no connection to nowhere.invalid:6379/0" in add_error(queue, ConnectionFailed)


@pytest.mark.parametrize("login", [f":{WRONG}", "", f"unknown:{WRONG}"])
def test_a_wrong_password_is_an_authentication_error(
    open_queue: Open, locked: RedisServer, queue_name: str, login: str
) -> None:
    queue = open_queue(queue_name, f"redis://{login}@127.0.0.1:{locked.port}")
    text = add_error(queue, AuthenticationFailed)
    assert text.startswith("[CMQ-001] 127.0.0.1")
    assert "refused the login; check the user name and the password" in text
    assert stream_length(locked, queue_name, password=SECRET) == 0


def test_a_password_that_the_server_does_not_expect_is_an_authentication_error(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis://u:{QUOTED}@127.0.0.1:{valkey_server.port}")
    add_error(queue, AuthenticationFailed)


def test_the_password_is_in_no_repr_and_no_log(
    open_queue: Open, locked: RedisServer, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    queue = open_queue(queue_name, f"redis://:{QUOTED}@127.0.0.1:{locked.port}")
    assert queue.add(1).created
    manager = queue.queue._connection_manager
    pools = list(manager._pools.values())
    connections = [connection for _, connection in queue.queue.client._own_connections]
    text = repr([queue.queue, manager, manager.target, pools, connections])
    assert SECRET not in text
    assert SECRET not in caplog.text
    assert "127.0.0.1" in repr(queue.queue)


def test_a_server_that_hangs_is_a_timeout(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    with RedisServer.start(valkey_server.binary) as own:
        queue = open_queue(queue_name, f"{own.url}?timeout=0.2&connect_timeout=0.2&retries=2")
        queue.add(1)
        own.pause()
        started_at = time.monotonic()
        text = add_error(queue, ConnectionFailed)
        assert 0.5 < time.monotonic() - started_at < 5
        assert "did not reply in time" in text
        own.resume()
        assert queue.add(2).created
        # The job that was sent while the server was paused may have been added, at most once.
        assert stream_length(own, queue_name) in (2, 3)


def test_a_host_that_accepts_no_connection_is_a_connection_error(
    open_queue: Open, queue_name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        target = RedisTarget((("127.0.0.1", port),), timeout=0.2, connect_timeout=0.2, retries=1)
        add_error(open_queue(queue_name, target), ConnectionFailed)
        for filler in fillers:
            filler.close()


def test_a_server_that_is_not_redis_is_a_connection_error(
    open_queue: Open, queue_name: str
) -> None:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{web.server_port}?timeout=1&retries=1"
        add_error(open_queue(queue_name, url), ConnectionFailed)
        web.shutdown()


@pytest.mark.parametrize("suffix", ["stream", "delayed"])
def test_a_key_of_another_type_is_reported_and_unchanged(
    open_queue: Open, server: Server, queue_name: str, suffix: str
) -> None:
    queue = open_queue(queue_name, server.url, dialect=server.dialect)
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    key = f"{{chasqui:{queue_name}}}:{suffix}"
    options = {"delay": timedelta(hours=1)} if suffix == "delayed" else {}
    with admin(port) as client:
        client.set(key, "foreign")
        for jobs in ([{"payload": 1, **options}], [{"payload": n, **options} for n in range(300)]):
            with pytest.raises(
                KeyTypeMismatch, match=r"^\[CMQ-301\] a key of this queue has another type"
            ):
                queue.add_many(jobs)
        assert client.get(key) == b"foreign"
        client.delete(key)


def test_a_server_out_of_memory_is_reported_as_a_full_queue(
    open_queue: Open, own_binary: object, queue_name: str
) -> None:
    with RedisServer.start(own_binary, "--maxmemory", "1") as own:  # type: ignore[arg-type]
        queue = open_queue(queue_name, own.url)
        text = add_error(queue, QueueFull)
        assert text.startswith("[CMQ-300]")
        assert "out of memory" in text
        with pytest.raises(QueueFull):
            queue.add_batch(range(1000))
        assert stream_length(own, queue_name) == 0


def test_a_cluster_url_of_a_single_server_is_an_error(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis+cluster://127.0.0.1:{valkey_server.port}")
    assert "cluster support disabled" in add_error(queue, RedisServerError)


def test_a_database_out_of_range_is_an_error(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis://127.0.0.1:{valkey_server.port}/99")
    assert "DB index is out of range" in add_error(queue, RedisServerError)


def test_a_server_that_does_not_know_auth_reveals_no_password(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    """An unknown command is repeated with its arguments in the reply of the server."""
    with RedisServer.start(valkey_server.binary, "--rename-command", "AUTH", "") as own:
        queue = open_queue(queue_name, f"redis://ada:{QUOTED}@127.0.0.1:{own.port}")
        text = add_error(queue, ServerTooOld)
        assert "unknown command 'AUTH'" in text


def test_an_unknown_command_reveals_no_argument(open_queue: Open, server: Server) -> None:
    queue = open_queue("q", server.url, dialect=server.dialect)
    with pytest.raises(ServerTooOld) as info:
        queue.run(redis_command("CHASQUI.NOTHING", SECRET, parse=as_raw))
    assert SECRET not in everything_about(info.value)


def test_a_server_that_cannot_save_is_retried_and_has_its_own_error(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary, "--save", "3600 1") as own, admin(own) as client:
        queue = open_queue(queue_name, f"{own.url}?retries=2")
        patient = open_queue(queue_name, own.url)
        assert queue.add(0).created
        # The snapshot cannot replace a directory.
        (own.folder / "dump.rdb").mkdir()
        client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] != "ok",
            message="a failed snapshot",
        )
        for call in (
            lambda: queue.add(1),
            lambda: queue.add_many([{"payload": n} for n in range(300)]),
            lambda: queue.add(1, delay=timedelta(hours=1)),
        ):
            with pytest.raises(PersistenceFailed, match="free its disk") as info:
                call()
            assert str(info.value).startswith("[CMQ-312] 127.0.0.1")
        assert stream_length(own, queue_name) == 1

        def repair() -> None:
            (own.folder / "dump.rdb").rmdir()
            with admin(own) as another:
                another.bgsave()

        repairing = threading.Timer(0.3, repair)
        repairing.start()
        assert patient.add(2).created
        repairing.join()
        assert stream_length(own, queue_name) == 2
