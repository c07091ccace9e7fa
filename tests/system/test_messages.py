"""Messages start DAG runs of Airflow, and no message is lost."""

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
from tests.support.waiting import wait_until

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
def leases(site_server: Server) -> Iterator[Queue]:
    with Queue("sys-leases", site_server.url) as queue:
        yield queue


class Records:
    """The message ids that DAG runs have recorded."""

    def __init__(self, queue: Queue):
        self._queue = queue

    def counts(self, key: str) -> Counter[str]:
        list_key = f"{self._queue.keys.hash_tag}:{key}"
        command = redis_command("LRANGE", list_key, 0, -1, parse=as_raw)
        return Counter(raw.decode() for raw in self._queue.client.execute(command))


@pytest.fixture
def records(site_server: Server) -> Iterator[Records]:
    with Queue("sys-records", site_server.url) as queue:
        yield Records(queue)


def send(queue: Queue, prefix: str, count: int, job_name: str = "") -> set[str]:
    ids = {f"{prefix}-{n}" for n in range(count)}
    queue.add_many(
        [
            {"payload": {"n": n}, "job_id": f"{prefix}-{n}", "job_name": job_name}
            for n in range(count)
        ]
    )
    return ids


def all_recorded(records: Records, key: str, ids: set[str]) -> bool:
    return ids <= set(records.counts(key))


def count_active(queue: Queue) -> int:
    """Return the number of consumers that read; a killed one remains listed for some minutes."""
    return sum(consumer.idle_ms < 15_000 for consumer in queue.consumers())


def test_each_message_of_a_burst_reaches_one_run(
    airflow_site: AirflowSite, messages: Queue, records: Records
) -> None:
    orders = send(messages, "burst", 1000, "order")
    refunds = send(messages, "back", 10, "refund")
    wait_until(lambda: all_recorded(records, "order", orders), 300, "a run for every order")
    wait_until(lambda: all_recorded(records, "refund", refunds), 60, "a run for every refund")
    assert {records.counts("order")[job_id] for job_id in orders} == {1}
    wait_until(lambda: count_active(messages) == 1, 60, "a single reader for two watchers")
    wait_until(lambda: messages.depth().running == 0, 60, "the ack of all messages")
    assert messages.depth().dead == 0


@pytest.mark.chaos
def test_pending_messages_of_a_killed_triggerer_are_delivered_again(
    airflow_site: AirflowSite, messages: Queue, records: Records
) -> None:
    wait_until(lambda: messages.consumers(), 60, "the watcher")
    ids = send(messages, "pending", 300, "order")
    wait_until(lambda: messages.depth().running > 0, 30, "pending messages", interval=0.005)
    airflow_site.kill("triggerer")
    assert messages.depth().running + messages.depth().waiting > 0
    airflow_site.launch("triggerer")
    wait_until(lambda: all_recorded(records, "order", ids), 240, "every message")


def test_runs_are_started_until_every_leased_message_is_acked(
    airflow_site: AirflowSite, leases: Queue, records: Records
) -> None:
    ids = send(leases, "burst-lease", 1000)
    wait_until(lambda: all_recorded(records, "leased", ids), 240, "every message")
    wait_until(lambda: leases.depth().running == leases.depth().waiting == 0, 60, "an empty queue")
    assert {records.counts("leased")[job_id] for job_id in ids} == {1}


def test_a_failing_message_is_dead_lettered_without_the_rest_of_its_batch(
    airflow_site: AirflowSite, leases: Queue, records: Records
) -> None:
    leases.add("poison", job_id="poison")
    ids = send(leases, "neighbour", 3)
    wait_until(lambda: leases.depth().dead == 1, 240, "the dead letter")
    (dead_letter,) = leases.dead_letters()
    assert dead_letter.job_id == "poison"
    wait_until(lambda: all_recorded(records, "leased", ids), 120, "the other messages of its batch")
    leases.purge_dead_letters()


def test_a_paused_dag_processes_its_messages_after_it_is_unpaused(
    airflow_site: AirflowSite, leases: Queue, records: Records
) -> None:
    airflow_site.api("PATCH", "dags/on_queue_not_empty", is_paused=True)
    ids = send(leases, "paused", 20)
    assert not set(records.counts("leased")) & ids
    airflow_site.api("PATCH", "dags/on_queue_not_empty", is_paused=False)
    wait_until(lambda: all_recorded(records, "leased", ids), 180, "the messages after unpausing")


def test_the_leases_of_a_run_are_renewed_while_it_runs(
    airflow_site: AirflowSite, site_server: Server, records: Records
) -> None:
    with Queue("sys-slow-leases", site_server.url) as queue:
        queue.add_many([{"payload": {"seconds": 20}, "job_id": f"slow-{n}"} for n in range(3)])
        wait_until(
            lambda: all_recorded(records, "slow", {"slow-0", "slow-1", "slow-2"}), 120, "the run"
        )
        wait_until(lambda: queue.depth().running == queue.depth().waiting == 0, 120, "the ack")
    assert set(records.counts("slow").values()) == {1}


def test_the_messages_of_a_run_that_is_marked_as_failed_are_delivered_again(
    airflow_site: AirflowSite, site_server: Server, records: Records
) -> None:
    with Queue("sys-slow-leases", site_server.url) as queue:
        queue.add({"seconds": 30}, job_id="stopped")
        wait_until(lambda: records.counts("slow")["stopped"] == 1, 120, "the run")
        runs = airflow_site.api("GET", "dags/on_slow_queue/dagRuns?state=running")["dag_runs"]
        for run in runs:
            path = f"dags/on_slow_queue/dagRuns/{run['dag_run_id']}"
            airflow_site.api("PATCH", path, state="failed")
        wait_until(lambda: records.counts("slow")["stopped"] == 2, 120, "the second delivery")
        wait_until(lambda: queue.depth().running == queue.depth().waiting == 0, 120, "the ack")


def returned_values(site: AirflowSite, dag_id: str, task_id: str) -> list[Any]:
    """Return the values that a task returned in the successful runs."""
    runs = site.api("GET", f"dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
    run_ids = [run["dag_run_id"] for run in runs if run["state"] == "success"]
    return [
        site.xcom(dag_id, run_id, task_id)
        for run_id in run_ids
        if site.task_states(dag_id, run_id).get(task_id) == "success"
    ]


def test_the_example_messages_to_runs_books_every_order(
    airflow_site: AirflowSite, site_server: Server
) -> None:
    with Queue("orders", site_server.url) as orders:
        ids = send(orders, "example", 5, "order")

    def booked() -> set[str]:
        values = returned_values(airflow_site, "messages_to_runs", "book")
        return {job_id for job_ids in values for job_id in job_ids}

    wait_until(lambda: booked() == ids, 240, "the orders in runs of the example", interval=1)


def test_the_example_lease_orders_weighs_every_parcel(
    airflow_site: AirflowSite, site_server: Server
) -> None:
    with Queue("parcels", site_server.url) as parcels:
        parcels.add_many([{"payload": {"weight": n}} for n in range(1, 6)])

        def weighed() -> int:
            return sum(returned_values(airflow_site, "lease_orders", "process_parcels.weigh"))

        wait_until(lambda: weighed() == 15, 240, "the parcels in runs of the example", interval=1)
        wait_until(lambda: parcels.depth().running == parcels.depth().waiting == 0, 60, "the acks")


@pytest.mark.chaos
def test_watchers_survive_a_restart_of_redis(
    airflow_site: AirflowSite,
    site_redis: RedisServer,
    messages: Queue,
    leases: Queue,
    records: Records,
) -> None:
    wait_until(lambda: messages.consumers(), 60, "the watcher")
    site_redis.restart()
    orders = send(messages, "restart", 50, "order")
    leased_ids = send(leases, "restart-lease", 50)
    wait_until(
        lambda: all_recorded(records, "order", orders), 180, "the messages after the restart"
    )
    wait_until(
        lambda: all_recorded(records, "leased", leased_ids),
        180,
        "the leased messages after the restart",
    )
