"""A DAG run leases messages, and acks or releases them at its end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.commands import consumer_group, watchers
from airflow_provider_chasqui.queue import Queue

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
    assert dead_letter.reason == "retries_exhausted"
    assert queue.depth().running == 0


def test_only_the_messages_of_failed_mapped_tasks_are_delivered_again(leasing, queue):
    queue.add_many([{"payload": text, "job_id": text} for text in ("good", "fail", "fine")])
    run = leasing.run("leasing_mapped")
    assert run.state == "failed"
    assert queue.job_status("fail").state in ("delayed", "waiting")
    depth = queue.depth()
    assert depth.waiting + depth.running + depth.delayed == 1


def _outstanding(queue):
    depth = queue.depth()
    return depth.waiting + depth.running + depth.delayed


@pytest.mark.parametrize(
    "dag_id", ["leasing_nested_group", "leasing_repeated_task", "leasing_other_mapping"]
)
def test_all_messages_are_delivered_again_if_a_task_of_the_run_failed(leasing, queue, dag_id):
    queue.add_many([{"payload": n} for n in range(5)])
    run = leasing.run(dag_id)
    assert run.state == "failed"
    assert _outstanding(queue) == 5


def test_a_failed_instance_of_a_mapped_group_returns_only_its_own_message(leasing, queue):
    queue.add_many([{"payload": text, "job_id": text} for text in ("good", "fail", "fine")])
    run = leasing.run("leasing_mapped_group")
    assert run.state == "failed"
    assert queue.job_status("fail").state in ("delayed", "waiting")
    assert _outstanding(queue) == 1


def test_a_task_mapped_over_messages_and_another_list_returns_all_messages(leasing, queue):
    queue.add_many([{"payload": text} for text in ("good", "fail", "fine")])
    assert leasing.run("leasing_cross_product").state == "failed"
    assert _outstanding(queue) == 3


def test_a_failed_teardown_does_not_hold_messages_back(leasing, queue):
    queue.add_many([{"payload": n} for n in range(3)])
    run = leasing.run("leasing_teardown")
    assert run.states()[f"process_{queue.name}.close_warehouse"] == "failed"
    assert run.state == "success"
    assert _outstanding(queue) == 0


def test_one_dag_can_lease_messages_of_one_queue_twice(leasing, queue):
    queue.add_many([{"payload": n} for n in range(2)])
    run = leasing.run("leasing_twice")
    assert run.state == "failed"
    states = run.states()
    assert states[f"ack_{queue.name}"] == "success"
    assert states[f"ack_{queue.name}__1"] == "failed"
    assert _outstanding(queue) == 1


def test_a_queue_name_may_have_characters_that_task_ids_may_not(leasing, connected, queue):
    with Queue(f"{queue.name}/ä b", connected.url, dialect=connected.dialect) as other:
        other.add("x")
        assert leasing.run("leasing_any_name").state == "success"
        assert _outstanding(other) == 0


def test_the_ack_task_is_a_teardown_of_the_lease_task(leasing, queue):
    dag = leasing.get("leasing")
    lease_task, ack_task = dag.get_task(f"lease_{queue.name}"), dag.get_task(f"ack_{queue.name}")
    assert lease_task.is_setup
    assert ack_task.is_teardown
    assert ack_task.on_failure_fail_dagrun


def test_the_group_and_the_arguments_of_its_two_tasks_can_be_chosen(leasing, queue):
    queue.add("x")
    dag = leasing.get("leasing_named_group")
    lease_task, ack_task = dag.get_task("lease_orders"), dag.get_task("ack_orders")
    assert lease_task.retries == ack_task.retries == 3
    assert lease_task.lease_ttl == timedelta(hours=2)
    assert ack_task.retry_after == timedelta(minutes=5)
    run = leasing.run("leasing_named_group")
    assert run.states()["orders.succeed"] == "success"
    assert _outstanding(queue) == 0


def test_a_run_of_another_deployment_does_not_own_the_leases_of_an_equal_run(
    leasing, queue, monkeypatch
):
    """Two deployments with equal DAG ids and run ids lease messages of one queue."""
    queue.add_many([{"payload": n} for n in range(2)])
    monkeypatch.setenv("AIRFLOW__CHASQUI__DEPLOYMENT", "pre/production")
    leasing.run("leasing")
    command = consumer_group.consumers(queue.keys, queue.config.group)
    (name,) = [consumer.name for consumer in queue.client.execute(command)]
    assert name.startswith("airflow@pre-production/leasing/")
    assert watchers.parse_run_consumer_name(name, "pre-production") is not None
    assert watchers.parse_run_consumer_name(name) is None
    assert watchers.parse_run_consumer_name(name, "production") is None
