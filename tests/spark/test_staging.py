"""Late and aborted tasks leave no staged rows. These tests need no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.core.errors import StagedDataLost
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import from_url
from airflow_provider_chasqui.spark import writer as writer_module
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.writer import TaskCommit, TaskWriter
from tests.conftest import Server
from tests.spark.faults import publish_partly
from tests.spark.writing import assert_exact, queue_url, staging_keys

ROWS = 1500  # more than one call


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


def task_writer(queue: Queue, **options: str) -> TaskWriter:
    all_options = {"queueName": queue.name, "dialect": queue.client.dialect(), **options}
    return TaskWriter(from_url(queue_url(queue)), WriteOptions.parse(all_options), ["id"])


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TaskCommit]:
    """Return a function that runs one task of a write.

    `interleaved` is called between the task's check of the batch and its first row, or after
    `after` staged rows.
    """

    def run(
        by: TaskWriter,
        writer_id: str,
        part: int = 0,
        interleaved: Any = None,
        after: int = 0,
    ) -> TaskCommit:
        context = SimpleNamespace(partitionId=lambda: part, taskAttemptId=lambda: part)
        monkeypatch.setattr(writer_module.TaskContext, "get", lambda: context)

        def batches() -> Iterator[Any]:
            for first in range(0, ROWS, 500):
                if interleaved and first == after:
                    interleaved()
                ids = range(part * ROWS + first, part * ROWS + first + 500)
                yield pa.RecordBatch.from_pydict({"id": list(ids)})

        return by.write("s", writer_id, batches())

    return run


@pytest.mark.parametrize("after", [0, 500])
def test_a_task_that_continues_after_the_abort_leaves_nothing_staged(
    queue: Queue, task: Callable[..., TaskCommit], after: int
) -> None:
    writer = task_writer(queue)
    task(writer, "w", part=1)
    assert queue.keys.staged_part("s", "w", 1, 1) in staging_keys(queue)
    with pytest.raises(StagedDataLost, match="aborted"):
        task(writer, "w", interleaved=lambda: writer.abort("s", "w"), after=after)
    with pytest.raises(StagedDataLost, match="aborted"):
        task(writer, "w", part=2)
    assert staging_keys(queue) == [queue.keys.staged_parts("s")], "only the abort marker may remain"


def test_the_marker_of_an_aborted_write_expires(queue: Queue) -> None:
    task_writer(queue, stagingTtl="2m").abort("s", "w")
    ttl_ms = queue.client.execute(redis_command("PTTL", queue.keys.staged_parts("s"), parse=as_int))
    assert 0 < ttl_ms <= 120_000


def test_another_write_of_the_batch_succeeds_after_an_abort(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    writer = task_writer(queue)
    task(writer, "first")
    writer.abort("s", "first")
    commits = [task(writer, "second", part) for part in range(2)]
    assert writer.commit("s", "second", commits).total == 2 * ROWS
    assert_exact(queue, "s", 2 * ROWS)


def test_a_speculative_task_after_the_commit_stages_nothing(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    writer = task_writer(queue)
    first = task(writer, "w")
    late = task(writer, "w", part=1, interleaved=lambda: writer.commit("s", "w", [first]))
    assert (late.rows, late.staging_key) == (0, "")
    assert_exact(queue, "s", ROWS)


def test_a_speculative_task_during_the_commit_stages_nothing(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    writer = task_writer(queue)
    first = task(writer, "w")
    late = task(
        writer, "w", part=1, interleaved=lambda: publish_partly(writer, "s", "w", [first], 1)
    )
    assert (late.rows, late.staging_key) == (0, "")
    writer.commit("s", "w", [first, late])
    assert_exact(queue, "s", ROWS)


def test_a_committed_write_cannot_be_aborted(queue: Queue, task: Callable[..., TaskCommit]) -> None:
    writer = task_writer(queue)
    commits = [task(writer, "w", part) for part in range(2)]
    publish_partly(writer, "s", "w", commits, 1)
    writer.abort("s", "w")
    assert queue.keys.staged_part("s", "w", 1, 1) in staging_keys(queue)
    assert writer.commit("s", "another", []).total == 2 * ROWS
    assert_exact(queue, "s", 2 * ROWS)


def test_lost_staged_rows_of_an_overwrite_are_not_mistaken_for_the_first_write(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    writer = task_writer(queue, onExisting="overwrite")
    writer.commit("s", "first", [task(writer, "first")])
    lose = redis_command("DEL", queue.keys.staged_part("s", "second", 0, 0), parse=as_int)
    with pytest.raises(StagedDataLost):
        task(writer, "second", interleaved=lambda: queue.client.execute(lose), after=500)
