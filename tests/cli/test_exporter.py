"""`chasqui exporter`: metrics of queues that no worker consumes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine.exporter import QueueExporter
from airflow_provider_chasqui.engine.http_server import MetricsServer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import from_url
from tests.conftest import Server
from tests.provider.conftest import working
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


class Client:
    """A client of the HTTP server of an exporter."""

    def __init__(self, port: int):
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def values(self, queue_name: str = "") -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.labels.get("queue", "") == queue_name
        }

    def work(self, queue_name: str) -> tuple[int, Any]:
        status, body = self.get(f"/work/{queue_name}")
        return status, json.loads(body)


@contextmanager
def exporting(url: str, *queue_names: str, **options: Any) -> Iterator[Client]:
    exporter = QueueExporter(from_url(url), queue_names, interval=0.1, **options)
    server = MetricsServer(
        exporter, exporter.health, host="127.0.0.1", port=0, respond=exporter.respond
    )
    exporter.start()
    server.start()
    try:
        yield Client(server.port)
    finally:
        server.close()
        exporter.close()


def test_the_command_serves_until_it_is_stopped(
    valkey_server: RedisServer, queue_name: str
) -> None:
    program = Path(sys.executable).parent / "chasqui"
    command = [program, "exporter", "--url", valkey_server.url, "--port", "0", "-q", queue_name]
    with subprocess.Popen([*command, "--host", "127.0.0.1"], stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"listening on 127\.0\.0\.1:(\d+)", line)
        assert match, line
        client = Client(int(match[1]))
        wait_until(lambda: client.work(queue_name) == (200, {"value": 0}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_queue_without_workers_is_exported(server: Server, queue_name: str) -> None:
    with (
        Queue(queue_name, server.url) as queue,
        exporting(server.url, queue_name) as exporter,
    ):
        queue.add_many([{"payload": n} for n in range(3)])
        queue.add("due", delay=timedelta(milliseconds=1))
        queue.add("later", delay=timedelta(hours=1))
        queue.repeat(1, Every(3_600_000))
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_repeats") == 1)
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_delayed_due") == 1)
        values = exporter.values(queue_name)
    assert values["chasqui_queue_waiting"] == 3
    assert values["chasqui_queue_lag"] == 3
    assert values["chasqui_queue_running"] == 0
    assert values["chasqui_queue_delayed"] == 2
    assert values["chasqui_queue_dead"] == 0
    assert values["chasqui_queue_workers_seen"] == 0
    assert values["chasqui_queue_leader"] == 0
    assert values["chasqui_queue_repeats"] == 1
    assert values["chasqui_queue_oldest_waiting_age_seconds"] > 0
    assert values["chasqui_queue_delayed_late_seconds"] > 0
    assert values["chasqui_queue_work"] == 4


def test_workers_dead_letters_and_the_leader_are_exported(server: Server, queue_name: str) -> None:
    async def fail(job: Any) -> None:
        raise ValueError("no")

    with (
        Queue(queue_name, server.url) as queue,
        exporting(server.url, queue_name) as exporter,
    ):
        queue.add(1, retry=RetryPolicy(max_attempts=1))
        with working(server, queue_name, fail):
            wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_dead") == 1)
            wait_until(lambda: exporter.values(queue_name)["chasqui_queue_workers_seen"] >= 1)
            assert exporter.values(queue_name)["chasqui_queue_leader"] == 1
        assert exporter.work(queue_name) == (200, {"value": 0})


def test_work_counts_running_jobs_and_those_that_are_due_soon(
    server: Server, queue_name: str
) -> None:
    """A worker is started before a delayed job is due, and not stopped while it runs a job."""
    with (
        Queue(queue_name, server.url) as queue,
        exporting(server.url, queue_name, ahead=60) as exporter,
    ):
        wait_until(lambda: exporter.work(queue_name) == (200, {"value": 0}))
        queue.add(1, delay=timedelta(seconds=30))
        queue.add(2, delay=timedelta(minutes=30))
        wait_until(lambda: exporter.work(queue_name) == (200, {"value": 1}))
        queue.add(3)
        started, end = threading.Event(), threading.Event()

        def handle(job: Any) -> None:
            started.set()
            assert end.wait(60)

        with working(server, queue_name, handle):
            assert started.wait(20)
            wait_until(lambda: exporter.values(queue_name)["chasqui_queue_running"] == 1)
            assert exporter.work(queue_name) == (200, {"value": 2})
            end.set()


def test_a_paused_queue_and_a_batch_without_progress_are_exported(
    server: Server, queue_name: str
) -> None:
    with (
        Queue(queue_name, server.url) as queue,
        exporting(server.url, queue_name, batches=True) as exporter,
    ):
        queue.add_batch(range(3), batch_id="first")
        queue.add_batch(range(3), batch_id="second")
        queue.add_batch([], batch_id="empty")

        def stalled() -> float:
            return exporter.values(queue_name).get("chasqui_queue_batch_stalled_seconds", 0)

        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_batches") == 2)
        wait_until(lambda: stalled() > 1)
        queue.pause()
        wait_until(lambda: exporter.values(queue_name)["chasqui_queue_paused"] == 1)
        queue.resume()
        wait_until(lambda: exporter.values(queue_name)["chasqui_queue_paused"] == 0)
        # A cancelled batch has ended; the other one makes progress and ends.
        queue.cancel_batch("second")
        wait_until(lambda: exporter.values(queue_name)["chasqui_queue_batches"] == 1)

        async def handle(job: Any) -> None:
            pass

        with working(server, queue_name, handle):
            wait_until(lambda: exporter.values(queue_name)["chasqui_queue_batches"] == 0)
        assert stalled() == 0


def test_an_unfinished_batch_is_found_among_many_finished_ones(
    server: Server, queue_name: str
) -> None:
    with (
        Queue(queue_name, server.url) as queue,
        exporting(server.url, queue_name, batches=True) as exporter,
    ):
        for number in range(120):
            queue.add_batch([], batch_id=f"a{number}")
        queue.add_batch(range(3), batch_id="z")
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_batches") == 1)


def test_queues_are_discovered_up_to_a_limit(valkey_server: RedisServer, queue_name: str) -> None:
    with RedisServer.start(valkey_server.binary) as server:
        for number in range(4):
            with Queue(f"{queue_name}-{number}", server.url) as queue:
                queue.add(number)
        with exporting(server.url) as exporter:
            wait_until(lambda: "chasqui_queue_waiting" in exporter.values(f"{queue_name}-3"))
            assert exporter.work("not-yet-there") == (200, {"value": 0})
            assert exporter.work(f"{queue_name}-1") == (200, {"value": 1})
        with exporting(server.url, max_queues=2) as exporter:
            wait_until(lambda: exporter.values().get("chasqui_exporter_skipped_queues") == 2)
            assert exporter.work(f"{queue_name}-3")[0] == 404


def test_a_missing_server_is_an_error_and_not_an_empty_queue(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with RedisServer.start(valkey_server.binary, aof=True) as server:
        with Queue(queue_name, server.url) as queue:
            queue.add(1)
        with exporting(f"{server.url}?retries=0&timeout=1", queue_name) as exporter:
            wait_until(lambda: exporter.values().get("chasqui_exporter_up") == 1)
            assert exporter.get("/readyz")[0] == 200
            assert exporter.values()["chasqui_server_memory_used_bytes"] > 0
            server.kill()
            wait_until(lambda: exporter.values()["chasqui_exporter_up"] == 0)
            assert exporter.values(queue_name) == {}
            assert exporter.work(queue_name)[0] == 503
            assert (exporter.get("/readyz")[0], exporter.get("/healthz")[0]) == (503, 200)
            server.restart()
            wait_until(lambda: exporter.work(queue_name) == (200, {"value": 1}))


@pytest.mark.parametrize("options", [{"interval": 0}, {"ahead": -1}, {"max_queues": 0}])
def test_bad_options_are_rejected(valkey_server: RedisServer, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="interval must be"):
        QueueExporter(from_url(valkey_server.url), **options)
