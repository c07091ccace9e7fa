"""What goes wrong at the server is one clear sentence with a CMQ code; nothing is written."""

from __future__ import annotations

import http.server
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    KeyTypeMismatch,
    QueueFull,
    RedisServerError,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.conftest import Server
from tests.redis_client.conftest import Blocking, Open, admin, stream_length
from tests.support.servers import RedisServer

SECRET = "tr0ub4dor&3"
QUOTED = "tr0ub4dor%263"
WRONG = "not-the-passw0rd"


@pytest.fixture(scope="module")
def locked(valkey_server: RedisServer) -> Iterator[RedisServer]:
    """A server that wants a password."""
    with RedisServer.start(valkey_server.binary, "--requirepass", SECRET) as server:
        yield server


def everything_about(error: BaseException) -> str:
    """All the text that a log or a terminal could show of an error, its causes included."""
    shown = "".join(traceback.format_exception(error))
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None:
        found.append(each)
        each = each.__cause__ or each.__context__
    return shown + "".join(f"{each!s} {each!r} {each.args!r}" for each in found)


def refused(queue: Blocking, kind: type[ChasquiError]) -> str:
    with pytest.raises(kind) as caught:
        queue.add({"a": 1})
    assert type(caught.value) is kind
    assert caught.value.queue_name == queue.name
    text = everything_about(caught.value)
    assert SECRET not in text
    assert WRONG not in text
    return str(caught.value)


def test_no_server(open_queue: Open, queue_name: str) -> None:
    port = find_free_port()
    queue = open_queue(queue_name, f"redis://:{QUOTED}@127.0.0.1:{port}")
    began = time.monotonic()
    text = refused(queue, ConnectionFailed)
    assert time.monotonic() - began < 5
    assert text.startswith(f"[CMQ-001] no connection to 127.0.0.1:{port}/0: ")
    assert "check that the server runs and that host, port and TLS are right" in text


def test_no_such_host(open_queue: Open, queue_name: str) -> None:
    queue = open_queue(queue_name, "redis://nowhere.invalid?retries=0")
    assert "no connection to nowhere.invalid:6379/0" in refused(queue, ConnectionFailed)


@pytest.mark.parametrize("login", [f":{WRONG}", "", f"nobody:{WRONG}"])
def test_a_wrong_password(
    open_queue: Open, locked: RedisServer, queue_name: str, login: str
) -> None:
    queue = open_queue(queue_name, f"redis://{login}@127.0.0.1:{locked.port}")
    text = refused(queue, AuthenticationFailed)
    assert text.startswith("[CMQ-001] 127.0.0.1")
    assert "refused the login: check the user name and the password" in text
    assert stream_length(locked, queue_name, password=SECRET) == 0


def test_a_password_where_none_is_wanted(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis://u:{QUOTED}@127.0.0.1:{valkey_server.port}")
    refused(queue, AuthenticationFailed)


def test_the_right_password_is_nowhere_to_be_seen(
    open_queue: Open, locked: RedisServer, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    queue = open_queue(queue_name, f"redis://:{QUOTED}@127.0.0.1:{locked.port}")
    assert queue.add(1).fresh
    link = queue.queue._connection_manager
    pools = list(link._pools.values())
    connections = [connection for _, connection in queue.queue.client._idle_connections]
    shown = repr([queue.queue, link, link.target, pools, connections])
    assert SECRET not in shown
    assert SECRET not in caplog.text
    assert "127.0.0.1" in repr(queue.queue)


def test_a_server_that_hangs(open_queue: Open, valkey_server: RedisServer, queue_name: str) -> None:
    with RedisServer.start(valkey_server.binary) as own:
        queue = open_queue(queue_name, f"{own.url}?timeout=0.2&connect_timeout=0.2&retries=2")
        queue.add(1)
        own.pause()
        began = time.monotonic()
        text = refused(queue, ConnectionFailed)
        assert 0.5 < time.monotonic() - began < 5
        assert "did not answer in time" in text
        own.resume()
        assert queue.add(2).fresh
        # The first job, the second, and the one that was sent into the silence: at most once.
        assert stream_length(own, queue_name) in (2, 3)


def test_a_host_that_swallows_connections(open_queue: Open, queue_name: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        full = [socket.socket() for _ in range(4)]
        for each in full:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        target = RedisTarget((("127.0.0.1", port),), timeout=0.2, connect_timeout=0.2, retries=1)
        refused(open_queue(queue_name, target), ConnectionFailed)
        for each in full:
            each.close()


def test_something_that_is_no_redis(open_queue: Open, queue_name: str) -> None:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{web.server_port}?timeout=1&retries=1"
        refused(open_queue(queue_name, url), ConnectionFailed)
        web.shutdown()


@pytest.mark.parametrize("suffix", ["stream", "delayed"])
def test_a_key_of_another_type(
    open_queue: Open, server: Server, queue_name: str, suffix: str
) -> None:
    queue = open_queue(queue_name, server.url, dialect=server.dialect)
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    key = f"{{chasqui:{queue_name}}}:{suffix}"
    later = {"delay": timedelta(hours=1)} if suffix == "delayed" else {}
    with admin(port) as client:
        client.set(key, "mine")
        for jobs in ([{"payload": 1, **later}], [{"payload": n, **later} for n in range(300)]):
            with pytest.raises(
                KeyTypeMismatch, match=r"^\[CMQ-301\] a key of this queue holds another"
            ):
                queue.add_many(jobs)
        assert client.get(key) == b"mine"
        client.delete(key)


def test_a_server_out_of_memory(open_queue: Open, own_binary: object, queue_name: str) -> None:
    with RedisServer.start(own_binary, "--maxmemory", "1") as own:  # type: ignore[arg-type]
        queue = open_queue(queue_name, own.url)
        text = refused(queue, QueueFull)
        assert text.startswith("[CMQ-300]")
        assert "out of memory" in text
        with pytest.raises(QueueFull):
            queue.add_batch(range(1000))
        assert stream_length(own, queue_name) == 0


def test_a_cluster_url_to_a_plain_server(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis+cluster://127.0.0.1:{valkey_server.port}")
    assert "cluster support disabled" in refused(queue, RedisServerError)


def test_a_database_that_is_not_there(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"redis://127.0.0.1:{valkey_server.port}/99")
    assert "DB index is out of range" in refused(queue, RedisServerError)
