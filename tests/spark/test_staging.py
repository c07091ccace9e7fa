"""Tasks that come at a bad moment stage nothing that nobody would take away. No Spark is needed."""

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
from airflow_provider_chasqui.spark import writer
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.writer import TaskCommit, TaskWriter
from tests.conftest import Server
from tests.spark.faults import publish_some
from tests.spark.writing import assert_exact, leftovers, where

ROWS = 1500  # more than one call


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, server.url, dialect=server.dialect) as opened:
        yield opened


def sender(queue: Queue, **options: str) -> TaskWriter:
    given = {"queueName": queue.name, "dialect": queue.client.dialect(), **options}
    return TaskWriter(from_url(where(queue)), WriteOptions.parse(given), ["id"])


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TaskCommit]:
    """Run one task of a write; `meanwhile` happens between its look at the ship and its rows,
    or, with `after`, when so many of them are staged."""

    def run(
        by: TaskWriter, write: str, part: int = 0, meanwhile: Any = None, after: int = 0
    ) -> TaskCommit:
        context = SimpleNamespace(partitionId=lambda: part, taskAttemptId=lambda: part)
        monkeypatch.setattr(writer.TaskContext, "get", lambda: context)

        def batches() -> Iterator[Any]:
            for first in range(0, ROWS, 500):
                if meanwhile and first == after:
                    meanwhile()
                ids = range(part * ROWS + first, part * ROWS + first + 500)
                yield pa.RecordBatch.from_pydict({"id": list(ids)})

        return by.write("s", write, batches())

    return run


@pytest.mark.parametrize("after", [0, 500])
def test_a_task_that_goes_on_after_the_abort_leaves_nothing_behind(
    queue: Queue, task: Callable[..., TaskCommit], after: int
) -> None:
    mine = sender(queue)
    task(mine, "w", part=1)
    assert queue.keys.staged_part("s", "w", 1, 1) in leftovers(queue)
    with pytest.raises(StagedDataLost, match="given up"):
        task(mine, "w", meanwhile=lambda: mine.abort("s", "w"), after=after)
    with pytest.raises(StagedDataLost, match="given up"):
        task(mine, "w", part=2)
    assert leftovers(queue) == [queue.keys.staged_parts("s")], "only the mark"


def test_the_mark_of_a_write_that_was_given_up_goes_by_itself(queue: Queue) -> None:
    sender(queue, stagingTtl="2m").abort("s", "w")
    life = queue.client.execute(redis_command("PTTL", queue.keys.staged_parts("s"), parse=as_int))
    assert 0 < life <= 120_000


def test_another_write_of_a_ship_begins_anew_after_an_abort(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    mine = sender(queue)
    task(mine, "first")
    mine.abort("s", "first")
    sent = [task(mine, "second", part) for part in range(2)]
    assert mine.commit("s", "second", sent).total == 2 * ROWS
    assert_exact(queue, "s", 2 * ROWS)


def test_a_copy_of_a_task_that_comes_after_the_commit_stages_nothing(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    mine = sender(queue)
    sent = task(mine, "w")
    late = task(mine, "w", part=1, meanwhile=lambda: mine.commit("s", "w", [sent]))
    assert (late.rows, late.staging_key) == (0, "")
    assert_exact(queue, "s", ROWS)


def test_a_copy_of_a_task_that_comes_during_the_commit_stages_nothing(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    mine = sender(queue)
    sent = task(mine, "w")
    late = task(mine, "w", part=1, meanwhile=lambda: publish_some(mine, "s", "w", [sent], 1))
    assert (late.rows, late.staging_key) == (0, "")
    mine.commit("s", "w", [sent, late])
    assert_exact(queue, "s", ROWS)


def test_a_write_that_has_won_is_not_given_up(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    mine = sender(queue)
    sent = [task(mine, "w", part) for part in range(2)]
    publish_some(mine, "s", "w", sent, 1)
    mine.abort("s", "w")
    assert queue.keys.staged_part("s", "w", 1, 1) in leftovers(queue)
    assert mine.commit("s", "another", []).total == 2 * ROWS
    assert_exact(queue, "s", 2 * ROWS)


def test_a_stage_that_is_lost_while_a_ship_is_sent_anew_is_not_taken_for_the_one_before(
    queue: Queue, task: Callable[..., TaskCommit]
) -> None:
    mine = sender(queue, onExisting="overwrite")
    mine.commit("s", "first", [task(mine, "first")])
    lose = redis_command("DEL", queue.keys.staged_part("s", "second", 0, 0), parse=as_int)
    with pytest.raises(StagedDataLost):
        task(mine, "second", meanwhile=lambda: queue.client.execute(lose), after=500)
