"""Batch writes, `df.write.format("chasqui")`.

With delivery=exactly_once every task stages its rows, and the commit publishes all of them as one
batch. With action=replay the rows are dead letters, which go back to their queue.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.arrow_encoder import split_batch
from airflow_provider_chasqui.clock import current_time_ms
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

_MAX_CALL_ROWS = 1000
_MAX_CALL_BYTES = 1024 * 1024
_CALLS_PER_PIPELINE = 8
_ENTRY_ID_COLUMN = "entry_id"
_REPLAY_CHUNK_SIZE = 200


@dataclass
class TaskCommit(WriterCommitMessage):
    """Commit message of one task. `staging_key` is empty if the task has staged nothing."""

    batch_id: str
    writer_id: str
    part: int
    rows: int
    size_bytes: int = 0
    staging_key: str = ""


class TaskWriter:
    """Writes the rows of a task, and commits or aborts the write, for each kind of delivery."""

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
        """Return the queue of the write."""
        return open_queue(self._target, self.options.queue_name, self.options.dialect)

    def write(self, batch_id: str, writer_id: str, batches: Iterator[Any]) -> TaskCommit:
        """Write the rows of the current task attempt.

        :param batch_id: the id of the batch.
        :param writer_id: the id of this write, which all its tasks share.
        :param batches: the record batches of the task.
        :return: the message for the commit.
        :raises InvalidArgument: outside a Spark task, or if there are too many partitions.
        """
        task = TaskContext.get()
        if task is None:
            raise InvalidArgument("rows can only be written from a Spark task")
        part = task.partitionId()
        if part >= MAX_PARTS:
            raise InvalidArgument(
                f"a batch has at most {MAX_PARTS} partitions; coalesce the DataFrame"
            )
        task_commit = TaskCommit(batch_id, writer_id, part, 0)
        with self.open_queue() as queue:
            match self.options.delivery:
                case "at_least_once":
                    return self._write_at_least_once(queue, task_commit, batches)
                case "dedup":
                    return self._write_deduplicated(queue, task_commit, batches)
            task_commit.staging_key = queue.keys.staged_part(
                batch_id, writer_id, part, task.taskAttemptId()
            )
            return self._write_staged(queue, task_commit, batches)

    def _encode_batches(
        self, batches: Iterator[Any], encode: Callable[[RowEncoder, Any, int], EncodedRows]
    ) -> Iterator[EncodedRows]:
        encoder = RowEncoder(self.options, self._column_names)
        first_index = 0
        for batch in batches:
            for piece in split_batch(batch):
                yield encode(encoder, piece, first_index)
                first_index += piece.num_rows

    def _encode_jobs(
        self, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> Iterator[EncodedRows]:
        now_ms = current_time_ms()
        prefix = f"{BATCH_PREFIX}{task_commit.batch_id}:{task_commit.part}:"
        return self._encode_batches(
            batches,
            lambda encoder, piece, first_index: encoder.encode_jobs(
                piece, prefix, first_index, now_ms
            ),
        )

    def _write_staged(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        if self._already_committed(queue, task_commit.batch_id):
            return replace(task_commit, staging_key="")
        for rows in self._encode_jobs(task_commit, batches):
            calls = list(rows.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            if not task_commit.rows:
                task_commit.rows, items = calls.pop(0)
                if self._stage_first(queue, task_commit, items) != task_commit.rows:
                    return self._handle_lost_part(queue, task_commit)
            if not self._stage_more(queue, task_commit, calls):
                return self._handle_lost_part(queue, task_commit)
            task_commit.size_bytes += rows.size_bytes
        return task_commit if task_commit.rows else replace(task_commit, staging_key="")

    def _stage_first(self, queue: Queue, task_commit: TaskCommit, items: EncodedArgs) -> int:
        return queue.client.execute(
            staged_writes.stage_first(
                queue.keys,
                task_commit.batch_id,
                task_commit.writer_id,
                task_commit.staging_key,
                items,
                self.options.staging_ttl_ms,
                overwrite=self.overwrite,
            )
        )

    def _stage_more(
        self, queue: Queue, task_commit: TaskCommit, calls: Sequence[tuple[int, EncodedArgs]]
    ) -> bool:
        for start in range(0, len(calls), _CALLS_PER_PIPELINE):
            window = calls[start : start + _CALLS_PER_PIPELINE]
            commands = [
                staged_writes.stage_more(task_commit.staging_key, items) for _, items in window
            ]
            commands.append(
                staged_writes.extend_stage_ttl(task_commit.staging_key, self.options.staging_ttl_ms)
            )
            lengths = queue.client.pipeline(commands)
            for (rows, _), length in zip(window, lengths, strict=False):
                task_commit.rows += rows
                if length != task_commit.rows:
                    return False
        return True

    def _already_committed(self, queue: Queue, batch_id: str) -> bool:
        """Return whether a write of this batch is committed, so that this one stages nothing."""
        write = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
        return write.state == "publishing" or (write.state == "done" and not self.overwrite)

    def _handle_lost_part(self, queue: Queue, task_commit: TaskCommit) -> TaskCommit:
        """Handle a staged part whose length is wrong: removed by another commit, or damaged."""
        if self._already_committed(queue, task_commit.batch_id):
            return replace(task_commit, staging_key="", rows=0)
        raise StagedDataLost(
            f"the staged part {task_commit.staging_key!r} does not contain the rows that were sent "
            "(the write was aborted, a connection broke, or the server lost data); Spark runs this "
            "task again if the write is still running"
        )

    def _write_at_least_once(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        for rows in self._encode_jobs(task_commit, batches):
            calls = list(rows.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            for start in range(0, len(calls), _CALLS_PER_PIPELINE):
                commands = []
                for count, items in calls[start : start + _CALLS_PER_PIPELINE]:
                    task_commit.rows += count
                    commands.append(
                        staged_writes.add(
                            queue.keys,
                            task_commit.batch_id,
                            task_commit.part,
                            task_commit.rows,
                            items,
                            self.staged_write_options,
                        )
                    )
                queue.client.pipeline(commands)
        return task_commit

    def _write_deduplicated(
        self, queue: Queue, task_commit: TaskCommit, batches: Iterator[Any]
    ) -> TaskCommit:
        now_ms = current_time_ms()
        for rows in self._encode_batches(
            batches, lambda encoder, piece, _: encoder.encode_dedup_rows(piece, now_ms)
        ):
            calls = list(rows.split_calls(_MAX_CALL_ROWS, _MAX_CALL_BYTES))
            for start in range(0, len(calls), _CALLS_PER_PIPELINE):
                commands = [
                    staged_writes.add_deduplicated(
                        queue.keys, task_commit.batch_id, items, self.staged_write_options, now_ms
                    )
                    for _, items in calls[start : start + _CALLS_PER_PIPELINE]
                ]
                if -1 in queue.client.pipeline(commands):
                    return task_commit
            task_commit.rows += len(rows)
        return task_commit

    def commit(self, batch_id: str, writer_id: str, messages: Sequence[Any]) -> WriteState:
        """Publish the rows of all tasks as one batch.

        If another write of this batch is already committed, that one is published and the rows of
        this write are discarded.

        :param batch_id: the id of the batch.
        :param writer_id: the id of this write.
        :param messages: the commit messages of the tasks; None for a task without one.
        :return: the state of the batch.
        :raises StagedDataLost: if staged rows have disappeared from the server.
        :raises BatchConflict: if the batch was enqueued in another way.
        """
        task_commits = [message for message in messages if message is not None]
        with self.open_queue() as queue:
            if self.options.delivery != "exactly_once":
                return self._finalize(queue, batch_id, task_commits)
            staged_parts = [
                StagedPart(task.part, task.staging_key, task.rows, task.size_bytes)
                for task in task_commits
                if task.staging_key
            ]
            write = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
            if write.state == "new" or (write.state == "done" and self.overwrite):
                write = queue.client.run_flow(
                    staged_writes.commit(
                        queue.keys,
                        batch_id,
                        writer_id,
                        staged_parts,
                        self.staged_write_options,
                        current_time_ms(),
                        overwrite=self.overwrite,
                    )
                )
            if write.state == "publishing":
                write = queue.client.run_flow(staged_writes.publish(queue.keys, batch_id))
            if write.writer_id != writer_id:
                queue.client.run_flow(staged_writes.discard(queue.keys, batch_id, writer_id))
            return write

    def _finalize(
        self, queue: Queue, batch_id: str, task_commits: Sequence[TaskCommit]
    ) -> WriteState:
        part_rows: list[tuple[int, int]] = []
        parts = 1  # deduplicated rows are numbered in one part
        if self.options.delivery == "at_least_once":
            part_rows = [(task.part, task.rows) for task in task_commits if task.rows]
            parts = max((part for part, _ in part_rows), default=-1) + 1
        finalize = staged_writes.finalize(
            queue.keys, batch_id, part_rows, parts, self.staged_write_options, current_time_ms()
        )
        return WriteState("done", queue.client.execute(finalize))

    def abort(self, batch_id: str, writer_id: str) -> None:
        """Discard the staged rows of a write, unless it is committed and will be published."""
        if self.options.delivery == "exactly_once":
            with self.open_queue() as queue:
                ttl_ms = self.options.staging_ttl_ms
                queue.client.run_flow(staged_writes.abort(queue.keys, batch_id, writer_id, ttl_ms))


def validate_write_schema(options: WriteOptions, schema: StructType) -> None:
    """Raise `InvalidArgument` if a column is missing or its type cannot be written."""
    RowEncoder(options, schema.names).check_types(arrow_schema(schema))


class ChasquiWriter(DataSourceArrowWriter):
    """Writer of a DataFrame as one batch."""

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        self._task_writer = TaskWriter(target, options, schema.names)
        validate_write_schema(options, schema)
        self._writer_id = uuid.uuid4().hex[:12]
        self._batch_id = options.batch_id or f"spark-{self._writer_id}"
        self._already_done = self._check_existing()

    def _check_existing(self) -> bool:
        """Return whether the batch is complete; raise if it exists and onExisting=fail."""
        options = self._task_writer.options
        if options.batch_id is None or options.delivery == "at_least_once":
            return False
        with self._task_writer.open_queue() as queue:
            before = queue.client.run_flow(staged_writes.get_state(queue.keys, options.batch_id))
            write = queue.client.run_flow(staged_writes.resume(queue.keys, options.batch_id))
        if before.state == "publishing":
            return True  # an interrupted write of this batch, completed just now
        if write.state == "done" and options.on_existing == "fail":
            raise BatchConflict(
                f"batch {options.batch_id!r} already exists with {write.total} jobs; use another "
                "batchId, or onExisting=skip or overwrite",
                queue_name=options.queue_name,
            )
        return write.state == "done" and not self._task_writer.overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of the current task attempt (called on an executor)."""
        if self._already_done:
            return TaskCommit(self._batch_id, self._writer_id, 0, 0)
        return self._task_writer.write(self._batch_id, self._writer_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the batch."""
        if not self._already_done:
            self._task_writer.commit(self._batch_id, self._writer_id, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows."""
        if not self._already_done:
            self._task_writer.abort(self._batch_id, self._writer_id)


@dataclass
class ReplayCommit(WriterCommitMessage):
    """Commit message of one replay task: the number of dead letters by result."""

    counts: Counter[str] = field(default_factory=Counter)


class ReplayWriter(DataSourceArrowWriter):
    """Writer that replays dead letters by their `entry_id`.

    The server removes the dead letter and adds its job atomically, so a task that runs twice
    replays a dead letter once. Nothing has to be staged.
    """

    def __init__(self, target: RedisTarget, options: WriteOptions, schema: StructType):
        if _ENTRY_ID_COLUMN not in schema.names:
            raise InvalidArgument(
                f"action=replay requires the column {_ENTRY_ID_COLUMN!r} of the view dlq; the "
                f"columns are {', '.join(schema.names)}"
            )
        self._target = target
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Replay the dead letters of the current task (called on an executor)."""
        task_commit = ReplayCommit()
        with open_queue(self._target, self._options.queue_name, self._options.dialect) as queue:
            for batch in iterator:
                ids = batch.column(_ENTRY_ID_COLUMN).cast(pa.string()).to_pylist()
                for start in range(0, len(ids), _REPLAY_CHUNK_SIZE):
                    chunk = [
                        entry_id for entry_id in ids[start : start + _REPLAY_CHUNK_SIZE] if entry_id
                    ]
                    report = queue.client.run_flow(
                        dead_letters.replay_ids(queue.keys, chunk, self._options.max_replays)
                    )
                    task_commit.counts.update(
                        matched=report.matched,
                        affected=report.affected,
                        missing=report.missing,
                        max_replays_reached=report.max_replays_reached,
                        unreadable=report.unreadable,
                    )
        return task_commit

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store the counts under the batch id, for the operator."""
        counts: Counter[str] = Counter()
        for message in messages:
            if isinstance(message, ReplayCommit):
                counts.update(message.counts)
        if self._options.batch_id:
            with open_queue(self._target, self._options.queue_name, self._options.dialect) as queue:
                queue.client.pipeline(
                    staged_writes.add_report(queue.keys, self._options.batch_id, counts)
                )
