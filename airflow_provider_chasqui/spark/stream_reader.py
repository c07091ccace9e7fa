"""`spark.readStream.format("chasqui")`: events, letters or jobs as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import BadInput, MissingSoftware
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark import ranges
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import STREAMS, ReadOptions
from airflow_provider_chasqui.spark.reader import EntryRange, entry_pages, stream_key
from airflow_provider_chasqui.spark.views import Table, check_schema
from airflow_provider_chasqui.store.target import Target

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as cause:
    raise MissingSoftware("reading a queue as a stream needs Spark 4.2 or newer") from cause

_LAST = 2**64 - 1


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one stream of a queue. The offset of a query is the id of the last entry it has."""

    def __init__(self, target: Target, options: ReadOptions, schema: StructType):
        if options.view not in STREAMS:
            raise BadInput(f"a stream follows {', '.join(STREAMS)}; {options.view} has no order")
        if options.until_ms is not None:
            raise BadInput("a stream has no end: leave out until")
        self._target = target
        self._options = options
        self._schema = check_schema(options, schema)
        self._goal: str | None = None

    def initialOffset(self) -> dict[str, Any]:
        start = self._options.starting_id or "earliest"
        if self._options.since_ms:
            return {"id": f"{self._options.since_ms - 1}-{_LAST}"}
        if start == "latest":
            return {"id": self._tail()}
        return {"id": "0-0" if start == "earliest" else _checked(start)}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._tail()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        goal = self._goal or self._tail()
        if ranges.parse_id(goal) <= ranges.parse_id(start["id"]):
            return start
        if isinstance(limit, ReadMaxRows):
            with self._queue() as queue:
                key = stream_key(queue, self._options.view)
                rows = ranges.page(key, f"({start['id']}", goal, limit.max_rows)
                entries = queue.drive.run(rows)
            if len(entries) == limit.max_rows:
                return {"id": entries[-1][0].decode()}
        return {"id": goal}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"id": self._tail()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ms, number = ranges.parse_id(start["id"])
        behind = (ms, number + 1) if number < _LAST else (ms + 1, 0)
        until = ranges.parse_id(end["id"])
        if behind > until:
            return []
        with self._queue() as queue:
            key = stream_key(queue, self._options.view)
            found = queue.drive.flow(ranges.cut(key, behind, until, self._options.partitions))
        return [EntryRange(first, last) for first, last in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, EntryRange)
        table = Table(self._options, self._schema)
        with self._queue() as queue:
            key = stream_key(queue, self._options.view)
            for page in entry_pages(queue, key, partition.start, partition.end):
                yield table.batch(page)

    def _queue(self) -> Queue:
        return open_queue(self._target, self._options.queue, self._options.dialect)

    def _tail(self) -> str:
        with self._queue() as queue:
            return queue.drive.run(ranges.last_id(stream_key(queue, self._options.view)))


def _checked(text: str) -> str:
    try:
        ranges.parse_id(text)
    except ValueError as cause:
        raise BadInput(f"startingId is earliest, latest or an entry id; not {text!r}") from cause
    return text
