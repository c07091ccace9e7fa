"""Every job of a batch is counted exactly once while workers are killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from tests.chaos.crash.conftest import is_drained, runs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

COUNT = 600
PAYLOADS = ["quick", 0.02, "fail", "die", "quick", 0.1]


def test_batch_bits_are_exact_while_workers_are_killed(queue, client, worker) -> None:
    payloads = [PAYLOADS[n % len(PAYLOADS)] for n in range(COUNT)]
    retry = RetryPolicy(30, Backoff.fixed(timedelta(milliseconds=20)))
    batch = queue.add_batch(payloads, batch_id="b", retry=retry)
    workers = [worker(concurrency=5) for _ in range(3)]
    kills = 0
    while not queue.batch_progress("b").finished and kills < 25:
        time.sleep(0.15 + random.random() * 0.2)
        index = random.randrange(3)
        workers[index].kill()
        workers[index] = worker(concurrency=5)
        kills += 1
    progress = queue.wait_batch("b", timeout=timedelta(seconds=60))
    wait_until(lambda: is_drained(queue))
    dead = payloads.count("die")
    assert (progress.done, progress.dead) == (COUNT - dead, dead)
    assert kills >= 3
    dead_letters = Counter(dead_letter.job_id for dead_letter in queue.dead_letters(limit=10_000))
    assert set(dead_letters.values()) == {1}
    assert len(dead_letters) == dead
    began = Counter(job_id for job_id, _ in runs(client, queue.name))
    assert set(began) == set(batch.job_ids())
    # No two runs have the same attempt number; crashed runs count as well.
    for job_id, attempts in _attempts(client, queue.name).items():
        assert len(attempts) == len(set(attempts)), job_id


def _attempts(client, name: str) -> dict[str, list[int]]:
    attempts: dict[str, list[int]] = {}
    for job_id, attempt in runs(client, name):
        attempts.setdefault(job_id, []).append(attempt)
    return attempts
