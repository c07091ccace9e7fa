"""Maintenance of leased queues: restore, snapshot limits, idle consumers, indexes, dead letters."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core import lease_flows
from airflow_provider_chasqui.core.commands import leases as lease_commands
from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import InvalidArgument, LeaseLost
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue, PartitionedQueue
from airflow_provider_chasqui.queue import Queue
from tests.lease.conftest import LONG, MS, ORDERED, Leasing
from tests.support.redis_state import names, plain_client
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("config", [{}, ORDERED], ids=["shared", "ordered"])
def test_a_restore_that_stops_at_any_step_leaves_no_queue(
    config: dict[str, Any], queue: Queue, leasing: Leasing, client: Any
) -> None:
    queue.add_many([{"payload": i} for i in range(5)])
    queue.add("later", delay=HOUR)
    leases = leasing(**config)
    leases.produce(["p"], client_id="c", client_seq=9)
    first, second = leases.lease("me", 2)
    leases.nack(second, delay=20 * timedelta(seconds=1))
    leases.block(first)
    text, stats = leases.snapshot(), leases.stats()
    steps = 0
    while True:
        leases.delete()
        flow = lease_commands.restore(leases.keys, leases.config, text)
        step = next(flow)
        for _ in range(steps):
            run = leases.client.pipeline if isinstance(step, list) else leases.client.execute
            step = flow.send(run(step))
        left = {
            name
            for name in names(client, leases.keys)
            if not name.startswith(("idempotency:", "lease:restore_staging:"))
        }
        assert left <= {"events"}, f"visible after {steps} steps"
        if getattr(step, "script", None) == "lease_restore":
            break
        steps += 1
    assert steps > 3
    assert leases.restore(text) == stats.length
    assert leases.stats() == stats
    for name in names(client, leases.keys):
        if name.startswith("lease:restore_staging:"):
            assert client.ttl(f"{leases.keys.hash_tag}:{name}") > 0
    with pytest.raises(InvalidArgument, match="already exists"):
        leases.restore(text)


def test_a_restore_does_not_merge_with_existing_delayed_jobs(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add(1)
    leases = leasing()
    text = leases.snapshot()
    leases.delete()
    queue.add("later", delay=HOUR)
    with pytest.raises(InvalidArgument, match="already exists"):
        leases.restore(text)
    assert queue.depth().waiting == 0


def test_a_snapshot_is_limited_in_entries_and_bytes(queue: Queue, leasing: Leasing) -> None:
    leases = leasing()
    leases.create()
    queue.add_many([{"payload": i, "delay": HOUR} for i in range(8)])
    with pytest.raises(InvalidArgument, match="8 entries"):
        leases.snapshot(limit=7)
    leases.snapshot(limit=8)
    queue.add_many([{"payload": "x" * 1000} for _ in range(8)])
    leases.block(*leases.lease("me", 8))
    with pytest.raises(InvalidArgument, match="16 entries"):
        leases.snapshot(limit=15)
    with pytest.raises(InvalidArgument, match="bytes"):
        leases.snapshot(max_bytes=8000)
    assert len(leases.snapshot(max_bytes=20_000)) > 8000


def test_a_queue_is_deleted_without_blocking_the_server(
    queue: Queue, leasing: Leasing, client: Any
) -> None:
    queue.add(1)
    leases = leasing(**ORDERED)
    leases.lease("me")
    before = client.info("commandstats")
    assert leases.delete()
    after = client.info("commandstats")
    assert calls(after, "unlink") == calls(before, "unlink") + 1
    assert calls(after, "del") == calls(before, "del")
    assert not leases.delete()


def calls(stats: dict[str, Any], command: str) -> int:
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_idle_consumers_are_removed_without_a_worker(
    mode: str, queue: Queue, leasing: Leasing, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_flows, "_CONSUMER_IDLE_TTL_MS", 50)
    queue.add_many([{"payload": i} for i in range(30)])
    for i in range(10):
        leases = leasing(mode=mode)
        held = leases.lease(f"c{i}")
        if i > 1:
            leases.ack(*held)
    time.sleep(0.06)
    last = leasing(mode=mode)
    last.lease("last")
    group = last.config.group
    consumers = {info["name"].decode() for info in client.xinfo_consumers(queue.keys.stream, group)}
    assert consumers == {"c0", "c1", "last"}, "c0 and c1 hold leases"


def test_leases_delete_the_index_of_promoted_jobs(
    queue: Queue, leasing: Leasing, client: Any
) -> None:
    queue.add("soon", job_id="mine", delay=50 * MS)
    leases = leasing()
    (lease,) = leases.lease("me", wait=LONG)
    assert lease.job.id == "mine"
    wait_until(lambda: not [name for name in names(client, queue.keys) if name.startswith("didx:")])


def test_a_count_of_messages_deletes_the_index_of_promoted_jobs(queue: Queue, client: Any) -> None:
    queue.add("soon", job_id="mine", delay=50 * MS)
    wait_until(
        lambda: queue.client.run_flow(watchers.count_available(queue.keys, "default", 30_000))
    )
    assert not [name for name in names(client, queue.keys) if name.startswith("didx:")]


def test_an_ordered_queue_reads_only_the_entries_that_it_needs(
    queue: Queue, leasing: Leasing, client: Any
) -> None:
    queue.add_many([{"payload": i} for i in range(10_000)])
    leases = leasing(**ORDERED)
    leases.nack(*leases.lease("me", 10_000))
    (lease,) = leases.lease("other")
    assert lease.payload == 0
    leases.nack(lease, delay=HOUR)
    durations = []
    for _ in range(5):  # each look at the queue while the first entry waits
        client.config_resetstat()
        assert leases.lease("other") == []
        durations.append(client.info("commandstats")["cmdstat_evalsha"]["usec"])
    print(f"looks at a queue with 10 000 nacked entries: {durations} us")
    assert min(durations) < 20_000


def test_a_session_with_many_leases_takes_more_quickly(
    queue: Queue, leasing: Leasing, client: Any
) -> None:
    queue.add_many([{"payload": i} for i in range(2001)])
    leases = leasing(**ORDERED)
    held = leases.lease("me", 2000)
    client.config_resetstat()
    (more,) = leases.lease("me")
    assert more.payload == 2000
    executed = sum(entry["calls"] for entry in client.info("commandstats").values())
    assert executed < 60
    client.config_resetstat()
    leases.nack(*held[1000:])
    executed = sum(entry["calls"] for entry in client.info("commandstats").values())
    assert executed < 12_000, "the number of commands must not grow with the square"


def test_a_consumer_gives_the_reason_of_a_dead_letter(queue: Queue, leasing: Leasing) -> None:
    for job_id in ("decided", "used up"):
        queue.add(1, job_id=job_id)
    leases = leasing()
    decided, used_up = leases.lease("me", 2)
    leases.dead_letter(decided, error="no such address")
    leases.dead_letter(used_up.token, error="failed", reason="retries_exhausted")
    found = {
        dead_letter.job_id: (dead_letter.reason, dead_letter.error)
        for dead_letter in queue.dead_letters()
    }
    assert found == {
        "decided": ("unrecoverable", "no such address"),
        "used up": ("retries_exhausted", "failed"),
    }


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_dead_letters_of_blocked_jobs_have_a_true_reason(
    mode: str, queue: Queue, leasing: Leasing
) -> None:
    queue.add(1, job_id="by hand")
    action = "dead_letter" if mode == "shared" else "block"
    leases = leasing(mode=mode, max_deliveries=2, on_max_deliveries=action)
    leases.block(*leases.lease("me"))
    leases.dead_letter_blocked(leases.blocked()[0].id)
    queue.add(1, job_id="used up")
    leases.nack(*leases.lease("me"))
    leases.block(*leases.lease("me"))
    leases.dead_letter_blocked(leases.blocked()[0].id)
    found = {
        dead_letter.job_id: (dead_letter.reason, dead_letter.attempts)
        for dead_letter in queue.dead_letters()
    }
    assert found == {"by hand": ("unrecoverable", 1), "used up": ("retries_exhausted", 2)}


def test_a_long_shared_lease_warns_once(
    queue: Queue, leasing: Leasing, caplog: pytest.LogCaptureFixture
) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    with caplog.at_level(logging.WARNING):
        leasing(claim_after=timedelta(seconds=30)).lease("me")
        assert not caplog.records
        leases = leasing(claim_after=timedelta(seconds=31))
        leases.lease("me")
        leases.lease("me")
    (record,) = caplog.records
    assert "30 s" in record.getMessage()
    assert "heartbeat" in record.getMessage()
    leases.delete()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        leasing(mode="exclusive", visibility_timeout=HOUR).lease("me")
    assert not caplog.records


def partitioned(server: Any, queue_name: str) -> PartitionedQueue:
    return PartitionedQueue(queue_name, server.url, dialect=server.dialect, partitions=2)


def test_one_lost_lease_does_not_stop_the_operation_on_the_others(
    server: Any, queue_name: str
) -> None:
    with partitioned(server, queue_name) as queue:
        keys = [
            next(f"k{i}" for i in range(99) if queue.partition_of(f"k{i}") == partition)
            for partition in (0, 1)
        ]
        for key in keys:
            queue.produce(key, [1, 2])
        with queue.join("me") as consumer:
            leases = consumer.lease(10)
            assert len(leases) == 4
            by_partition = sorted(leases, key=lambda lease: lease.handle.queue_name)
            lost, kept, *others = by_partition
            queue.queue(0).ack(lost)
            now_ms = int(time.time() * 1000)
            with pytest.raises(LeaseLost) as raised:
                consumer.extend(*by_partition, visibility_timeout=HOUR)
            assert raised.value.tokens == (lost.token,)
            assert queue.queue(1).stats().in_flight == 2
            deadlines = consumer._tracker._lease_deadlines
            for partition, lease in ((0, kept), (1, others[0]), (1, others[1])):
                assert deadlines[partition][lease.entry_id] > now_ms + 3_500_000
            with pytest.raises(LeaseLost) as raised:
                consumer.ack(*by_partition)
            assert raised.value.tokens == (lost.token,)
        assert [stats.length for stats in queue.stats()] == [0, 0]


def test_the_session_of_a_partition_consumer_does_not_depend_on_the_wall_clock(
    server: Any, queue_name: str, client: Any
) -> None:
    now_ms = [1_000_000_000_000]
    queue = PartitionedQueue(
        queue_name, server.url, dialect=server.dialect, partitions=1, clock=lambda: now_ms[0]
    )
    with queue:
        queue.produce("k", [1])
        consumer = queue.join("me", session_timeout=timedelta(seconds=1))
        consumer.send_heartbeat()
        now_ms[0] -= 3_600_000
        time.sleep(1.1)
        assert len(consumer.lease()) == 1
        seconds, microseconds = client.time()
        expiry_ms = client.zscore(f"{queue.keys.hash_tag}:partitions:members", "me")
        assert expiry_ms > seconds * 1000 + microseconds / 1000, (
            "the consumer leased although its session had expired"
        )


def test_a_wait_does_not_depend_on_the_wall_clock(server: Any, queue_name: str) -> None:
    now_ms = [1_000_000_000_000]

    def clock() -> int:
        now_ms[0] += 3_600_000
        return now_ms[0]

    with (
        LeaseQueue(
            queue_name, server.url, dialect=server.dialect, clock=clock, config=LeaseConfig()
        ) as leases,
        plain_client(server.url),
    ):
        began = time.monotonic()
        assert leases.lease("me", wait=timedelta(seconds=1)) == []
        assert 0.9 < time.monotonic() - began < 5
