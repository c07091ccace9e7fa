"""Shared mode: leases alongside ordinary workers, on every server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.errors import (
    LeaseLost,
    TooManyInFlight,
    TooManyUnacknowledged,
)
from airflow_provider_chasqui.core.lease import version_to_entry_id
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.lease import (
    AsyncLeaseQueue,
    celeriant_code,
)
from airflow_provider_chasqui.queue import Queue
from tests.conftest import ONE_OF_EACH
from tests.lease.conftest import LONG, MS, Leasing
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


def test_a_job_is_leased_and_acked(queue: Queue, leasing: Leasing) -> None:
    added = queue.add({"to": "ada"}, job_name="mail")
    leases = leasing()
    (lease,) = leases.lease("me")
    assert (lease.payload, lease.job.name, lease.deliveries) == ({"to": "ada"}, "mail", 1)
    assert lease.job.id == added.job_id
    assert version_to_entry_id(lease.version) == lease.entry_id
    assert leases.lease("other") == []
    assert leases.stats().in_flight == 1
    leases.ack(lease)
    assert queue.depth().running == queue.depth().waiting == 0
    assert queue.job_status(added.job_id).state == "done"
    with pytest.raises(LeaseLost) as raised:
        leases.ack(lease)
    assert raised.value.tokens == (lease.token,)
    assert celeriant_code(raised.value) == 4


def test_shared_mode_leaves_no_additional_keys(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(20)])
    leases = leasing(claim_after=50 * MS, visibility_timeout=20 * MS)
    for _ in range(5):
        for lease in leases.lease("me", 3):
            leases.nack(lease)
    leases.extend(*(got := leases.lease("me", 5, wait=LONG)))
    leases.ack(*got)
    keys = queue.client.execute(redis_command("KEYS", f"{queue.keys.hash_tag}*", parse=as_raw))
    ours = {key.decode().removeprefix(queue.keys.hash_tag) for key in keys}
    assert {key for key in ours if not key.startswith(":idempotency:")} <= {":stream", ":events"}


def test_an_expired_lease_goes_to_the_next_consumer(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (first,) = leases.lease("one", visibility_timeout=80 * MS)
    began = time.monotonic()
    (second,) = leases.lease("two", wait=LONG)
    assert 0.07 < time.monotonic() - began < 5
    assert (second.entry_id, second.deliveries) == (first.entry_id, 2)
    for verb in (leases.ack, leases.extend, leases.nack, leases.dead_letter, leases.block):
        with pytest.raises(LeaseLost):
            verb(first)
    leases.ack(second)


def test_the_same_consumer_name_does_not_make_an_old_lease_valid(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (old,) = leases.lease("me", visibility_timeout=1 * MS)
    (new,) = leases.lease("me", wait=LONG)
    with pytest.raises(LeaseLost):
        leases.ack(old)
    leases.ack(new)


def test_a_late_ack_succeeds_if_no_other_consumer_leased_the_job(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (lease,) = leases.lease("me", visibility_timeout=1 * MS)
    wait_until(lambda: leases.stats().available == 1)
    leases.ack(lease)
    assert leases.stats().unacknowledged == 0


def test_extend_and_heartbeat_renew_a_lease(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    leases = leasing(claim_after=400 * MS, visibility_timeout=200 * MS)
    (lease,) = leases.lease("me")
    with leases.heartbeat(lease) as beat:
        assert leases.lease("thief", wait=timedelta(seconds=1)) == []
        beat.check()
    (again,) = leases.extend(lease)
    assert again.deadline_ms > lease.deadline_ms
    assert again.deliveries == 1
    (stolen,) = leases.lease("thief", wait=LONG)
    assert stolen.deliveries == 2


def test_a_heartbeat_reports_a_lost_lease(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (lease,) = leases.lease("me", visibility_timeout=1 * MS)
    assert leases.lease("thief", wait=LONG)
    with leases.heartbeat(lease, visibility_timeout=30 * MS) as beat:
        wait_until(lambda: beat.lost_tokens)
        with pytest.raises(LeaseLost):
            beat.check()


def test_nack_returns_a_job_at_once_or_after_a_delay(queue: Queue, leasing: Leasing) -> None:
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (lease,) = leases.lease("me")
    leases.nack(lease)
    (again,) = leases.lease("me")
    assert (again.entry_id, again.deliveries) == (lease.entry_id, 2)
    leases.nack(again, delay=300 * MS)
    assert leases.lease("me") == []
    assert leases.stats().nacked == 1
    began = time.monotonic()
    (third,) = leases.lease("me", wait=LONG)
    assert 0.2 < time.monotonic() - began < 5
    assert (third.entry_id, third.deliveries) == (lease.entry_id, 3)


def test_a_long_delay_becomes_a_retry(queue: Queue, leasing: Leasing) -> None:
    added = queue.add(1, job_name="n")
    leases = leasing(claim_after=100 * MS, visibility_timeout=100 * MS)
    (lease,) = leases.lease("me")
    leases.nack(lease.token, delay=timedelta(hours=1))
    assert queue.job_status(added.job_id).state == "delayed"
    assert queue.reschedule(added.job_id, delay=200 * MS)
    (again,) = leases.lease("me", wait=LONG)
    assert again.entry_id != lease.entry_id
    assert (again.job.id, again.job.name, again.deliveries) == (added.job_id, "n", 2)
    leases.nack(again, as_retry=True)
    (third,) = leases.lease("me", wait=LONG)
    assert third.deliveries == 3


def test_a_waiting_consumer_wakes_for_new_nacked_and_delayed_jobs(
    queue: Queue, leasing: Leasing, server: Any, queue_name: str
) -> None:
    leases = leasing()

    def later(seconds: float, act: Callable[[], Any]) -> None:
        threading.Timer(seconds, act).start()

    def timed() -> tuple[float, list[Any]]:
        began = time.monotonic()
        got = leases.lease("me", wait=LONG)
        return time.monotonic() - began, got

    later(0.2, lambda: queue.add("new"))
    took, (lease,) = timed()
    assert 0.15 < took < 1.5
    assert lease.payload == "new"
    leases.ack(lease)
    queue.add("due", delay=300 * MS)
    took, (lease,) = timed()
    assert 0.2 < took < 1.5
    assert lease.payload == "due"
    later(0.2, lambda: leases.nack(lease))
    took, (again,) = timed()
    assert 0.15 < took < 1.5
    assert again.entry_id == lease.entry_id
    assert leases.lease("me", wait=100 * MS) == []


def test_jobs_without_remaining_attempts_become_dead_letters(
    queue: Queue, leasing: Leasing
) -> None:
    """By the retry policy, by max_deliveries, because it is undecodable, or by dead_letter()."""
    queue.add("own", retry=RetryPolicy(max_attempts=1))
    queue.add("ours")
    add = ("XADD", queue.keys.stream, "*")
    queue.client.execute(redis_command(*add, "d", b"\xc1", parse=as_raw))
    queue.client.execute(redis_command(*add, "x", "y", parse=as_raw))
    leases = leasing(max_deliveries=2)
    first = leases.lease("me", 10)
    assert [lease.payload for lease in first] == ["own", "ours"]
    leases.nack(*first)
    (second,) = leases.lease("me", 10)
    assert (second.payload, second.deliveries) == ("ours", 2)
    leases.dead_letter(second.token, error="no such address")
    assert leases.lease("me", 10) == []
    reasons = {dead_letter.reason: dead_letter for dead_letter in queue.dead_letters()}
    assert set(reasons) == {"retries_exhausted", "decode_failed", "malformed", "unrecoverable"}
    assert reasons["retries_exhausted"].attempts == 1
    assert reasons["unrecoverable"].error == "no such address"
    assert reasons["unrecoverable"].source_id == second.entry_id


def test_deliveries_and_attempts_count_against_one_limit(queue: Queue, leasing: Leasing) -> None:
    """A job with two attempts by a worker is leased with its third delivery."""
    raw = encode_envelope("job", b"\x01", 1, 2)
    queue.client.execute(redis_command("XADD", queue.keys.stream, "*", "d", raw, parse=as_raw))
    leases = leasing(max_deliveries=4)
    (lease,) = leases.lease("me")
    assert lease.deliveries == 3
    leases.nack(lease)
    (lease,) = leases.lease("me")
    assert lease.deliveries == 4
    leases.nack(lease)
    assert leases.lease("me") == []
    assert queue.dead_letters()[0].attempts == 4


def test_limits_refuse_new_leases_until_some_are_acked(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(10)])
    leases = leasing(max_in_flight=3, max_unacknowledged=5, claim_after=LONG)
    got = leases.lease("me", 10)
    assert len(got) == 3
    with pytest.raises(TooManyInFlight) as raised:
        leases.lease("me")
    assert celeriant_code(raised.value) == 6
    leases.nack(*got[:2], delay=timedelta(seconds=20))
    more = leases.lease("me", 10)
    assert len(more) == 2
    leases.ack(got[2])
    leases.nack(more[0], delay=timedelta(seconds=20))
    assert len(leases.lease("me", 10)) == 1
    leases.nack(more[1], delay=timedelta(seconds=20))
    with pytest.raises(TooManyUnacknowledged) as raised:
        leases.lease("me", 10)
    assert celeriant_code(raised.value) == 5


def test_nacked_entries_can_be_leased_again_at_the_unacknowledged_limit(
    queue: Queue, leasing: Leasing
) -> None:
    queue.add_many([{"payload": i} for i in range(4)])
    leases = leasing(max_unacknowledged=2)
    got = leases.lease("me", 10)
    assert len(got) == 2
    leases.nack(*got)
    assert {lease.entry_id for lease in leases.lease("me", 10)} == {lease.entry_id for lease in got}


def test_acks_and_dead_letters_count_for_their_batch(queue: Queue, leasing: Leasing) -> None:
    queue.add_batch(range(3), batch_id="b")
    leases = leasing()
    one, two, three = leases.lease("me", 3)
    leases.ack(one.token, two.token)
    leases.dead_letter(three.token)
    progress = queue.wait_batch("b", timeout=timedelta(seconds=1))
    assert (progress.done, progress.dead) == (2, 1)


def test_one_lost_lease_does_not_affect_the_others(queue: Queue, leasing: Leasing) -> None:
    queue.add_many([{"payload": i} for i in range(3)])
    leases = leasing()
    got = leases.lease("me", 3)
    leases.ack(got[1])
    with pytest.raises(LeaseLost, match="1 of 3") as raised:
        leases.ack(*got)
    assert raised.value.tokens == (got[1].token,)
    assert leases.stats().unacknowledged == 0


async def test_the_asyncio_queue_behaves_the_same(server: Any, queue_name: str) -> None:
    async with AsyncLeaseQueue(queue_name, server.url, dialect=server.dialect) as leases:
        await leases.create()
        await leases.produce(["a", "b"])
        one, two = await leases.lease("me", 2)
        async with leases.heartbeat(one, two, visibility_timeout=60 * MS) as beat:
            assert await leases.lease("thief", wait=300 * MS) == []
            beat.check()
        await leases.ack(one)
        await leases.nack(two)
        (again,) = await leases.lease("me", wait=LONG)
        await leases.dead_letter(again)
        assert (await leases.stats()).dead == 1
        assert await leases.delete(include_dead_letters=True)


_ACK = """
import sys
from airflow_provider_chasqui.lease import LeaseQueue
url, dialect, name, token = sys.argv[1:]
with LeaseQueue(name, url, dialect=dialect) as queue:
    queue.ack(token)
"""


@pytest.mark.system
@ONE_OF_EACH
def test_one_process_leases_and_another_acks(server: Any, queue: Queue, leasing: Leasing) -> None:
    queue.add(1, job_id='id with "quotes" ☂')
    leases = leasing()
    (lease,) = leases.lease("me")
    command_line = [sys.executable, "-c", _ACK, server.url, server.dialect, queue.name]
    ran = subprocess.run([*command_line, lease.token], cwd=ROOT, timeout=60, check=False)
    assert ran.returncode == 0
    assert leases.stats().unacknowledged == 0


def test_a_worker_runs_a_nacked_job(queue: Queue, leasing: Leasing) -> None:
    """An ordinary reader of the group sees a nacked entry at once, a leased one only when idle."""
    queue.add(1)
    leases = leasing(claim_after=LONG)
    (lease,) = leases.lease("me")
    idle = leases.config.claim_after_ms

    def read() -> list[Any]:
        _, entries = queue.client.execute(
            consumer_group.claim_and_read(queue.keys, "default", "worker", idle, 10)
        )
        return entries

    assert read() == []
    leases.nack(lease)
    (entry,) = read()
    assert consumer_group.parse_entry(entry, 2**20).previous_deliveries == 1
    with pytest.raises(LeaseLost):
        leases.ack(lease)
