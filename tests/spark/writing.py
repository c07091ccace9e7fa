"""Helpers of the Spark tests: write a DataFrame as a batch and check the queue."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.errors import RedisServerError
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.queue import Queue


def queue_url(queue: Queue) -> str:
    """Return the URL of the server of a queue as the option url expects it."""
    target = queue._connection_manager.target
    host, port = target.nodes[0]
    return f"redis://{host}:{port}/{target.db}"


def write_batch(
    df: Any, queue: Queue, batch_id: str, *, format: str = "chasqui", **options: Any
) -> None:
    """Write a DataFrame to a queue as a batch."""
    writer = df.write.format(format).mode("append").option("queueName", queue.name)
    writer = writer.option("url", queue_url(queue)).option("batchId", batch_id)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save()


def entries(queue: Queue) -> list[StreamEntry]:
    """Return all entries of the stream."""
    parsed: list[Any] = []
    start = "-"
    while raw := queue.client.execute(inspect.read_entries(queue.keys, start)):
        parsed += [consumer_group.parse_entry(entry, 2**62) for entry in raw]
        start = f"({raw[-1][0].decode()}"
    return parsed


def row_counts(queue: Queue) -> Counter[int]:
    """Return how often each row is on the stream."""
    return Counter(entry.job.payload["id"] for entry in entries(queue))


def assert_exact(queue: Queue, batch_id: str, rows: int) -> None:
    """Assert that each row and each job id exists once, and that nothing is staged."""
    counts = row_counts(queue)
    assert (len(counts), sum(counts.values())) == (rows, rows)
    assert len({entry.job.id for entry in entries(queue)}) == rows
    progress = queue.batch_progress(batch_id)
    assert (progress.total, progress.enqueued) == (rows, rows)
    assert staging_keys(queue) == []


def staging_keys(queue: Queue) -> list[str]:
    """Return the keys of staged writes that exist."""
    from airflow_provider_chasqui.core.command import as_raw, redis_command

    names: list[bytes] = []
    cursor = b"0"
    while True:
        pattern = queue.keys.staged_write("*").replace("{", "[{]")
        cursor, page = queue.client.execute(
            redis_command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, parse=as_raw)
        )
        names += page
        if cursor == b"0":
            return sorted(name.decode() for name in names)


def complete_all(queue: Queue) -> int:
    """Acknowledge every job as a worker does, with the row number as its result."""
    from airflow_provider_chasqui.core.payload import encode_payload

    group = queue.config.group
    with suppress(RedisServerError):  # the group exists
        queue.client.execute(consumer_group.create(queue.keys, group))
    count = 0
    while raw := queue.client.execute(consumer_group.read(queue.keys, group, "tests", 1000, 0)):
        parsed = [consumer_group.parse_entry(entry, 2**62) for entry in raw]
        completions = [
            consumer_group.Completion(
                entry.id, entry.job.id, encode_payload(entry.job.payload.get("id"))
            )
            for entry in parsed
            if isinstance(entry, StreamEntry)
        ]
        assert all(
            queue.client.execute(consumer_group.ack_with_results(queue.keys, group, completions))
        )
        count += len(completions)
    return count
