"""Faults in a fleet: a replica is promoted, a slot moves, a node dies; the same checker judges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from airflow_provider_chasqui import Confirm, QueueConfig
from tests.chaos.harness.environment import Stage, play, wait_for
from tests.chaos.harness.plan import Fault, Scenario, draw
from tests.chaos.test_faults import told
from tests.redis_client.conftest import admin
from tests.redis_client.test_cluster import Cluster, started
from tests.redis_client.test_sentinel import Fleet, fleet
from tests.support.servers import RedisServer

__all__ = ["fleet"]  # the fixture

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("chaos-harness"),
]

PATIENT = "timeout=3&connect_timeout=3&retries=60"
CONFIRMED = QueueConfig(confirm=Confirm(1, wait=timedelta(milliseconds=500)))


def scenario(seed: int, *special: str, seconds: float = 9) -> Scenario:
    """Killed workers, and something special after the first of them and after the second."""
    drawn = draw(seed, seconds, kinds=("kill_worker", "kill_leader"))
    faults = list(drawn.faults)[:4]
    for place, kind in enumerate(special):
        faults.insert(2 * place + 1, Fault(kind, seconds / 4, 0.0, 0))
    return replace(drawn, faults=tuple(faults))


def promote_the_replica(stage: Stage, fleet: Fleet) -> None:
    """The replica sleeps, cut off, while the master takes its last jobs; then the master dies."""
    fleet.replica.pause()
    # Else what the master sent would wait in the replica's socket.
    stage.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(0.7)
    fleet.master.kill()
    fleet.replica.resume()
    wait_for(lambda: all(names(each, fleet.replica) for each in fleet.sentinels), "no promotion")
    with admin(fleet.replica, password="pw") as client:
        wait_for(lambda: client.info("replication")["role"] == "master", "it does not take over")
    stage.look_at(fleet.replica, password="pw")


def names(sentinel: RedisServer, server: RedisServer) -> bool:
    """Whether a sentinel takes this server for the master."""
    with admin(sentinel) as client:
        address = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
    return int(address[1]) == server.port


def bring_back(old: RedisServer, master: RedisServer) -> None:
    """The old one follows the new one, so that there is somebody again to confirm."""
    old.restart()
    with admin(old, password="pw") as client:

        def follows() -> bool:
            now = client.info("replication")
            if now["role"] == "master":
                client.execute_command("REPLICAOF", "127.0.0.1", master.port)
            return bool(now.get("master_link_status") == "up")

        wait_for(follows, "it does not follow")


@pytest.fixture
def sentinel_stage(fleet: Fleet, tmp_path: Path) -> Iterator[Stage]:
    with Stage(fleet.master, "native", tmp_path, f"{fleet.url()}{PATIENT}") as stage:
        stage.look_at(fleet.master, password="pw")
        stage.hooks["failover"] = lambda: promote_the_replica(stage, fleet)
        stage.hooks["bring back"] = lambda: bring_back(fleet.master, fleet.replica)
        yield stage


def test_what_was_confirmed_survives_a_promotion(sentinel_stage: Stage) -> None:
    story = scenario(21, "failover", "bring back")
    history, verdict = play(sentinel_stage, story, config=CONFIRMED)
    assert not verdict.broken, told(history, verdict)
    assert [fault.kind for fault in history.struck].count("failover") == 1
    acknowledged = [add for add in history.adds if add.outcome == "acked"]
    assert len(acknowledged) > 30


def test_without_confirmation_a_promotion_loses_the_last_jobs(sentinel_stage: Stage) -> None:
    """The control: the same failover, and the checker sees what Redis itself forgets."""
    _, verdict = play(sentinel_stage, scenario(21, "failover"))
    assert verdict.count("lost") > 0


def owner(cluster: Cluster, stage: Stage) -> RedisServer:
    return cluster.owner(stage.queue_name)


def move_the_slot(stage: Stage, cluster: Cluster) -> None:
    """Key by key, as redis-cli does: scripts that need several keys wait meanwhile."""
    old = owner(cluster, stage)
    new = next(each for each in cluster.nodes[:3] if each.port != old.port)
    slot = key_slot(f"{{chasqui:{stage.queue_name}}}".encode())
    with admin(old) as source, admin(new) as sink:
        sink.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 5):
            source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
        for each in (sink, source):
            each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
    stage.look_at(new)


def kill_the_node(stage: Stage, cluster: Cluster) -> None:
    """Its replica takes over the slots."""
    old = owner(cluster, stage)
    old.kill()

    def taken_over() -> bool:
        try:
            return owner(cluster, stage).port != old.port
        except AssertionError:
            return False

    wait_for(taken_over, "no replica takes over")
    stage.look_at(owner(cluster, stage))
    old.restart()  # it finds out by itself that it is a replica now


def cluster_stage(cluster: Cluster, folder: Path) -> Stage:
    stage = Stage(cluster.nodes[0], "native", folder, f"{cluster.url()}{PATIENT}")
    stage.look_at(owner(cluster, stage))
    stage.hooks["move"] = lambda: move_the_slot(stage, cluster)
    stage.hooks["failover"] = lambda: kill_the_node(stage, cluster)
    return stage


def test_a_slot_that_moves_under_load_loses_and_doubles_nothing(
    redis86_binary: Path, tmp_path: Path
) -> None:
    with started(redis86_binary) as cluster, cluster_stage(cluster, tmp_path) as stage:
        history, verdict = play(stage, scenario(31, "move", "move"))
    assert not verdict.broken, told(history, verdict)
    assert all(add.outcome == "acked" for add in history.adds)
    kinds: list[Any] = [fault.kind for fault in history.struck]
    assert kinds.count("move") == 2


def test_what_was_confirmed_survives_the_death_of_a_node(
    redis86_binary: Path, tmp_path: Path
) -> None:
    with started(redis86_binary, replicas=3) as cluster, cluster_stage(cluster, tmp_path) as stage:
        history, verdict = play(stage, scenario(32, "failover"), config=CONFIRMED)
    assert not verdict.broken, told(history, verdict)
    assert len([add for add in history.adds if add.outcome == "acked"]) > 30
