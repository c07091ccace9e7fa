"""Tasks and triggers of Airflow send metrics to a StatsD server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.support.local_airflow import AirflowSite
from tests.support.waiting import wait_until
from tests.system.statsd import StatsdServer

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def assert_count(statsd: StatsdServer) -> Callable[[str, str, int], None]:
    """Return a function that waits until a counter of a queue has exactly the given value."""

    def wait(metric: str, queue_name: str, count: int) -> None:
        key = f"chasqui.{metric}", queue_name
        wait_until(lambda: statsd.counts[key] >= count, 60, f"{metric} >= {count}")
        assert statsd.counts[key] == count

    return wait


def test_tasks_count_sent_and_replayed_jobs_and_measure_the_wait(
    airflow_site: AirflowSite,
    site_server: Server,
    statsd: StatsdServer,
    assert_count: Callable[[str, str, int], None],
    queue_name: str,
) -> None:
    async def handle(job: Any) -> None:
        if job.attempt == 0 and job.payload < 3 and job.id not in failed_ids:
            failed_ids.add(job.id)
            raise ValueError("the first attempt fails")

    failed_ids: set[str] = set()
    started_at = time.monotonic()
    with Queue(queue_name, site_server.url) as queue:
        run = airflow_site.trigger("replay_with_metrics", queue=queue_name)
        airflow_site.wait_until_deferred("replay_with_metrics", run, "wait", 180)
        with working(site_server, queue_name, handle):
            state = airflow_site.wait("replay_with_metrics", run, 180)
        assert state == "success", airflow_site.task_states("replay_with_metrics", run)
        assert_count("jobs_enqueued", queue_name, 20)
        assert_count("dead_letters_replayed", queue_name, 3)
        assert queue.depth().dead == 0
    wait_until(
        lambda: statsd.times_ms["chasqui.batch_wait", queue_name], 30, "the metric batch_wait"
    )
    wait_ms = statsd.times_ms["chasqui.batch_wait", queue_name][-1]
    assert 0 < wait_ms < (time.monotonic() - started_at) * 1000


def test_the_triggerer_counts_failed_waits(
    airflow_site: AirflowSite,
    site_server: Server,
    assert_count: Callable[[str, str, int], None],
    queue_name: str,
) -> None:
    """While the trigger waits, the key of the batch gets the wrong type."""
    run = airflow_site.trigger("wait_for_unreadable_batch", queue=queue_name)
    airflow_site.wait_until_deferred("wait_for_unreadable_batch", run, "wait", 180)
    with redis.Redis.from_url(site_server.url) as client:
        client.set(Keys(queue_name).batch("unreadable"), "text")
    assert airflow_site.wait("wait_for_unreadable_batch", run, 180) == "failed"
    assert_count("trigger_errors", queue_name, 1)


def test_watchers_count_messages_and_events(
    airflow_site: AirflowSite, site_server: Server, statsd: StatsdServer
) -> None:
    """Other tests use the same queues, so only the increments are compared."""

    def count(metric: str, queue_name: str) -> int:
        return statsd.counts[f"chasqui.{metric}", queue_name]

    messages_before = count("watcher_messages", "sys-messages")
    events_before = count("watcher_events", "sys-messages")
    acked_before = count("messages_acked", "sys-leases")
    fired_before = count("queue_not_empty_events", "sys-leases")
    with Queue("sys-messages", site_server.url) as messages:
        messages.add_many([{"payload": n, "job_name": "refund"} for n in range(5)])
    with Queue("sys-leases", site_server.url) as leases:
        leases.add_many([{"payload": n} for n in range(4)])
    wait_until(
        lambda: count("messages_acked", "sys-leases") >= acked_before + 4, 180, "the acked messages"
    )
    assert count("messages_leased", "sys-leases") >= count("messages_acked", "sys-leases")
    assert count("queue_not_empty_events", "sys-leases") > fired_before
    wait_until(
        lambda: count("watcher_messages", "sys-messages") >= messages_before + 5,
        180,
        "the messages of the watcher",
    )
    assert count("watcher_events", "sys-messages") > events_before
