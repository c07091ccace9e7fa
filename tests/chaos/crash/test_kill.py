"""kill -9 in the middle of every step a worker takes: nothing is lost, nothing is doubled.

The gate stands between the worker and the server and stops at the step's own request: before the
server sees it, or after the server did it and before the worker knows.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.repeat import FIRE_ONCE
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.chaos.crash.conftest import runs, settled
from tests.chaos.crash.gate import Gate
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]

NOW = Backoff.fixed(timedelta(milliseconds=1))
WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture
def killed(server, worker):
    """Run a worker up to the step that `verb` names, and kill it there."""

    def kill_at(verb: str, when: str) -> None:
        marker = b"XACKDEL" if verb == "ack" else load_script(verb, server.dialect).sha
        if verb == "ack" and server.dialect == "portable":
            marker = load_script("acknowledge", server.dialect).sha
        # Scripts are called by their name only once the server knows them.
        with Gate(server.url, marker, when) as gate:
            victim = worker(gate.url)
            assert gate.reached.wait(40), f"it never came to {verb}"
            victim.kill()

    return kill_at


@pytest.fixture(autouse=True)
def known_scripts(server, client) -> None:
    """A script that the server does not know is loaded first, and the gate must not stop there."""
    for verb in ("acknowledge", "settle", "retry", "bury", "promote", "fire"):
        client.script_load(load_script(verb, server.dialect).source)


def test_mid_handler_the_job_is_delivered_again(queue, client, worker) -> None:
    queue.add(30, job_id="j", retry=RetryPolicy(3, NOW))
    victim = worker()
    until(lambda: runs(client, queue.name) == [("j", 0)])
    victim.kill()
    worker()
    until(lambda: runs(client, queue.name) == [("j", 0), ("j", 1)])
    assert queue.dead_letters() == []


def test_a_job_that_kills_its_worker_runs_as_often_as_it_may(queue, client, worker) -> None:
    queue.add(30, job_id="poison", job_name="n", retry=RetryPolicy(3, NOW))
    for attempt in range(3):
        victim = worker()
        until(lambda n=attempt: len(runs(client, queue.name)) == n + 1)
        victim.kill()
    worker()
    [letter] = until(queue.dead_letters)
    assert runs(client, queue.name) == [("poison", 0), ("poison", 1), ("poison", 2)]
    assert (letter.reason, letter.attempts, letter.job_name) == ("retries_exhausted", 3, "n")
    until(lambda: settled(queue))
    assert queue.depth().dead == 1


def test_crashes_and_failures_are_one_budget(queue, client, worker) -> None:
    """A crash, then failures: what the crash cost is not forgotten by the retry."""
    queue.add("always fail", job_id="j", retry=RetryPolicy(4, NOW))
    with Gate(client_url(queue), load_script("retry", queue.dialect()).sha, "before") as gate:
        victim = worker(gate.url)
        assert gate.reached.wait(40)
        victim.kill()
    worker()
    [letter] = until(queue.dead_letters)
    assert runs(client, queue.name) == [("j", 0), ("j", 1), ("j", 2), ("j", 3)]
    assert letter.attempts == 4


def client_url(queue) -> str:
    host, port = queue.target.nodes[0]
    return f"redis://{host}:{port}/0"


@WHEN
def test_mid_ack(queue, client, worker, killed, when: str) -> None:
    queue.add("quick", job_id="j", retry=RetryPolicy(3, NOW))
    killed("ack", when)
    assert settled(queue) == (when == "after")
    worker()
    until(lambda: settled(queue))
    again = [("j", 1)] if when == "before" else []
    assert runs(client, queue.name) == [("j", 0), *again]
    assert queue.dead_letters() == []


@WHEN
def test_mid_retry(queue, client, worker, killed, when: str) -> None:
    queue.add("fail", job_id="j", retry=RetryPolicy(2, Backoff.fixed(timedelta(milliseconds=600))))
    killed("retry", when)
    assert client.zcard(queue.keys.delayed) == (1 if when == "after" else 0)
    worker()
    until(lambda: len(runs(client, queue.name)) == 2)
    until(lambda: settled(queue))
    # The failed run counts once, whether the server knew of it or only of the lost delivery.
    assert runs(client, queue.name) == [("j", 0), ("j", 1)]
    assert queue.dead_letters() == []


@WHEN
def test_mid_bury(queue, client, worker, killed, when: str) -> None:
    batch = queue.add_batch(["die"], batch_id="b", retry=RetryPolicy(5, NOW))
    [job_id] = batch.job_ids()
    killed("bury", when)
    assert queue.depth().dead == (1 if when == "after" else 0)
    worker()
    until(lambda: queue.depth().dead and settled(queue))
    again = [(job_id, 1)] if when == "before" else []
    assert runs(client, queue.name) == [(job_id, 0), *again]
    [letter] = queue.dead_letters()
    assert (letter.reason, letter.attempts) == ("unrecoverable", 1 + len(again))
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead) == (0, 1)


@WHEN
def test_mid_promote(queue, client, worker, killed, when: str) -> None:
    jobs = [{"payload": "quick", "job_id": f"j{n}", "delay": timedelta(0.001)} for n in range(20)]
    queue.add_many(jobs)
    for n in range(20):
        queue.reschedule(f"j{n}", delay=timedelta(milliseconds=1))
    killed("promote", when)
    depth = queue.depth()
    assert (depth.delayed, depth.waiting + depth.running) == (
        (0, 20) if when == "after" else (20, 0)
    )
    worker()
    until(lambda: settled(queue))
    assert Counter(job_id for job_id, _ in runs(client, queue.name)) == {
        f"j{n}": 1 for n in range(20)
    }


@WHEN
def test_mid_fire(queue, client, worker, killed, when: str) -> None:
    queue.repeat("quick", Every(300), job_name="r", limit=4, misfire=FIRE_ONCE)
    killed("fire", when)
    fired = int(client.hget(queue.keys.repeat_spec("r::every:300"), "fired") or 0)
    assert fired == (1 if when == "after" else 0)
    worker()
    until(lambda: not queue.repeats() and settled(queue))
    ids = [job_id for job_id, _ in runs(client, queue.name)]
    assert len(ids) == len(set(ids)) == 4


def test_a_reply_that_never_arrived_costs_no_run(queue, client, worker, server) -> None:
    """The server gave the job out and the connection died: it did not run, so it still may."""
    with Gate(server.url, b"XREADGROUP", "after") as gate:
        # Nobody claims in this test: only the worker itself can find what it was given.
        worker(
            gate.url,
            claim_after=timedelta(milliseconds=600_000),
            block_timeout=timedelta(milliseconds=60_000),
        )
        until(lambda: queue.consumers())
        queue.add("quick", job_id="j", retry=RetryPolicy(1))
        assert gate.reached.wait(40)
        assert queue.depth().running == 1
        gate.open()
        until(lambda: settled(queue))
    assert runs(client, queue.name) == [("j", 0)]
    assert queue.dead_letters() == []


def test_sigterm_drains_hands_back_and_exits_with_0(queue, client, worker) -> None:
    """What runs may finish, what was not begun runs elsewhere at once, and nothing is left."""
    slow = {
        "concurrency": 2,
        "claim_after": timedelta(milliseconds=600_000),
        "shutdown_timeout": timedelta(seconds=60),
    }
    queue.add_many([{"payload": 2, "job_id": f"runs{n}"} for n in range(2)])
    first = worker(**slow)
    until(lambda: len(runs(client, queue.name)) == 2)
    first.process.terminate()
    queue.add_many([{"payload": "quick", "job_id": f"next{n}"} for n in range(4)])
    second = worker(**slow)
    until(lambda: len(runs(client, queue.name)) == 6)
    code, said = first.terminate() if first.process.is_alive() else (first.process.exitcode, "")
    assert code == 0, said
    until(lambda: settled(queue))
    assert second.terminate()[0] == 0
    counts = Counter(job_id for job_id, _ in runs(client, queue.name))
    assert len(counts) == 6
    assert set(counts.values()) == {1}
    assert queue.consumers() == []
    assert client.exists(queue.keys.promoter_lock, queue.keys.scheduler_lock) == 0
    done = [e.job_id for e in queue.events(limit=1000) if e.name == "completed"]
    assert sorted(done) == sorted(counts)


def test_sigterm_cuts_off_what_does_not_end(queue, client, worker) -> None:
    # Nobody claims in this test: the second worker can only have what was handed back.
    queue.add(60, job_id="long", retry=RetryPolicy(5, NOW))
    first = worker(
        shutdown_timeout=timedelta(seconds=0.3), claim_after=timedelta(milliseconds=600_000)
    )
    until(lambda: runs(client, queue.name))
    code, said = first.terminate()
    assert code == 0, said
    assert "1 jobs are cut off" in said
    worker(claim_after=timedelta(milliseconds=600_000))
    until(lambda: runs(client, queue.name) == [("long", 0), ("long", 1)])
