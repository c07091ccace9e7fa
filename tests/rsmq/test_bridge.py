"""Moving RSMQ messages to Chasqui: exactly once on one server, deduplicated between two."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import QueueFull, RsmqQueueNotFound
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import from_url
from airflow_provider_chasqui.rsmq import bridge
from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq, same_server
from airflow_provider_chasqui.rsmq.client import RsmqClient
from tests.conftest import ONE_OF_EACH

ROOT = Path(__file__).parents[2]


def jobs(queue: Queue) -> list[Any]:
    """Return every job on the stream, decoded."""
    queue.client.execute(consumer_group.create(queue.keys, "test"))
    raw = queue.client.execute(consumer_group.read(queue.keys, "test", "c", 10_000, 0))
    entries = [consumer_group.parse_entry(entry, 2**30) for entry in raw]
    assert all(isinstance(entry, consumer_group.StreamEntry) for entry in entries)
    return [entry.job for entry in entries]


def test_messages_become_jobs_in_order(rsmq: RsmqClient, queue: Queue) -> None:
    sent = [rsmq.send_message("q", f"m{i}") for i in range(250)]
    rsmq.send_message("q", "later", delay=60)
    assert migrate_from_rsmq("q", queue, rsmq) == bridge.TransferReport(moved=250)
    found = jobs(queue)
    assert [job.id for job in found] == sent
    assert [job.payload for job in found] == [f"m{i}" for i in range(250)]
    assert {job.name for job in found} == {"rsmq:q"}
    assert {job.attempt for job in found} == {0}
    assert abs(found[0].created_at_ms - int(sent[0][:10], 36) // 1000) <= 1
    left = rsmq.get_queue_attributes("q")
    assert (left.msgs, left.totalrecv) == (1, 250)
    assert migrate_from_rsmq("q", queue, rsmq) == bridge.TransferReport()


def test_the_caller_chooses_job_name_payload_and_limit(rsmq: RsmqClient, queue: Queue) -> None:
    for i in range(5):
        rsmq.send_message("q", json.dumps({"n": i}))
    for _ in range(2):
        assert rsmq.receive_message("q", vt=0)
    done = migrate_from_rsmq(
        "q",
        queue,
        rsmq,
        job_name="mail",
        max_messages=3,
        keep_receive_count=True,
        convert=json.loads,
    )
    assert done.moved == 3
    found = jobs(queue)
    assert {job.payload["n"] for job in found} <= set(range(5))
    assert {job.name for job in found} == {"mail"}
    assert sum(job.attempt for job in found) + sum(
        message.rc for message in rsmq.peek_messages("q")
    ) == 2  # fmt: skip


def test_unusual_messages_do_not_stop_the_transfer(
    rsmq: RsmqClient, queue: Queue, server: Any, namespace: str
) -> None:
    with redis.Redis.from_url(server.url) as raw:
        raw.zadd(f"{namespace}:q", {"0" * 32: 1})
        binary = rsmq.send_message("q", "x")
        raw.hset(f"{namespace}:q:Q", binary, b"\xff\xfe")
    rsmq.send_message("q", "")
    assert migrate_from_rsmq("q", queue, rsmq) == bridge.TransferReport(moved=2, dropped=1)
    assert [job.payload for job in jobs(queue)] == [b"\xff\xfe", ""]


@pytest.mark.parametrize("one_server", [True, False])
def test_a_message_that_cannot_be_converted_keeps_its_text(
    rsmq: RsmqClient, queue: Queue, monkeypatch: pytest.MonkeyPatch, one_server: bool
) -> None:
    monkeypatch.setattr(bridge, "same_server", lambda first, second: one_server)
    for text in ('{"n": 1}', "no JSON", '{"n": 2}'):
        rsmq.send_message("q", text)
    report = migrate_from_rsmq("q", queue, rsmq, convert=json.loads)
    assert report == bridge.TransferReport(moved=3, unconverted=1)
    assert [job.payload for job in jobs(queue)] == [{"n": 1}, "no JSON", {"n": 2}]
    assert rsmq.get_queue_attributes("q").msgs == 0


def test_a_full_queue_refuses_and_nothing_is_lost(
    rsmq: RsmqClient, server: Any, queue_name: str
) -> None:
    for i in range(5):
        rsmq.send_message("q", str(i))
    config = QueueConfig(max_len=3)
    with Queue(queue_name, server.url, dialect=server.dialect, config=config) as small:
        with pytest.raises(QueueFull):
            migrate_from_rsmq("q", small, rsmq)
        assert rsmq.get_queue_attributes("q").msgs == 5
        assert migrate_from_rsmq("q", small, rsmq, max_messages=3).moved == 3


def test_an_unknown_queue_raises(rsmq: RsmqClient, queue: Queue) -> None:
    with pytest.raises(RsmqQueueNotFound):
        migrate_from_rsmq("nope", queue, rsmq)


def test_same_server_compares_address_and_database() -> None:
    one = from_url("redis://h:1/0")
    assert same_server(one, from_url("redis://u:p@h:1/0"))
    assert not same_server(one, from_url("redis://h:1/1"))
    assert not same_server(one, from_url("redis+cluster://h:1"))


_MIGRATE = """
import sys
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq
from airflow_provider_chasqui.rsmq.client import RsmqClient
url, dialect, namespace, name = sys.argv[1:]
with RsmqClient(url, namespace=namespace) as rsmq, Queue(name, url, dialect=dialect) as queue:
    print("ready", flush=True)
    sys.stdin.readline()
    print(migrate_from_rsmq("q", queue, rsmq).moved)
"""


@pytest.mark.interop
@pytest.mark.timeout(180)
@ONE_OF_EACH
def test_racing_bridges_and_a_node_consumer_lose_and_duplicate_nothing(
    server: Any, namespace: str, queue: Queue, rsmq: RsmqClient, npm_rsmq: Any
) -> None:
    """Four bridge processes and the real npm rsmq consume one queue at the same time."""
    npm = npm_rsmq(server.url)
    command = [sys.executable, "-c", _MIGRATE, server.url, server.dialect, namespace, queue.name]
    bridges = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(4)
    ]
    for process in bridges:
        assert process.stdout.readline() == "ready\n"
    sent = [rsmq.send_message("q", str(i)) for i in range(1000)]
    npm.send("loop", qname="q")
    first = npm.receive()
    assert "popped" in first
    moved = [int(process.communicate("go\n", timeout=60)[0]) for process in bridges]
    npm.send("stop")
    popped_ids = [first["popped"]["id"]]
    while "popped" in (line := npm.receive()):
        popped_ids.append(line["popped"]["id"])
    moved_ids = [job.id for job in jobs(queue)]
    assert len(moved_ids) == sum(moved) > 0
    assert sorted(moved_ids + popped_ids) == sorted(sent)
    assert rsmq.get_queue_attributes("q").totalrecv == 1000


def other_address(url: str) -> str:
    """Return another name of the same server, which the bridge treats as another server."""
    return url.replace("127.0.0.1", "localhost")


def test_between_two_servers_a_crash_at_any_step_loses_and_duplicates_nothing(
    server: Any, namespace: str, queue_name: str, rsmq: RsmqClient, monkeypatch: Any
) -> None:
    sent = [rsmq.send_message("q", str(i)) for i in range(10)]
    hide = timedelta(milliseconds=1)
    with Queue(queue_name, other_address(server.url), dialect=server.dialect) as queue:

        class Crash(Exception):
            pass

        def crash(*_: Any, **__: Any) -> Any:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(bridge.enqueue, "add_jobs", crash)  # received, not added
            with pytest.raises(Crash):
                migrate_from_rsmq("q", queue, rsmq, vt=hide)
        assert queue.depth().waiting == 0
        with monkeypatch.context() as patch:
            patch.setattr(type(rsmq.flows), "delete", crash)  # added, not deleted
            with pytest.raises(Crash):
                migrate_from_rsmq("q", queue, rsmq, vt=hide)
        assert queue.depth().waiting == 10
        assert migrate_from_rsmq("q", queue, rsmq) == bridge.TransferReport(duplicates=10)
        assert sorted(job.id for job in jobs(queue)) == sorted(sent)
        assert rsmq.get_queue_attributes("q").msgs == 0
