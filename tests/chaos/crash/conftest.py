"""Real worker processes, and what they noted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.chaos.crash.worker import NOTES, main
from tests.conftest import SERVERS, Server


@pytest.fixture(params=["redis8-native", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    fixture, dialect = SERVERS[request.param]
    return Server(request.getfixturevalue(fixture).url, dialect)


# Forked from a process that has imported everything once: real processes, soon there.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.chaos.crash.worker"])


class Worker:
    """A worker process; killed with the test at the latest."""

    def __init__(self, log: Path, *args: Any):
        self._log = log
        self.process = _FORKS.Process(target=main, args=(str(log), *args), daemon=True)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(20)

    def terminate(self, seconds: float = 40) -> tuple[int | None, str]:
        """Stop it politely; its exit code and what it said."""
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
    for each in started:
        each.kill()


def runs(client: Any, queue: str) -> list[tuple[str, int]]:
    """Every run that began: job id and attempt, in order."""
    noted = [note.decode().rpartition("|") for note in client.lrange(NOTES.format(queue), 0, -1)]
    return [(job_id, int(attempt)) for job_id, _, attempt in noted]


def settled(queue: Queue) -> bool:
    depth = queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)
