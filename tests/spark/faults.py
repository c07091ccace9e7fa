"""Injected faults of Spark jobs. Pickled by value, because executors do not have this file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import TaskContext

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.commands.staged_writes import StagedPart
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.source import ChasquiDataSource
from airflow_provider_chasqui.spark.stream_writer import ChasquiStreamWriter
from airflow_provider_chasqui.spark.writer import ChasquiWriter, TaskWriter

Batches = Iterator[Any]


def failing_task(part: int, after: int, *, always: bool = False) -> Callable[[Batches], Batches]:
    """Fail the first attempt of a task (or every attempt) after it has sent `after` rows."""

    def run(batches: Batches) -> Batches:
        task, passed = TaskContext.get(), 0
        assert task is not None
        for batch in batches:
            is_affected = always or task.attemptNumber() == 0
            if is_affected and task.partitionId() == part and passed >= after:
                raise RuntimeError("injected task failure")
            passed += batch.num_rows
            yield batch

    return run


def hanging_task(part: int, after: int, seconds: float) -> Callable[[Batches], Batches]:
    """Let the first attempt of a task hang, until Spark starts a speculative attempt."""

    def run(batches: Batches) -> Batches:
        task, passed = TaskContext.get(), 0
        assert task is not None
        for batch in batches:
            if task.partitionId() == part and task.attemptNumber() == 0 and passed == after:
                time.sleep(seconds)
            passed += batch.num_rows
            yield batch

    return run


def slow_tasks(seconds: float) -> Callable[[Batches], Batches]:
    """Delay every batch of rows."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return run


def publish_partly(
    writer: TaskWriter, batch_id: str, writer_id: str, messages: list[Any], calls: int
) -> None:
    """Commit a write, publish some of its jobs, and stop."""
    with writer.open_queue() as queue:
        staged_parts = [
            StagedPart(message.part, message.staging_key, message.rows, message.size_bytes)
            for message in messages
            if message and message.staging_key
        ]
        commit = staged_writes.commit(
            queue.keys,
            batch_id,
            writer_id,
            staged_parts,
            writer.staged_write_options,
            current_time_ms(),
        )
        assert queue.client.run_flow(commit).state == "publishing"
        for part in staged_parts[:calls]:
            command = staged_writes.publish_part(
                queue.keys, batch_id, writer_id, part.part, part.key, 700
            )
            assert queue.client.execute(command)


def faulty_source(
    fault: Callable[[Batches], Batches] | None = None,
    *,
    calls: int | None = None,
    kill: tuple[int, ...] = (),
) -> type[ChasquiDataSource]:
    """Return a data source named chasqui-faulty.

    :param fault: wraps the rows of each task.
    :param calls: fail the commit after this number of publishing calls.
    :param kill: processes to kill (SIGKILL) in the commit.
    """

    class FaultyWriter(ChasquiWriter):
        def write(self, iterator: Batches) -> Any:
            return super().write(fault(iterator) if fault else iterator)

        def commit(self, messages: list[Any]) -> None:
            if calls is None and not kill:
                return super().commit(messages)
            if calls is not None:
                publish_partly(self._task_writer, self._batch_id, self._writer_id, messages, calls)
            for pid in kill:
                os.kill(pid, signal.SIGKILL)
            raise RuntimeError("injected commit failure")

    class FaultyStreamWriter(ChasquiStreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:
            if batchId != 1:
                return super().commit(messages, batchId)
            for batch_id, writer_id in self._committed_writes(messages):
                publish_partly(self._task_writer, batch_id, writer_id, messages, calls or 1)
            raise RuntimeError("injected commit failure")

    class FaultySource(ChasquiDataSource):
        @classmethod
        def name(cls) -> str:
            return "chasqui-faulty"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return FaultyWriter(self._resolve_target(), WriteOptions.parse(self.options), schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            options = WriteOptions.parse(self.options, streaming=True)
            return FaultyStreamWriter(self._resolve_target(), options, schema)

    return FaultySource
