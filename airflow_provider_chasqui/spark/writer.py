"""`action=replay`: letters chosen in Spark go back to their queue, each at most once.

`df.write.format("chasqui")`: every task sends its rows, the commit makes them one batch.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import MAX_PARTS
from airflow_provider_chasqui.core.commands import dead_letters, staged_writes
from airflow_provider_chasqui.core.commands.staged_writes import (
    StagedPart,
    StagedWriteOptions,
    WriteState,
)
from airflow_provider_chasqui.core.errors import BatchConflict, InvalidArgument, StagedDataLost
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.resp import EncodedArgs
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.row_encoder import EncodedRows, RowEncoder
from airflow_provider_chasqui.spark.views import arrow_schema

_ENTRY_ID_COLUMN = "entry_id"
_REPLAY_CHUNK_SIZE = 200


@dataclass
class ReplayCommit(WriterCommitMessage):
    """What became of the letters of one task."""

    counts: Counter[str] = field(default_factory=Counter)


class ReplayWriter(DataSourceArrowWriter):
    """Moves letters back by their `entry_id`.

    Removing the letter and adding the job are one step on the server, so a task that runs twice
    moves a letter once; there is nothing to stage.
    """

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        if _ENTRY_ID_COLUMN not in schema.names:
            raise InvalidArgument(
                f"action=replay needs the column {_ENTRY_ID_COLUMN!r} of the view 'dlq'"
            )
        self._target = target
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        done = ReplayCommit()
        with open_queue(self._target, self._options.queue_name, self._options.dialect) as queue:
            for batch in iterator:
                ids = batch.column(_ENTRY_ID_COLUMN).cast(pa.string()).to_pylist()
                for start in range(0, len(ids), _REPLAY_CHUNK_SIZE):
                    chunk = [each for each in ids[start : start + _REPLAY_CHUNK_SIZE] if each]
                    report = queue.client.run_flow(
                        dead_letters.replay_ids(queue.keys, chunk, self._options.max_replays)
                    )
                    done.counts.update(
                        matched=report.matched, moved=report.affected, gone=report.missing,
                        max_replays_reached=report.max_replays_reached, unreadable=report.unreadable,
                    )  # fmt: skip
        return done

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counts: Counter[str] = Counter()
        for each in messages:
            if isinstance(each, ReplayCommit):
                counts.update(each.counts)
        if self._options.batch_id:
            with open_queue(self._target, self._options.queue_name, self._options.dialect) as queue:
                queue.client.pipeline(
                    staged_writes.add_report(queue.keys, self._options.batch_id, counts)
                )


_MAX_CALL_ROWS = 1000
_MAX_CALL_BYTES = 1024 * 1024
_CALLS_PER_PIPELINE = 8


def current_time_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class TaskCommit(WriterCommitMessage):
    """What one task tells the driver; `key` is its stage, empty if it had nothing to do."""

    batch_id: str
    writer_id: str
    part: int
    rows: int
    size_bytes: int = 0
    staging_key: str = ""


class TaskWriter:
    """Sends the rows of one task, in one of the three ways."""

    def __init__(self, target: RedisTarget, options: WriteOptions, column_names: list[str]):
        self._target = target
        self.options = options
        self._column_names = column_names
        self.overwrite = options.on_existing == "overwrite"
        self.staged_write_options = StagedWriteOptions(
            options.delay_ms,
            options.run_at_column is not None,
            options.job_id_column is not None,
            options.source,
            options.ttl_ms,
        )

    def open_queue(self) -> Queue:
        return open_queue(self._target, self.options.queue_name, self.options.dialect)

    def write(self, batch_id: str, writer_id: str, batches: Iterator[Any]) -> TaskCommit:
        """Send the rows of this task attempt and return what the commit must know."""
        task = TaskContext.get()
        if task is None:
            raise InvalidArgument("rows are sent from Spark tasks; there is none here")
        part = task.partitionId()
        if part >= MAX_PARTS:
            raise InvalidArgument(
                f"a ship has at most {MAX_PARTS} partitions: coalesce the DataFrame"
            )
        sent = TaskCommit(batch_id, writer_id, part, 0)
        with self.open_queue() as queue:
            match self.options.delivery:
                case "at_least_once":
                    return self._write_at_least_once(queue, sent, batches)
                case "dedup":
                    return self._write_deduplicated(queue, sent, batches)
            sent.staging_key = queue.keys.staged_part(
                batch_id, writer_id, part, task.taskAttemptId()
            )
            return self._write_staged(queue, sent, batches)

    def _encode_batches(
        self, batches: Iterator[Any], encode: Callable[[RowEncoder, Any, int], EncodedRows]
    ) -> Iterator[EncodedRows]:
        framer = RowEncoder(self.options, self._column_names)
        first = 0
        for batch in batches:
            for piece in framer.split_batch(batch):
                yield encode(framer, piece, first)
                first += piece.num_rows

    def _encode_jobs(
        self, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> Iterator[EncodedRows]:
        now_ms, prefix = (
            current_time_ms(),
            f"{BATCH_PREFIX}{task_commit.batch_id}:{task_commit.part}:",
        )
        return self._encode_batches(
            batches, lambda framer, piece, first: framer.encode_jobs(piece, prefix, first, now_ms)
        )

    def _write_staged(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        if self._already_committed(queue, task_commit.batch_id):
            return replace(task_commit, staging_key="")
        for frames in self._encode_jobs(task_commit, batches):
            calls = list(frames.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            if not task_commit.rows:
                task_commit.rows, items = calls.pop(0)
                if self._stage_first(queue, task_commit, items) != task_commit.rows:
                    return self._handle_lost_stage(queue, task_commit)
            if not self._stage_more(queue, task_commit, calls):
                return self._handle_lost_stage(queue, task_commit)
            task_commit.size_bytes += frames.size_bytes
        return task_commit if task_commit.rows else replace(task_commit, staging_key="")

    def _stage_first(self, queue: Queue, task_commit: TaskCommit, items: EncodedArgs) -> int:
        return queue.client.execute(
            staged_writes.stage_first(
                queue.keys, task_commit.batch_id, task_commit.writer_id, task_commit.staging_key, items, self.options.staging_ttl_ms,
                overwrite=self.overwrite,
            )
        )  # fmt: skip

    def _stage_more(
        self, queue: Queue, task_commit: TaskCommit, calls: Sequence[tuple[int, EncodedArgs]]
    ) -> bool:
        for start in range(0, len(calls), _CALLS_PER_PIPELINE):
            window = calls[start : start + _CALLS_PER_PIPELINE]
            ops = [staged_writes.stage_more(task_commit.staging_key, items) for _, items in window]
            ops.append(
                staged_writes.extend_stage_ttl(task_commit.staging_key, self.options.staging_ttl_ms)
            )
            lengths = queue.client.pipeline(ops)
            for (rows, _), length in zip(window, lengths, strict=False):
                task_commit.rows += rows
                if length != task_commit.rows:
                    return False
        return True

    def _already_committed(self, queue: Queue, batch_id: str) -> bool:
        """Whether a write has won, so that this one has nothing to add."""
        found = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
        return found.state == "publishing" or (found.state == "done" and not self.overwrite)

    def _handle_lost_stage(self, queue: Queue, task_commit: TaskCommit) -> TaskCommit:
        """The stage is not as long as what was sent: swept by the write that won, or damaged."""
        if self._already_committed(queue, task_commit.batch_id):
            return replace(task_commit, staging_key="", rows=0)
        raise StagedDataLost(
            f"the stage {task_commit.staging_key!r} does not hold what was sent (the write was given up, a "
            "connection broke, or the server lost data); Spark runs this task again if it is needed"
        )

    def _write_at_least_once(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        for frames in self._encode_jobs(task_commit, batches):
            calls = list(frames.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            for start in range(0, len(calls), _CALLS_PER_PIPELINE):
                window = calls[start : start + _CALLS_PER_PIPELINE]
                queue.client.pipeline(
                    [
                        staged_writes.add(queue.keys, items, self.staged_write_options)
                        for _, items in window
                    ]
                )
            task_commit.rows += len(frames)
        return task_commit

    def _write_deduplicated(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        now_ms = current_time_ms()
        for frames in self._encode_batches(
            batches, lambda framer, piece, _: framer.encode_dedup_rows(piece, now_ms)
        ):
            calls = list(frames.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            for start in range(0, len(calls), _CALLS_PER_PIPELINE):
                ops = [
                    staged_writes.add_deduplicated(
                        queue.keys, task_commit.batch_id, items, self.staged_write_options, now_ms
                    )
                    for _, items in calls[start : start + _CALLS_PER_PIPELINE]
                ]
                if -1 in queue.client.pipeline(ops):
                    return task_commit
            task_commit.rows += len(frames)
        return task_commit

    def commit(self, batch_id: str, writer_id: str, messages: Sequence[Any]) -> WriteState:
        """Make what the tasks have sent one batch; whoever has committed this ship before, wins."""
        sent = [message for message in messages if message is not None]
        with self.open_queue() as queue:
            if self.options.delivery != "exactly_once":
                return self._finalize(queue, batch_id, sent)
            stages = [
                StagedPart(each.part, each.stage_key, each.rows, each.size_bytes)
                for each in sent
                if each.stage_key
            ]
            found = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
            if found.state == "new" or (found.state == "done" and self.overwrite):
                found = queue.client.run_flow(
                    staged_writes.commit(
                        queue.keys, batch_id, writer_id, stages, self.staged_write_options, current_time_ms(),
                        overwrite=self.overwrite,
                    )
                )  # fmt: skip
            if found.state == "publishing":
                found = queue.client.run_flow(staged_writes.publish(queue.keys, batch_id))
            if found.writer_id != writer_id:
                queue.client.run_flow(staged_writes.discard(queue.keys, batch_id, writer_id))
            return found

    def _finalize(
        self, queue: Queue, batch_id: str, task_commits: Sequence[TaskCommit]
    ) -> WriteState:
        direct = self.options.delivery == "at_least_once"
        rows = [(each.part, each.rows) for each in task_commits if each.rows] if direct else []
        parts = max((part for part, _ in rows), default=-1) + 1 if direct else 1
        sealing = staged_writes.finalize(
            queue.keys, batch_id, rows, parts, self.staged_write_options, current_time_ms()
        )
        return WriteState("done", queue.client.execute(sealing))

    def abort(self, batch_id: str, writer_id: str) -> None:
        """Give the write up, unless it is promised already: then it will be carried on."""
        if self.options.delivery == "exactly_once":
            with self.open_queue() as queue:
                ttl_ms = self.options.staging_ttl_ms
                queue.client.run_flow(staged_writes.abort(queue.keys, batch_id, writer_id, ttl_ms))


def validate_write_schema(options: WriteOptions, schema: StructType) -> None:
    """Raise on the driver if a column is missing or cannot be written."""
    RowEncoder(options, schema.names).check_types(arrow_schema(schema))


class ChasquiWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one batch."""

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        self._task_writer = TaskWriter(target, options, schema.names)
        validate_write_schema(options, schema)
        self._writer_id = uuid.uuid4().hex[:12]
        self._batch_id = options.batch_id or f"spark-{self._writer_id}"
        self._already_done = self._check_existing()

    def _check_existing(self) -> bool:
        """Return whether there is nothing to do; raise if the ship may not be there already."""
        options = self._task_writer.options
        if options.batch_id is None or options.delivery == "at_least_once":
            return False
        with self._task_writer.open_queue() as queue:
            before = queue.client.run_flow(staged_writes.get_state(queue.keys, options.batch_id))
            found = queue.client.run_flow(staged_writes.resume(queue.keys, options.batch_id))
        if before.state == "publishing":
            return True  # carried on, whatever was asked: those jobs are this ship
        if found.state == "done" and options.on_existing == "fail":
            raise BatchConflict(
                f"the ship {options.batch_id!r} is done already with {found.total} jobs; choose "
                "another batchId, or onExisting=skip or overwrite",
                queue_name=options.queue_name,
            )
        return found.state == "done" and not self._task_writer.overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self._already_done:
            return TaskCommit(self._batch_id, self._writer_id, 0, 0)
        return self._task_writer.write(self._batch_id, self._writer_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._already_done:
            self._task_writer.commit(self._batch_id, self._writer_id, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._already_done:
            self._task_writer.abort(self._batch_id, self._writer_id)
