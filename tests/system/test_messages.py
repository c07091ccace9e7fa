"""Messages start DAG runs of a real Airflow, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.support.local_airflow import AirflowSite
from tests.support.servers import RedisServer
from tests.support.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(500),
]


@pytest.fixture
def messages(site_server: Server) -> Iterator[Queue]:
    with Queue("sys-messages", site_server.url) as queue:
        yield queue


@pytest.fixture
def bell(site_server: Server) -> Iterator[Queue]:
    with Queue("sys-bell", site_server.url) as queue:
        yield queue


class Notes:
    """What the DAGs say they saw."""

    def __init__(self, queue: Queue):
        self._queue = queue

    def of(self, key: str) -> Counter[str]:
        op = redis_command("LRANGE", f"{{chasqui:sys-notes}}:{key}", 0, -1, parse=as_raw)
        return Counter(raw.decode() for raw in self._queue.client.execute(op))


@pytest.fixture
def notes(site_server: Server) -> Iterator[Notes]:
    with Queue("sys-notes", site_server.url) as queue:
        yield Notes(queue)


def send(queue: Queue, prefix: str, count: int, name: str = "") -> set[str]:
    ids = {f"{prefix}-{n}" for n in range(count)}
    queue.add_many(
        [{"payload": {"n": n}, "job_id": f"{prefix}-{n}", "job_name": name} for n in range(count)]
    )
    return ids


def all_seen(notes: Notes, key: str, ids: set[str]) -> bool:
    return ids <= set(notes.of(key))


def active(queue: Queue) -> int:
    """How many read the queue. One that was killed stays listed for some minutes."""
    return sum(each.idle_ms < 15_000 for each in queue.consumers())


def test_a_burst_of_a_thousand_messages_reaches_runs_once_each(
    airflow_site: AirflowSite, messages: Queue, notes: Notes
) -> None:
    orders = send(messages, "burst", 1000, "order")
    refunds = send(messages, "back", 10, "refund")
    until(lambda: all_seen(notes, "order", orders), 300, "a run for every order")
    until(lambda: all_seen(notes, "refund", refunds), 60, "a run for every refund")
    assert {notes.of("order")[each] for each in orders} == {1}
    until(lambda: active(messages) == 1, 60, "one reader of two watchers")
    until(lambda: messages.depth().running == 0, 60, "settling")
    assert messages.depth().dead == 0


@pytest.mark.chaos
def test_messages_that_a_killed_triggerer_held_are_delivered_again(
    airflow_site: AirflowSite, messages: Queue, notes: Notes
) -> None:
    until(lambda: messages.consumers(), 60, "the watcher")
    ids = send(messages, "held", 300, "order")
    until(lambda: messages.depth().running > 0, 30, "held messages", every=0.005)
    airflow_site.kill("triggerer")
    assert messages.depth().running + messages.depth().waiting > 0
    airflow_site.launch("triggerer")
    until(lambda: all_seen(notes, "order", ids), 240, "every message")


def test_a_burst_rings_until_every_message_is_handed_in(
    airflow_site: AirflowSite, bell: Queue, notes: Notes
) -> None:
    ids = send(bell, "bell", 1000)
    until(lambda: all_seen(notes, "bell", ids), 240, "every message handed in")
    until(lambda: bell.depth().running == bell.depth().waiting == 0, 60, "an empty queue")
    assert {notes.of("bell")[each] for each in ids} == {1}


def test_a_poison_message_dies_alone(airflow_site: AirflowSite, bell: Queue, notes: Notes) -> None:
    bell.add("poison", job_id="poison")
    ids = send(bell, "mate", 3)
    until(lambda: bell.depth().dead == 1, 240, "the poison's end")
    (letter,) = bell.dead_letters()
    assert letter.job_id == "poison"
    until(lambda: all_seen(notes, "bell", ids), 120, "its mates handed in")
    bell.purge_dead_letters()


def test_a_paused_dag_loses_nothing_and_unpausing_rings(
    airflow_site: AirflowSite, bell: Queue, notes: Notes
) -> None:
    airflow_site.api("PATCH", "dags/on_bell", is_paused=True)
    ids = send(bell, "paused", 20)
    assert not set(notes.of("bell")) & ids
    airflow_site.api("PATCH", "dags/on_bell", is_paused=False)
    until(lambda: all_seen(notes, "bell", ids), 180, "the messages after unpausing")


def returned(site: AirflowSite, dag_id: str, task_id: str) -> list[Any]:
    """What the task returned in the runs that went well."""
    runs = site.api("GET", f"dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
    good = [run["dag_run_id"] for run in runs if run["state"] == "success"]
    return [
        site.xcom(dag_id, run, task_id)
        for run in good
        if site.task_states(dag_id, run).get(task_id) == "success"
    ]


def test_the_example_of_message_mode_books_every_order(
    airflow_site: AirflowSite, site_server: Server
) -> None:
    with Queue("orders", site_server.url) as orders:
        ids = send(orders, "example", 5, "order")

    def booked() -> set[str]:
        found = returned(airflow_site, "messages_to_runs", "book")
        return {each for run in found for each in run}

    until(lambda: booked() == ids, 240, "the orders in runs of the example", every=1)


def test_the_example_of_the_doorbell_weighs_every_parcel(
    airflow_site: AirflowSite, site_server: Server
) -> None:
    with Queue("parcels", site_server.url) as parcels:
        parcels.add_many([{"payload": {"weight": n}} for n in range(1, 6)])

        def weighed() -> int:
            return sum(returned(airflow_site, "lease_orders", "process_parcels.weigh"))

        until(lambda: weighed() == 15, 240, "the parcels in runs of the example", every=1)
        until(lambda: parcels.depth().running == parcels.depth().waiting == 0, 60, "handing in")


@pytest.mark.chaos
def test_watchers_outlive_a_restart_of_redis(
    airflow_site: AirflowSite, site_redis: RedisServer, messages: Queue, bell: Queue, notes: Notes
) -> None:
    until(lambda: messages.consumers(), 60, "the watcher")
    site_redis.restart()
    orders = send(messages, "restart", 50, "order")
    rung = send(bell, "restart-bell", 50)
    until(lambda: all_seen(notes, "order", orders), 180, "the messages after the restart")
    until(lambda: all_seen(notes, "bell", rung), 180, "the bell after the restart")
