"""Streaming reads and writes, and restarts in the middle of a micro-batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.spark import faults
from tests.spark.writing import entries, queue_url, staging_keys

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
    return reader.option("url", queue_url(queue)).options(**options).load()


def run(stream: Any, folder: Path, format: str = "chasqui", **options: Any) -> list[int]:
    """Run a query with the trigger availableNow; return the rows of its micro-batches."""
    writer = stream.writeStream.format(format).options(**options)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ]


def test_a_stream_honours_its_limit_and_resumes_at_its_offset(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    emit(queue, 0, 250)
    stream = events(spark, queue, maxRowsPerTrigger=100)
    assert run(stream, tmp_path, "parquet", path=out) == [100, 100, 50]
    emit(queue, 250, 30)
    stream = events(spark, queue, maxRowsPerTrigger=100)
    assert run(stream, tmp_path, "parquet", path=out) == [30]
    counts = Counter(row["job_id"] for row in spark.read.parquet(out).collect())
    assert counts == Counter(f"j{n}" for n in range(280))


def test_a_stream_that_fails_in_a_commit_writes_each_row_once(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    emit(queue, 0, 250)
    stream = events(spark, queue, maxRowsPerTrigger=100).select("job_id")
    sink = {"queueName": f"{queue.name}-out", "url": queue_url(queue), "batchId": "st"}
    spark.dataSource.register(faults.faulty_source(calls=1))
    with pytest.raises(StreamingQueryException, match="injected commit failure"):
        run(stream, tmp_path, "chasqui-faulty", **sink)
    with Queue(sink["queueName"], queue_url(queue)) as out:
        assert out.batch_progress("st.0").total == 100
        assert out.batch_progress("st.1").total is None
        assert 100 < len(entries(out)) <= 200
        run(stream, tmp_path, **sink)
        counts = Counter(entry.job.payload["job_id"] for entry in entries(out))
        assert counts == Counter(f"j{n}" for n in range(250))
        assert [out.batch_progress(f"st.{n}").total for n in range(3)] == [100, 100, 50]
        assert staging_keys(out) == []
