"""Real worker processes, and the runs that they recorded."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.chaos.crash.worker import RUNS_KEY, main
from tests.conftest import SERVERS, Server


@pytest.fixture(params=["redis8-native", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    fixture, dialect = SERVERS[request.param]
    return Server(request.getfixturevalue(fixture).url, dialect)


# Processes that are forked from one that has imported everything start quickly.
_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["tests.chaos.crash.worker"])


class Worker:
    """A worker process. It is killed at the end of the test."""

    def __init__(self, log: Path, *args: Any):
        self._log = log
        self.process = _FORKSERVER.Process(target=main, args=(str(log), *args), daemon=True)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(20)

    def terminate(self, seconds: float = 40) -> tuple[int | None, str]:
        """Stop the worker with SIGTERM; return its exit code and its log."""
        assert self.process.is_alive()
        self.process.terminate()
        self.process.join(seconds)
        return self.process.exitcode, self._log.read_text()


@pytest.fixture
def worker(server: Server, queue_name: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(url: str | None = None, **changes: Any) -> Worker:
        log = tmp_path / f"worker-{len(started)}.log"
        args = (url or server.url, server.dialect, queue_name, server.url, changes)
        started.append(Worker(log, *args))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def runs(client: Any, queue: str) -> list[tuple[str, int]]:
    """Return the job id and the attempt of every run that began, in order."""
    raw = client.lrange(RUNS_KEY.format(queue), 0, -1)
    records = [record.decode().rpartition("|") for record in raw]
    return [(job_id, int(attempt)) for job_id, _, attempt in records]


def is_drained(queue: Queue) -> bool:
    """Return whether no job is waiting, running or delayed."""
    depth = queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)
