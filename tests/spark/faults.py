"""Things that go wrong in a Spark job, on purpose. Pickled by value: executors lack this file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import TaskContext

from airflow_provider_chasqui.core.command import as_int, script_command
from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.commands.staged_writes import StagedPart
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.source import ChasquiDataSource
from airflow_provider_chasqui.spark.stream_writer import ChasquiStreamWriter
from airflow_provider_chasqui.spark.writer import ChasquiWriter, TaskWriter, current_time_ms

Batches = Iterator[Any]


def breaking(part: int, after: int, *, always: bool = False) -> Callable[[Batches], Batches]:
    """Fail the first attempt of a task (or every one) when it has passed so many rows on."""

    def run(batches: Batches) -> Batches:
        task, passed = TaskContext.get(), 0
        assert task is not None
        for batch in batches:
            first = always or task.attemptNumber() == 0
            if first and task.partitionId() == part and passed >= after:
                raise RuntimeError("broken on purpose")
            passed += batch.num_rows
            yield batch

    return run


def lingering(part: int, after: int, seconds: float) -> Callable[[Batches], Batches]:
    """Let the first attempt of a task hang in the middle, until Spark starts another beside it."""

    def run(batches: Batches) -> Batches:
        task, passed = TaskContext.get(), 0
        assert task is not None
        for batch in batches:
            if task.partitionId() == part and task.attemptNumber() == 0 and passed == after:
                time.sleep(seconds)
            passed += batch.num_rows
            yield batch

    return run


def slowly(seconds: float) -> Callable[[Batches], Batches]:
    """Let every batch of rows take its time."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return run


def publish_some(
    sender: TaskWriter, ship: str, write: str, messages: list[Any], calls: int
) -> None:
    """Do the first half of a commit: let the write win and move some of its jobs."""
    with sender.open_queue() as queue:
        stages = [
            StagedPart(m.part, m.stage_key, m.rows, m.size_bytes)
            for m in messages
            if m and m.stage_key
        ]
        begun = staged_writes.commit(
            queue.keys, ship, write, stages, sender.staged_write_options, current_time_ms()
        )
        assert queue.client.run_flow(begun).state == "publishing"
        keys = queue.keys
        for stage in stages[:calls]:
            names = [
                keys.stream,
                keys.delayed,
                keys.staged_write(ship),
                keys.batch(ship),
                stage.key,
            ]
            moved = queue.client.execute(
                script_command("write_publish", as_int, names, [write, stage.part, 700])
            )
            assert moved


def source(
    fault: Callable[[Batches], Batches] | None = None,
    *,
    calls: int | None = None,
    kill: tuple[int, ...] = (),
) -> type[ChasquiDataSource]:
    """Return a data source, named chasqui-broken, that meets a fault.

    `fault` stands in the way of the rows that a task sends; `calls` breaks the commit after so many
    calls that publish; `kill` are processes that end there like in a power cut.
    """

    class BrokenWriter(ChasquiWriter):
        def write(self, iterator: Batches) -> Any:
            return super().write(fault(iterator) if fault else iterator)

        def commit(self, messages: list[Any]) -> None:
            if calls is None and not kill:
                return super().commit(messages)
            if calls is not None:
                publish_some(self._task_writer, self._batch_id, self._writer_id, messages, calls)
            for pid in kill:
                os.kill(pid, signal.SIGKILL)
            raise RuntimeError("the commit broke on purpose")

    class BrokenStreamWriter(ChasquiStreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:
            if batchId != 1:
                return super().commit(messages, batchId)
            for ship, write in self._committed_writes(messages):
                publish_some(self._task_writer, ship, write, messages, calls or 1)
            raise RuntimeError("the commit broke on purpose")

    class BrokenSource(ChasquiDataSource):
        @classmethod
        def name(cls) -> str:
            return "chasqui-broken"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return BrokenWriter(self._resolve_target(), WriteOptions.parse(self.options), schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            options = WriteOptions.parse(self.options, streaming=True)
            return BrokenStreamWriter(self._resolve_target(), options, schema)

    return BrokenSource
