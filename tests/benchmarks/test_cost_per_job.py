"""Tests of the cost per job, counted in Redis commands, round trips and Python calls.

Counts do not depend on the load of the machine, so a hot path that became slower fails here. Each
limit is slightly above the current count.
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
    """Redis commands (those inside scripts included) and Python calls, both per job."""

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
    """A server without other clients, so that its command counters are exact."""
    with RedisServer.start(redis86_binary) as server:
        yield server


def cost(own_server: RedisServer, scenario: str) -> Cost:
    with redis.Redis.from_url(own_server.url) as admin:
        admin.flushall()
    command = [sys.executable, "-m", "tests.benchmarks.cost", scenario, own_server.url]
    process = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=100)
    return Cost(**json.loads(process.stdout))


def test_one_add_is_one_command(own_server: RedisServer) -> None:
    per_job = cost(own_server, "add")
    assert per_job.commands == {"xadd": 1.0}
    assert per_job.calls < 175, per_job.calls


def test_a_bulk_add_is_one_script_call_per_256_jobs(own_server: RedisServer) -> None:
    per_job = cost(own_server, "bulk")
    assert per_job.commands["xadd"] == 1.0
    assert per_job.commands["evalsha"] <= 1 / 250
    assert per_job.total < 1.02, per_job
    assert per_job.calls < 18, per_job.calls


def test_a_run_without_events_needs_a_fraction_of_a_command(own_server: RedisServer) -> None:
    per_job = cost(own_server, "run")
    assert per_job.total < 0.05, per_job
    assert per_job.calls < 48, per_job.calls


def test_a_run_with_events_adds_only_its_two_events(own_server: RedisServer) -> None:
    per_job = cost(own_server, "run with events")
    assert 2.0 <= per_job.commands["xadd"] < 2.01
    assert per_job.scripts_and_reads < 0.04, per_job
    assert per_job.total < 2.15, per_job
    assert per_job.calls < 57, per_job.calls


def test_delayed_jobs_are_promoted_in_bulk(own_server: RedisServer) -> None:
    per_job = cost(own_server, "delayed")
    # The worker requeues what it has read ahead when it is stopped.
    assert 1.0 <= per_job.commands["xadd"] < 1.01
    assert per_job.total < 2.1, per_job


def test_retries_are_delayed_and_promoted_in_bulk(own_server: RedisServer) -> None:
    per_job = cost(own_server, "retried")
    assert per_job.scripts_and_reads < 0.05, per_job
    assert per_job.total < 3.2, per_job
    assert per_job.calls < 225, per_job.calls
