"""Streaming writes, `df.writeStream.format("chasqui")`: each micro-batch is one batch."""

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

# Local properties that Spark sets for the tasks of a streaming query. The query id is stored in
# its checkpoint.
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_BATCH_ID_PROPERTY = "streaming.sql.batchId"


class ChasquiStreamWriter(DataSourceStreamArrowWriter):
    """Writer of micro-batches. The batch id is `<batchId or query id>.<micro-batch id>`.

    A micro-batch that Spark runs again after a restart is skipped if it was already committed.
    """

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        if options.on_existing != "skip":
            raise InvalidArgument(
                f"a streaming write does not support onExisting={options.on_existing}; remove the "
                "option, micro-batches that exist are skipped"
            )
        validate_write_schema(options, schema)
        self._task_writer = TaskWriter(target, options, schema.names)
        self._run_id = uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of the current task attempt (called on an executor)."""
        task = TaskContext.get()
        micro_batch_id = task.getLocalProperty(_BATCH_ID_PROPERTY) if task else None
        query_id = task.getLocalProperty(_QUERY_ID_PROPERTY) if task else None
        if task is None or micro_batch_id is None or query_id is None:
            raise InvalidArgument("this Spark version does not expose the micro-batch id to tasks")
        batch_id = f"{self._task_writer.options.batch_id or query_id}.{micro_batch_id}"
        # All task attempts of one stage share a writer id; a restart of the query gets a new one.
        return self._task_writer.write(batch_id, f"{self._run_id}.{task.stageId()}", iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,
    ) -> None:
        """Publish a micro-batch."""
        for batch_id, writer_id in self._committed_writes(messages):
            if not batch_id.endswith(f".{batchId}"):
                raise InvalidArgument(
                    f"the tasks of micro-batch {batchId} have written {batch_id!r}; nothing was "
                    "published"
                )
            self._task_writer.commit(batch_id, writer_id, messages)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,
    ) -> None:
        """Discard the staged rows of a micro-batch."""
        for batch_id, writer_id in self._committed_writes(messages):
            self._task_writer.abort(batch_id, writer_id)

    def _committed_writes(self, messages: list[WriterCommitMessage | None]) -> set[tuple[str, str]]:
        return {
            (message.batch_id, message.writer_id)
            for message in messages
            if isinstance(message, TaskCommit)
        }
