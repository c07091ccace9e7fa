"""What the Spark tests say often: write a ship, look at what became of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from airflow_provider_chasqui.core.errors import StoreError
from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.core.ops import delivery, looking
from airflow_provider_chasqui.queue import Queue


def where(queue: Queue) -> str:
    """The server of a queue, as the option url takes it."""
    target = queue._link.target
    host, port = target.nodes[0]
    return f"redis://{host}:{port}/{target.db}"


def ship(df: Any, queue: Queue, ship_id: str, *, format: str = "chasqui", **options: Any) -> None:
    writer = df.write.format(format).mode("append").option("queue", queue.name)
    writer = writer.option("url", where(queue)).option("shipId", ship_id)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save()


def entries(queue: Queue) -> list[Entry]:
    """Everything that is on the stream."""
    found: list[Any] = []
    start = "-"
    while raw := queue.drive.run(looking.entries(queue.keys, start)):
        found += [delivery.delivery(each, 2**62) for each in raw]
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
    progress = queue.batch(ship_id)
    assert (progress.total, progress.sent) == (rows, rows)
    assert leftovers(queue) == []


def leftovers(queue: Queue) -> list[str]:
    """Keys of ships that are still there."""
    from airflow_provider_chasqui.core.op import as_is, command

    names: list[bytes] = []
    cursor = b"0"
    while True:
        pattern = queue.keys.ship("*").replace("{", "[{]")
        cursor, page = queue.drive.run(
            command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, parse=as_is)
        )
        names += page
        if cursor == b"0":
            return sorted(name.decode() for name in names)


def settle_all(queue: Queue) -> int:
    """Do what workers do: run every job and settle it; the result is the row's number."""
    from airflow_provider_chasqui.core.payload import encode_payload

    group = queue.config.group
    with suppress(StoreError):  # it is there already
        queue.drive.run(delivery.make_group(queue.keys, group))
    count = 0
    while raw := queue.drive.run(delivery.read(queue.keys, group, "tests", 1000, 0, 30_000)):
        done = [delivery.delivery(each, 2**62) for each in raw]
        settled = [
            delivery.Settled(each.id, each.job.id, encode_payload(each.job.payload.get("id")))
            for each in done
            if isinstance(each, Entry)
        ]
        assert all(queue.drive.run(delivery.settle_with(queue.keys, group, settled)))
        count += len(settled)
    return count
