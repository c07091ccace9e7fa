"""Operators that replay and purge dead letters, that consume a queue, and the notifier."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.retry import Backoff, RetryDefaults, RetryPolicy
from airflow_provider_chasqui.notifications.chasqui import ChasquiNotifier
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.support.queue_scenarios import read
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def airflow(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


@pytest.fixture
def dead_queue(queue: Queue, connected: Server) -> Queue:
    """A queue with ten dead jobs, six named `mail` and four named `bad`."""

    async def fail(job: Any) -> None:
        if job.name == "bad":
            raise Unrecoverable("never works")
        raise ValueError("mailbox full")

    names = ["mail"] * 6 + ["bad"] * 4
    queue.add_many([{"payload": n, "job_name": name} for n, name in enumerate(names)])
    with working(connected, queue.name, fail, retry=RetryDefaults(max_attempts=1)):
        _wait_for_dead_jobs(queue, 10)
    return queue


def _wait_for_dead_jobs(queue: Queue, count: int) -> None:
    wait_until(lambda: queue.depth().dead >= count, message=f"{count} dead jobs")


@pytest.mark.parametrize(
    ("conf", "affected"),
    [
        ({}, 10),
        ({"name": "mail"}, 6),
        ({"reason": "unrecoverable"}, 4),
        ({"text": "mailbox full"}, 6),
        ({"limit": 3}, 3),
    ],
    ids=["all", "name", "reason", "text", "limit"],
)
def test_matching_dead_letters_are_replayed(
    airflow: Dags, dead_queue: Queue, conf: dict[str, Any], affected: int
) -> None:
    report = airflow.run("replay", queue=dead_queue.name, **conf).xcom("replay")
    assert report["matched"] == affected
    assert report["affected"] == affected
    assert report["dry_run"] is False
    assert dead_queue.depth().dead == 10 - affected
    assert dead_queue.depth().waiting == affected


def test_a_dry_run_changes_nothing(airflow: Dags, dead_queue: Queue) -> None:
    report = airflow.run("replay", queue=dead_queue.name, dry_run=True, name="mail").xcom("replay")
    assert (report["affected"], report["dry_run"]) == (6, True)
    assert dead_queue.depth().dead == 10


def test_a_replay_does_not_exceed_its_rate_limit(airflow: Dags, dead_queue: Queue) -> None:
    started = time.monotonic()
    report = airflow.run("replay", queue=dead_queue.name, rate=5).xcom("replay")
    assert report["affected"] == 10
    assert time.monotonic() - started >= 1.9


def test_a_job_that_reached_max_replays_is_not_replayed(
    airflow: Dags, dead_queue: Queue, connected: Server
) -> None:
    assert (
        airflow.run("replay", queue=dead_queue.name, max_replays=1).xcom("replay")["affected"] == 10
    )

    async def fail(job: Any) -> None:
        raise Unrecoverable("still fails")

    with working(connected, dead_queue.name, fail):
        _wait_for_dead_jobs(dead_queue, 10)
        report = airflow.run("replay", queue=dead_queue.name, max_replays=1).xcom("replay")
    assert (report["affected"], report["max_replays_reached"]) == (0, 10)


def test_a_replay_ends_although_its_jobs_die_again(
    airflow: Dags, dead_queue: Queue, connected: Server
) -> None:
    async def fail(job: Any) -> None:
        raise Unrecoverable("fails at once")

    with working(connected, dead_queue.name, fail):
        report = airflow.run("replay", queue=dead_queue.name, rate=20).xcom("replay")
    assert report["affected"] == 10


def test_matching_dead_letters_are_purged(airflow: Dags, dead_queue: Queue) -> None:
    assert airflow.run("purge", queue=dead_queue.name).xcom("purge")["affected"] == 4
    assert dead_queue.depth().dead == 6


def test_a_task_consumes_a_queue_until_it_is_empty(airflow: Dags, queue: Queue) -> None:
    retry = RetryPolicy(2, Backoff.fixed(timedelta(milliseconds=300)))
    jobs = queue.add_many([{"payload": n, "retry": retry} for n in range(50)])
    report = airflow.run("consume", queue=queue.name).xcom("drain")
    assert (report["done"], report["failed"]) == (49, 2)
    assert queue.result(jobs[7].job_id) == 49
    assert (queue.depth().waiting, queue.depth().running, queue.depth().dead) == (0, 0, 1)


def test_a_task_runs_exactly_max_jobs_jobs(airflow: Dags, queue: Queue) -> None:
    queue.add_many([{"payload": n} for n in range(12)])
    run = airflow.run("consume_some", queue=queue.name)
    assert run.xcom("some")["done"] == 7
    assert run.xcom("plain")["done"] == 5
    assert queue.depth().running == 0


def test_a_task_consumes_for_max_duration(airflow: Dags, queue: Queue) -> None:
    queue.add(3)
    report = airflow.run("consume_for_a_time", queue=queue.name).xcom("work")
    assert report["done"] == 1
    assert 1 <= report["seconds"] < 10


def test_leased_jobs_are_acked_by_another_task(airflow: Dags, queue: Queue) -> None:
    queue.add_many([{"payload": n} for n in range(5)])
    assert airflow.run("lease", queue=queue.name).xcom("ack") == [0, 1, 2]
    assert queue.depth().waiting == 2


def test_a_failed_task_enqueues_a_notification(airflow: Dags, queue: Queue) -> None:
    run = airflow.run("telling", datetime(2026, 3, 1, tzinfo=UTC), queue=queue.name)
    payloads = {entry.job.name: entry.job.payload for entry in read(queue)}
    assert run.state == "failed"
    notification = payloads["task-failed"]
    assert notification["to"] == "ops"
    assert notification["day"] == "2026-03-01"
    assert notification["task_id"] == "fail"
    assert "no luck today" in notification["error"]


async def test_sync_and_async_notifications_of_one_event_are_enqueued_once(queue: Queue) -> None:
    class Instance:
        dag_id, run_id, task_id, map_index, try_number, state = "d", "r", "t", -1, 1, "failed"

    notifier = ChasquiNotifier(queue_name=queue.name)
    notifier.notify({"ti": Instance()})
    await notifier.async_notify({"ti": Instance()})
    (entry,) = read(queue)
    assert entry.job.payload["state"] == "failed"
    await notifier.async_notify({})
    notifier.notify({"dag_run": Instance(), "reason": "task_failure"})
    assert [entry.job.payload.get("reason") for entry in read(queue)] == [None, "task_failure"]
