"""Queues as streams, both ways, and what a restart in the middle does to them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.spark import faults
from tests.spark.writing import entries, leftovers, where

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def emit(queue: Queue, first: int, count: int) -> None:
    key = queue.keys.events
    ops = [
        redis_command("XADD", key, "*", "e", "completed", "id", f"j{n}", "ts", 1, parse=as_raw)
        for n in range(first, first + count)
    ]
    queue.client.pipeline(ops)


def events(spark: Any, queue: Queue, **options: Any) -> Any:
    reader = (
        spark.readStream.format("chasqui").option("queueName", queue.name).option("view", "events")
    )
    return reader.option("url", where(queue)).options(**options).load()


def run(stream: Any, folder: Path, format: str = "chasqui", **options: Any) -> list[int]:
    """Let a query work off what is there; return the rows of its micro-batches."""
    writer = stream.writeStream.format(format).options(**options)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def test_a_stream_keeps_its_limit_and_goes_on_where_it_was(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    emit(queue, 0, 250)
    assert run(events(spark, queue, maxRowsPerTrigger=100), tmp_path, "parquet", path=out) == [
        100, 100, 50,
    ]  # fmt: skip
    emit(queue, 250, 30)
    assert run(events(spark, queue, maxRowsPerTrigger=100), tmp_path, "parquet", path=out) == [30]
    seen = Counter(row["job_id"] for row in spark.read.parquet(out).collect())
    assert seen == Counter(f"j{n}" for n in range(280))


def test_a_stream_that_breaks_in_mid_batch_ships_each_row_once(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    emit(queue, 0, 250)
    stream = events(spark, queue, maxRowsPerTrigger=100).select("job_id")
    sink = {"queueName": f"{queue.name}-out", "url": where(queue), "batchId": "st"}
    spark.dataSource.register(faults.source(calls=1))
    with pytest.raises(StreamingQueryException, match="broke on purpose"):
        run(stream, tmp_path, "chasqui-broken", **sink)
    with Queue(sink["queueName"], where(queue)) as out:
        assert out.batch_progress("st.0").total == 100
        assert out.batch_progress("st.1").total is None
        assert 100 < len(entries(out)) <= 200
        run(stream, tmp_path, **sink)
        seen = Counter(entry.job.payload["job_id"] for entry in entries(out))
        assert seen == Counter(f"j{n}" for n in range(250))
        assert [out.batch_progress(f"st.{n}").total for n in range(3)] == [100, 100, 50]
        assert leftovers(out) == []
