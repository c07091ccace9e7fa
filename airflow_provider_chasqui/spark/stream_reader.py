"""`spark.readStream.format("chasqui")`: events, letters or jobs as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.spark import stream_partitioning
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import STREAM_VIEWS, ReadOptions
from airflow_provider_chasqui.spark.reader import EntryRange, entry_pages, stream_key
from airflow_provider_chasqui.spark.views import RecordBatchBuilder, validate_read_schema

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as cause:
    raise MissingDependency("reading a queue as a stream needs Spark 4.2 or newer") from cause

_MAX_SEQUENCE = 2**64 - 1


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one stream of a queue. The offset of a query is the id of the last entry it has."""

    def __init__(self, target: RedisTarget, options: ReadOptions, schema: StructType):
        if options.view not in STREAM_VIEWS:
            raise InvalidArgument(
                f"a stream follows {', '.join(STREAM_VIEWS)}; {options.view} has no order"
            )
        if options.until_ms is not None:
            raise InvalidArgument("a stream has no end: leave out until")
        self._target = target
        self._options = options
        self._schema = validate_read_schema(options, schema)
        self._available_now_end: str | None = None

    def initialOffset(self) -> dict[str, Any]:
        start = self._options.starting_id or "earliest"
        if self._options.since_ms:
            return {"id": f"{self._options.since_ms - 1}-{_MAX_SEQUENCE}"}
        if start == "latest":
            return {"id": self._last_id()}
        return {"id": "0-0" if start == "earliest" else _validate_entry_id(start)}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now_end = self._last_id()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        goal = self._available_now_end or self._last_id()
        if stream_partitioning.parse_stream_id(goal) <= stream_partitioning.parse_stream_id(
            start["id"]
        ):
            return start
        if isinstance(limit, ReadMaxRows):
            with self._open_queue() as queue:
                key = stream_key(queue, self._options.view)
                rows = stream_partitioning.read_page(key, f"({start['id']}", goal, limit.max_rows)
                entries = queue.client.execute(rows)
            if len(entries) == limit.max_rows:
                return {"id": entries[-1][0].decode()}
        return {"id": goal}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"id": self._last_id()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ms, number = stream_partitioning.parse_stream_id(start["id"])
        behind = (ms, number + 1) if number < _MAX_SEQUENCE else (ms + 1, 0)
        until = stream_partitioning.parse_stream_id(end["id"])
        if behind > until:
            return []
        with self._open_queue() as queue:
            key = stream_key(queue, self._options.view)
            found = queue.client.run_flow(
                stream_partitioning.split_range(key, behind, until, self._options.partitions)
            )
        return [EntryRange(first, last) for first, last in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, EntryRange)
        table = RecordBatchBuilder(self._options, self._schema)
        with self._open_queue() as queue:
            key = stream_key(queue, self._options.view)
            for page in entry_pages(queue, key, partition.start, partition.end):
                yield table.build(page)

    def _open_queue(self) -> Queue:
        return open_queue(self._target, self._options.queue_name, self._options.dialect)

    def _last_id(self) -> str:
        with self._open_queue() as queue:
            return queue.client.execute(
                stream_partitioning.last_id(stream_key(queue, self._options.view))
            )


def _validate_entry_id(text: str) -> str:
    try:
        stream_partitioning.parse_stream_id(text)
    except ValueError as cause:
        raise InvalidArgument(
            f"startingId is earliest, latest or an entry id; not {text!r}"
        ) from cause
    return text
