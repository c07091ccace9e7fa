"""`spark.read.format("chasqui")`: a queue as a table. Reading takes nothing from the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import job_id, set_bits
from airflow_provider_chasqui.core.errors import UnknownBatch
from airflow_provider_chasqui.core.op import as_int, as_is, command
from airflow_provider_chasqui.core.ops import batches, delayed
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark import ranges
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import ReadOptions
from airflow_provider_chasqui.spark.ranges import PAGE
from airflow_provider_chasqui.spark.views import Table, check_schema
from airflow_provider_chasqui.store.target import Target


class EntryRange(InputPartition):
    """Entries of a stream, in the words of XRANGE."""

    def __init__(self, start: str, end: str):
        self.start, self.end = start, end


class DueRange(InputPartition):
    """Delayed jobs by due time, in the words of ZRANGE BYSCORE."""

    def __init__(self, low: str, high: str):
        self.low, self.high = low, high


class BitRange(InputPartition):
    """Jobs of one part of a batch, by the bytes of its done bits."""

    def __init__(self, part: int, first: int, last: int):
        self.part, self.first, self.last = part, first, last


class AllResults(InputPartition):
    """Every result of the queue that is kept."""

    def __init__(self) -> None:
        pass


class ViewReader(DataSourceReader):
    """Reads one view. What comes after the planning is not read."""

    def __init__(self, target: Target, options: ReadOptions, schema: StructType):
        self._target = target
        self._options = options
        self._schema = check_schema(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with self._queue() as queue:
            match self._options.view:
                case "delayed":
                    return self._due_ranges(queue)
                case "results":
                    return self._bit_ranges(queue) if self._options.batch else [AllResults()]
            return self._entry_ranges(queue)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        table = Table(self._options, self._schema)
        with self._queue() as queue:
            match partition:
                case EntryRange():
                    key = stream_key(queue, self._options.view)
                    pages = entry_pages(queue, key, partition.start, partition.end)
                case DueRange():
                    pages = _due_pages(queue, partition)
                case BitRange():
                    pages = self._bit_pages(queue, partition)
                case AllResults():
                    pages = _all_results(queue)
                case _:
                    return  # Spark asks even where there are no ranges
            for page in pages:
                yield table.batch(page)

    def _queue(self) -> Queue:
        return open_queue(self._target, self._options.queue, self._options.dialect)

    def _entry_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        options = self._options
        key = stream_key(queue, options.view)
        end = ranges.parse_id(queue.drive.run(ranges.last_id(key)))
        if options.until_ms is not None:
            end = min(end, (options.until_ms - 1, 2**64 - 1))
        start = (options.since_ms or 0, 0)
        if start > end:
            return []
        found = queue.drive.flow(ranges.cut(key, start, end, options.partitions))
        return [EntryRange(first, last) for first, last in found]

    def _due_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        options, key = self._options, queue.keys.delayed
        low = "-inf" if options.since_ms is None else str(options.since_ms)
        high = "+inf" if options.until_ms is None else f"({options.until_ms}"
        first, size = queue.drive.many(
            [
                command("ZCOUNT", key, "-inf", f"({low.lstrip('(')}", parse=as_int),
                command("ZCOUNT", key, low, high, parse=as_int),
            ]
        )
        ranks = [first + size * i // options.partitions for i in range(1, options.partitions)]
        probes = [command("ZRANGE", key, rank, rank, "WITHSCORES", parse=as_is) for rank in ranks]
        scores = sorted({float(each[1]) for each in queue.drive.many(probes) if each} - {0.0})
        edges = [f"{score:.0f}" for score in scores if size]
        lows, highs = [low, *edges], [*(f"({edge}" for edge in edges), high]
        return [DueRange(*pair) for pair in zip(lows, highs, strict=True)]

    def _bit_ranges(self, queue: Queue) -> Sequence[InputPartition]:
        batch = self._options.batch or ""
        progress = queue.drive.flow(batches.progress(queue.keys, batch))
        if progress is None:
            raise UnknownBatch(f"there is no batch {batch!r}, or it has expired", queue=queue.name)
        sizes: list[int] = []
        if progress.parts:
            done = [queue.keys.batch_done(batch, part) for part in range(progress.parts)]
            sizes = queue.drive.many([command("STRLEN", key, parse=as_int) for key in done])
        step = max(1, -(-sum(sizes) // self._options.partitions))
        return [
            BitRange(part, first, min(first + step, size) - 1)
            for part, size in enumerate(sizes)
            for first in range(0, size, step)
        ]

    def _bit_pages(self, queue: Queue, piece: BitRange) -> Iterator[list[Any]]:
        batch = self._options.batch or ""
        key = queue.keys.batch_done(batch, piece.part)
        bits = queue.drive.run(command("GETRANGE", key, piece.first, piece.last, parse=as_is))
        ids = [job_id(batch, piece.part, piece.first * 8 + bit) for bit in set_bits(bits)]
        for start in range(0, len(ids), PAGE):
            yield _kept(queue, ids[start : start + PAGE])


def stream_key(queue: Queue, view: str) -> str:
    keys = {"jobs": queue.keys.stream, "dlq": queue.keys.dlq, "events": queue.keys.events}
    return keys[view]


def entry_pages(queue: Queue, key: str, start: str, end: str) -> Iterator[list[Any]]:
    while entries := queue.drive.run(ranges.page(key, start, end)):
        yield entries
        start = f"({entries[-1][0].decode()}"


def _due_pages(queue: Queue, piece: DueRange) -> Iterator[list[Any]]:
    start = 0
    while True:
        limit = ("LIMIT", start, PAGE, "WITHSCORES")
        head = ("ZRANGE", queue.keys.delayed, piece.low, piece.high, "BYSCORE")
        members = queue.drive.run(command(*head, *limit, parse=delayed.scored))
        if not members:
            return
        yield members
        start += PAGE


def _all_results(queue: Queue) -> Iterator[list[Any]]:
    prefix = queue.keys.result("")
    pattern = "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in prefix) + "*"
    cursor, seen = b"0", set()
    while True:
        cursor, names = queue.drive.run(
            command("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE, parse=as_is)
        )
        # A scan may show a key twice.
        fresh = [name.decode()[len(prefix) :] for name in names if name not in seen]
        seen.update(names)
        if fresh:
            yield _kept(queue, fresh)
        if cursor == b"0":
            return


def _kept(queue: Queue, ids: list[str]) -> list[Any]:
    gets = [command("GET", queue.keys.result(each), parse=as_is) for each in ids]
    bodies = queue.drive.many(gets)
    return [pair for pair in zip(ids, bodies, strict=True) if pair[1] is not None]
