"""A DAG run holds its messages until it is done with them."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("dag-tests")]


@pytest.fixture
def leasing(dags, queue, monkeypatch):
    monkeypatch.setenv("LEASING_QUEUE", queue.name)
    return dags(HERE / "dags")


def test_messages_are_handed_in_when_the_run_went_well(leasing, queue):
    queue.add_many([{"payload": n} for n in range(3)])
    run = leasing.run("leasing")
    assert run.state == "success"
    assert run.xcom(f"process_{queue.name}.handle") == [0, 1, 2]
    depth = queue.depth()
    assert (depth.waiting, depth.running, depth.delayed, depth.dead) == (0, 0, 0, 0)


def test_a_run_without_messages_is_skipped(leasing, queue):
    run = leasing.run("leasing")
    assert set(run.states().values()) == {"skipped"}


def test_messages_come_back_when_a_task_fails_and_die_after_their_budget(leasing, queue):
    queue.add("fail", job_id="bad")
    first = leasing.run("leasing")
    assert first.state == "failed"
    assert first.states()[f"ack_{queue.name}"] == "failed"
    assert queue.job_status("bad").state in ("delayed", "waiting")
    second = leasing.run("leasing")
    assert second.state == "failed"
    (letter,) = queue.dead_letters()
    assert (letter.job_id, letter.attempts) == ("bad", 2)
    assert queue.depth().running == 0


def test_of_mapped_tasks_only_the_failed_ones_messages_come_back(leasing, queue):
    queue.add_many([{"payload": text, "job_id": text} for text in ("good", "fail", "fine")])
    run = leasing.run("leasing_mapped")
    assert run.state == "failed"
    assert queue.job_status("fail").state in ("delayed", "waiting")
    depth = queue.depth()
    assert depth.waiting + depth.running + depth.delayed == 1
