"""produce(): atomic, with sequence numbers and an expected last entry id."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import (
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    SequenceConflict,
    TailMoved,
)
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.lease import LeaseQueue, celeriant_code
from tests.lease.conftest import Leasing


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
