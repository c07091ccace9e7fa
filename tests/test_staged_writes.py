"""Staged writes and their bitmaps: a batch id that is used again starts without old bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_chasqui.core.batch import batch_job_id
from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_envelope
from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.commands.staged_writes import StagedPart, StagedWriteOptions
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.resp import BULK, EncodedArgs
from airflow_provider_chasqui.queue import Queue
from tests.support.manual_worker import finish, take

ROWS = 3
TTL_MS = 600_000
OPTIONS = StagedWriteOptions(ttl_ms=TTL_MS)
DELIVERIES = ["exactly_once", "dedup", "at_least_once"]


def encode(values: list[bytes]) -> EncodedArgs:
    return EncodedArgs(len(values), b"".join(BULK % (len(value), value) for value in values))


def items(part: int) -> EncodedArgs:
    """Return the items of one part."""
    members = [
        encode_delayed_member(b"", encode_envelope(batch_job_id("b", part, row), b"\xc0", 1))
        for row in range(ROWS)
    ]
    return encode(members)


def dedup_rows() -> EncodedArgs:
    """Return rows of a write with delivery=dedup, whose job ids are inserted by the server."""
    envelope = encode_envelope("X", encode_payload(1), 1)
    before, after = encode_delayed_member(b"", envelope).split(b"\xa1X")
    parts = [part for row in range(ROWS) for part in (f"row {row}".encode(), before, after)]
    return encode(parts)


def stage(queue: Queue, writer_id: str, parts: Sequence[int]) -> list[StagedPart]:
    """Stage the rows of some parts."""
    staged = []
    for part in parts:
        key = queue.keys.staged_part("b", writer_id, part, 0)
        command = staged_writes.stage_first(
            queue.keys, "b", writer_id, key, items(part), TTL_MS, overwrite=True
        )
        assert queue.client.execute(command) == ROWS
        staged.append(StagedPart(part, key, ROWS))
    return staged


def write(queue: Queue, delivery: str, parts: Sequence[int], *, overwrite: bool = False) -> None:
    """Write a batch."""
    keys, execute, run = queue.keys, queue.client.execute, queue.client.run_flow
    if delivery == "exactly_once":
        staged = stage(queue, "w", parts)
        run(staged_writes.commit(keys, "b", "w", staged, OPTIONS, 9, overwrite=overwrite))
        run(staged_writes.publish(keys, "b"))
        return
    if delivery == "dedup":
        assert execute(staged_writes.add_deduplicated(keys, "b", dedup_rows(), OPTIONS, 9)) == ROWS
        part_rows, parts = [], [0]
    else:
        for part in parts:
            execute(staged_writes.add(keys, "b", part, ROWS, items(part), OPTIONS))
        part_rows = [(part, ROWS) for part in parts]
    execute(staged_writes.finalize(keys, "b", part_rows, max(parts) + 1, OPTIONS, 9))


def finish_all(queue: Queue) -> None:
    for entry in take(queue):
        finish(queue, entry)


def bitmaps(queue: Queue, parts: int) -> list[str]:
    keys = queue.keys
    return [
        key
        for part in range(parts)
        for key in (keys.batch_done("b", part), keys.batch_dead("b", part))
    ]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_batch_id_that_is_used_again_starts_without_old_bits(
    queue: Queue, client: Any, delivery: str, overwrite: bool
) -> None:
    write(queue, delivery, [0, 1, 2])
    finish_all(queue)
    progress = queue.batch_progress("b")
    assert progress.finished
    # The batch has expired, and the bitmaps of all its parts have not.
    client.delete(queue.keys.batch("b"))
    for key in bitmaps(queue, 3):
        client.setbit(key, 2, 1)
    write(queue, delivery, [0, 2], overwrite=overwrite)
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead, progress.finished) == (0, 0, False)
    finish_all(queue)
    progress = queue.batch_progress("b")
    assert (progress.done, progress.dead, progress.finished) == (progress.total, 0, True)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_the_bits_live_as_long_as_the_batch(queue: Queue, client: Any, delivery: str) -> None:
    """Jobs that finish before the write is complete have bits that expire with the batch."""
    keys, execute = queue.keys, queue.client.execute
    if delivery == "exactly_once":
        staged = stage(queue, "w", [0])
        queue.client.run_flow(staged_writes.commit(keys, "b", "w", staged, OPTIONS, 9))
        command = staged_writes.publish_part(keys, "b", "w", 0, staged[0].key, 1)
        assert execute(command) == 1
    elif delivery == "dedup":
        execute(staged_writes.add_deduplicated(keys, "b", dedup_rows(), OPTIONS, 9))
    else:
        execute(staged_writes.add(keys, "b", 0, ROWS, items(0), OPTIONS))
    finish_all(queue)
    for key in (keys.batch("b"), *bitmaps(queue, 1)):
        client.pexpire(key, 5_000)  # the write took a long time
    if delivery == "exactly_once":
        queue.client.run_flow(staged_writes.publish(keys, "b"))
    else:
        part_rows = [(0, ROWS)] if delivery == "at_least_once" else []
        execute(staged_writes.finalize(keys, "b", part_rows, 1, OPTIONS, 9))
    assert client.pttl(keys.batch_done("b", 0)) == pytest.approx(TTL_MS, abs=60_000)
    assert client.pttl(keys.batch("b")) == pytest.approx(TTL_MS, abs=60_000)


def test_rows_of_failed_task_attempts_do_not_count(queue: Queue) -> None:
    """With delivery=at_least_once, a part that only a failed attempt has sent is left out."""
    execute = queue.client.execute
    for part in (0, 1):
        execute(staged_writes.add(queue.keys, "b", part, ROWS, items(part), OPTIONS))
    finish_all(queue)
    execute(staged_writes.add(queue.keys, "b", 2, ROWS, items(2), OPTIONS))
    execute(staged_writes.finalize(queue.keys, "b", [(0, ROWS), (2, ROWS)], 3, OPTIONS, 9))
    progress = queue.batch_progress("b")
    assert (progress.total, progress.done, progress.finished) == (2 * ROWS, ROWS, False)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_identical_delayed_rows_with_their_own_ids_stay_separate_jobs(
    queue: Queue, client: Any, delivery: str
) -> None:
    """M1 of the review: the delayed set merged rows of the same id, payload and millisecond."""
    member = encode_delayed_member(b"", encode_envelope("same", b"\xc0", 1))
    options = StagedWriteOptions(delay_ms=3_600_000, explicit_ids=True, ttl_ms=TTL_MS)
    keys = queue.keys
    if delivery == "exactly_once":
        staged_key = keys.staged_part("b", "w", 0, 0)
        queue.client.execute(
            staged_writes.stage_first(keys, "b", "w", staged_key, encode([member] * 4), TTL_MS)
        )
        staged = [StagedPart(0, staged_key, 4)]
        queue.client.run_flow(staged_writes.commit(keys, "b", "w", staged, options, 9))
        queue.client.run_flow(staged_writes.publish(keys, "b"))
    else:
        queue.client.execute(staged_writes.add(keys, "b", 0, 4, encode([member] * 4), options))
    assert client.zcard(keys.delayed) == 4
