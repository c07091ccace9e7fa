"""Enqueueing tasks are killed, timed out, cleared or moved to another triggerer.

In each case every job runs, or is cancelled because the user asked for it.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_enqueue import waiting
from tests.support.local_airflow import AirflowSite
from tests.support.waiting import wait_until
from tests.system.test_enqueue import clear

pytestmark = [
    pytest.mark.system,
    pytest.mark.chaos,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]
JOBS = list(range(50))


@pytest.fixture
def queue(site_server: Server, queue_name: str) -> Any:
    with Queue(queue_name, site_server.url) as queue:
        yield queue


def finish(site: AirflowSite, server: Server, queue: Queue, dag_id: str, run: str) -> list[int]:
    """Run the jobs with a worker until the DAG run is a success. Return what the worker ran."""
    executed: list[int] = []

    async def handle(job: Any) -> None:
        executed.append(job.payload)

    with working(server, queue.name, handle):
        state = site.wait(dag_id, run, 240)
        (task,) = site.tasks(dag_id, run)
        assert state == "success", site.task_log(dag_id, run, "send", task["try_number"])
        wait_until(lambda: queue.depth().waiting + queue.depth().running == 0, 30, "an empty queue")
    return sorted(executed)


def wait_for_try(site: AirflowSite, dag_id: str, run: str, number: int) -> None:
    def reached() -> bool:
        (task,) = site.tasks(dag_id, run)
        return task["try_number"] >= number and task["state"] in ("running", "deferred")

    wait_until(reached, 150, f"try {number} of {dag_id}")


def batch_ids(queue: Queue) -> list[str]:
    return list(dict.fromkeys(job.id.split(":")[1] for job in waiting(queue)))


@pytest.mark.parametrize("kind", ["evicted", "timeout"])
@pytest.mark.parametrize("cancel", [False, True])
def test_a_killed_try_is_followed_by_one_that_runs_every_job(
    airflow_site: AirflowSite, site_server: Server, queue: Queue, kind: str, cancel: bool
) -> None:
    dag_id = f"kill_{kind}_cancel" if cancel else f"kill_{kind}"
    run = airflow_site.trigger(dag_id, queue=queue.name)
    wait_for_try(airflow_site, dag_id, run, 2)
    expected = 2 if cancel else 1
    wait_until(lambda: len(batch_ids(queue)) >= expected, 60, "the batch of the second try")
    assert finish(airflow_site, site_server, queue, dag_id, run) == JOBS
    handle = airflow_site.xcom(dag_id, run, "send")
    assert handle["batch_id"].endswith("~g2") == cancel
    progress = queue.batch_progress(handle["batch_id"])
    assert (progress.done, progress.dead, progress.cancelled) == (50, 0, False)


def test_a_task_that_is_cleared_while_it_is_deferred_sends_again(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    run = airflow_site.trigger("kill_deferred", queue=queue.name)
    airflow_site.wait_until_deferred("kill_deferred", run, "send")
    (first,) = batch_ids(queue)
    clear(airflow_site, "kill_deferred", run)
    wait_for_try(airflow_site, "kill_deferred", run, 2)
    wait_until(lambda: len(batch_ids(queue)) == 2, 60, "the second batch")
    airflow_site.wait_until_deferred("kill_deferred", run, "send")
    assert queue.batch_progress(first).cancelled
    assert finish(airflow_site, site_server, queue, "kill_deferred", run) == JOBS
    assert airflow_site.xcom("kill_deferred", run, "send")["batch_id"] == f"{first}~c1"


def test_a_trigger_that_moves_to_another_triggerer_cancels_nothing(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    """The first triggerer is stopped until the second one has its triggers, and goes on then."""

    def triggerer() -> Any:
        (task,) = airflow_site.tasks("kill_deferred", run)
        return (task["triggerer_job"] or {}).get("id")

    def on_kill_has_ended() -> bool:
        # The trigger of the second triggerer cannot end yet, because no worker runs the jobs.
        log = airflow_site.task_log("kill_deferred", run, "send")
        return "invoking on_kill" in log and "trigger completed" in log

    run = airflow_site.trigger("kill_deferred", queue=queue.name)
    airflow_site.wait_until_deferred("kill_deferred", run, "send")
    first = wait_until(triggerer, 60, "a triggerer")
    wait_until(
        lambda: "0 of 50" in airflow_site.task_log("kill_deferred", run, "send"),
        60,
        "the start of the trigger",
        interval=1,
    )
    process = airflow_site._processes["triggerer"]
    command = ["-m", "airflow", "triggerer", "--skip-serve-logs"]
    airflow_site.start_process("triggerer-2", command, {}, airflow_site.home)
    try:
        os.killpg(process.pid, signal.SIGSTOP)
        wait_until(lambda: triggerer() not in (None, first), 90, "the other triggerer")
        os.killpg(process.pid, signal.SIGCONT)
        wait_until(on_kill_has_ended, 60, "the end of on_kill in the first triggerer", interval=1)
        (batch_id,) = batch_ids(queue)
        assert not queue.batch_progress(batch_id).cancelled
        executed = finish(airflow_site, site_server, queue, "kill_deferred", run)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        airflow_site.kill("triggerer-2")
    assert executed == JOBS
    assert queue.batch_progress(batch_id).done == 50


def test_a_large_batch_is_not_cancelled_after_its_task_has_succeeded(
    airflow_site: AirflowSite, queue: Queue
) -> None:
    """The callback of the task lasts longer than task_success_overtime, so the task is killed."""
    run = airflow_site.trigger("kill_after_success", queue=queue.name)
    assert airflow_site.wait("kill_after_success", run, 300) == "success"
    airflow_site.wait_until_process_ended("kill_after_success", run, "send")
    log = (airflow_site.logs / "scheduler.log").read_text(errors="replace")
    assert "Task success overtime reached" in log
    handle = airflow_site.xcom("kill_after_success", run, "send")
    progress = queue.batch_progress(handle["batch_id"])
    assert (progress.total, progress.enqueued) == (1_600_000, 1_600_000)
    assert not progress.cancelled
    assert queue.depth().waiting == 1_600_000
    # The other tests use the same server.
    queue.client.execute(redis_command("UNLINK", queue.keys.stream, parse=as_int))
