"""Lost replies: every script of leases and partitions can be sent twice.

The proxy lets the server execute one script, drops its reply and cuts the connection. The client
sends the script again. The result and the state of the queue must be those of a call whose reply
arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands.leases import organisation_key
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue, PartitionedQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.lease.conftest import EXCLUSIVE_ONCE, ORDERED_ONCE, SHARED_ONCE, payloads
from tests.lua.contract import LUA, SCRIPTS
from tests.support.proxy import HoldAt, TcpProxy
from tests.support.redis_state import plain_client

HOUR = timedelta(hours=1)
# Scripts that change nothing.
READ_ONLY = {"lease_stats", "lease_snapshot"}


@dataclass
class World:
    """One queue with three jobs: `queue` and `direct` reach the server, `leases` uses the proxy."""

    queue: Queue
    direct: LeaseQueue
    leases: LeaseQueue
    partitions: PartitionedQueue


@dataclass
class Scenario:
    """One call of the script. `prepare` runs directly; `call` runs through the proxy.

    `call` gets the result of `prepare` and returns what can be compared between two queues.
    """

    script: str
    config: dict[str, Any]
    call: Callable[[World, Any], Any]
    prepare: Callable[[World], Any] = lambda world: None
    label: str = field(default="")

    @property
    def name(self) -> str:
        return f"{self.script}{'-' + self.label if self.label else ''}"


def leased(count: int) -> Callable[[World], Any]:
    return lambda world: world.direct.lease("me", count)


def blocked(world: World) -> str:
    world.direct.block(*world.direct.lease("me"))
    return world.direct.blocked()[0].id


def snapshot_of_deleted(world: World) -> str:
    world.queue.add("later", delay=HOUR)
    world.direct.block(*world.direct.lease("me"))
    text = world.direct.snapshot()
    world.direct.delete()
    return text


def acquire(world: World, _: Any) -> Any:
    first = payloads(world.leases.lease("me", 2))
    return first, payloads(world.leases.lease("me", 2))


def heartbeat(world: World, _: Any) -> Any:
    consumer = world.partitions.join("me")
    consumer.send_heartbeat()
    return consumer.partitions, consumer.members


def joined(world: World) -> Any:
    consumer = world.partitions.join("me")
    consumer.send_heartbeat()
    return consumer


SCENARIOS = [
    Scenario("lease_acquire", SHARED_ONCE, acquire),
    Scenario("lease_acquire_exclusive", EXCLUSIVE_ONCE, acquire, label="unordered"),
    Scenario("lease_acquire_exclusive", ORDERED_ONCE, acquire, label="ordered"),
    *(
        Scenario(f"lease_{script}", config, call, leased(3), label)
        for label, config in (
            ("shared", SHARED_ONCE),
            ("exclusive", EXCLUSIVE_ONCE),
            ("ordered", ORDERED_ONCE),
        )
        for script, call in (
            ("ack", lambda world, leases: world.leases.ack(*leases[:2])),
            ("nack", lambda world, leases: world.leases.nack(*leases[1:])),
            ("move_to_dlq", lambda world, leases: world.leases.dead_letter(*leases[:2])),
            (
                "extend",
                lambda world, leases: [lease.payload for lease in world.leases.extend(*leases[:2])],
            ),
        )
    ),
    Scenario(
        "lease_schedule_retries",
        SHARED_ONCE,
        lambda world, leases: world.leases.nack(*leases[:2], as_retry=True, delay=HOUR),
        leased(3),
    ),
    Scenario("lease_block", ORDERED_ONCE, lambda world, got: world.leases.block(got[0]), leased(3)),
    Scenario(
        "lease_set_aside", SHARED_ONCE, lambda world, got: world.leases.block(*got[:2]), leased(3)
    ),
    Scenario("lease_unblock", ORDERED_ONCE, lambda world, id_: world.leases.unblock(id_), blocked),
    Scenario(
        "lease_restore_set_aside",
        SHARED_ONCE,
        lambda world, id_: world.leases.unblock(id_),
        blocked,
        "unblock",
    ),
    Scenario(
        "lease_restore_set_aside",
        SHARED_ONCE,
        lambda world, id_: world.leases.dead_letter_blocked(id_),
        blocked,
        "dead_letter",
    ),
    Scenario(
        "lease_move_blocked_to_dlq",
        ORDERED_ONCE,
        lambda world, id_: world.leases.dead_letter_blocked(id_),
        blocked,
    ),
    Scenario(
        "lease_produce",
        SHARED_ONCE,
        lambda world, _: [
            entry_id is not None
            for entry_id in world.leases.produce(["x", "y"], client_id="c", client_seq=1)
        ],
    ),
    Scenario(
        "lease_trim",
        SHARED_ONCE,
        lambda world, _: world.leases.trim(world.direct.stats().last_entry_id),
        lambda world: world.direct.create(),
    ),
    Scenario("lease_create_queue", ORDERED_ONCE, lambda world, _: world.leases.create()),
    Scenario("lease_delete_queue", ORDERED_ONCE, lambda world, _: world.leases.delete()),
    Scenario(
        "lease_register_queue",
        SHARED_ONCE,
        lambda world, _: world.leases.create(org=world.queue.name, max_queues=1),
    ),
    *(
        Scenario(
            script,
            config,
            lambda world, text: world.leases.restore(text),
            snapshot_of_deleted,
            label,
        )
        for script in ("lease_restore", "lease_stage_restore")
        for label, config in (("shared", SHARED_ONCE), ("ordered", ORDERED_ONCE))
    ),
    Scenario("partition_heartbeat", ORDERED_ONCE, heartbeat),
    Scenario("partition_leave", ORDERED_ONCE, lambda world, consumer: consumer.close(), joined),
]


def test_every_writing_script_has_a_scenario() -> None:
    writing = {name for name in SCRIPTS if name.startswith(("lease_", "partition_"))} - READ_ONLY
    assert {scenario.script for scenario in SCENARIOS} == writing


@pytest.mark.parametrize(
    "name", [name for name in SCRIPTS if name.startswith(("lease_", "partition_"))]
)
def test_every_writing_script_has_an_idempotency_marker(name: str) -> None:
    header = (LUA / f"{name}.lua").read_text("utf-8")
    assert ("-- KEYS\n--   1    idempotency marker\n" in header) == (name not in READ_ONLY)


def state_of(client: Any, queue: Queue) -> dict[str, Any]:
    """Return the size of every key of the queue, and the deliveries of its pending entries."""
    sizes = {"stream": client.xlen, "zset": client.zcard, "hash": client.hlen, "set": client.scard}
    state: dict[str, Any] = {}
    prefix = queue.keys.hash_tag
    for key in client.keys(f"{prefix}*"):
        suffix = key.decode().removeprefix(prefix)
        kind = client.type(key).decode()
        if not suffix.startswith(":idempotency:"):
            state[suffix] = sizes[kind](key) if kind in sizes else client.get(key)
    if ":stream" in state:
        for group in client.xinfo_groups(queue.keys.stream):
            pending = client.xpending_range(queue.keys.stream, group["name"], "-", "+", 100)
            state["pending"] = [entry["times_delivered"] for entry in pending]
    state["organisation"] = client.scard(organisation_key(queue.name))
    return state


def run(scenario: Scenario, server: Any, name: str, lose_reply: bool) -> tuple[Any, Any]:
    sha = load_script(scenario.script, server.dialect).sha
    config = LeaseConfig(**scenario.config)
    options: dict[str, Any] = {"dialect": server.dialect, "config": config}
    with (
        plain_client(server.url) as client,
        TcpProxy(server.url, trigger=HoldAt(sha, "after") if lose_reply else None) as proxy,
        Queue(name, server.url, dialect=server.dialect) as queue,
        LeaseQueue(name, server.url, **options) as direct,
        LeaseQueue(name, proxy.url, **options) as leases,
        PartitionedQueue(name, proxy.url, partitions=2, **options) as partitions,
    ):
        client.script_load(load_script(scenario.script, server.dialect).source)
        queue.add_batch(range(3), batch_id="b")
        world = World(queue, direct, leases, partitions)
        prepared = scenario.prepare(world)
        if lose_reply and proxy.triggered.is_set():  # `prepare` used the script through the proxy
            raise AssertionError("prepare must not use the proxy")
        result: list[Any] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                result.append(scenario.call(world, prepared))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        if lose_reply:
            assert proxy.triggered.wait(20), f"{scenario.script} was not called"
            proxy.disconnect_all()
        thread.join(30)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
        return result[0], state_of(client, queue)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_lost_reply_changes_nothing(scenario: Scenario, server: Any, queue_name: str) -> None:
    expected, expected_state = run(scenario, server, queue_name, lose_reply=False)
    result, state = run(scenario, server, f"{queue_name}-lost", lose_reply=True)
    assert result == expected
    assert state == expected_state
