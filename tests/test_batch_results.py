"""Results of batches: stored in buckets by index, read back in order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands import results as result_commands
from airflow_provider_chasqui.core.errors import BatchNotFound, InvalidArgument, KeyTypeMismatch
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.results import BatchResult
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.support.manual_worker import finish, move_to_dlq, take


def finish_all(queue, entries, result=lambda entry: entry.job.payload) -> None:
    """Complete jobs in one call; `result` returns what to store."""
    completions = [
        consumer_group.Completion(
            entry.id,
            entry.job.id,
            None if (value := result(entry)) is None else encode_payload(value),
        )
        for entry in entries
    ]
    assert all(
        queue.client.execute(consumer_group.ack_with_results(queue.keys, "default", completions))
    )


def test_results_are_read_in_order_whatever_the_order_of_completion(queue):
    queue.add_batch(range(300), batch_id="b")
    entries = take(queue)
    finish_all(queue, entries[::-2])
    finish_all(queue, entries[::2])
    results = list(queue.batch_results("b"))
    assert results == [
        BatchResult(f"batch:b:0:{n}", 0, n, None, "done", n, None, None, None, None)
        for n in range(300)
    ]
    for page_size in (1, 100, 128, 129, 256):
        pages = list(queue.batch_result_pages("b", page_size=page_size))
        assert [result for page in pages for result in page] == results
        assert max(map(len, pages)) == page_size


def test_every_status_with_its_details(queue):
    queue.add_batch(range(6), batch_id="b")
    entries = take(queue, 5)
    finish(queue, entries[0], {"text": "a"})
    finish(queue, entries[1])
    move_to_dlq(queue, entries[2], error="ValueError: no")
    queue.client.execute(
        consumer_group.ack_with_results(
            queue.keys,
            "default",
            [consumer_group.Completion(entries[3].id, entries[3].job.id, dead=True)],
        )
    )
    expected = [
        ("done", {"text": "a"}, None, None, None),
        ("done", None, None, None, None),
        ("dead", None, "ValueError: no", "unrecoverable", 1),
        ("dead", None, None, None, None),
        ("pending", None, None, None, None),
        ("pending", None, None, None, None),
    ]
    assert [result[4:9] for result in queue.batch_results("b")] == expected
    queue.cancel_batch("b")
    expected[4:] = [("cancelled", None, None, None, None)] * 2
    assert [result[4:9] for result in queue.batch_results("b")] == expected


def test_several_parts(queue):
    for part, size in ((0, 3), (2, 200), (1, 0)):
        queue.add_batch_part("b", part, range(size))
    finish_all(queue, take(queue), lambda entry: entry.job.id)
    results = list(queue.batch_results("b"))
    assert [(r.part, r.index) for r in results] == [(0, n) for n in range(3)] + [
        (2, n) for n in range(200)
    ]
    assert all(result.result == result.job_id for result in results)


def test_a_dead_letter_is_found_among_those_of_other_batches(queue):
    queue.add_batch(range(3), batch_id="other")
    queue.add_batch(range(3), batch_id="b")
    for entry in take(queue):
        move_to_dlq(queue, entry, error=entry.job.id)
    assert [result.error for result in queue.batch_results("b")] == [
        f"batch:b:0:{n}" for n in range(3)
    ]


def test_the_newest_dead_letter_counts(queue):
    queue.add_batch(range(2), batch_id="b")
    for entry in take(queue):
        move_to_dlq(queue, entry, error="first")
    queue.replay_dead_letters(batch_id="b", limit=1)
    (entry,) = take(queue)
    move_to_dlq(queue, entry, error="second")
    assert [result.error for result in queue.batch_results("b")] == ["second", "first"]


def test_large_results_are_read_in_bounded_pages(queue, monkeypatch):
    monkeypatch.setattr(result_commands, "MAX_PAGE_BYTES", 20_000)
    queue.add_batch(range(40), batch_id="b")
    finish_all(queue, take(queue), lambda entry: "x" * 6000 if entry.job.payload > 2 else "x")
    pages = list(queue.batch_result_pages("b"))
    assert sum(map(len, pages)) == 40
    assert max(sum(len(row.result) for row in page) for page in pages) <= 20_000
    assert [row.index for page in pages for row in page] == list(range(40))


def test_one_result_larger_than_a_page(queue, monkeypatch):
    monkeypatch.setattr(result_commands, "MAX_PAGE_BYTES", 5_000)
    queue.add_batch(range(3), batch_id="b")
    finish_all(queue, take(queue), lambda entry: "x" * 9000)
    assert [len(row.result) for row in queue.batch_results("b")] == [9000] * 3


def test_single_reads_find_results_of_batches_and_of_other_jobs(queue, client):
    queue.add("payload", job_id="single")
    queue.add_batch(range(130), batch_id="b")
    finish_all(queue, take(queue))
    # As a worker of ChasquiMQ stores it.
    client.set(queue.keys.result("batch:b:0:500"), encode_payload("own key"))
    assert queue.result("single") == "payload"
    assert queue.result("batch:b:0:129") == 129
    assert queue.result("batch:b:0:500") == "own key"
    assert queue.result("batch:b:0:131", "missing") == "missing"
    assert queue.results(["batch:b:0:0", "single", "batch:b:1:0", "batch:b:0:500"]) == {
        "batch:b:0:0": 0,
        "single": "payload",
        "batch:b:0:500": "own key",
    }
    assert queue.wait("batch:b:0:5", timeout=timedelta(seconds=5)) == 5


def test_a_bucket_lives_as_long_as_its_batch(queue, client):
    queue.add_batch(range(200), batch_id="b", ttl=timedelta(hours=2))
    finish_all(queue, take(queue))
    keys = [queue.keys.batch("b"), *[queue.keys.batch_results("b", 0, n) for n in (0, 1)]]
    assert len({client.pexpiretime(key) for key in keys}) == 1


def test_a_bucket_outlives_a_batch_that_is_still_being_sent(queue, client):
    queue.add_batch_part("b", 0, range(2), ttl=timedelta(hours=2))
    finish_all(queue, take(queue))
    bucket, batch = queue.keys.batch_results("b", 0, 0), queue.keys.batch("b")
    assert client.pexpiretime(bucket) > client.pexpiretime(batch)


def test_a_result_is_not_stored_without_its_batch(queue, client):
    queue.add_batch(range(2), batch_id="b")
    entries = take(queue)
    client.delete(queue.keys.batch("b"))
    finish_all(queue, entries)
    assert not client.exists(queue.keys.batch_results("b", 0, 0))


def test_a_missing_batch_and_one_that_expires_during_the_read(queue, client):
    with pytest.raises(BatchNotFound):
        next(queue.batch_results("b"))
    queue.add_batch(range(300), batch_id="b")
    pages = queue.batch_result_pages("b", page_size=128)
    next(pages)
    client.delete(queue.keys.batch("b"))
    with pytest.raises(BatchNotFound, match="while it was being read"):
        next(pages)
    with pytest.raises(InvalidArgument, match="page_size"):
        next(queue.batch_results("b", page_size=0))


def test_a_bucket_of_another_type(queue, client):
    queue.add_batch(range(2), batch_id="b")
    client.set(queue.keys.batch_results("b", 0, 0), "text")
    finish_all(queue, take(queue))
    assert queue.batch_progress("b").done == 2
    with pytest.raises(KeyTypeMismatch):
        list(queue.batch_results("b"))


async def test_the_asyncio_queue_reads_the_same(queue, server):
    queue.add_batch(range(150), batch_id="b")
    finish_all(queue, take(queue))
    async with AsyncQueue(queue.name, server.url, dialect=server.dialect) as async_queue:
        results = [result async for result in async_queue.batch_results("b", page_size=64)]
    assert results == list(queue.batch_results("b"))


@pytest.mark.parametrize("page_size", [100, 8192])
def test_input_keys_are_joined(queue, page_size):
    row_keys = [[n, f"row {n}"] for n in range(600)]
    queue.add_batch(range(600), batch_id="b", keys=row_keys)
    finish_all(queue, take(queue))
    results = list(queue.batch_results("b", page_size=page_size))
    assert [result.key for result in results] == row_keys
    assert [result.result for result in results] == list(range(600))


def test_input_keys_after_a_send_that_continued_inside_a_block(queue):
    row_keys = [f"row {n}" for n in range(600)]
    queue.add_batch_part("b", 0, range(100), keys=row_keys[:100])
    queue.add_batch_part("b", 0, range(600), keys=row_keys)
    assert [result.key for result in queue.batch_results("b")] == row_keys
