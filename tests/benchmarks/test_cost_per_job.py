"""What a job costs, counted and not timed: Redis commands, round trips and Python calls.

Counts do not depend on the machine's load, so a hot path that got dearer fails here and not only in
the benchmark that nobody ran. Each bound is a little above what is measured today.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cost:
    """Per job: commands on the server, those inside scripts included; calls in Python."""

    commands: dict[str, float]
    calls: float

    @property
    def total(self) -> float:
        return sum(self.commands.values())

    @property
    def scripts_and_reads(self) -> float:
        return self.commands.get("evalsha", 0) + self.commands.get("xreadgroup", 0)


@pytest.fixture(scope="module")
def own_server(redis86_binary: Path) -> Iterator[RedisServer]:
    """One that nobody else talks to: its counters are ours."""
    with RedisServer.start(redis86_binary) as server:
        yield server


def cost(own_server: RedisServer, what: str) -> Cost:
    with redis.Redis.from_url(own_server.url) as admin:
        admin.flushall()
    command = [sys.executable, "-m", "tests.benchmarks.cost", what, own_server.url]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=100)
    return Cost(**json.loads(said.stdout))


def test_one_add_is_one_command(own_server: RedisServer) -> None:
    spent = cost(own_server, "add")
    assert spent.commands == {"xadd": 1.0}
    assert spent.calls < 175, spent.calls


def test_bulk_is_a_script_call_for_256_jobs(own_server: RedisServer) -> None:
    spent = cost(own_server, "bulk")
    assert spent.commands["xadd"] == 1.0
    assert spent.commands["evalsha"] <= 1 / 250
    assert spent.total < 1.02, spent
    assert spent.calls < 18, spent.calls


def test_a_run_without_events_is_a_fraction_of_a_command(own_server: RedisServer) -> None:
    spent = cost(own_server, "run")
    assert spent.total < 0.05, spent
    assert spent.calls < 48, spent.calls


def test_a_run_with_events_adds_its_two_events_and_nothing_else(own_server: RedisServer) -> None:
    spent = cost(own_server, "run with events")
    assert 2.0 <= spent.commands["xadd"] < 2.01
    assert spent.scripts_and_reads < 0.04, spent
    assert spent.total < 2.15, spent
    assert spent.calls < 57, spent.calls


def test_delayed_jobs_are_promoted_in_bulk(own_server: RedisServer) -> None:
    spent = cost(own_server, "delayed")
    assert spent.commands["xadd"] == 1.0
    assert spent.total < 2.1, spent


def test_retries_are_parked_and_promoted_in_bulk(own_server: RedisServer) -> None:
    spent = cost(own_server, "retried")
    assert spent.scripts_and_reads < 0.05, spent
    assert spent.total < 3.2, spent
    assert spent.calls < 215, spent.calls
