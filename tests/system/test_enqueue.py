"""A real Airflow hands off jobs, waits for them in its triggerer, and is killed meanwhile."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote_plus

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_enqueue import waiting
from tests.support.local_airflow import AirflowSite
from tests.support.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def queue(site_server: Server, queue_name: str) -> Any:
    with Queue(queue_name, site_server.url) as queue:
        yield queue


def test_a_deferred_wait_gives_the_result_to_the_next_task(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    run = airflow_site.trigger("await_one", queue=queue.name)
    until(
        lambda: airflow_site.task_states("await_one", run)["send"] == "deferred",
        90, "the deferral",
    )  # fmt: skip

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


@pytest.mark.chaos
def test_the_triggerer_is_killed_while_a_thousand_jobs_are_awaited(
    airflow_site: AirflowSite, site_server: Server, queue: Queue
) -> None:
    run = airflow_site.trigger("await_thousand", queue=queue.name)
    states = lambda: airflow_site.task_states("await_thousand", run)  # noqa: E731
    until(lambda: states()["wait"] == "deferred", 120, "the deferral")
    ran: list[int] = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    with working(site_server, queue.name, handle, concurrency=1) as _:
        until(lambda: len(ran) > 10, 30, "the first jobs", every=0.01)
        airflow_site.kill("triggerer")
        until(lambda: queue.depth().waiting == 0, 60, "the rest, while nobody watches")
        airflow_site.launch("triggerer")
        assert airflow_site.wait("await_thousand", run, 180) == "success"
    counts = airflow_site.xcom("await_thousand", run, "wait")
    assert (counts["done"], counts["dead"], counts["lost"]) == (1000, 0, 0)
    assert sorted(ran) == list(range(1000))


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
    assert [job.id for job in jobs] == airflow_site.xcom("killed_task", run, "send")
    assert "Found as sent by an earlier try" in airflow_site.task_log("killed_task", run, "send", 2)


def test_a_clear_reattaches_or_resubmits_as_asked(airflow_site: AirflowSite, queue: Queue) -> None:
    run = airflow_site.trigger("cleared", queue=queue.name)
    assert airflow_site.wait("cleared", run) == "success"
    body = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
    airflow_site.api("POST", "dags/cleared/clearTaskInstances", **body)
    until(
        lambda: {task["try_number"] for task in airflow_site.tasks("cleared", run)} == {2},
        60, "the second try",
    )  # fmt: skip
    assert airflow_site.wait("cleared", run) == "success"
    assert sorted(job.payload for job in waiting(queue)) == ["reattach", "resubmit", "resubmit"]


def test_a_person_who_fails_the_task_cancels_its_jobs(
    airflow_site: AirflowSite, queue: Queue
) -> None:
    """One task waits in the triggerer, the other in its own process."""

    def log(task: str) -> str:
        return airflow_site.task_log("killed_by_hand", run, task)

    run = airflow_site.trigger("killed_by_hand", queue=queue.name)
    wanted = {"deferred": "deferred", "here": "running"}
    until(lambda: airflow_site.task_states("killed_by_hand", run) == wanted, 90, "the waits")
    until(lambda: queue.depth().delayed == 4, 60, "the jobs")
    for task in wanted:  # Airflow tells only a trigger that runs of the kill
        until(lambda: "0 of 2 ended" in log(task), 60, "the wait", every=1)  # noqa: B023
    for task in wanted:
        path = f"dags/killed_by_hand/dagRuns/{run}/taskInstances/{task}"
        airflow_site.api("PATCH", path, new_state="failed")
    until(lambda: queue.depth().delayed == 0, 90, "the cancellation")
