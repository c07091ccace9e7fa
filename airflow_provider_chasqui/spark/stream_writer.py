"""`df.writeStream.format("chasqui")`: every micro-batch is a ship of its own, exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.writer import TaskCommit, TaskWriter, validate_write_schema

# What Spark tells the tasks of a streaming query; the id of the query lives in its checkpoint.
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_BATCH_ID_PROPERTY = "streaming.sql.batchId"


class ChasquiStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. The ship is `<batchId or query id>.<batch id>`.

    A batch that Spark runs again after a restart finds its ship begun or done, and is passed over.
    """

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        if options.on_existing != "skip":
            raise InvalidArgument(
                "a stream skips the batches that are there; onExisting cannot be chosen"
            )
        validate_write_schema(options, schema)
        self._task_writer = TaskWriter(target, options, schema.names)
        self._run_id = uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        batch = task.getLocalProperty(_BATCH_ID_PROPERTY) if task else None
        query = task.getLocalProperty(_QUERY_ID_PROPERTY) if task else None
        if task is None or batch is None or query is None:
            raise InvalidArgument(
                "this Spark does not tell its tasks which micro-batch they work on"
            )
        ship = f"{self._task_writer.options.batch_id or query}.{batch}"
        # A restart runs the same batch again; the attempts of one run share a write.
        return self._task_writer.write(ship, f"{self._run_id}.{task.stageId()}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for ship, write in self._committed_writes(messages):
            if not ship.endswith(f".{batchId}"):
                raise InvalidArgument(
                    f"the tasks of batch {batchId} worked on {ship!r}; nothing is visible"
                )
            self._task_writer.commit(ship, write, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for ship, write in self._committed_writes(messages):
            self._task_writer.abort(ship, write)

    def _committed_writes(self, messages: list[WriterCommitMessage | None]) -> set[tuple[str, str]]:
        return {
            (each.batch_id, each.writer_id) for each in messages if isinstance(each, TaskCommit)
        }
