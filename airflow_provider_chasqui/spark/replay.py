"""`action=replay`: letters chosen in Spark go back to their queue, each at most once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.ops import letters, ships
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.store.target import Target

_COLUMN = "entry_id"
_CHUNK = 200


@dataclass
class Replayed(WriterCommitMessage):
    """What became of the letters of one task."""

    counts: Counter[str] = field(default_factory=Counter)


class ReplayWriter(DataSourceArrowWriter):
    """Moves letters back by their `entry_id`.

    Removing the letter and adding the job are one step on the server, so a task that runs twice
    moves a letter once; there is nothing to stage.
    """

    def __init__(self, target: Target, options: WriteOptions, schema: StructType):
        if _COLUMN not in schema.names:
            raise BadInput(f"action=replay needs the column {_COLUMN!r} of the view 'dlq'")
        self._target = target
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        done = Replayed()
        with open_queue(self._target, self._options.queue, self._options.dialect) as queue:
            for batch in iterator:
                ids = batch.column(_COLUMN).cast(pa.string()).to_pylist()
                for start in range(0, len(ids), _CHUNK):
                    chunk = [each for each in ids[start : start + _CHUNK] if each]
                    report = queue.drive.flow(
                        letters.replay_ids(queue.keys, chunk, self._options.budget)
                    )
                    done.counts.update(
                        matched=report.matched, moved=report.moved, gone=report.gone,
                        over_budget=report.over_budget, unreadable=report.unreadable,
                    )  # fmt: skip
        return done

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counts: Counter[str] = Counter()
        for each in messages:
            if isinstance(each, Replayed):
                counts.update(each.counts)
        if self._options.ship:
            with open_queue(self._target, self._options.queue, self._options.dialect) as queue:
                queue.drive.many(ships.add_report(queue.keys, self._options.ship, counts))
