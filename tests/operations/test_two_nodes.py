"""docs/before-production.md and docs/failover.md on two nodes with Sentinel, as in production.

Every role has its own ACL user with the rules of docs/security-acl.md.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.config import QueueConfig, WriteConcern
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget, from_url
from tests.cli.conftest import HANDLERS, Worker
from tests.cli.test_exporter import Client
from tests.conftest import Server
from tests.redis_client.conftest import admin
from tests.redis_client.test_acl import rules
from tests.redis_client.test_sentinel import _wait_for_quorum, start_sentinel
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs" / "failover.md"
JOBS = 200


def documented_settings() -> list[str]:
    """Return the settings of the page as arguments of the server.

    With one replica, `min-replicas-to-write` would stop the queue after the failover.
    """
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    lines = [line.split() for line in block[1].splitlines()]
    return [f"{name} {value}" for name, value in lines if not name.startswith("min-replicas")]


@dataclass
class Nodes:
    """A master and a replica with users per role, and three sentinels."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/main/0"

    def target(self, user: str) -> RedisTarget:
        return from_url(self.url, username=user, password=f"{user}-secret")


@pytest.fixture
def nodes(redis86_binary: Path) -> Iterator[Nodes]:
    roles = {
        "producer": [*rules("producer"), "+wait"],
        "worker": [*rules("producer"), *rules("worker")],
        "exporter": rules("exporter"),
    }
    users = [
        f"user {role} on >{role}-secret ~{{chasqui:* {' '.join(granted)}"
        for role, granted in roles.items()
    ]
    lines = [
        "user default on >pw ~* &* +@all",
        *users,
        "masterauth pw",
        "repl-diskless-sync-delay 0",
        *documented_settings(),
    ]
    config = "\n".join(lines) + "\n"
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer.start(redis86_binary, aof=True, config=config))
        replica = stack.enter_context(
            RedisServer.start(
                redis86_binary,
                *("--replicaof", "127.0.0.1", str(master.port)),
                aof=True,
                config=config,
            )
        )
        with admin(replica, password="pw") as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 20)
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        sentinels = [
            stack.enter_context(start_sentinel(redis86_binary, master.port)) for _ in range(3)
        ]
        _wait_for_quorum(sentinels)
        yield Nodes(master, replica, sentinels)


@contextmanager
def exporting(nodes: Nodes, queue_name: str, password_file: Path) -> Iterator[Client]:
    program = Path(sys.executable).parent / "chasqui"
    command = [
        *(program, "exporter", "--url", nodes.url, "-q", queue_name, "--username", "exporter"),
        *("--password-file", password_file, "--host", "127.0.0.1", "--port", "0"),
        *("--interval", "200ms", "--worker-timeout", "12s", "--batches"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            match = re.search(r"listening on 127\.0\.0\.1:(\d+)", process.stderr.readline())
            assert match
            yield Client(int(match[1]))
        finally:
            process.terminate()


@contextmanager
def working(nodes: Nodes, queue_name: str, folder: Path) -> Iterator[list[Worker]]:
    """Start two workers, as they would run on two hosts."""
    (folder / "worker").write_text("worker-secret\n")
    options = ("-q", queue_name, "--username", "worker", "--concurrency", "4")
    workers = []
    try:
        for name in ("a", "b"):
            (folder / name).mkdir()
            (folder / name / "my_jobs.py").write_text(HANDLERS)
            login = ("--password-file", str(folder / "worker"))
            arguments = ("my_jobs:handlers", *options, *login)
            workers.append(Worker(Server(nodes.url, "native"), folder / name, *arguments))
        yield [worker.ready() for worker in workers]
    finally:
        for worker in workers:
            worker.close()


def test_a_set_up_for_production_survives_the_death_of_the_master(
    nodes: Nodes, queue_name: str, tmp_path: Path
) -> None:
    (tmp_path / "exporter").write_text("exporter-secret\n")
    config = QueueConfig(write_concern=WriteConcern(replicas=1, timeout=timedelta(seconds=5)))
    with (
        Queue(queue_name, nodes.target("producer"), config=config) as queue,
        exporting(nodes, queue_name, tmp_path / "exporter") as exporter,
        working(nodes, queue_name, tmp_path) as workers,
    ):
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_workers_seen") == 2)
        # Every job is on the replica before the call returns.
        queue.add_batch([0.1] * JOBS, batch_id="b", job_name="sleep")
        wait_until(lambda: queue.batch_progress("b").done >= 8, 30, "the first jobs")

        nodes.master.kill()
        # No platform restarts the workers: without a master they are healthy.
        assert [worker.get("/healthz")[0] for worker in workers] == [200, 200]
        with admin(nodes.replica, password="pw") as client:
            wait_until(lambda: client.info("replication")["role"] == "master", 60, "the failover")

        assert queue.wait_batch("b", timeout=timedelta(minutes=1)).done == JOBS
        for worker in workers:
            worker.ready()
        wait_until(lambda: exporter.values().get("chasqui_exporter_up") == 1, 60, "the exporter")
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_leader") == 1)

        # One worker stops in order, the other host is lost.
        workers[0].signal(signal.SIGTERM)
        assert workers[0].end() == 0, workers[0].log
        workers[1].pids()
        workers[1].close()
        with Queue(queue_name, nodes.target("producer")) as unconfirmed:
            unconfirmed.add(0.1, job_name="sleep")
        # What the alert ChasquiFleetGone and KEDA read.
        wait_until(lambda: exporter.work(queue_name) == (200, {"value": 1}), 60)
        wait_until(lambda: exporter.values(queue_name).get("chasqui_queue_workers_seen") == 0, 60)
    for worker in workers:
        assert "worker-secret" not in worker.log
