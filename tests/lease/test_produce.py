"""produce(): atomic, with sequence numbers and an expected last entry id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import as_pairs, redis_command
from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import (
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    SequenceConflict,
    TailMoved,
    WaitTimeout,
)
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.lease import LeaseQueue, celeriant_code
from airflow_provider_chasqui.queue import Queue
from tests.lease.conftest import Leasing
from tests.support.manual_worker import finish, take


def test_produce_checks_sequence_numbers_and_the_last_entry_id(leasing: Leasing) -> None:
    leases = leasing()
    first = leases.produce(["a", "b"], client_id="c", client_seq=1)
    assert all(first)
    assert leases.produce(["b", "c"], client_id="c", client_seq=2)[0] is None
    assert leases.stats().length == 3
    with pytest.raises(SequenceConflict) as raised:
        leases.produce(["d"], client_id="c", client_seq=3, strict_seq=True)
    assert celeriant_code(raised.value) == 8
    near = 2**64 - 3
    assert leases.produce(["x"], client_id="c", client_seq=near) != [None]
    assert leases.produce(["x"], client_id="c", client_seq=near) == [None]
    assert leases.produce(["x"], client_id="c", client_seq=near + 1) != [None]
    tail = leases.stats().last_entry_id
    (added,) = leases.produce([NewJob("y", job_name="n", job_id="my-id")], expected_last_id=tail)
    with pytest.raises(TailMoved, match=str(added)) as raised_tail:
        leases.produce(["z"], expected_last_id=tail)
    assert celeriant_code(raised_tail.value) == 7
    got = leases.lease("me", 100)
    assert [lease.payload for lease in got] == ["a", "b", "c", "x", "x", "y"]
    assert got[-1].job.id == "my-id"


def test_produce_creates_the_queue(leasing: Leasing) -> None:
    leases = leasing()
    with pytest.raises(QueueNotFound) as raised:
        leases.stats()
    assert celeriant_code(raised.value) == 1
    with pytest.raises(TailMoved):
        leases.produce(["x"], expected_last_id="1-1")
    assert leases.produce(["x"], expected_last_id="0-0") != [None]


def test_a_produce_whose_reply_was_lost_can_be_repeated(leasing: Leasing) -> None:
    leases = leasing()
    for arguments in (("c", 1, None, False), (None, None, None, False)):
        op = next(leases._flows.produce(["x", "y"], *arguments))
        assert leases.client.execute(op) == leases.client.execute(op)
    assert leases.stats().length == 4


def test_produce_respects_the_limits(server: Any, queue_name: str) -> None:
    limits = QueueConfig(max_len=2, max_payload_bytes=100)
    with LeaseQueue(queue_name, server.url, dialect=server.dialect, queue_config=limits) as leases:
        with pytest.raises(PayloadTooLarge) as raised:
            leases.produce(["x" * 200])
        assert celeriant_code(raised.value) == 11
        with pytest.raises(QueueFull):
            leases.produce([1, 2, 3])
        assert len(leases.produce([1, 2])) == 2


def test_a_message_never_has_the_result_of_an_earlier_job(queue: Queue, leasing: Leasing) -> None:
    leases = leasing()
    queue.add_many([{"payload": "old", "job_id": job_id} for job_id in ("a", "b", "c")])
    for entry in take(queue):
        progress = {entry.job.id: encode_payload(50)}
        queue.client.execute(inspect.save_progress(queue.keys, progress))
        finish(queue, entry, "old")
    leases.produce([NewJob("used", job_id="used")], client_id="p", client_seq=1)
    messages = [NewJob("skipped", job_id="c"), "generated", NewJob("new", job_id="a")]
    assert leases.produce(messages, client_id="p", client_seq=1)[0] is None
    assert [queue.result(job_id) for job_id in ("a", "b", "c")] == [None, "old", "old"]
    assert [queue.progress(job_id) for job_id in ("a", "b", "c")] == [None, 50, 50]
    with pytest.raises(WaitTimeout):
        queue.wait("a", timeout=timedelta(milliseconds=50))


def test_a_message_does_not_inherit_the_cancel_request_of_an_earlier_job(
    queue: Queue, leasing: Leasing
) -> None:
    now_ms = current_time_ms()
    queue.add("old", job_id="a")
    queue.cancel("a")
    leases = leasing()
    leases.produce([NewJob("new", job_id="a")])
    first, second = leases.lease("me", 2)
    assert second.job.created_at_ms > now_ms
    requests = queue.client.execute(cancel_requests(queue))
    assert requests[b"a"].endswith(b" 1"), "the request is marked as superseded"
    requested_at = int(requests[b"a"].split()[0])
    assert first.job.created_at_ms <= requested_at < second.job.created_at_ms


def cancel_requests(queue: Queue) -> Any:
    return redis_command(
        "HGETALL", queue.keys.cancel_requests, parse=lambda reply: dict(as_pairs(reply))
    )
