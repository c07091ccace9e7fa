"""Streaming reads, `spark.readStream.format("chasqui")`: jobs, dead letters or events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.core.stream_id import StreamId
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
    raise MissingDependency("streaming reads need Spark 4.2 or newer") from cause


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of one view. The offset of a query is the id of the last entry it read."""

    def __init__(self, target: RedisTarget, options: ReadOptions, schema: StructType):
        if options.view not in STREAM_VIEWS:
            raise InvalidArgument(
                f"view={options.view} cannot be streamed; use one of {', '.join(STREAM_VIEWS)}"
            )
        if options.until_ms is not None:
            raise InvalidArgument("a streaming read does not support until; remove the option")
        self._target = target
        self._options = options
        self._schema = validate_read_schema(options, schema)
        self._available_now_end: StreamId | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new query, by the options since and startingId."""
        start = self._options.starting_id or "earliest"
        if self._options.since_ms:
            return {"id": str(StreamId(self._options.since_ms).previous())}
        if start == "latest":
            return self.reportLatestOffset()
        if start == "earliest":
            return {"id": str(StreamId(0))}
        StreamId.parse(start, "startingId (if not earliest or latest)")
        return {"id": start}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, by the option maxRowsPerTrigger."""
        rows = self._options.max_rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query with the trigger availableNow."""
        self._available_now_end = self._last_id()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offset of the next micro-batch."""
        end = self._available_now_end or self._last_id()
        if end <= StreamId.parse(start["id"]):
            return start
        if isinstance(limit, ReadMaxRows):
            with self._open_queue() as queue:
                key = stream_key(queue, self._options.view)
                entries = queue.client.execute(
                    stream_partitioning.read_page(key, f"({start['id']}", str(end), limit.max_rows)
                )
            if len(entries) == limit.max_rows:
                return {"id": entries[-1][0].decode()}
        return {"id": str(end)}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the offset of the last entry on the server."""
        return {"id": str(self._last_id())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch."""
        first_id, last_id = StreamId.parse(start["id"]).next(), StreamId.parse(end["id"])
        if first_id > last_id:
            return []
        with self._open_queue() as queue:
            key = stream_key(queue, self._options.view)
            ranges = queue.client.run_flow(
                stream_partitioning.split_range(key, first_id, last_id, self._options.partitions)
            )
        return [EntryRange(first, last) for first, last in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one partition (called on an executor)."""
        assert isinstance(partition, EntryRange)
        builder = RecordBatchBuilder(self._options, self._schema)
        with self._open_queue() as queue:
            key = stream_key(queue, self._options.view)
            for page in entry_pages(queue, key, partition.start, partition.end):
                yield builder.build(page)

    def _open_queue(self) -> Queue:
        return open_queue(self._target, self._options.queue_name, self._options.dialect)

    def _last_id(self) -> StreamId:
        with self._open_queue() as queue:
            return queue.client.execute(
                stream_partitioning.last_id(stream_key(queue, self._options.view))
            )
