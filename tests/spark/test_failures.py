"""The failure matrix: whatever goes wrong in Spark, each row is a job once.

`at_least_once` is the control. Where a fault really happened it leaves duplicates or half a batch; a
scenario that `at_least_once` survives would prove nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.errors import BatchNotFound
from airflow_provider_chasqui.queue import Queue
from tests.spark import faults
from tests.spark.writing import assert_exact, leftovers, numbers, settle_all, ship

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS, PARTS = 20_000, 4
SAFE = [{"delivery": "exactly_once"}, {"delivery": "dedup", "dedupKey": "id"}]
DIRECT = {"delivery": "at_least_once"}


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    df = spark.range(0, ROWS, 1, PARTS).selectExpr("id", "concat('row ', id) AS text")
    # Both workers have run Python before the first fault, so that speed differs by the fault only.
    df.foreachPartition(lambda part: None)
    return df


BROKEN = "chasqui-broken"


def assert_doubled(rows: Any, queue: Queue) -> None:
    """The control. On a slow machine Spark may replace a task before it has sent anything, and
    then the fault has not struck: once more."""
    for turn in range(1, 6):
        ship(rows, queue, f"s{turn}", format=BROKEN, **DIRECT)
        if sum(numbers(queue).values()) > turn * ROWS:
            return
    pytest.fail("at_least_once delivery has survived the fault: it proves nothing")


@pytest.mark.parametrize("options", [*SAFE, DIRECT], ids=lambda each: each["delivery"])
def test_a_task_that_breaks_in_the_middle_is_run_again(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.source(faults.breaking(1, 2500)))
    if options is DIRECT:
        assert_doubled(rows, queue)
    else:
        ship(rows, queue, "s", format=BROKEN, **options)
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, DIRECT], ids=lambda each: each["delivery"])
def test_a_slow_task_is_run_twice_at_the_same_time(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.source(faults.lingering(0, 2500, 60)))
    if options is DIRECT:
        assert_doubled(rows, queue)
    else:
        ship(rows, queue, "s", format=BROKEN, **options)
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, DIRECT], ids=lambda each: each["delivery"])
def test_the_whole_job_is_run_again(rows: Any, queue: Queue, options: dict[str, str]) -> None:
    ship(rows, queue, "s", **options)
    ship(rows.repartition(3), queue, "s", **options)
    if options is DIRECT:
        assert sum(numbers(queue).values()) >= 2 * ROWS
    else:
        assert_exact(queue, "s", ROWS)


@pytest.mark.parametrize("options", [*SAFE, DIRECT], ids=lambda each: each["delivery"])
def test_a_job_that_fails_is_run_again_in_other_partitions(
    spark: Any, rows: Any, queue: Queue, options: dict[str, str]
) -> None:
    spark.dataSource.register(faults.source(faults.breaking(2, 2500, always=True)))
    with pytest.raises(PySparkException, match="broken on purpose"):
        ship(rows, queue, "s", format=BROKEN, **options)
    if options["delivery"] == "exactly_once":
        assert not numbers(queue), "nothing of a failed write may be seen"
        assert leftovers(queue) == [queue.keys.staged_parts("s")], "only the mark of the abort"
        with pytest.raises(BatchNotFound):
            queue.batch_progress("s")
    else:
        assert 0 < len(numbers(queue)) < ROWS
    ship(rows.repartition(3), queue, "s", **options)
    if options is DIRECT:
        assert sum(numbers(queue).values()) > ROWS
    else:
        assert_exact(queue, "s", ROWS)


def test_a_commit_that_breaks_in_the_middle_is_carried_on(
    spark: Any, rows: Any, queue: Queue
) -> None:
    spark.dataSource.register(faults.source(calls=2))
    with pytest.raises(PySparkException, match="broke on purpose"):
        ship(rows, queue, "s", format=BROKEN)
    assert 0 < sum(numbers(queue).values()) < ROWS
    assert queue.batch_progress("s").total is None, "half a batch is not taken for a whole one"
    # Spark has called abort; what was promised is still there. Another DataFrame changes nothing.
    ship(rows.limit(5), queue, "s")
    assert_exact(queue, "s", ROWS)


def test_an_interrupted_ship_needs_no_spark_to_go_on(spark: Any, rows: Any, queue: Queue) -> None:
    spark.dataSource.register(faults.source(calls=2))
    with pytest.raises(PySparkException, match="broke on purpose"):
        ship(rows, queue, "s", format=BROKEN)
    found = queue.client.run_flow(staged_writes.resume(queue.keys, "s"))
    assert (found.state, found.total) == ("done", ROWS)
    assert_exact(queue, "s", ROWS)
    assert queue.client.run_flow(staged_writes.resume(queue.keys, "s")) == found


def test_jobs_of_a_half_published_ship_may_be_done_before_the_rest_comes(
    spark: Any, rows: Any, queue: Queue
) -> None:
    spark.dataSource.register(faults.source(calls=2))
    with pytest.raises(PySparkException, match="broke on purpose"):
        ship(rows, queue, "s", format=BROKEN)
    early = settle_all(queue)
    assert 0 < early < ROWS
    assert not queue.batch_progress("s").finished
    ship(rows, queue, "s")
    assert early + settle_all(queue) == ROWS
    progress = queue.batch_progress("s")
    assert progress.finished
    assert progress.done == ROWS
