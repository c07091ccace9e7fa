"""Write concern: an add returns when the replicas have the job, and otherwise raises an error."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ReadOnlyError

from airflow_provider_chasqui import QueueConfig, WriteConcern
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands.enqueue import wait_for_replication
from airflow_provider_chasqui.core.errors import (
    InvalidArgument,
    RedisServerError,
    ReplicationTimeout,
)
from airflow_provider_chasqui.redis_client.retry import PipelineRequest
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)
SHORT = timedelta(milliseconds=300)


@dataclass
class Pair:
    """A master and its replica."""

    master: RedisServer
    replica: RedisServer


@pytest.fixture
def pair(own_binary: Path) -> Iterator[Pair]:
    with RedisServer.start(own_binary, "--repl-diskless-sync-delay", "0", aof=True) as master:
        replica_options = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer.start(own_binary, *replica_options, aof=True) as replica:
            with admin(replica) as client:
                wait_until(
                    lambda: client.info("replication")["master_link_status"] == "up",
                    30,
                    "the replication",
                )
            with admin(master) as client:
                assert client.execute_command("WAIT", 1, 20_000) == 1
            yield Pair(master, replica)


def config(replicas: int = 1, fsync: bool = False, timeout: timedelta = SHORT) -> QueueConfig:
    return QueueConfig(write_concern=WriteConcern(replicas, fsync, timeout))


@pytest.mark.parametrize("fsync", [False, True], ids=["memory", "disk"])
def test_a_confirmed_job_is_on_the_replica(
    open_queue: Open, pair: Pair, queue_name: str, fsync: bool
) -> None:
    long_wait = config(fsync=fsync, timeout=timedelta(seconds=30))
    queue = open_queue(queue_name, pair.master.url, config=long_wait)
    assert queue.add(1, job_id="one", dedup_ttl=HOUR).created
    assert stream_length(pair.replica, queue_name) == 1
    queue.add_many([{"payload": n} for n in range(1000)])
    assert stream_length(pair.replica, queue_name) == 1001
    queue.add_batch(range(1000), batch_id="b")
    assert stream_length(pair.replica, queue_name) == 2001
    with admin(pair.replica) as client:
        assert client.hget(queue.keys.batch("b"), "total") == b"1000"


def test_the_example_in_guarantees_md_waits_for_the_replica(pair: Pair) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n([^`]*WriteConcern\([^`]*)```", page)
    text = example.replace("redis://localhost", pair.master.url)
    space: dict[str, Any] = {}
    exec(compile(text, "guarantees.md", "exec"), space)
    with space["queue"]:
        assert stream_length(pair.replica, "payments") == 1


@pytest.mark.parametrize("fsync", [False, True], ids=["memory", "disk"])
def test_an_unconfirmed_job_is_added_and_reported(
    open_queue: Open, pair: Pair, queue_name: str, fsync: bool
) -> None:
    queue = open_queue(queue_name, pair.master.url, config=config(fsync=fsync))
    queue.dialect()
    pair.replica.pause()
    with pytest.raises(ReplicationTimeout, match="0 of 1 replicas") as info:
        queue.add(1, job_id="one", dedup_ttl=HOUR)
    assert str(info.value).startswith("[CMQ-309] the jobs are added")
    assert (info.value.job_id, info.value.queue_name) == ("one", queue_name)
    assert stream_length(pair.master, queue_name) == 1
    # The second call adds nothing, and the job is still not confirmed.
    with pytest.raises(ReplicationTimeout):
        queue.add(1, job_id="one", dedup_ttl=HOUR)
    with pytest.raises(ReplicationTimeout):
        queue.add_many([{"payload": n} for n in range(2000)])
    with pytest.raises(ReplicationTimeout):
        queue.add_batch(range(500), batch_id="b")
    assert stream_length(pair.master, queue_name) == 2501
    assert queue.batch_progress("b").total == 500
    pair.replica.resume()
    long_wait = config(fsync=fsync, timeout=timedelta(seconds=30))
    second = open_queue(queue_name, pair.master.url, config=long_wait)
    assert not second.add(1, job_id="one", dedup_ttl=HOUR).created
    second.add_batch(range(500), batch_id="b")
    assert stream_length(pair.replica, queue_name) == 2501


def test_a_resend_that_writes_nothing_does_not_confirm_the_job(
    open_queue: Open, pair: Pair, queue_name: str
) -> None:
    """The resend finds the job and writes nothing, so WAIT alone would succeed."""
    with TcpProxy(pair.master.url) as proxy:
        queue = open_queue(queue_name, proxy.url, config=config())
        queue.add(0)
        pair.replica.pause()
        proxy.hold_replies()
        cutter = threading.Thread(target=lambda: (proxy.wait_for_reply(), proxy.disconnect_all()))
        cutter.start()
        with pytest.raises(ReplicationTimeout):
            queue.add(1)
        cutter.join()
    assert stream_length(pair.master, queue_name) == 2
    pair.replica.resume()


def test_more_replicas_than_exist_is_a_replication_timeout(
    open_queue: Open, pair: Pair, queue_name: str
) -> None:
    queue = open_queue(queue_name, pair.master.url, config=config(replicas=2))
    with pytest.raises(ReplicationTimeout, match="of 2 replicas"):
        queue.add(1)


def test_fsync_without_an_append_only_file_is_an_error(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as server:
        queue = open_queue(queue_name, server.url, config=config(0, fsync=True))
        with pytest.raises(RedisServerError, match="appendonly"):
            queue.add(1)


def test_invalid_write_concerns_are_rejected() -> None:
    for fields in (
        {"replicas": 0},
        {"replicas": True},
        {"timeout": timedelta(0)},
        {"timeout": HOUR},
    ):
        with pytest.raises(InvalidArgument):
            WriteConcern(**fields)  # type: ignore[arg-type]
    assert WriteConcern(0, fsync=True).replicas == 0


def test_all_commands_are_sent_again_with_the_confirmation_after_a_failover() -> None:
    """WAIT alone at the new master would confirm commands that only the old one had."""
    wait = wait_for_replication(WriteConcern())
    commands = [
        redis_command("SET", "a", 1, parse=as_raw),
        redis_command("SET", "b", 1, parse=as_raw),
        wait,
    ]
    request = PipelineRequest(commands, "native", "here", retries=3)
    chunks, indexes = request.encode_pending()
    data = b"".join(chunks)
    request.handle_replies([b"OK", ReadOnlyError("READONLY You can't write"), 1], indexes)
    assert not request.finished
    resent, indexes = request.encode_pending()
    assert b"".join(resent) == data
    request.handle_replies([b"OK", b"OK", 1], indexes)
    assert request.finished
    assert request.parsed_replies == [b"OK", b"OK", (0, 1)]
