"""`confirm=`: an add returns when replicas have it, and says so plainly when they have not."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ReadOnlyError

from airflow_provider_chasqui import Confirm, QueueConfig
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands.enqueue import wait_for_replication
from airflow_provider_chasqui.core.errors import (
    InvalidArgument,
    RedisServerError,
    ReplicationTimeout,
)
from airflow_provider_chasqui.redis_client.retry import PipelineRequest
from tests.redis_client.conftest import Open, admin, stream_length
from tests.redis_client.gate import Gate
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)
SHORT = timedelta(milliseconds=300)


@dataclass
class Pair:
    master: RedisServer
    replica: RedisServer


@pytest.fixture
def pair(own_binary: Path) -> Iterator[Pair]:
    with RedisServer.start(own_binary, "--repl-diskless-sync-delay", "0", aof=True) as master:
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer.start(own_binary, *follow, aof=True) as replica:
            with admin(replica) as client:
                deadline = time.monotonic() + 30
                while client.info("replication")["master_link_status"] != "up":
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            with admin(master) as client:
                assert client.execute_command("WAIT", 1, 20_000) == 1
            yield Pair(master, replica)


def config(replicas: int = 1, fsync: bool = False, wait: timedelta = SHORT) -> QueueConfig:
    return QueueConfig(confirm=Confirm(replicas, fsync, wait))


@pytest.mark.parametrize("fsync", [False, True], ids=["memory", "disk"])
def test_what_is_confirmed_is_on_the_replica(
    open_queue: Open, pair: Pair, queue_name: str, fsync: bool
) -> None:
    patient = config(fsync=fsync, wait=timedelta(seconds=30))
    queue = open_queue(queue_name, pair.master.url, config=patient)
    assert queue.add(1, job_id="one", dedup_ttl=HOUR).fresh
    assert stream_length(pair.replica, queue_name) == 1
    queue.add_many([{"payload": n} for n in range(1000)])
    assert stream_length(pair.replica, queue_name) == 1001
    queue.add_batch(range(1000), batch_id="b")
    assert stream_length(pair.replica, queue_name) == 2001
    with admin(pair.replica) as client:
        assert client.hget(queue.keys.batch("b"), "total") == b"1000"


def test_the_example_in_guarantees_md_waits_for_the_replica(pair: Pair) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n([^`]*Confirm\([^`]*)```", page)
    text = example.replace("redis://localhost", pair.master.url)
    space: dict[str, Any] = {}
    exec(compile(text, "guarantees.md", "exec"), space)
    with space["queue"]:
        assert stream_length(pair.replica, "payments") == 1


@pytest.mark.parametrize("fsync", [False, True], ids=["memory", "disk"])
def test_what_is_not_confirmed_is_added_and_said_so(
    open_queue: Open, pair: Pair, queue_name: str, fsync: bool
) -> None:
    queue = open_queue(queue_name, pair.master.url, config=config(fsync=fsync))
    queue.dialect()
    pair.replica.pause()
    with pytest.raises(ReplicationTimeout, match="0 of 1 replicas") as caught:
        queue.add(1, job_id="one", dedup_ttl=HOUR)
    assert str(caught.value).startswith("[CMQ-309] the jobs are added")
    assert (caught.value.job_id, caught.value.queue_name) == ("one", queue_name)
    assert stream_length(pair.master, queue_name) == 1
    # Asked again, it is not added again, and still not confirmed.
    with pytest.raises(ReplicationTimeout):
        queue.add(1, job_id="one", dedup_ttl=HOUR)
    with pytest.raises(ReplicationTimeout):
        queue.add_many([{"payload": n} for n in range(2000)])
    with pytest.raises(ReplicationTimeout):
        queue.add_batch(range(500), batch_id="b")
    assert stream_length(pair.master, queue_name) == 2501
    assert queue.batch_progress("b").total == 500
    pair.replica.resume()
    patient = config(fsync=fsync, wait=timedelta(seconds=30))
    again = open_queue(queue_name, pair.master.url, config=patient)
    assert not again.add(1, job_id="one", dedup_ttl=HOUR).fresh
    again.add_batch(range(500), batch_id="b")
    assert stream_length(pair.replica, queue_name) == 2501


def test_an_add_whose_reply_was_lost_is_not_confirmed_by_a_connection_that_wrote_nothing(
    open_queue: Open, pair: Pair, queue_name: str
) -> None:
    """The second send finds the job there and writes nothing: WAIT alone would be content."""
    with Gate(pair.master.port) as gate:
        queue = open_queue(queue_name, gate.url, config=config())
        queue.add(0)
        pair.replica.pause()
        gate.hold()
        cutter = threading.Thread(target=lambda: (gate.wait_for_reply(), gate.cut()))
        cutter.start()
        with pytest.raises(ReplicationTimeout):
            queue.add(1)
        cutter.join()
    assert stream_length(pair.master, queue_name) == 2
    pair.replica.resume()


def test_more_replicas_than_there_are(open_queue: Open, pair: Pair, queue_name: str) -> None:
    queue = open_queue(queue_name, pair.master.url, config=config(replicas=2))
    with pytest.raises(ReplicationTimeout, match="of 2 replicas"):
        queue.add(1)


def test_a_disk_that_keeps_nothing_is_said(
    open_queue: Open, own_binary: Path, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as server:
        queue = open_queue(queue_name, server.url, config=config(0, fsync=True))
        with pytest.raises(RedisServerError, match="appendonly"):
            queue.add(1)


def test_what_cannot_be_asked_for() -> None:
    for wrong in ({"replicas": 0}, {"replicas": True}, {"wait": timedelta(0)}, {"wait": HOUR}):
        with pytest.raises(InvalidArgument):
            Confirm(**wrong)  # type: ignore[arg-type]
    assert Confirm(0, fsync=True).replicas == 0


def test_what_was_sent_before_a_master_changed_is_sent_again_with_the_question() -> None:
    """A WAIT that is asked alone, of a new master, would say yes to what only the old one had."""
    ask = wait_for_replication(Confirm())
    ops = [
        redis_command("SET", "a", 1, parse=as_raw),
        redis_command("SET", "b", 1, parse=as_raw),
        ask,
    ]
    exchange = PipelineRequest(ops, "native", "here", retries=3)
    pieces, owners = exchange.encode_pending()
    data = b"".join(pieces)
    exchange.handle_replies([b"OK", ReadOnlyError("READONLY You can't write"), 1], owners)
    assert not exchange.finished
    again, owners = exchange.encode_pending()
    assert b"".join(again) == data
    exchange.handle_replies([b"OK", b"OK", 1], owners)
    assert exchange.finished
    assert exchange.parsed_replies == [b"OK", b"OK", (0, 1)]
