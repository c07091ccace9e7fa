"""What the Spark tests say often: write a ship, look at what became of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.errors import RedisServerError
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.queue import Queue


def where(queue: Queue) -> str:
    """The server of a queue, as the option url takes it."""
    target = queue._connection_manager.target
    host, port = target.nodes[0]
    return f"redis://{host}:{port}/{target.db}"


def ship(df: Any, queue: Queue, ship_id: str, *, format: str = "chasqui", **options: Any) -> None:
    writer = df.write.format(format).mode("append").option("queueName", queue.name)
    writer = writer.option("url", where(queue)).option("batchId", ship_id)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save()


def entries(queue: Queue) -> list[StreamEntry]:
    """Everything that is on the stream."""
    found: list[Any] = []
    start = "-"
    while raw := queue.client.execute(inspect.read_entries(queue.keys, start)):
        found += [consumer_group.parse_entry(each, 2**62) for each in raw]
        start = f"({raw[-1][0].decode()}"
    return found


def numbers(queue: Queue) -> Counter[int]:
    """How often each row is on the stream."""
    return Counter(entry.job.payload["id"] for entry in entries(queue))


def assert_exact(queue: Queue, ship_id: str, rows: int) -> None:
    """Every row once, every job id once, the batch sealed, nothing left behind."""
    seen = numbers(queue)
    assert (len(seen), sum(seen.values())) == (rows, rows)
    assert len({entry.job.id for entry in entries(queue)}) == rows
    progress = queue.batch_progress(ship_id)
    assert (progress.total, progress.enqueued) == (rows, rows)
    assert leftovers(queue) == []


def leftovers(queue: Queue) -> list[str]:
    """Keys of ships that are still there."""
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


def settle_all(queue: Queue) -> int:
    """Do what workers do: run every job and settle it; the result is the row's number."""
    from airflow_provider_chasqui.core.payload import encode_payload

    group = queue.config.group
    with suppress(RedisServerError):  # it is there already
        queue.client.execute(consumer_group.create(queue.keys, group))
    count = 0
    while raw := queue.client.execute(
        consumer_group.read(queue.keys, group, "tests", 1000, 0, 30_000)
    ):
        done = [consumer_group.parse_entry(each, 2**62) for each in raw]
        settled = [
            consumer_group.Completion(
                each.id, each.job.id, encode_payload(each.job.payload.get("id"))
            )
            for each in done
            if isinstance(each, StreamEntry)
        ]
        assert all(
            queue.client.execute(consumer_group.ack_with_results(queue.keys, group, settled))
        )
        count += len(settled)
    return count
