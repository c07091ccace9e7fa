"""Faults of several servers: a replica is promoted, a slot migrates, a node dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from airflow_provider_chasqui import QueueConfig, WriteConcern
from tests.chaos.harness.environment import TIMEOUT_S, URL_OPTIONS, Environment, run_scenario
from tests.chaos.harness.plan import Fault, Scenario, generate_scenario
from tests.chaos.test_faults import describe
from tests.redis_client.conftest import admin
from tests.redis_client.test_cluster import Cluster, started
from tests.redis_client.test_sentinel import Fleet, fleet
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

__all__ = ["fleet"]  # the fixture

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("chaos-harness"),
]

ONE_REPLICA = QueueConfig(write_concern=WriteConcern(1, timeout=timedelta(milliseconds=500)))


def scenario(seed: int, *failovers: str, seconds: float = 9) -> Scenario:
    """Return a scenario in which workers are killed and, in between, `failovers` happen."""
    drawn = generate_scenario(seed, seconds, kinds=("kill_worker", "kill_leader"))
    faults = list(drawn.faults)[:4]
    for number, kind in enumerate(failovers):
        faults.insert(2 * number + 1, Fault(kind, seconds / 4, 0.0, 0))
    # The ordered queue may be in another slot, which these faults do not move.
    jobs = tuple(spec for spec in drawn.jobs if not spec.ordered)
    return replace(drawn, jobs=jobs, faults=tuple(faults))


def promote_the_replica(environment: Environment, fleet: Fleet) -> None:
    """Suspend the replica while the master accepts its last jobs, then kill the master."""
    fleet.replica.pause()
    # Otherwise the replica would read the last writes from its socket when it continues.
    environment.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(0.7)
    fleet.master.kill()
    fleet.replica.resume()
    wait_until(
        lambda: all(reports_master(sentinel, fleet.replica) for sentinel in fleet.sentinels),
        TIMEOUT_S,
        "every sentinel reports the replica as master",
    )
    with admin(fleet.replica, password="pw") as client:
        wait_until(
            lambda: client.info("replication")["role"] == "master",
            TIMEOUT_S,
            "the replica is a master",
        )
    environment.use_server(fleet.replica, password="pw")


def reports_master(sentinel: RedisServer, server: RedisServer) -> bool:
    """Return whether a sentinel reports this server as the master."""
    with admin(sentinel) as client:
        address = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
    return int(address[1]) == server.port


def restart_as_replica(old: RedisServer, master: RedisServer) -> None:
    """Restart the old master as a replica of the new one, which then has a replica again."""
    old.restart()
    with admin(old, password="pw") as client:

        def replicates() -> bool:
            replication = client.info("replication")
            if replication["role"] == "master":
                client.execute_command("REPLICAOF", "127.0.0.1", master.port)
            return bool(replication.get("master_link_status") == "up")

        wait_until(replicates, TIMEOUT_S, "the old master replicates the new one")


@pytest.fixture
def sentinel_environment(fleet: Fleet, tmp_path: Path) -> Iterator[Environment]:
    with Environment(
        fleet.master, "native", tmp_path, f"{fleet.url()}{URL_OPTIONS}"
    ) as environment:
        environment.use_server(fleet.master, password="pw")
        environment.hooks["failover"] = lambda: promote_the_replica(environment, fleet)
        environment.hooks["restart"] = lambda: restart_as_replica(fleet.master, fleet.replica)
        yield environment


def test_jobs_confirmed_by_a_replica_survive_its_promotion(
    sentinel_environment: Environment,
) -> None:
    failover = scenario(21, "failover", "restart")
    history, result = run_scenario(sentinel_environment, failover, config=ONE_REPLICA)
    assert not result.violations, describe(history, result)
    assert [fault.kind for fault in history.faults].count("failover") == 1
    acknowledged = [add for add in history.adds if add.outcome == "acked"]
    assert len(acknowledged) > 30


def test_without_a_write_concern_a_promotion_loses_the_last_jobs(
    sentinel_environment: Environment,
) -> None:
    """Control test: after the same failover the checker detects the writes that Redis lost."""
    _, result = run_scenario(sentinel_environment, scenario(21, "failover"))
    assert result.count("lost") > 0


def owner(cluster: Cluster, environment: Environment) -> RedisServer:
    return cluster.owner(environment.queue_name)


def migrate_the_slot(environment: Environment, cluster: Cluster) -> None:
    """Migrate the slot of the queue key by key, as redis-cli does.

    Scripts that need several keys must wait until the migration ends.
    """
    old = owner(cluster, environment)
    new = next(node for node in cluster.nodes[:3] if node.port != old.port)
    slot = key_slot(f"{{chasqui:{environment.queue_name}}}".encode())
    with admin(old) as source, admin(new) as target:
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 5):
            source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
    environment.use_server(new)


def kill_the_node(environment: Environment, cluster: Cluster) -> None:
    """Kill the node of the queue; its replica becomes the owner of its slots."""
    old = owner(cluster, environment)
    old.kill()

    def has_new_owner() -> bool:
        try:
            return owner(cluster, environment).port != old.port
        except AssertionError:
            return False

    wait_until(has_new_owner, TIMEOUT_S, "a replica owns the slots of the killed node")
    environment.use_server(owner(cluster, environment))
    old.restart()  # the cluster makes it a replica


def cluster_environment(cluster: Cluster, folder: Path) -> Environment:
    environment = Environment(cluster.nodes[0], "native", folder, f"{cluster.url()}{URL_OPTIONS}")
    environment.use_server(owner(cluster, environment))
    environment.hooks["migrate"] = lambda: migrate_the_slot(environment, cluster)
    environment.hooks["failover"] = lambda: kill_the_node(environment, cluster)
    return environment


def test_a_slot_migration_under_load_loses_and_duplicates_no_job(
    redis86_binary: Path, tmp_path: Path
) -> None:
    with (
        started(redis86_binary) as cluster,
        cluster_environment(cluster, tmp_path) as environment,
    ):
        history, result = run_scenario(environment, scenario(31, "migrate", "migrate"))
    assert not result.violations, describe(history, result)
    assert all(add.outcome == "acked" for add in history.adds)
    kinds: list[Any] = [fault.kind for fault in history.faults]
    assert kinds.count("migrate") == 2


def test_jobs_confirmed_by_a_replica_survive_the_death_of_their_node(
    redis86_binary: Path, tmp_path: Path
) -> None:
    with (
        started(redis86_binary, replicas=3) as cluster,
        cluster_environment(cluster, tmp_path) as environment,
    ):
        history, result = run_scenario(environment, scenario(32, "failover"), config=ONE_REPLICA)
    assert not result.violations, describe(history, result)
    assert len([add for add in history.adds if add.outcome == "acked"]) > 30
