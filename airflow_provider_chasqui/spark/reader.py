"""Batch reads, `spark.read.format("chasqui")`: a queue as a table, read without consuming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import batch_job_id
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import batches, delayed
from airflow_provider_chasqui.core.commands.results import read_result_page
from airflow_provider_chasqui.core.errors import BatchNotFound
from airflow_provider_chasqui.core.results import BUCKET_SIZE
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.spark import stream_partitioning
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import ReadOptions
from airflow_provider_chasqui.spark.stream_partitioning import PAGE_SIZE
from airflow_provider_chasqui.spark.views import RecordBatchBuilder, validate_read_schema


class EntryRange(InputPartition):
    """A range of stream entries, as bounds of XRANGE."""

    def __init__(self, start: str, end: str):
        self.start, self.end = start, end


class DueTimeRange(InputPartition):
    """A range of delayed jobs by due time, as bounds of ZRANGE BYSCORE."""

    def __init__(self, low: str, high: str):
        self.low, self.high = low, high


class BatchBitRange(InputPartition):
    """Jobs of one part of a batch, as a byte range of its done bits."""

    def __init__(self, part: int, first_byte: int, last_byte: int):
        self.part, self.first_byte, self.last_byte = part, first_byte, last_byte


class AllResults(InputPartition):
    """All stored results of the queue."""

    def __init__(self) -> None:
        pass


class ViewReader(DataSourceReader):
    """Reader of one view. Entries added after the query was planned are not read."""

    def __init__(self, target: RedisTarget, options: ReadOptions, schema: StructType):
        self._target = target
        self._options = options
        self._schema = validate_read_schema(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the view (called on the driver)."""
        with self._open_queue() as queue:
            match self._options.view:
                case "delayed":
                    return self._due_time_ranges(queue)
                case "results":
                    return (
                        self._batch_bit_ranges(queue) if self._options.batch_id else [AllResults()]
                    )
            return self._entry_ranges(queue)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one partition (called on an executor)."""
        builder = RecordBatchBuilder(self._options, self._schema)
        with self._open_queue() as queue:
            match partition:
                case EntryRange():
                    key = stream_key(queue, self._options.view)
                    pages = entry_pages(queue, key, partition.start, partition.end)
                case DueTimeRange():
                    pages = _delayed_pages(queue, partition)
                case BatchBitRange():
                    pages = self._batch_result_pages(queue, partition)
                case AllResults():
                    pages = _scan_results(queue)
                case _:
                    return  # Spark also calls this if there are no partitions
            for page in pages:
                yield builder.build(page)

    def _open_queue(self) -> Queue:
        return open_queue(self._target, self._options.queue_name, self._options.dialect)

    def _entry_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        options = self._options
        key = stream_key(queue, options.view)
        end = queue.client.execute(stream_partitioning.last_id(key))
        if options.until_ms is not None:
            end = min(end, StreamId(options.until_ms).previous())
        start = StreamId(options.since_ms or 0)
        if start > end:
            return []
        ranges = queue.client.run_flow(
            stream_partitioning.split_range(key, start, end, options.partitions)
        )
        return [EntryRange(first, last) for first, last in ranges]

    def _due_time_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        options, key = self._options, queue.keys.delayed
        low = "-inf" if options.since_ms is None else str(options.since_ms)
        high = "+inf" if options.until_ms is None else f"({options.until_ms}"
        first, size = queue.client.pipeline(
            [
                redis_command("ZCOUNT", key, "-inf", f"({low.lstrip('(')}", parse=as_int),
                redis_command("ZCOUNT", key, low, high, parse=as_int),
            ]
        )
        ranks = [first + size * i // options.partitions for i in range(1, options.partitions)]
        probes = [
            redis_command("ZRANGE", key, rank, rank, "WITHSCORES", parse=as_raw) for rank in ranks
        ]
        members = queue.client.pipeline(probes)
        scores = sorted({float(member[1]) for member in members if member} - {0.0})
        edges = [f"{score:.0f}" for score in scores if size]
        lows, highs = [low, *edges], [*(f"({edge}" for edge in edges), high]
        return [DueTimeRange(*pair) for pair in zip(lows, highs, strict=True)]

    def _batch_bit_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        batch = self._options.batch_id or ""
        progress = queue.client.run_flow(batches.progress(queue.keys, batch))
        if progress is None:
            raise BatchNotFound(
                f"batch {batch!r} does not exist or has expired", queue_name=queue.name
            )
        sizes: list[int] = []
        if progress.parts:
            done = [queue.keys.batch_done(batch, part) for part in range(progress.parts)]
            sizes = queue.client.pipeline(
                [redis_command("STRLEN", key, parse=as_int) for key in done]
            )
        step = max(1, -(-sum(sizes) // self._options.partitions))
        return [
            BatchBitRange(part, first, min(first + step, size) - 1)
            for part, size in enumerate(sizes)
            for first in range(0, size, step)
        ]

    def _batch_result_pages(self, queue: Queue, partition: BatchBitRange) -> Iterator[list[Any]]:
        batch, part = self._options.batch_id or "", partition.part
        first, stop = partition.first_byte * 8, partition.last_byte * 8 + 8
        for page in _batch_results(queue, batch, part, first, stop):
            # A worker of ChasquiMQ gives each result a key of its own.
            missing = [job_id for job_id, body in page if body is None]
            yield _existing((dict(page) | dict(_get_results(queue, missing))).items())


def stream_key(queue: Queue, view: str) -> str:
    """Return the key of the stream that a view reads."""
    keys = {"jobs": queue.keys.stream, "dlq": queue.keys.dlq, "events": queue.keys.events}
    return keys[view]


def entry_pages(queue: Queue, key: str, start: str, end: str) -> Iterator[list[Any]]:
    """Yield the entries between two XRANGE bounds in pages."""
    while entries := queue.client.execute(stream_partitioning.read_page(key, start, end)):
        yield entries
        start = f"({entries[-1][0].decode()}"


def _delayed_pages(queue: Queue, partition: DueTimeRange) -> Iterator[list[Any]]:
    start = 0
    while True:
        limit = ("LIMIT", start, PAGE_SIZE, "WITHSCORES")
        head = ("ZRANGE", queue.keys.delayed, partition.low, partition.high, "BYSCORE")
        members = queue.client.execute(redis_command(*head, *limit, parse=delayed.parse_members))
        if not members:
            return
        yield members
        start += PAGE_SIZE


def _scan_results(queue: Queue) -> Iterator[list[Any]]:
    prefix = queue.keys.result("")
    for names in _scan_keys(queue, prefix):
        yield _existing(_get_results(queue, [name[len(prefix) :] for name in names]))
    prefix = queue.keys.batch("")
    for names in _scan_keys(queue, prefix, ":results:*"):
        for name in names:
            batch_id, part, _, bucket = name[len(prefix) :].rsplit(":", 3)
            first = int(bucket) * BUCKET_SIZE
            pages = _batch_results(queue, batch_id, int(part), first, first + BUCKET_SIZE)
            yield from map(_existing, pages)


def _scan_keys(queue: Queue, prefix: str, rest: str = "") -> Iterator[list[str]]:
    """Yield the keys with a prefix in pages, each key once."""
    pattern = "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in prefix) + "*" + rest
    cursor, seen = b"0", set()
    while True:
        cursor, names = queue.client.execute(
            redis_command("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE_SIZE, parse=as_raw)
        )
        # SCAN may return a key twice.
        new_names = [name.decode() for name in names if name not in seen]
        seen.update(names)
        if new_names:
            yield new_names
        if cursor == b"0":
            return


def _batch_results(
    queue: Queue, batch_id: str, part: int, start: int, stop: int
) -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield the ids of the done jobs of a part, each with the result in its bucket or None."""
    while start < stop:
        page = queue.client.run_flow(
            read_result_page(queue.keys, batch_id, part, start, min(stop, start + PAGE_SIZE))
        )
        yield [
            (batch_job_id(batch_id, part, index), body)
            for index, (done, body) in enumerate(zip(page.done, page.bodies, strict=True), start)
            if done == "1"
        ]
        start += len(page.done)


def _get_results(queue: Queue, job_ids: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the ids, each with the result in a key of its own or None."""
    gets = [redis_command("GET", queue.keys.result(job_id), parse=as_raw) for job_id in job_ids]
    return zip(job_ids, queue.client.pipeline(gets) if gets else (), strict=True)


def _existing(results: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    return [result for result in results if result[1] is not None]
