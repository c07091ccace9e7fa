"""The examples and ACL rules in docs/rsmq.md and docs/leases.md work."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.lease import LeaseQueue, PartitionedQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.rsmq.client import RsmqClient
from tests.conftest import Server
from tests.provider.conftest import connect

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.M | re.S)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, native_server: Server) -> Server:
    connect(monkeypatch, native_server)
    return native_server


def run(example: str, url: str, names: dict[str, Any], unique: str) -> None:
    """Run an example on the server under test, with queues that no other test has."""
    text = re.sub(r"redis(\+cluster)?://[^\"]+", url, example)
    text = re.sub(r'"(emails|orders|ledger)"', rf'"\1-{unique}"', text)
    text = text.replace("seconds=20", "milliseconds=20")
    exec(compile(text, "example", "exec"), names)


def test_the_examples_of_the_rsmq_page_run(connected: Server, capsys: Any) -> None:
    unique = uuid.uuid4().hex[:8]
    names: dict[str, Any] = {}
    for example in examples("rsmq.md"):
        run(example, connected.url, names, unique)
    printed = capsys.readouterr().out
    assert "TransferReport(moved=1" in printed, "the message of the hook was not moved both ways"
    with RsmqClient(connected.url) as rsmq:
        assert rsmq.get_queue_attributes(f"emails-{unique}").msgs == 1
        rsmq.delete_queue(f"emails-{unique}")


def test_the_examples_of_the_leases_page_run(connected: Server) -> None:
    from airflow.sdk import task

    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    done: list[Any] = []
    unique = uuid.uuid4().hex[:8]
    names: dict[str, Any] = {
        "send": done.append,
        "handle": done.append,
        "TemporaryError": KeyError,
        "task": task,
        "ChasquiHook": ChasquiHook,
        "timedelta": timedelta,
    }
    with Queue(f"emails-{unique}", connected.url) as queue:
        queue.add("to ada")
    for example in examples("leases.md"):
        run(example, connected.url, names, unique)
    assert done == ["to ada", {"amount": 3}]
    names["orders"].close()
    names["queue"].close()
    with LeaseQueue(f"emails-{unique}", connected.url) as leases:
        assert leases.stats().length == 0
        leases.produce(["x"])
        tokens = names["lease_jobs"].function()
        names["ack_jobs"].function(tokens)
        assert leases.stats().length == 0
        leases.delete()
    with PartitionedQueue(f"orders-{unique}", connected.url, partitions=16) as orders:
        assert sum(stats.length for stats in orders.stats()) == 0


def test_the_documented_acl_rules_are_sufficient(server: Server, namespace: str) -> None:
    page = (DOCS / "rsmq.md").read_text("utf-8")
    rules = (
        re.search(r"only uses RSMQ needs `([^`]+)`", page)[1]
        .replace("rsmq:", f"{namespace}:")
        .split()
    )
    user = f"rsmq-{uuid.uuid4().hex[:8]}"
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules)
        url = server.url.replace("redis://", f"redis://{user}:secret@")
        try:
            with RsmqClient(url, namespace=namespace, realtime=True) as rsmq:
                rsmq.create_queue("q")
                rsmq.set_queue_attributes("q", vt=5)
                first = rsmq.send_message("q", "x")
                assert rsmq.receive_message("q").id == first
                rsmq.change_message_visibility("q", first, vt=0)
                assert rsmq.peek_messages("q")
                assert rsmq.pop_message("q").id == first
                assert rsmq.delete_message("q", first) == 0
                assert rsmq.list_queues() == ["q"]
                rsmq.delete_queue("q")
        finally:
            admin.execute_command("ACL", "DELUSER", user)
