"""A batch id that is used again: nothing of the earlier batch counts in the new one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.lease.queue import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from tests.support.manual_worker import finish, move_to_dlq, take
from tests.support.waiting import wait_until

SHORT = timedelta(milliseconds=200)


def replace_batch(queue: Queue, client: Any) -> None:
    """Wait until the batch has expired and send another one with the same id."""
    wait_until(lambda: not client.exists(queue.keys.batch("b")), 10)
    queue.add_batch(["new"], batch_id="b")


def take_old_job(queue: Queue) -> StreamEntry:
    queue.add_batch(["old"], batch_id="b", ttl=SHORT)
    (entry,) = take(queue)
    return entry


@pytest.mark.parametrize("end", [finish, move_to_dlq])
def test_a_job_of_the_earlier_batch_sets_no_bit(queue, client, end):
    old = take_old_job(queue)
    replace_batch(queue, client)
    end(queue, old)
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead, progress.finished) == (0, 0, False)
    (new,) = take(queue)
    assert new.job.payload == "new"
    end(queue, new)
    assert queue.batch_progress("b").finished


def test_a_job_of_the_earlier_batch_stores_no_result(queue, client):
    old = take_old_job(queue)
    replace_batch(queue, client)
    finish(queue, old, "OLD")
    assert queue.result("batch:b:0:0", "none") == "none"
    finish(queue, *take(queue), "NEW")
    assert queue.result("batch:b:0:0") == "NEW"


def test_a_lease_of_the_earlier_batch_sets_no_bit(queue, client, server):
    with LeaseQueue(queue.name, server.url, dialect=server.dialect) as leases:
        queue.add_batch(["old"], batch_id="b", ttl=SHORT)
        (old,) = leases.lease("c", 1)
        replace_batch(queue, client)
        leases.ack(old.token)
        assert queue.batch_progress("b").done == 0
        (new,) = leases.lease("c", 1)
        leases.ack(new)
        assert queue.batch_progress("b").finished


def test_the_clocks_of_the_producers_may_differ(server, queue_name):
    """Parts come from several producers; the clock of the second one is an hour behind."""
    with Queue(queue_name, server.url, dialect=server.dialect) as first:
        hour_ago = current_time_ms() - 3_600_000
        with Queue(queue_name, server.url, dialect=server.dialect, clock=lambda: hour_ago) as late:
            first.add_batch_part("b", 0, [1])
            late.add_batch_part("b", 1, [2])
            first.add_batch_part("b", 1, [3], start_index=1)
            first.finalize_batch("b", total=3, parts=2)
        for entry in take(first):
            finish(first, entry)
        assert first.batch_progress("b").finished


def test_identical_delayed_jobs_of_two_batches_stay_separate_jobs(server, client, queue_name):
    """M1 of the review: the delayed set merged jobs of the same id, payload and millisecond."""
    with Queue(queue_name, server.url, dialect=server.dialect, clock=lambda: 5) as queue:
        for _ in range(2):
            queue.add_batch([1], batch_id="b", delay=timedelta(hours=1))
            client.delete(queue.keys.batch("b"))
        assert client.zcard(queue.keys.delayed) == 2
