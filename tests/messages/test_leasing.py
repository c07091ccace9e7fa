"""A DAG run leases messages, and acks or releases them at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("dag-tests")]


@pytest.fixture
def leasing(dags, queue, monkeypatch):
    monkeypatch.setenv("LEASING_QUEUE", queue.name)
    return dags(HERE / "dags")


def test_messages_of_a_successful_run_are_acked(leasing, queue):
    queue.add_many([{"payload": n} for n in range(3)])
    run = leasing.run("leasing")
    assert run.state == "success"
    assert run.xcom(f"process_{queue.name}.handle") == [0, 1, 2]
    depth = queue.depth()
    assert (depth.waiting, depth.running, depth.delayed, depth.dead) == (0, 0, 0, 0)


def test_a_run_without_messages_is_skipped(leasing, queue):
    run = leasing.run("leasing")
    assert set(run.states().values()) == {"skipped"}


def test_messages_of_a_failed_run_are_delivered_again_until_their_attempts_are_exhausted(
    leasing, queue
):
    queue.add("fail", job_id="bad")
    first = leasing.run("leasing")
    assert first.state == "failed"
    assert first.states()[f"ack_{queue.name}"] == "failed"
    assert queue.job_status("bad").state in ("delayed", "waiting")
    second = leasing.run("leasing")
    assert second.state == "failed"
    (dead_letter,) = queue.dead_letters()
    assert (dead_letter.job_id, dead_letter.attempts) == ("bad", 2)
    assert queue.depth().running == 0


def test_only_the_messages_of_failed_mapped_tasks_are_delivered_again(leasing, queue):
    queue.add_many([{"payload": text, "job_id": text} for text in ("good", "fail", "fine")])
    run = leasing.run("leasing_mapped")
    assert run.state == "failed"
    assert queue.job_status("fail").state in ("delayed", "waiting")
    depth = queue.depth()
    assert depth.waiting + depth.running + depth.delayed == 1
