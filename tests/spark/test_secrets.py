"""Passwords appear in no process list, log, event log or page of Spark's UI."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls, from_url
from airflow_provider_chasqui.spark import connection
from airflow_provider_chasqui.spark.options import ReadOptions, WriteOptions
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.provider.conftest import connection_json
from tests.spark.test_operators import HERE, airflow, dag_file
from tests.support.servers import RedisServer

__all__ = ["airflow", "dag_file"]

PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "SQL/execution/?id=0")
REST = ("environment", "jobs", "stages", "sql?details=true", "allexecutors")


class Watcher(threading.Thread):
    """Thread that reads process lists, and Spark's UI after the application has written."""

    def __init__(self, port: int, flag: Path, has_written: Any):
        super().__init__()
        self.root = f"http://127.0.0.1:{port}"
        self.flag, self.has_written = flag, has_written
        self.processes: set[str] = set()
        self.pages = ""
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            ps = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True)
            self.processes.update(ps.stdout.decode(errors="replace").splitlines())
            if not self.flag.exists() and self.has_written():
                with suppress(OSError):
                    self.read_ui()
                    self.flag.touch()
            time.sleep(0.1)

    def read_ui(self) -> None:
        applications = json.loads(self._get("/api/v1/applications"))
        home = f"/api/v1/applications/{applications[0]['id']}"
        pages = [f"/{page}" for page in PAGES] + [f"{home}/{page}" for page in REST]
        self.pages = "\n".join(self._get(page) for page in pages)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.root + path, timeout=20) as reply:
            return str(reply.read().decode(errors="replace"))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_writing_application_exposes_no_password(
    airflow: Any,
    dag_file: Any,
    cluster: Any,
    redis86_binary: Path,
    queue_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from airflow.sdk import timezone

    date = timezone.datetime(2026, 5, 17)
    canary, flag, port = f"canary-{secrets.token_hex(8)}", tmp_path / "seen", find_free_port()
    with RedisServer.start(redis86_binary, "--requirepass", canary) as server:
        login = json.loads(connection_json(server.url, "native")) | {"password": canary}
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(login))
        url = server.url.replace("redis://", f"redis://:{canary}@")
        file = dag_file(
            "Submit",
            queue_name,
            queue_name=queue_name,
            application_writes=True,
            application=str(HERE / "injected.py"),
            application_args=[queue_name, str(flag)],
            verbose=True,
            conf={
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": str(cluster.events),
                "spark.ui.port": str(port),
                "spark.eventLog.compress": "false",
            },
        )
        with Queue(queue_name, url) as queue:
            watcher = Watcher(port, flag, lambda: queue.depth().waiting == 1000)
            watcher.start()
            try:
                run = airflow(file, queue_name, date)
            finally:
                watcher.stopped.set()
                watcher.join()
            assert run.state == "success"
            handle = run.xcom("it")
            assert (handle["total"], handle["queue_name"]) == (1000, queue_name)
            assert f"{queue_name}~it~" in handle["batch_id"]
            # A second run with the same date finds the batch and submits nothing.
            submitted = cluster.log("master").count("Registering app")
            assert submitted
            assert airflow(file, queue_name, date).state == "success"
            assert cluster.log("master").count("Registering app") == submitted
            assert queue.depth().waiting == 1000
    output = capfd.readouterr()
    texts = {
        "the process list": "\n".join(watcher.processes),
        "the driver's log": caplog.text + output.out + output.err,
        "the event log": "".join(
            file.read_text(errors="replace") for file in cluster.events.rglob("*") if file.is_file()
        ),
        "the UI": watcher.pages,
        "the logs of the executors": cluster.logs(),
    }
    # Proof that each text was read.
    expected = {
        "the process list": str(HERE / "injected.py"),
        "the driver's log": f"the queue {queue_name} has 1000 jobs",
        "the event log": "injected.py",
        "the UI": "injected.py",
        "the logs of the executors": "CoarseGrainedExecutorBackend",
    }
    for source, text in texts.items():
        assert expected[source] in text, f"{source} was not read: no {expected[source]!r}"
        assert canary not in text, f"{source} contains the password"


@pytest.mark.parametrize("option", ["password", "auth", "redis.password", "authToken", "secretKey"])
def test_a_password_option_is_rejected(option: str) -> None:
    for options in (WriteOptions, ReadOptions):
        with pytest.raises(InvalidArgument, match="CHASQUI_CONNECTION") as rejected:
            options.parse({"queueName": "q", option: "canary"})  # type: ignore[attr-defined]
        assert "canary" not in str(rejected.value)


def test_a_url_option_with_a_password_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="password") as rejected:
        connection.resolve({"url": "redis://:canary@localhost"})
    assert "canary" not in str(rejected.value)
    assert connection.resolve({"url": "redis://localhost"}) == from_url("redis://localhost")


def test_a_connection_survives_serialization() -> None:
    target = RedisTarget(
        (("a", 1), ("b", 2)),
        0,
        "user",
        "canary",
        Tls("ca.pem"),
        sentinel_master="m",
        sentinel_password="other",
    )
    assert connection.parse(connection.to_json(target)) == target
    assert connection.parse("redis://:canary@h:7/3") == from_url("redis://:canary@h:7/3")
    with pytest.raises(InvalidArgument) as rejected:
        connection.parse('{"nodes": [], "password": "canary", "nonsense": 1}')
    assert "canary" not in str(rejected.value)


def test_the_sources_of_the_server_have_an_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registered = from_url("redis://registered")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(connection.ENV_VAR, raising=False)
    with pytest.raises(InvalidArgument, match=connection.ENV_VAR):
        connection.resolve({})
    Path(connection.FILE_NAME).write_text("redis://:canary@in-file")
    assert connection.resolve({}).nodes[0][0] == "in-file"
    monkeypatch.setenv(connection.ENV_VAR, "redis://:canary@in-env")
    assert connection.resolve({}).nodes[0][0] == "in-env"
    assert connection.resolve({"url": "redis://in-option"}).nodes[0][0] == "in-option"
    assert connection.resolve({"url": "redis://in-option"}, registered) is registered
