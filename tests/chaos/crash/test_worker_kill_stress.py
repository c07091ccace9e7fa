"""Workers die all the time, and yet every job of a batch is counted once."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from tests.chaos.crash.conftest import runs, settled
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

COUNT = 600
PAYLOADS = ["quick", 0.02, "fail", "die", "quick", 0.1]


def test_batch_bits_are_exact_while_workers_are_killed(queue, client, worker) -> None:
    payloads = [PAYLOADS[n % len(PAYLOADS)] for n in range(COUNT)]
    retry = RetryPolicy(30, Backoff.fixed(timedelta(milliseconds=20)))
    batch = queue.add_batch(payloads, batch_id="b", retry=retry)
    crew = [worker(concurrency=5) for _ in range(3)]
    kills = 0
    while not queue.batch_progress("b").finished and kills < 25:
        time.sleep(0.15 + random.random() * 0.2)
        place = random.randrange(3)
        crew[place].kill()
        crew[place] = worker(concurrency=5)
        kills += 1
    progress = queue.wait_batch("b", timeout=timedelta(seconds=60))
    until(lambda: settled(queue))
    dead = payloads.count("die")
    assert (progress.done, progress.dead) == (COUNT - dead, dead)
    assert kills >= 3
    letters = Counter(letter.job_id for letter in queue.dead_letters(limit=10_000))
    assert set(letters.values()) == {1}
    assert len(letters) == dead
    began = Counter(job_id for job_id, _ in runs(client, queue.name))
    assert set(began) == set(batch.job_ids())
    # A run never has a number that an earlier run had: crashed ones count as well.
    for job_id, attempts in _attempts(client, queue.name).items():
        assert len(attempts) == len(set(attempts)), job_id


def _attempts(client, name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for job_id, attempt in runs(client, name):
        found.setdefault(job_id, []).append(attempt)
    return found
