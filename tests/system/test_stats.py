"""What a StatsD server hears of us from a real Airflow: from its tasks and from its triggerer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.support.local_airflow import AirflowSite
from tests.support.waiting import until
from tests.system.statsd import StatsdServer

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def counted(statsd: StatsdServer) -> Callable[[str, str, int], None]:
    """Wait until a counter of a queue has come to a number, and see that it stays there."""

    def wait(what: str, queue_name: str, number: int) -> None:
        key = f"chasqui.{what}", queue_name
        until(lambda: statsd.counts[key] >= number, 60, f"{number} of {what}: {statsd.counts}")
        assert statsd.counts[key] == number

    return wait


def test_tasks_tell_what_they_sent_how_long_they_waited_and_what_they_replayed(
    airflow_site: AirflowSite,
    site_server: Server,
    statsd: StatsdServer,
    counted: Callable[[str, str, int], None],
    queue_name: str,
) -> None:
    async def handle(job: Any) -> None:
        if job.attempt == 0 and job.payload < 3 and job.id not in seen:
            seen.add(job.id)
            raise ValueError("not yet")

    seen: set[str] = set()
    began = time.monotonic()
    with Queue(queue_name, site_server.url) as queue:
        run = airflow_site.trigger("told_in_numbers", queue=queue_name)
        until(lambda: queue.depth().waiting == 20, 180, "the jobs")
        with working(site_server, queue_name, handle):
            state = airflow_site.wait("told_in_numbers", run, 180)
        assert state == "success", airflow_site.task_states("told_in_numbers", run)
        counted("jobs_enqueued", queue_name, 20)
        counted("dead_letters_replayed", queue_name, 3)
        assert queue.depth().dead == 0
    until(lambda: statsd.times_ms["chasqui.batch_wait", queue_name], 30, "the time of the wait")
    took_ms = statsd.times_ms["chasqui.batch_wait", queue_name][-1]
    assert 0 < took_ms < (time.monotonic() - began) * 1000


def test_the_triggerer_tells_of_waits_that_fail(
    airflow_site: AirflowSite, counted: Callable[[str, str, int], None], queue_name: str
) -> None:
    run = airflow_site.trigger("waits_for_nothing", queue=queue_name)
    assert airflow_site.wait("waits_for_nothing", run, 180) == "failed"
    counted("trigger_errors", queue_name, 1)


def test_watchers_tell_of_messages_and_rings(
    airflow_site: AirflowSite, site_server: Server, statsd: StatsdServer
) -> None:
    """The queues are those of other tests too: what is told here is added to what was."""

    def told(what: str, queue_name: str) -> int:
        return statsd.counts[f"chasqui.{what}", queue_name]

    before = told("watcher_messages", "sys-messages"), told("messages_acked", "sys-bell")
    rings, events = (
        told("queue_not_empty_events", "sys-bell"),
        told("watcher_events", "sys-messages"),
    )
    with Queue("sys-messages", site_server.url) as messages:
        messages.add_many([{"payload": n, "job_name": "refund"} for n in range(5)])
    with Queue("sys-bell", site_server.url) as bell:
        bell.add_many([{"payload": n} for n in range(4)])
        until(lambda: told("messages_acked", "sys-bell") >= before[1] + 4, 180, "the bell")
        assert told("messages_leased", "sys-bell") >= told("messages_acked", "sys-bell")
        assert told("queue_not_empty_events", "sys-bell") > rings
    until(lambda: told("watcher_messages", "sys-messages") >= before[0] + 5, 180, "the messages")
    assert told("watcher_events", "sys-messages") > events
