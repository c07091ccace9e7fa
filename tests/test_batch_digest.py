"""The digest of a batch notices other payloads; the bits of a batch live as long as its hash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import BatchChanged, BatchConflict
from tests.support.redis_state import dump
from tests.support.waiting import wait_until
from tests.support.workers import working

DAYS = timedelta(days=1)


class Broken(Exception):
    pass


def cut_after(payloads: list[Any], count: int) -> Iterator[Any]:
    """Yield the first payloads, then fail as a source that breaks does."""
    yield from payloads[:count]
    raise Broken


@pytest.mark.parametrize("size", [3, 700, 20_000])
def test_the_same_payloads_can_be_sent_again(queue, client, size):
    payloads = [{"n": n} for n in range(size)]
    queue.add_batch(payloads, batch_id="b")
    digest = queue.batch_progress("b").digest
    assert len(digest) == 32
    before = dump(client, queue.keys)
    assert queue.add_batch(iter(payloads), batch_id="b").total == size
    assert dump(client, queue.keys) == before
    queue.add_batch(payloads, batch_id="other")
    assert queue.batch_progress("other").digest == digest


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda payloads: [*payloads[:350], "other", *payloads[351:]], "first 700 payloads"),
        (lambda payloads: payloads[::-1], "first 700 payloads"),
        (lambda payloads: payloads[:-1], "has 699 payloads now, but 700 jobs"),
        (lambda payloads: [*payloads, 1], "more payloads than before"),
    ],
    ids=["one", "order", "fewer", "more"],
)
def test_other_payloads_are_refused_before_any_write(queue, client, changed, message):
    payloads = list(range(700))
    queue.add_batch(payloads, batch_id="b")
    before = dump(client, queue.keys)
    with pytest.raises(BatchChanged, match=message) as error:
        queue.add_batch(changed(payloads), batch_id="b")
    assert isinstance(error.value, BatchConflict)
    assert "CMQ-311" in str(error.value)
    assert dump(client, queue.keys) == before


@pytest.mark.parametrize("payloads", [[1, 2, 4], [3, 2, 1], [1, 2, 3, 4], [1, 2]])
def test_a_small_batch_is_compared_by_the_script(queue, client, payloads):
    queue.add_batch([1, 2, 3], batch_id="b")
    before = dump(client, queue.keys)
    error = BatchChanged if len(payloads) >= 3 else BatchConflict
    with pytest.raises(error):
        queue.add_batch(payloads, batch_id="b")
    assert dump(client, queue.keys) == before


@pytest.mark.parametrize("sent", [33_333, 39_000])
def test_a_send_that_was_cut_continues_only_with_the_same_payloads(queue, client, sent):
    payloads = list(range(40_000))
    with pytest.raises(Broken):
        queue.add_batch(cut_after(payloads, sent), batch_id="b")
    arrived = queue.batch_progress("b").enqueued
    assert 0 < arrived <= sent
    with pytest.raises(BatchChanged, match=f"{arrived} jobs were sent before"):
        queue.add_batch(["other", *payloads[1:]], batch_id="b")
    assert queue.batch_progress("b").enqueued == arrived
    # What was not sent before may differ.
    replaced = [*payloads[:arrived], *("new" for _ in payloads[arrived:])]
    assert queue.add_batch(replaced, batch_id="b").total == 40_000
    with pytest.raises(BatchChanged):
        queue.add_batch(payloads, batch_id="b")
    assert client.xlen(queue.keys.stream) == 40_000


def test_parts_are_compared_one_by_one_and_slices_are_not(queue):
    for part in range(2):
        queue.add_batch_part("b", part, [part, 1, 2])
    with pytest.raises(BatchChanged, match="part 1"):
        queue.add_batch_part("b", 1, [1, 1, 3])
    queue.finalize_batch("b", total=6, parts=2)
    assert len(queue.batch_progress("b").digest) == 32
    # A slice does not know the payloads before it, so the part has no digest any more.
    queue.add_batch_part("slices", 0, [1, 2])
    queue.add_batch_part("slices", 0, [3, 4], start_index=2)
    assert queue.batch_progress("slices").digest == ""
    assert queue.add_batch_part("slices", 0, [1, 2, 3, 4, 5]) == 5


def test_a_retry_does_not_send_the_payloads_again(queue, client):
    payloads = ["x" * 1000] * 5000
    queue.add_batch(payloads, batch_id="b")
    before = client.info("stats")["total_net_input_bytes"]
    queue.add_batch(payloads, batch_id="b")
    assert client.info("stats")["total_net_input_bytes"] - before < 100_000


def ttl_ms(client: Any, queue: Any, name: str) -> int:
    return int(client.pttl(f"{queue.keys.hash_tag}:{name}"))


def test_a_batch_id_that_is_used_again_after_its_expiry_is_not_finished(queue, client, server):
    """B1 of the review: the bits outlived the hash, so the new batch was finished at once."""
    with working(server.url, queue.name, lambda job: None, dialect=server.dialect):
        queue.add_batch([1, 2, 3], batch_id="daily", ttl=timedelta(seconds=2))
        queue.wait_batch("daily", timeout=timedelta(seconds=10))
    wait_until(lambda: not client.exists(queue.keys.batch("daily")), 10)
    queue.add_batch([1, 2, 3], batch_id="daily", ttl=timedelta(hours=1))
    progress = queue.batch_progress("daily")
    assert (progress.done, progress.finished) == (0, False)


def test_bits_that_were_left_over_are_deleted_when_a_part_starts(queue, client):
    for part in range(2):
        client.setbit(queue.keys.batch_done("b", part), 0, 1)
        client.setbit(queue.keys.batch_dead("b", part), 1, 1)
        queue.add_batch_part("b", part, [1, 2])
    queue.finalize_batch("b", total=4, parts=2)
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead) == (0, 0)


def test_the_bits_live_as_long_as_the_batch(queue, client, server):
    """B2 of the review: with a TTL of 90 days the bits were gone after 30 days."""
    with working(server.url, queue.name, lambda job: None, dialect=server.dialect):
        queue.add_batch_part("b", 0, [1, 2], ttl=90 * DAYS)
        wait_until(lambda: client.bitcount(queue.keys.batch_done("b", 0)) == 2, 10)
        time.sleep(0.05)
        queue.add_batch_part("b", 1, [3], ttl=90 * DAYS)
        queue.finalize_batch("b", total=3, parts=2, ttl=100 * DAYS)
        queue.wait_batch("b", timeout=timedelta(seconds=10))
    expected = 100 * 24 * 3600 * 1000
    for name in ("batch:b", "batch:b:0:done", "batch:b:1:done"):
        assert expected - 60_000 < ttl_ms(client, queue, name) <= expected, name


def test_a_batch_of_delayed_jobs_is_stored_from_their_due_time_on(queue, client):
    queue.add_batch([1], batch_id="b", delay=10 * DAYS, ttl=5 * DAYS)
    expected = 15 * 24 * 3600 * 1000
    assert expected - 60_000 < ttl_ms(client, queue, "batch:b") <= expected
