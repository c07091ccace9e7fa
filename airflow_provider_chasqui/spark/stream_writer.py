"""`df.writeStream.format("chasqui")`: every micro-batch is a ship of its own, exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.writer import Sender, Sent, check_schema
from airflow_provider_chasqui.store.target import Target

# What Spark tells the tasks of a streaming query; the id of the query lives in its checkpoint.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class ShipStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. The ship is `<shipId or query id>.<batch id>`.

    A batch that Spark runs again after a restart finds its ship begun or done, and is passed over.
    """

    def __init__(self, target: Target, options: WriteOptions, schema: StructType):
        if options.on_existing != "skip":
            raise BadInput("a stream skips the batches that are there; onExisting cannot be chosen")
        check_schema(options, schema)
        self._sender = Sender(target, options, schema.names)
        self._run = uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        batch = task.getLocalProperty(_BATCH) if task else None
        query = task.getLocalProperty(_QUERY) if task else None
        if task is None or batch is None or query is None:
            raise BadInput("this Spark does not tell its tasks which micro-batch they work on")
        ship = f"{self._sender.options.ship or query}.{batch}"
        # A restart runs the same batch again; the attempts of one run share a write.
        return self._sender.send(ship, f"{self._run}.{task.stageId()}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for ship, write in self._named(messages):
            if not ship.endswith(f".{batchId}"):
                raise BadInput(
                    f"the tasks of batch {batchId} worked on {ship!r}; nothing is visible"
                )
            self._sender.commit(ship, write, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for ship, write in self._named(messages):
            self._sender.abort(ship, write)

    def _named(self, messages: list[WriterCommitMessage | None]) -> set[tuple[str, str]]:
        return {(each.ship, each.write) for each in messages if isinstance(each, Sent)}
