"""Large numbers of jobs, repeats and queues: memory stays bounded, and all work finishes.

By default the numbers are at most a tenth; `CHASQUI_LOAD=full` uses those of docs/guarantees.md.
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
TIMEOUT_S = 1500 if FULL else 240
MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(2 * TIMEOUT_S),
    pytest.mark.xdist_group("load"),
]

ONE_ATTEMPT = RetryPolicy(1, Backoff.fixed(timedelta(milliseconds=1)))

HANDLERS = """
from airflow_provider_chasqui import Unrecoverable

async def run(job):
    if job.name == "die":
        raise Unrecoverable("planned unrecoverable error")
"""


def count(full: int, small: int) -> int:
    """Return the number for this run."""
    return full if FULL else small


@pytest.fixture(params=["native", "portable"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    native = request.param == "native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as process:
        yield Server(process.url, request.param)


class MemoryMonitor(threading.Thread):
    """Thread that records the maximum memory of a process."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._pid = pid
        self._done = threading.Event()
        self.first = self.maximum = rss(pid)

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.maximum = max(self.maximum, rss(self._pid))

    def __enter__(self) -> MemoryMonitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    @property
    def growth(self) -> float:
        """The growth in MiB."""
        return (self.maximum - self.first) / MIB


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
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


def is_drained(queue: Queue) -> bool:
    """Return whether no job is waiting, running or delayed."""
    depth = queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)


def report(server: Server, load: str, **figures: float) -> None:
    """Print one line of figures for docs/guarantees.md; pytest shows it with -s."""
    values = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
    print(f"\nload: {load}, {server.dialect}: {values}", file=sys.stderr)


def stop(worker: Worker) -> None:
    """Stop a worker with SIGTERM; it must exit with 0."""
    worker.signal(signal.SIGTERM)
    assert worker.end(120) == 0, worker.log


def test_a_worker_runs_many_waiting_jobs(
    server: Server, queue: Queue, client: Any, worker: Any
) -> None:
    jobs = count(1_000_000, 30_000)
    before = client.info("memory")["used_memory"]
    with MemoryMonitor(os.getpid()) as own_memory:
        began = time.monotonic()
        queue.add_batch(({"n": n} for n in range(jobs)), batch_id="b")
        adding = time.monotonic() - began
    # The producer consumes the iterable while it sends, so it holds only a few jobs in memory.
    assert own_memory.growth < 100
    used = client.info("memory")["used_memory"] - before
    assert queue.depth().waiting == jobs
    began = time.monotonic()
    queue.job_status(f"batch:b:0:{jobs - 1}")
    lookup = time.monotonic() - began
    process, pid = worker("-c", "100")
    with MemoryMonitor(pid) as memory:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=TIMEOUT_S))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    assert memory.growth < 100
    stop(process)
    report(
        server,
        f"{jobs} waiting",
        add_s=adding,
        bytes_per_job=used / jobs,
        find_s=lookup,
        run_s=running,
        worker_growth_mib=memory.growth,
        producer_growth_mib=own_memory.growth,
    )


def test_a_worker_runs_many_jobs_that_are_due_at_once(
    server: Server, queue: Queue, client: Any, worker: Any
) -> None:
    jobs = count(100_000, 10_000)
    due = datetime.now(UTC) + timedelta(minutes=20)
    queue.add_batch(range(jobs), batch_id="b", run_at=due)
    process, pid = worker("-c", "100")
    assert client.zcard(queue.keys.delayed) == jobs
    # The new scores make all jobs due at once, so the test does not wait for the clock.
    now_ms = int(time.time() * 1000)
    members = client.zrange(queue.keys.delayed, 0, -1)
    with client.pipeline() as pipe:
        for start in range(0, jobs, 5000):
            pipe.zadd(queue.keys.delayed, dict.fromkeys(members[start : start + 5000], now_ms))
        pipe.execute()
    with MemoryMonitor(pid) as memory:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=TIMEOUT_S))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    assert memory.growth < 100
    stop(process)
    report(server, f"{jobs} due at once", run_s=running, worker_growth_mib=memory.growth)


def test_many_dead_letters_are_replayed(server: Server, queue: Queue, worker: Any) -> None:
    jobs = count(100_000, 5_000)
    process, pid = worker("-c", "100")
    with MemoryMonitor(pid) as memory:
        queue.add_batch(range(jobs), batch_id="b", job_name="die", retry=ONE_ATTEMPT)
        progress = queue.wait_batch("b", timeout=timedelta(seconds=TIMEOUT_S))
    assert (progress.done, progress.dead) == (0, jobs)
    assert memory.growth < 100
    stop(process)
    began = time.monotonic()
    assert len(queue.dead_letters(limit=100, newest_first=True)) == 100
    lookup = time.monotonic() - began
    with MemoryMonitor(os.getpid()) as own_memory:
        began = time.monotonic()
        assert queue.replay_dead_letters().affected == jobs
        replaying = time.monotonic() - began
    assert own_memory.growth < 150
    assert (queue.depth().dead, queue.depth().waiting) == (0, jobs)
    assert queue.batch_progress("b").dead == 0
    report(
        server,
        f"{jobs} dead letters",
        page_s=lookup,
        replay_s=replaying,
        worker_growth_mib=memory.growth,
        replayer_growth_mib=own_memory.growth,
    )


def test_many_repeats_fire_at_once(server: Server, queue: Queue, client: Any, worker: Any) -> None:
    repeats = count(10_000, 1_000)
    began = time.monotonic()
    for number in range(repeats):
        queue.repeat(number, Every(3_600_000), key=f"r{number}", limit=1)
    adding = time.monotonic() - began
    assert len(queue.repeats(limit=100)) == 100
    process, pid = worker("-c", "100")
    # The new scores make all repeats due at once.
    keys = client.zrange(queue.keys.repeat, 0, -1)
    now_ms = int(time.time() * 1000)
    client.zadd(queue.keys.repeat, dict.fromkeys(keys, now_ms))
    with MemoryMonitor(pid) as memory:
        began = time.monotonic()
        wait_for(lambda: not client.zcard(queue.keys.repeat) and is_drained(queue), TIMEOUT_S)
        firing = time.monotonic() - began
    assert memory.growth < 100
    completed = "chasquimq_jobs_completed_total"
    wait_for(lambda: process.metric(completed, queue=queue.name) == repeats)
    stop(process)
    report(
        server, f"{repeats} repeats", add_s=adding, fire_s=firing, worker_growth_mib=memory.growth
    )


def test_a_worker_runs_jobs_with_large_payloads(server: Server, queue: Queue, worker: Any) -> None:
    jobs = count(2_000, 300)
    payload = b"x" * (MIB - 200)
    queue.add_batch((payload for _ in range(jobs)), batch_id="b")
    process, pid = worker("-c", "10")
    with MemoryMonitor(pid) as memory:
        began = time.monotonic()
        progress = queue.wait_batch("b", timeout=timedelta(seconds=TIMEOUT_S))
        running = time.monotonic() - began
    assert (progress.done, progress.dead) == (jobs, 0)
    stop(process)
    report(server, f"{jobs} of 1 MiB", run_s=running, worker_growth_mib=memory.growth)
    assert memory.growth < 150


def test_many_queues_share_one_connection(server: Server, client: Any, queue_name: str) -> None:
    queues = count(2_000, 500)
    connections = ConnectionManager(RedisTarget.coerce(server.url))
    before = len(client.client_list())
    began = time.monotonic()
    for number in range(queues):
        with Queue(f"{queue_name}-{number}", connections, dialect=server.dialect) as queue:
            queue.add(number)
    adding = time.monotonic() - began
    # A process that uses many queues one after the other has one connection.
    assert len(client.client_list()) <= before + 2
    with Queue(f"{queue_name}-{queues - 1}", connections, dialect=server.dialect) as queue:
        assert queue.depth().waiting == 1
    connections.close()
    report(server, f"{queues} queues", add_s=adding)
