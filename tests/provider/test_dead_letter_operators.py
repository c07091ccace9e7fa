"""Dead letters replayed and purged, queues consumed in tasks, failures told to a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.notifications.chasqui import ChasquiNotifier
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.provider.test_enqueue import waiting
from tests.provider.test_event_follower import take

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def house(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


@pytest.fixture
def dead(queue: Queue, connected: Server) -> Queue:
    """Ten dead jobs: six named `mail`, four `bad`."""

    async def fail(job: Any) -> None:
        if job.name == "bad":
            raise Unrecoverable("never works")
        raise ValueError("mailbox full")

    names = ["mail"] * 6 + ["bad"] * 4
    queue.add_many([{"payload": n, "job_name": name} for n, name in enumerate(names)])
    with working(connected, queue.name, fail, retry=_once()):
        deadline = time.monotonic() + 20
        while queue.depth().dead < 10:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return queue


def _once() -> Any:
    from airflow_provider_chasqui.core.retry import RetryDefaults

    return RetryDefaults(max_attempts=1)


@pytest.mark.parametrize(
    ("conf", "moved"),
    [
        ({}, 10),
        ({"name": "mail"}, 6),
        ({"reason": "unrecoverable"}, 4),
        ({"text": "mailbox full"}, 6),
        ({"limit": 3}, 3),
    ],
    ids=["all", "name", "reason", "text", "limit"],
)
def test_letters_are_replayed_by_filter(
    house: Dags, dead: Queue, conf: dict[str, Any], moved: int
) -> None:
    report = house.run("replay", queue=dead.name, **conf).xcom("replay")
    assert (report["matched"], report["affected"], report["dry_run"]) == (moved, moved, False)
    assert (dead.depth().dead, dead.depth().waiting) == (10 - moved, moved)


def test_a_preview_changes_nothing(house: Dags, dead: Queue) -> None:
    report = house.run("replay", queue=dead.name, dry_run=True, name="mail").xcom("replay")
    assert (report["affected"], report["dry_run"]) == (6, True)
    assert dead.depth().dead == 10


def test_a_rate_is_kept(house: Dags, dead: Queue) -> None:
    started = time.monotonic()
    report = house.run("replay", queue=dead.name, rate=5).xcom("replay")
    assert report["affected"] == 10
    assert time.monotonic() - started >= 1.9


def test_the_budget_stops_what_dies_again_and_again(
    house: Dags, dead: Queue, connected: Server
) -> None:
    assert house.run("replay", queue=dead.name, max_replays=1).xcom("replay")["affected"] == 10

    async def fail(job: Any) -> None:
        raise Unrecoverable("still no")

    with working(connected, dead.name, fail):
        while dead.depth().dead < 10:
            time.sleep(0.01)
        report = house.run("replay", queue=dead.name, max_replays=1).xcom("replay")
    assert (report["affected"], report["max_replays_reached"]) == (0, 10)


def test_a_replay_ends_though_its_jobs_die_again_meanwhile(
    house: Dags, dead: Queue, connected: Server
) -> None:
    async def fail(job: Any) -> None:
        raise Unrecoverable("at once")

    with working(connected, dead.name, fail):
        report = house.run("replay", queue=dead.name, rate=20).xcom("replay")
    assert report["affected"] == 10


def test_letters_are_purged(house: Dags, dead: Queue) -> None:
    assert house.run("purge", queue=dead.name).xcom("purge")["affected"] == 4
    assert dead.depth().dead == 6


def test_a_task_drains_a_queue(house: Dags, queue: Queue) -> None:
    from datetime import timedelta

    from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy

    retry = RetryPolicy(2, Backoff.fixed(timedelta(milliseconds=300)))
    jobs = queue.add_many([{"payload": n, "retry": retry} for n in range(50)])
    report = house.run("consume", queue=queue.name).xcom("drain")
    assert (report["done"], report["failed"]) == (49, 2)
    assert queue.result(jobs[7].job_id) == 49
    assert (queue.depth().waiting, queue.depth().running, queue.depth().dead) == (0, 0, 1)


def test_a_task_runs_so_many_jobs_and_not_one_more(house: Dags, queue: Queue) -> None:
    queue.add_many([{"payload": n} for n in range(12)])
    run = house.run("consume_some", queue=queue.name)
    assert run.xcom("some")["done"] == 7
    assert run.xcom("plain")["done"] == 5
    assert queue.depth().running == 0


def test_a_task_works_for_a_time(house: Dags, queue: Queue) -> None:
    queue.add(3)
    report = house.run("consume_for_a_time", queue=queue.name).xcom("work")
    assert report["done"] == 1
    assert 1 <= report["seconds"] < 10


def test_leased_jobs_are_settled_by_another_task(house: Dags, queue: Queue) -> None:
    queue.add_many([{"payload": n} for n in range(5)])
    assert house.run("lease", queue=queue.name).xcom("settle") == [0, 1, 2]
    assert queue.depth().waiting == 2


def test_a_failure_is_told_to_a_queue(house: Dags, queue: Queue) -> None:
    run = house.run("telling", datetime(2026, 3, 1, tzinfo=UTC), queue=queue.name)
    told = {job.name: job.payload for job in waiting(queue)}
    assert run.state == "failed"
    assert told["task-failed"]["to"] == "ops"
    assert told["task-failed"]["day"] == "2026-03-01"
    assert told["task-failed"]["task_id"] == "fail"
    assert "no luck today" in told["task-failed"]["error"]


async def test_the_same_news_is_told_once_in_both_colours(queue: Queue) -> None:
    class Instance:
        dag_id, run_id, task_id, map_index, try_number, state = "d", "r", "t", -1, 1, "failed"

    notifier = ChasquiNotifier(queue_name=queue.name)
    notifier.notify({"ti": Instance()})
    await notifier.async_notify({"ti": Instance()})
    (entry,) = take(queue)
    assert entry.job.payload["state"] == "failed"
    await notifier.async_notify({})
    notifier.notify({"dag_run": Instance(), "reason": "task_failure"})
    assert [entry.job.payload.get("reason") for entry in take(queue)] == [None, "task_failure"]
