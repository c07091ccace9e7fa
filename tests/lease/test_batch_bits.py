"""Batch bits, identical jobs and deleted entries of leased jobs, on every server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.batch import batch_job_id
from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from tests.lease.conftest import MS, Leasing
from tests.support.waiting import wait_until

TTL = timedelta(days=90)
TTL_MS = 90 * 24 * 3600 * 1000


def ack(leases: LeaseQueue) -> None:
    leases.ack(*leases.lease("me", 10))


def move_to_dlq(leases: LeaseQueue) -> None:
    leases.dead_letter(*leases.lease("me", 10))


def move_blocked_to_dlq(leases: LeaseQueue) -> None:
    leases.block(*leases.lease("me", 10))
    for entry in leases.blocked():
        assert leases.dead_letter_blocked(entry.id)


def trim(leases: LeaseQueue) -> None:
    leases.create()
    assert leases.trim("99999999999999-0") == 1


Operation = Callable[[LeaseQueue], None]
OPERATIONS = [
    pytest.param(ack, "done", "shared", id="ack"),
    pytest.param(ack, "done", "exclusive", id="ack-exclusive"),
    pytest.param(move_to_dlq, "dead", "shared", id="move_to_dlq"),
    pytest.param(move_to_dlq, "dead", "exclusive", id="move_to_dlq-exclusive"),
    pytest.param(move_blocked_to_dlq, "dead", "shared", id="restore_set_aside"),
    pytest.param(move_blocked_to_dlq, "dead", "exclusive", id="move_blocked_to_dlq"),
    pytest.param(trim, "dead", "shared", id="trim"),
]
for_every_operation = pytest.mark.parametrize(("operate", "bit", "mode"), OPERATIONS)


def call(queue: Queue, *args: Any) -> Any:
    return queue.client.execute(redis_command(*args, parse=as_raw))


@for_every_operation
def test_bits_live_as_long_as_the_batch(
    queue: Queue, leasing: Leasing, operate: Operation, bit: str, mode: str
) -> None:
    queue.add_batch(["one"], batch_id="b", ttl=TTL)
    operate(leasing(mode=mode))
    bitmap = (queue.keys.batch_done if bit == "done" else queue.keys.batch_dead)("b", 0)
    assert call(queue, "PEXPIRETIME", bitmap) == call(queue, "PEXPIRETIME", queue.keys.batch("b"))
    assert call(queue, "PTTL", bitmap) > TTL_MS - 600_000


@for_every_operation
def test_the_opposite_bit_is_cleared(
    queue: Queue, leasing: Leasing, operate: Operation, bit: str, mode: str
) -> None:
    """A replay by ChasquiMQ does not clear the dead bit; the job would be counted twice."""
    queue.add_batch(["one"], batch_id="b")
    opposite = (queue.keys.batch_dead if bit == "done" else queue.keys.batch_done)("b", 0)
    call(queue, "SETBIT", opposite, 0, 1)
    operate(leasing(mode=mode))
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead) == ((1, 0) if bit == "done" else (0, 1))


@for_every_operation
def test_the_id_of_another_program_sets_no_bit(
    queue: Queue, leasing: Leasing, operate: Operation, bit: str, mode: str
) -> None:
    """An index that was not sent would allocate up to 512 MiB."""
    queue.add_batch(["one"], batch_id="b")
    call(queue, "XTRIM", queue.keys.stream, "MAXLEN", 0)
    raw = encode_envelope(batch_job_id("b", 0, 8_000_000), b"\x01", 1, 0)
    call(queue, "XADD", queue.keys.stream, "*", "d", raw)
    operate(leasing(mode=mode))
    for bitmap in (queue.keys.batch_done, queue.keys.batch_dead):
        assert call(queue, "EXISTS", bitmap("b", 0)) == 0
    assert call(queue, "XLEN", queue.keys.stream) == 0


def test_identical_jobs_are_not_merged_when_they_are_retried(
    queue: Queue, leasing: Leasing
) -> None:
    raw = encode_envelope("same", b"\x01", 1, 0)
    for _ in range(4):
        call(queue, "XADD", queue.keys.stream, "*", "d", raw)
    leases = leasing()
    leases.nack(*leases.lease("me", 4), as_retry=True, delay=timedelta(hours=1))
    assert call(queue, "ZCARD", queue.keys.delayed) == 4


# With the limit, the native dialect claims and reads in two steps, too.
@pytest.mark.parametrize("limit", [None, 5])
def test_a_deleted_entry_is_left_to_its_consumer(
    queue: Queue, leasing: Leasing, limit: int | None
) -> None:
    """A producer with MAXLEN trims the oldest entries: those that are leased."""
    queue.add_batch(["one"], batch_id="b")
    leases = leasing(claim_after=100 * MS, visibility_timeout=100 * MS, max_unacknowledged=limit)
    (lease,) = leases.lease("me")
    call(queue, "XDEL", queue.keys.stream, lease.entry_id)
    wait_until(lambda: leases.stats().available == 1)
    assert leases.lease("other", 10) == []
    leases.ack(lease)
    assert queue.batch_progress("b").done == 1


def test_deleted_entries_do_not_hide_others(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([NewJob(number) for number in range(6)])
    leases = leasing(claim_after=100 * MS, visibility_timeout=100 * MS, max_unacknowledged=6)
    got = leases.lease("me", 6)
    for lease in got[:4]:
        call(queue, "XDEL", queue.keys.stream, lease.entry_id)
    wait_until(lambda: leases.stats().available == 6)
    (again,) = leases.lease("other", 1)
    assert again.payload == 4


def test_a_deleted_entry_can_be_extended_and_acked(queue: Queue, leasing: Leasing) -> None:
    queue.add_batch(["one"], batch_id="b")
    leases = leasing()
    (lease,) = leases.lease("me")
    call(queue, "XDEL", queue.keys.stream, lease.entry_id)
    leases.extend(lease)
    leases.ack(lease)
    assert queue.batch_progress("b").done == 1
