"""Sessions: a restart under the same name and an acquire call without a reply break no order."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core import lease_flows
from airflow_provider_chasqui.core.errors import ConnectionFailed, LeaseLost
from airflow_provider_chasqui.lease import (
    AsyncLeaseQueue,
    AsyncPartitionedQueue,
    LeaseConfig,
    LeaseQueue,
    PartitionedQueue,
)
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.lease.conftest import (
    EXCLUSIVE_ONCE,
    LONG,
    ORDERED,
    ORDERED_ONCE,
    SHARED_ONCE,
    Leasing,
    payloads,
)
from tests.support.proxy import HoldAt, TcpProxy
from tests.support.redis_state import plain_client
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)
MODES = pytest.mark.parametrize(
    "config", [SHARED_ONCE, EXCLUSIVE_ONCE, ORDERED_ONCE], ids=["s", "e", "o"]
)


def test_a_restarted_consumer_does_not_overtake_its_own_leases(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(6)])
    config = ORDERED
    before = leasing(**config).lease("worker-1", 3, visibility_timeout=SECOND)
    assert payloads(before) == [0, 1, 2]
    restarted = leasing(**config)
    assert restarted.lease("worker-1", 3) == [], "the leases of the old process are active"
    after = restarted.lease("worker-1", 3, wait=LONG)
    assert payloads(after) == [0, 1, 2]
    assert after[0].fencing_token > before[0].fencing_token
    for lease in before:
        with pytest.raises(LeaseLost):
            restarted.ack(lease)
    restarted.ack(*after)
    assert payloads(restarted.lease("worker-1", 3)) == [3, 4, 5]


def test_a_restarted_consumer_continues_when_another_process_acked_its_leases(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(2)])
    tokens = [lease.token for lease in leasing(**ORDERED_ONCE).lease("worker-1")]
    restarted = leasing(**ORDERED_ONCE)
    assert restarted.lease("worker-1") == []
    restarted.ack(*tokens)
    assert payloads(restarted.lease("worker-1")) == [1]


def test_a_session_that_was_taken_over_cannot_ack_or_extend_later_entries(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    config = ORDERED
    old = leasing(**config)
    first, second = old.lease("a", 2, visibility_timeout=timedelta(milliseconds=1))
    (taken,) = leasing(**config).lease("b", 1, wait=LONG)
    assert taken.entry_id == first.entry_id
    for verb in (old.extend, old.ack, old.nack):
        with pytest.raises(LeaseLost):
            verb(second)
    assert leasing(**config).lease("c", 3) == []


def test_partitions_keep_the_order_of_a_key_over_a_restart(server: Any, queue_name: str) -> None:
    config = LeaseConfig(
        mode="exclusive", ordered=True, on_max_deliveries="block", visibility_timeout=SECOND
    )

    def opened() -> PartitionedQueue:
        return PartitionedQueue(
            queue_name, server.url, dialect=server.dialect, partitions=4, config=config
        )

    with opened() as one, opened() as two:
        one.produce("customer-7", [1, 2, 3, 4])
        killed = one.join("worker-1")
        killed.send_heartbeat()
        assert payloads(killed.lease(2)) == [1, 2]
        for queue in (one, two):  # in the same process, and in another one
            restarted = queue.join("worker-1")
            restarted.send_heartbeat()
            assert restarted.lease(2) == []
        assert payloads(restarted.lease(2, wait=LONG)) == [1, 2]


def test_a_forked_child_is_another_session(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(2)])
    leases = leasing(**ORDERED_ONCE)
    assert payloads(leases.lease("me")) == [0]
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(len(leases.lease("me")))
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert payloads(leases.lease("me")) == [1]


@contextmanager
def behind_proxy(
    server: Any, config: dict[str, Any], name: str, script: str = ""
) -> Iterator[tuple[TcpProxy, LeaseQueue]]:
    """A queue whose first call of a script is executed, but its reply is held back.

    The default script leases entries.
    """
    script = script or ("lease_acquire_exclusive" if "mode" in config else "lease_acquire")
    source = load_script(script, server.dialect)
    with plain_client(server.url) as client:
        client.script_load(source.source)
    with (
        TcpProxy(server.url, trigger=HoldAt(source.sha, "after")) as proxy,
        LeaseQueue(
            name,
            f"{proxy.url}?retries=0",
            dialect=server.dialect,
            config=LeaseConfig(**config),
        ) as leases,
    ):
        yield proxy, leases


def fail_to_lease(proxy: TcpProxy, leases: LeaseQueue, count: int) -> None:
    def cut() -> None:
        assert proxy.triggered.wait(20)
        proxy.disconnect_all()

    thread = threading.Thread(target=cut)
    thread.start()
    with pytest.raises(ConnectionFailed):
        leases.lease("me", count)
    thread.join()


@MODES
def test_a_failed_call_loses_no_entry_and_no_delivery(
    config: dict[str, Any], server: Any, queue: Queue
) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    with behind_proxy(server, config, queue.name) as (proxy, leases):
        fail_to_lease(proxy, leases, 2)
        assert leases.stats().in_flight == 2
        got = leases.lease("me", 2)
        assert payloads(got) == [0, 1]
        assert [lease.deliveries for lease in got] == [1, 1]
        assert leases.stats().in_flight == 2
        leases.ack(*got)
        assert payloads(leases.lease("me", 2)) == [2, 3]
        assert queue.dead_letters() == []
        assert leases.blocked() == []


@MODES
def test_the_next_call_never_returns_more_than_it_asked_for(
    config: dict[str, Any], server: Any, queue: Queue
) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    with behind_proxy(server, config, queue.name) as (proxy, leases):
        fail_to_lease(proxy, leases, 3)
        got = [leases.lease("me", 1) for _ in range(4)]
        assert [payloads(leased) for leased in got] == [[0], [1], [2], [3]]
        for leased in got:
            leases.ack(*leased)


def test_a_call_that_the_server_forgot_does_not_break_the_order(
    server: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    config = ORDERED | {"visibility_timeout": SECOND}
    with behind_proxy(server, config, queue.name) as (proxy, leases):
        fail_to_lease(proxy, leases, 2)
        monkeypatch.setattr(lease_flows, "_MAX_UNANSWERED_AGE", -1.0)
        assert leases.lease("me", 2) == []
        monkeypatch.undo()
        assert payloads(leases.lease("me", 3, wait=LONG)) == [0, 1, 2]


@MODES
async def test_a_cancelled_call_loses_no_entry_and_no_delivery(
    config: dict[str, Any], server: Any, queue: Queue
) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    with behind_proxy(server, config, queue.name) as (proxy, _):
        async with AsyncLeaseQueue(
            queue.name, proxy.url, dialect=server.dialect, config=LeaseConfig(**config)
        ) as leases:
            task = asyncio.create_task(leases.lease("me", 2))
            assert await asyncio.to_thread(proxy.triggered.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.disconnect_all()
            got = await leases.lease("me", 2)
            assert payloads(got) == [0, 1]
            assert [lease.deliveries for lease in got] == [1, 1]
            await leases.ack(*got)
    assert queue.dead_letters() == []


# A call of `lease` that promotes a delayed job and moves an entry to the DLQ runs these scripts.
@pytest.mark.parametrize("script", ["remove_idle_consumers", "promote", "lease_move_to_dlq"])
@MODES
async def test_a_call_that_ends_at_any_step_loses_no_entry(
    config: dict[str, Any], script: str, server: Any, queue: Queue
) -> None:
    queue.add("delayed", delay=timedelta(milliseconds=1))
    with plain_client(server.url) as client:
        client.xadd(queue.keys.stream, {"d": b"\xc1"})
    queue.add_many([{"payload": i} for i in range(4)])
    expected: list[Any] = [0, 1, 2, 3, "delayed"]
    with behind_proxy(server, config, queue.name, script) as (proxy, _):
        async with AsyncLeaseQueue(
            queue.name, proxy.url, dialect=server.dialect, config=LeaseConfig(**config)
        ) as leases:
            task = asyncio.create_task(leases.lease("me", 3))
            assert await asyncio.to_thread(proxy.triggered.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.disconnect_all()
            got: list[Any] = []
            for _ in range(4):
                leased = await leases.lease("me", 2)
                assert all(lease.deliveries == 1 for lease in leased)
                got += payloads(leased)
            assert got == expected
    assert len(queue.dead_letters()) == 1


@pytest.mark.parametrize("script", ["promote", "lease_move_to_dlq"])
def test_a_call_that_fails_at_any_step_loses_no_entry(
    script: str, server: Any, queue: Queue
) -> None:
    queue.add("delayed", delay=timedelta(milliseconds=1))
    with plain_client(server.url) as client:
        client.xadd(queue.keys.stream, {"d": b"\xc1"})
    queue.add_many([{"payload": i} for i in range(4)])
    with behind_proxy(server, ORDERED_ONCE, queue.name, script) as (proxy, leases):
        fail_to_lease(proxy, leases, 3)
        assert payloads(leases.lease("me", 3)) == [0, 1]


async def test_two_calls_that_end_at_the_same_time_lose_no_entry(server: Any, queue: Queue) -> None:
    queue.add_many([{"payload": i} for i in range(5)])
    with TcpProxy(server.url) as proxy:
        async with AsyncLeaseQueue(
            queue.name, proxy.url, dialect=server.dialect, config=LeaseConfig(**ORDERED_ONCE)
        ) as leases:
            await leases.create()
            await leases.ack(*await leases.lease("me", 1))
            proxy.hold_replies()
            calls = [asyncio.create_task(leases.lease("me", 2)) for _ in range(2)]
            direct = LeaseQueue(queue.name, server.url, config=LeaseConfig(**ORDERED_ONCE))
            with direct:
                await asyncio.to_thread(
                    wait_until, lambda: direct.stats().in_flight == 4, 10, "two calls"
                )
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            proxy.disconnect_all()
            got = await leases.lease("me", 2) + await leases.lease("me", 2)
            assert payloads(got) == [1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["nack", "block"])
def test_leases_that_were_released_are_not_handed_out(verb: str, server: Any, queue: Queue) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    with behind_proxy(server, ORDERED, queue.name) as (proxy, leases):
        fail_to_lease(proxy, leases, 4)
        (first,) = leases.lease("me", 1)
        assert first.payload == 0
        getattr(leases, verb)(first)
        if verb == "block":
            assert leases.lease("me", 1) == [], "the blocked entry stops the queue"
            leases.unblock(first.entry_id)
        got = leases.lease("me", 1)
        assert payloads(got) == [0]
        leases.ack(*got)
        got = leases.lease("me", 4)
        assert payloads(got) == [1, 2, 3]
        leases.ack(*got)


def test_leases_that_another_session_took_over_are_not_handed_out(
    server: Any, queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    config = ORDERED | {"visibility_timeout": timedelta(milliseconds=300)}
    with behind_proxy(server, config, queue.name) as (proxy, leases):
        fail_to_lease(proxy, leases, 3)
        leases.ack(*leases.lease("me", 1))
        taken = leasing(**ORDERED).lease("other", 1, wait=LONG)
        assert payloads(taken) == [1]
        assert leases.lease("me", 1) == []


async def test_a_partition_consumer_loses_no_lease_if_a_later_partition_fails(
    server: Any, queue_name: str
) -> None:
    options: dict[str, Any] = {
        "partitions": 2,
        "config": LeaseConfig(**ORDERED_ONCE),
        "dialect": server.dialect,
    }
    with PartitionedQueue(queue_name, server.url, **options) as direct:
        for partition in range(2):
            direct.queue(partition).produce([(partition, i) for i in range(3)])
    with plain_client(server.url) as client:
        client.script_load(load_script("lease_acquire_exclusive", server.dialect).source)
    # The first call of a consumer begins with partition 1.
    trigger = HoldAt(b"#0}:lease:fencing_token", "after")
    with TcpProxy(server.url, trigger=trigger) as proxy:
        async with AsyncPartitionedQueue(queue_name, proxy.url, **options) as partitioned:
            consumer = partitioned.join("me")
            await consumer.send_heartbeat()
            task = asyncio.create_task(consumer.lease(4))
            assert await asyncio.to_thread(proxy.triggered.wait, 20)
            assert (await partitioned_in_flight(server, queue_name, options)) == [1, 3]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.disconnect_all()
            got: dict[int, list[int]] = {0: [], 1: []}
            for _ in range(6):
                ((partition, index),) = payloads(await consumer.lease(1))
                got[partition].append(index)
            assert got == {0: [0, 1, 2], 1: [0, 1, 2]}


async def partitioned_in_flight(server: Any, name: str, options: dict[str, Any]) -> list[int]:
    async with AsyncPartitionedQueue(name, server.url, **options) as direct:
        return [stats.in_flight for stats in await direct.stats()]
