"""kill -9 in the middle of every step of a worker: no job is lost or duplicated.

A proxy between worker and server stops at the request of the step: before the server receives it,
or after the server executed it and before the worker receives the reply.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.repeat import FIRE_ONCE
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.chaos.crash.conftest import is_drained, runs
from tests.support.proxy import HoldAt, TcpProxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]

SHORT_BACKOFF = Backoff.fixed(timedelta(milliseconds=1))
SCRIPTS = (
    "ack",
    "ack_with_results",
    "schedule_retries",
    "move_to_dlq",
    "promote",
    "repeat_enqueue_due",
)
WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture
def killed(server, worker):
    """Return a function that starts a worker and kills it at the call of a script."""

    def kill_at(script: str, when: str) -> None:
        # On native servers an ack is a command and not a script.
        native_ack = script == "ack" and server.dialect == "native"
        marker = b"XACKDEL" if native_ack else load_script(script, server.dialect).sha
        with TcpProxy(server.url, trigger=HoldAt(marker, when)) as proxy:
            victim = worker(proxy.url)
            assert proxy.triggered.wait(40), f"the worker did not call {script} within 40 s"
            victim.kill()

    return kill_at


@pytest.fixture(autouse=True)
def load_scripts(server, client) -> None:
    """Load all scripts, so that the trigger does not fire at a call that loads a script."""
    for script in SCRIPTS:
        client.script_load(load_script(script, server.dialect).source)


def test_a_job_whose_worker_is_killed_is_delivered_again(queue, client, worker) -> None:
    queue.add(30, job_id="j", retry=RetryPolicy(3, SHORT_BACKOFF))
    victim = worker()
    wait_until(lambda: runs(client, queue.name) == [("j", 0)])
    victim.kill()
    worker()
    wait_until(lambda: runs(client, queue.name) == [("j", 0), ("j", 1)])
    assert queue.dead_letters() == []


def test_a_job_that_kills_its_worker_becomes_a_dead_letter_at_its_attempt_limit(
    queue, client, worker
) -> None:
    queue.add(30, job_id="poison", job_name="n", retry=RetryPolicy(3, SHORT_BACKOFF))
    for attempt in range(3):
        victim = worker()
        wait_until(lambda n=attempt: len(runs(client, queue.name)) == n + 1)
        victim.kill()
    worker()
    [dead_letter] = wait_until(queue.dead_letters)
    assert runs(client, queue.name) == [("poison", 0), ("poison", 1), ("poison", 2)]
    assert (dead_letter.reason, dead_letter.attempts, dead_letter.job_name) == (
        "retries_exhausted",
        3,
        "n",
    )
    wait_until(lambda: is_drained(queue))
    assert queue.depth().dead == 1


def test_crashes_and_failures_count_against_one_attempt_limit(queue, client, worker) -> None:
    """A retry after a crash keeps the attempt count of the crashed run."""
    queue.add("always fail", job_id="j", retry=RetryPolicy(4, SHORT_BACKOFF))
    marker = load_script("schedule_retries", queue.dialect()).sha
    with TcpProxy(client_url(queue), trigger=HoldAt(marker, "before")) as proxy:
        victim = worker(proxy.url)
        assert proxy.triggered.wait(40), "the worker did not schedule a retry within 40 s"
        victim.kill()
    worker()
    [dead_letter] = wait_until(queue.dead_letters)
    assert runs(client, queue.name) == [("j", 0), ("j", 1), ("j", 2), ("j", 3)]
    assert dead_letter.attempts == 4


def client_url(queue) -> str:
    host, port = queue.target.nodes[0]
    return f"redis://{host}:{port}/0"


@WHEN
def test_a_worker_killed_during_an_ack_loses_no_job(
    queue, client, worker, killed, when: str
) -> None:
    queue.add("quick", job_id="j", retry=RetryPolicy(3, SHORT_BACKOFF))
    killed("ack", when)
    assert is_drained(queue) == (when == "after")
    worker()
    wait_until(lambda: is_drained(queue))
    again = [("j", 1)] if when == "before" else []
    assert runs(client, queue.name) == [("j", 0), *again]
    assert queue.dead_letters() == []


@WHEN
def test_a_worker_killed_while_it_schedules_a_retry_loses_no_attempt(
    queue, client, worker, killed, when: str
) -> None:
    queue.add("fail", job_id="j", retry=RetryPolicy(2, Backoff.fixed(timedelta(milliseconds=600))))
    killed("schedule_retries", when)
    assert client.zcard(queue.keys.delayed) == (1 if when == "after" else 0)
    worker()
    wait_until(lambda: len(runs(client, queue.name)) == 2)
    wait_until(lambda: is_drained(queue))
    # The failed run counts once, as a retry or as a delivery without an outcome.
    assert runs(client, queue.name) == [("j", 0), ("j", 1)]
    assert queue.dead_letters() == []


@WHEN
def test_a_worker_killed_while_it_moves_a_job_to_the_dlq_leaves_one_dead_letter(
    queue, client, worker, killed, when: str
) -> None:
    batch = queue.add_batch(["die"], batch_id="b", retry=RetryPolicy(5, SHORT_BACKOFF))
    [job_id] = batch.job_ids()
    killed("move_to_dlq", when)
    assert queue.depth().dead == (1 if when == "after" else 0)
    worker()
    wait_until(lambda: queue.depth().dead and is_drained(queue))
    again = [(job_id, 1)] if when == "before" else []
    assert runs(client, queue.name) == [(job_id, 0), *again]
    [dead_letter] = queue.dead_letters()
    assert (dead_letter.reason, dead_letter.attempts) == ("unrecoverable", 1 + len(again))
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead) == (0, 1)


@WHEN
def test_a_worker_killed_while_it_promotes_runs_each_delayed_job_once(
    queue, client, worker, killed, when: str
) -> None:
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
    wait_until(lambda: is_drained(queue))
    assert Counter(job_id for job_id, _ in runs(client, queue.name)) == {
        f"j{n}": 1 for n in range(20)
    }


@WHEN
def test_a_worker_killed_while_it_fires_a_repeat_loses_no_fire(
    queue, client, worker, killed, when: str
) -> None:
    queue.repeat("quick", Every(300), job_name="r", limit=4, misfire=FIRE_ONCE)
    killed("repeat_enqueue_due", when)
    fired = int(client.hget(queue.keys.repeat_spec("r::every:300"), "fired") or 0)
    assert fired == (1 if when == "after" else 0)
    worker()
    wait_until(lambda: not queue.repeats() and is_drained(queue))
    ids = [job_id for job_id, _ in runs(client, queue.name)]
    assert len(ids) == len(set(ids)) == 4


def test_a_lost_reply_with_a_job_does_not_count_as_an_attempt(
    queue, client, worker, server
) -> None:
    """The server delivered the job and the connection ended, so the job did not run."""
    with TcpProxy(server.url, trigger=HoldAt(b"XREADGROUP", "after")) as proxy:
        # No entry is claimed in this test: only the worker itself can find its pending entry.
        worker(
            proxy.url,
            claim_after=timedelta(milliseconds=600_000),
            block_timeout=timedelta(milliseconds=60_000),
        )
        wait_until(lambda: queue.consumers())
        queue.add("quick", job_id="j", retry=RetryPolicy(1))
        assert proxy.triggered.wait(40), "the worker received no job within 40 s"
        assert queue.depth().running == 1
        proxy.disconnect_all()
        wait_until(lambda: is_drained(queue))
    assert runs(client, queue.name) == [("j", 0)]
    assert queue.dead_letters() == []


def test_sigterm_finishes_running_jobs_requeues_others_and_exits_with_0(
    queue, client, worker
) -> None:
    """Running jobs finish, jobs that did not start run on another worker, and no lock remains."""
    slow = {
        "concurrency": 2,
        "claim_after": timedelta(milliseconds=600_000),
        "shutdown_timeout": timedelta(seconds=60),
    }
    queue.add_many([{"payload": 2, "job_id": f"runs{n}"} for n in range(2)])
    first = worker(**slow)
    wait_until(lambda: len(runs(client, queue.name)) == 2)
    first.process.terminate()
    queue.add_many([{"payload": "quick", "job_id": f"next{n}"} for n in range(4)])
    second = worker(**slow)
    wait_until(lambda: len(runs(client, queue.name)) == 6)
    code, log = first.terminate() if first.process.is_alive() else (first.process.exitcode, "")
    assert code == 0, log
    wait_until(lambda: is_drained(queue))
    assert second.terminate()[0] == 0
    counts = Counter(job_id for job_id, _ in runs(client, queue.name))
    assert len(counts) == 6
    assert set(counts.values()) == {1}
    assert queue.consumers() == []
    assert client.exists(queue.keys.promoter_lock, queue.keys.scheduler_lock) == 0
    done = [e.job_id for e in queue.events(limit=1000) if e.name == "completed"]
    assert sorted(done) == sorted(counts)


def test_sigterm_cancels_and_requeues_jobs_that_exceed_the_shutdown_timeout(
    queue, client, worker
) -> None:
    # No entry is claimed in this test: the second worker can only run a requeued job.
    queue.add(60, job_id="long", retry=RetryPolicy(5, SHORT_BACKOFF))
    first = worker(
        shutdown_timeout=timedelta(seconds=0.3), claim_after=timedelta(milliseconds=600_000)
    )
    wait_until(lambda: runs(client, queue.name))
    code, log = first.terminate()
    assert code == 0, log
    assert "shutdown timeout expired; cancelling 1 running jobs" in log
    worker(claim_after=timedelta(milliseconds=600_000))
    wait_until(lambda: runs(client, queue.name) == [("long", 0), ("long", 1)])
