"""The failure matrix: after every fault in Spark, each row is a job exactly once.

`delivery=at_least_once` is the control. A fault that really happened leaves duplicates or a partial
batch there; a scenario that it survives would prove nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.errors import BatchNotFound
from airflow_provider_chasqui.queue import Queue
from tests.spark import faults
from tests.spark.writing import assert_exact, complete_all, row_counts, staging_keys, write_batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS, PARTS = 20_000, 4
SAFE = [{"delivery": "exactly_once"}, {"delivery": "dedup", "dedupKey": "id"}]
CONTROL = {"delivery": "at_least_once"}


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    df = spark.range(0, ROWS, 1, PARTS).selectExpr("id", "concat('row ', id) AS text")
    # Run Python on both workers before the first fault, so that only the fault affects the speed.
    df.foreachPartition(lambda part: None)
    return df


FAULTY = "chasqui-faulty"


def assert_duplicates(rows: Any, queue: Queue) -> None:
    """Assert that the control leaves duplicates.

    On a slow machine Spark may replace a task before it has sent a row. The fault has then not
    happened, and the write is repeated.
    """
    for attempt in range(1, 6):
        write_batch(rows, queue, f"s{attempt}", format=FAULTY, **CONTROL)
        if sum(row_counts(queue).values()) > attempt * ROWS:
            return
    pytest.fail("at_least_once left no duplicates in 5 writes, so the fault did not happen")


@pytest.mark.parametrize("options", [*SAFE, CONTROL], ids=lambda options: options["delivery"])
def test_a_failed_task_is_retried(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.faulty_source(faults.failing_task(1, 2500)))
    if options is CONTROL:
        assert_duplicates(rows, queue)
    else:
        write_batch(rows, queue, "s", format=FAULTY, **options)
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, CONTROL], ids=lambda options: options["delivery"])
def test_a_slow_task_has_a_speculative_attempt(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.faulty_source(faults.hanging_task(0, 2500, 60)))
    if options is CONTROL:
        assert_duplicates(rows, queue)
    else:
        write_batch(rows, queue, "s", format=FAULTY, **options)
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, CONTROL], ids=lambda options: options["delivery"])
def test_the_whole_spark_job_is_repeated(rows: Any, queue: Queue, options: dict[str, str]) -> None:
    write_batch(rows, queue, "s", **options)
    write_batch(rows.repartition(3), queue, "s", **options)
    if options is CONTROL:
        assert sum(row_counts(queue).values()) >= 2 * ROWS
    else:
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, CONTROL], ids=lambda options: options["delivery"])
def test_a_failed_spark_job_is_repeated_with_other_partitions(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.faulty_source(faults.failing_task(2, 2500, always=True)))
    with pytest.raises(PySparkException, match="injected task failure"):
        write_batch(rows, queue, "s", format=FAULTY, **options)
    if options["delivery"] == "exactly_once":
        assert not row_counts(queue), "no row of a failed write may be visible"
        assert staging_keys(queue) == [queue.keys.staged_parts("s")], (
            "only the abort marker may remain"
        )
        with pytest.raises(BatchNotFound):
            queue.batch_progress("s")
    else:
        assert 0 < len(row_counts(queue)) < ROWS
    write_batch(rows.repartition(3), queue, "s", **options)
    if options is CONTROL:
        assert sum(row_counts(queue).values()) > ROWS
    else:
        assert_exact(queue, "s", ROWS)


def test_an_interrupted_commit_is_completed_by_the_next_write(
    spark: Any, rows: Any, queue: Queue
) -> None:
    spark.dataSource.register(faults.faulty_source(calls=2))
    with pytest.raises(PySparkException, match="injected commit failure"):
        write_batch(rows, queue, "s", format=FAULTY)
    assert 0 < sum(row_counts(queue).values()) < ROWS
    assert queue.batch_progress("s").total is None, "a partly published batch must have no total"
    # Spark has called abort, but the write is committed. Writing another DataFrame changes nothing.
    write_batch(rows.limit(5), queue, "s")
    assert_exact(queue, "s", ROWS)


def test_an_interrupted_commit_is_completed_without_spark(
    spark: Any, rows: Any, queue: Queue
) -> None:
    spark.dataSource.register(faults.faulty_source(calls=2))
    with pytest.raises(PySparkException, match="injected commit failure"):
        write_batch(rows, queue, "s", format=FAULTY)
    write = queue.client.run_flow(staged_writes.resume(queue.keys, "s"))
    assert (write.state, write.total) == ("done", ROWS)
    assert_exact(queue, "s", ROWS)
    assert queue.client.run_flow(staged_writes.resume(queue.keys, "s")) == write


def test_jobs_of_a_partly_published_write_can_complete_before_the_others_are_published(
    spark: Any, rows: Any, queue: Queue
) -> None:
    spark.dataSource.register(faults.faulty_source(calls=2))
    with pytest.raises(PySparkException, match="injected commit failure"):
        write_batch(rows, queue, "s", format=FAULTY)
    completed = complete_all(queue)
    assert 0 < completed < ROWS
    assert not queue.batch_progress("s").finished
    write_batch(rows, queue, "s")
    assert completed + complete_all(queue) == ROWS
    progress = queue.batch_progress("s")
    assert progress.finished
    assert progress.done == ROWS
