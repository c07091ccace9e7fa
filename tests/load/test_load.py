"""Far more of everything: the worker's memory stays where it was, and nobody waits for ever.

A tenth or less of the numbers by default; `CHASQUI_LOAD=full` for those of docs/guarantees.md.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.cli.conftest import Worker, start_worker, wait_for
from tests.conftest import Server
from tests.support.servers import RedisServer, valkey_binary

__all__ = ["start_worker"]  # the fixture

FULL = os.environ.get("CHASQUI_LOAD") == "full"
LONG = 1500 if FULL else 240
MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(2 * LONG),
    pytest.mark.xdist_group("load"),
]

ONCE = RetryPolicy(1, Backoff.fixed(timedelta(milliseconds=1)))

HANDLERS = """
from airflow_provider_chasqui import Unrecoverable

async def run(job):
    if job.name == "die":
        raise Unrecoverable("told to")
"""


def count(full: int, small: int) -> int:
    return full if FULL else small


@pytest.fixture(params=["native", "portable"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    native = request.param == "native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as process:
        yield Server(process.url, request.param)


class Gauge(threading.Thread):
    """The most memory that a process had while it was watched."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._pid = pid
        self._done = threading.Event()
        self.first = self.most = rss(pid)

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, rss(self._pid))

    def __enter__(self) -> Gauge:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    @property
    def grown(self) -> float:
        """In MiB."""
        return (self.most - self.first) / MIB


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


@pytest.fixture
def worker(
    server: Server, queue: Queue, start_worker: Callable[..., Worker], tmp_path: Path
) -> Callable[..., tuple[Worker, int]]:
    (tmp_path / "load_jobs.py").write_text(HANDLERS)

    def start(*args: str) -> tuple[Worker, int]:
        started = start_worker(server, "load_jobs:run", "-q", queue.name, *args).ready()
        return started, started.pids()[0]

    return start


def empty(queue: Queue) -> bool:
    depth = queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)


def report(server: Server, what: str, **facts: float) -> None:
    """One line a figure, for docs/guarantees.md; pytest shows it with -s."""
    told = ", ".join(f"{name} {value:,.1f}" for name, value in facts.items())
    print(f"\nload: {what}, {server.dialect}: {told}", file=sys.stderr)


def end(worker: Worker) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.end(120) == 0, worker.log


def test_many_jobs_wait(server: Server, queue: Queue, client: Any, worker: Any) -> None:
    jobs = count(1_000_000, 30_000)
    before = client.info("memory")["used_memory"]
    with Gauge(os.getpid()) as mine:
        began = time.monotonic()
        queue.add_batch(({"n": n} for n in range(jobs)), batch_id="b")
        adding = time.monotonic() - began
    # The jobs are made while they are sent: a producer holds a window of them and no more.
    assert mine.grown < 100
    used = client.info("memory")["used_memory"] - before
    assert queue.depth().waiting == jobs
    began = time.monotonic()
    queue.job_status(f"batch:b:0:{jobs - 1}")
    looking = time.monotonic() - began
    runner, pid = worker("-c", "100")
    with Gauge(pid) as gauge:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=LONG))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    assert gauge.grown < 100
    end(runner)
    report(server, f"{jobs} waiting", add_s=adding, bytes_a_job=used / jobs, find_s=looking,
           run_s=running, worker_grew_mib=gauge.grown, producer_grew_mib=mine.grown)  # fmt: skip


def test_many_fall_due_at_once(server: Server, queue: Queue, client: Any, worker: Any) -> None:
    jobs = count(100_000, 10_000)
    due = datetime.now(UTC) + timedelta(minutes=20)
    queue.add_batch(range(jobs), batch_id="b", run_at=due)
    runner, pid = worker("-c", "100")
    assert client.zcard(queue.keys.delayed) == jobs
    # All at the same moment: the clock need not be waited for, the score decides.
    now_ms = int(time.time() * 1000)
    members = client.zrange(queue.keys.delayed, 0, -1)
    with client.pipeline() as pipe:
        for start in range(0, jobs, 5000):
            pipe.zadd(queue.keys.delayed, dict.fromkeys(members[start : start + 5000], now_ms))
        pipe.execute()
    with Gauge(pid) as gauge:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=LONG))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    assert gauge.grown < 100
    end(runner)
    report(server, f"{jobs} due at once", run_s=running, worker_grew_mib=gauge.grown)


def test_many_letters(server: Server, queue: Queue, worker: Any) -> None:
    jobs = count(100_000, 5_000)
    runner, pid = worker("-c", "100")
    with Gauge(pid) as gauge:
        queue.add_batch(range(jobs), batch_id="b", job_name="die", retry=ONCE)
        progress = queue.wait_batch("b", timeout=timedelta(seconds=LONG))
    assert (progress.done, progress.dead) == (0, jobs)
    assert gauge.grown < 100
    end(runner)
    began = time.monotonic()
    assert len(queue.dead_letters(limit=100, newest_first=True)) == 100
    looking = time.monotonic() - began
    with Gauge(os.getpid()) as mine:
        began = time.monotonic()
        assert queue.replay_dead_letters().affected == jobs
        replaying = time.monotonic() - began
    assert mine.grown < 150
    assert (queue.depth().dead, queue.depth().waiting) == (0, jobs)
    assert queue.batch_progress("b").dead == 0
    report(server, f"{jobs} letters", page_s=looking, replay_s=replaying,
           worker_grew_mib=gauge.grown, replayer_grew_mib=mine.grown)  # fmt: skip


def test_many_repeats(server: Server, queue: Queue, client: Any, worker: Any) -> None:
    repeats = count(10_000, 1_000)
    began = time.monotonic()
    for number in range(repeats):
        queue.repeat(number, Every(3_600_000), key=f"r{number}", limit=1)
    adding = time.monotonic() - began
    assert len(queue.repeats(limit=100)) == 100
    runner, pid = worker("-c", "100")
    # All of them are due in the same moment.
    keys = client.zrange(queue.keys.repeat, 0, -1)
    now_ms = int(time.time() * 1000)
    client.zadd(queue.keys.repeat, dict.fromkeys(keys, now_ms))
    with Gauge(pid) as gauge:
        began = time.monotonic()
        wait_for(lambda: not client.zcard(queue.keys.repeat) and empty(queue), LONG)
        firing = time.monotonic() - began
    assert gauge.grown < 100
    completed = "chasquimq_jobs_completed_total"
    wait_for(lambda: runner.metric(completed, queue=queue.name) == repeats)
    end(runner)
    report(server, f"{repeats} repeats", add_s=adding, fire_s=firing, worker_grew_mib=gauge.grown)


def test_large_payloads(server: Server, queue: Queue, worker: Any) -> None:
    jobs = count(2_000, 300)
    payload = b"x" * (MIB - 200)
    queue.add_batch((payload for _ in range(jobs)), batch_id="b")
    runner, pid = worker("-c", "10")
    with Gauge(pid) as gauge:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=LONG))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    end(runner)
    report(server, f"{jobs} of 1 MiB", run_s=running, worker_grew_mib=gauge.grown)
    assert gauge.grown < 150


def test_many_queues(server: Server, client: Any, queue_name: str) -> None:
    queues = count(2_000, 500)
    link = ConnectionManager(RedisTarget.coerce(server.url))
    before = len(client.client_list())
    began = time.monotonic()
    for number in range(queues):
        with Queue(f"{queue_name}-{number}", link, dialect=server.dialect) as queue:
            queue.add(number)
    adding = time.monotonic() - began
    # However many queues there are, a process that uses one after the other has one connection.
    assert len(client.client_list()) <= before + 2
    with Queue(f"{queue_name}-{queues - 1}", link, dialect=server.dialect) as queue:
        assert queue.depth().waiting == 1
    link.close()
    report(server, f"{queues} queues", add_s=adding)
