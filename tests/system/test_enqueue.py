"""Airflow enqueues jobs and waits for them in its triggerer, even if its processes are killed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_enqueue import waiting
from tests.support.local_airflow import AirflowSite
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def queue(site_server: Server, queue_name: str) -> Any:
    with Queue(queue_name, site_server.url) as queue:
        yield queue


def test_a_deferred_wait_passes_the_result_to_the_next_task(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    run = airflow_site.trigger("await_one", queue=queue.name)
    airflow_site.wait_until_deferred("await_one", run, "send")

    async def handle(job: Any) -> Any:
        return {"n": job.payload["n"] * 2}

    with working(site_server, queue.name, handle, store_results=True):
        assert airflow_site.wait("await_one", run) == "success"
    assert airflow_site.xcom("await_one", run, "use") == 41
    job_id = airflow_site.xcom("await_one", run, "send")
    path = f"dags/await_one/dagRuns/{run}/taskInstances/send/links"
    link = airflow_site.api("GET", path)["extra_links"]["Chasqui job"]
    assert queue.name in link
    assert quote_plus(job_id) in link


def test_a_sensor_can_start_in_the_triggerer_and_times_out_with_the_state(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    dag_id = "start_from_trigger"
    run = airflow_site.trigger(dag_id, queue=queue.name, job="invoice-7")
    wait_until(
        lambda: airflow_site.task_states(dag_id, run)["never"] == "failed", 120, "the timeout"
    )
    log = airflow_site.task_log(dag_id, run, "never")
    assert "CMQ-102" in log
    assert f"no worker consumes the queue '{queue.name}'" in log
    assert airflow_site.task_states(dag_id, run)["job"] == "deferred"

    async def handle(job: Any) -> Any:
        return job.payload

    queue.add("paid", job_id="invoice-7")
    with working(site_server, queue.name, handle, store_results=True):
        wait_until(
            lambda: airflow_site.task_states(dag_id, run)["job"] == "success", 120, "the sensor"
        )
    assert airflow_site.xcom(dag_id, run, "job") == "paid"
    assert airflow_site.xcom(dag_id, run, "job", "counts")["missing_results"] == 0


@pytest.mark.chaos
def test_the_triggerer_is_killed_while_a_thousand_jobs_are_awaited(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    run = airflow_site.trigger("await_thousand", queue=queue.name)
    airflow_site.wait_until_deferred("await_thousand", run, "wait")
    triggerer_killed = threading.Event()
    executed: list[int] = []

    async def handle(job: Any) -> None:
        # The batch must not finish before the kill, otherwise the trigger may fire before it.
        while len(executed) > 10 and not triggerer_killed.is_set():
            await asyncio.sleep(0.01)
        executed.append(job.payload)

    with working(site_server, queue.name, handle, concurrency=1):
        wait_until(lambda: len(executed) > 10, 30, "the first jobs", interval=0.01)
        airflow_site.kill("triggerer")
        assert airflow_site.task_states("await_thousand", run)["wait"] == "deferred"
        triggerer_killed.set()
        wait_until(lambda: len(executed) == 1000, 60, "the other jobs, while no triggerer runs")
        airflow_site.launch("triggerer")
        assert airflow_site.wait("await_thousand", run, 180) == "success"
    counts = airflow_site.xcom("await_thousand", run, "wait")
    assert (counts["done"], counts["dead"], counts["lost"]) == (1000, 0, 0)
    assert sorted(executed) == list(range(1000))


@pytest.mark.chaos
def test_a_task_that_is_killed_between_sending_and_returning_sends_nothing_twice(
    airflow_site: AirflowSite, queue: Queue
) -> None:
    run = airflow_site.trigger("killed_task", queue=queue.name)
    assert airflow_site.wait("killed_task", run, 180) == "success"
    (task,) = airflow_site.tasks("killed_task", run)
    assert task["try_number"] == 2
    jobs = waiting(queue)
    assert [job.payload for job in jobs] == [1, 2, 3]
    batch_id = airflow_site.xcom("killed_task", run, "send")["batch_id"]
    assert [job.id for job in jobs] == [f"batch:{batch_id}:0:{index}" for index in range(3)]
    assert "earlier try" in airflow_site.task_log("killed_task", run, "send", 2)


def clear(site: AirflowSite, dag_id: str, run: str) -> None:
    """Clear all tasks of a run, as a user does in the UI."""
    body = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
    site.api("POST", f"dags/{dag_id}/clearTaskInstances", **body)


def test_a_clear_sends_again_or_reattaches_according_to_on_clear(
    airflow_site: AirflowSite, queue: Queue
) -> None:
    run = airflow_site.trigger("cleared", queue=queue.name)
    assert airflow_site.wait("cleared", run) == "success"
    clear(airflow_site, "cleared", run)
    wait_until(
        lambda: {task["try_number"] for task in airflow_site.tasks("cleared", run)} == {2},
        60,
        "the second try",
    )
    assert airflow_site.wait("cleared", run) == "success"
    batches = {job.id.split(":")[1]: job.payload for job in waiting(queue)}
    states = [(payload, queue.batch_progress(name).cancelled) for name, payload in batches.items()]
    assert sorted(states) == [
        ("reattach", False),
        ("resend", False),
        ("resend", True),
        ("resubmit", False),
        ("resubmit", True),
    ]


def test_a_task_that_a_user_marks_as_failed_cancels_its_jobs(
    airflow_site: AirflowSite, queue: Queue
) -> None:
    """One task waits in the triggerer, the other one in its own process."""

    def has_started_waiting(task_id: str) -> bool:
        return "0 of 2 " in airflow_site.task_log("failed_by_user", run, task_id)

    def is_cancelled(task_id: str) -> bool:
        link = airflow_site.xcom("failed_by_user", run, task_id, "chasqui_link")
        (batch_id,) = parse_qs(urlsplit(link).query)["batch"]
        return queue.batch_progress(batch_id).cancelled

    run = airflow_site.trigger("failed_by_user", queue=queue.name)
    waiting_states = {"deferred": "deferred", "in_process": "running"}
    wait_until(
        lambda: airflow_site.task_states("failed_by_user", run) == waiting_states, 90, "the waits"
    )
    wait_until(lambda: queue.depth().delayed == 4, 60, "the jobs")
    # Airflow calls `on_kill` only of a trigger that is running.
    wait_until(
        lambda: all(map(has_started_waiting, waiting_states)), 60, "the progress logs", interval=1
    )
    for task_id in waiting_states:
        path = f"dags/failed_by_user/dagRuns/{run}/taskInstances/{task_id}"
        airflow_site.api("PATCH", path, new_state="failed")
    wait_until(lambda: all(map(is_cancelled, waiting_states)), 90, "the cancellation", interval=1)
