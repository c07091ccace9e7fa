"""A queue is a table to Spark, and reading it takes nothing from the workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, staged_writes
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark import stream_partitioning
from airflow_provider_chasqui.spark.views import coercer
from tests.spark.writing import where


def view(spark: Any, queue: Queue, name: str, **options: Any) -> Any:
    reader = spark.read.format("chasqui").option("queueName", queue.name).option("view", name)
    return reader.option("url", where(queue)).options(**options).load()


def add(queue: Queue, stream: str, *entries: str) -> None:
    """Put entries with these ids on a stream."""
    ops = [redis_command("XADD", stream, each, "d", "x", parse=as_raw) for each in entries]
    queue.client.pipeline(ops)


@pytest.fixture
def used(queue: Queue) -> Queue:
    """A queue with 300 jobs: 100 done, 100 dead for two reasons, 90 waiting, 10 running."""
    queue.add_batch([{"id": n, "tags": ["a"], "raw": b"\x01"} for n in range(300)], batch_id="b")
    keys, drive = queue.keys, queue.client
    drive.execute(consumer_group.create(keys, "default"))
    raw = drive.execute(consumer_group.read(keys, "default", "tests", 210, 0, 30_000))
    entries: list[Any] = [consumer_group.parse_entry(each, 2**62) for each in raw]
    done = [Completion(each.id, each.job.id, b"\x2a") for each in entries[:100]]
    assert all(drive.execute(consumer_group.ack_with_results(keys, "default", done)))
    letters = [
        NewDeadLetter(
            each.id, encode_job(each.job), "", "retries_exhausted", error=f"Error{n % 2}: no",
            attempts=3, failed_at_ms=1_779_000_000_000, job_id=each.job.id,
        )
        for n, each in enumerate(entries[100:200])
    ]  # fmt: skip
    assert all(drive.execute(consumer_group.move_to_dlq(keys, "default", letters)))
    return queue


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_jobs_are_read_and_stay_where_they_are(spark: Any, used: Queue) -> None:
    add(used, used.keys.stream, "*")
    before = used.depth()
    jobs = view(spark, used, "jobs", payloadSchema="id BIGINT, tags ARRAY<STRING>, raw BINARY")
    found = jobs.orderBy("data.id").collect()
    assert len(found) == 101
    unreadable, first = found[0], found[1]
    assert (unreadable["job_id"], unreadable["payload"]) == (None, None)
    assert unreadable["payload_raw"] == b"x"
    assert (first["job_id"], first["batch_id"], first["attempt"]) == ("batch:b:0:200", "b", 0)
    assert json.loads(first["payload"]) == {"id": 200, "tags": ["a"], "raw": "AQ=="}
    assert first["data"].asDict() == {"id": 200, "tags": ["a"], "raw": b"\x01"}
    assert used.depth() == before
    assert jobs.where("created_at > enqueued_at").count() == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_letters_are_chosen_in_sql_and_replayed_once(spark: Any, used: Queue) -> None:
    letters = view(spark, used, "dlq")
    assert {row["error"]: row["count"] for row in letters.groupBy("error").count().collect()} == {
        "Error0: no": 50, "Error1: no": 50,
    }  # fmt: skip
    row = letters.orderBy("entry_id").first()
    assert (row["reason"], row["attempts"], row["batch_id"]) == ("retries_exhausted", 3, "b")
    assert used.batch_progress("b").dead == 100
    chosen = letters.where("error LIKE 'Error1%'").cache()
    assert chosen.count() == 50
    for _ in range(2):
        writer = chosen.write.format("chasqui").mode("append").option("action", "replay")
        writer = writer.option("queueName", used.name).option("url", where(used))
        writer.option("batchId", "r").option("maxReplays", 2).save()
    assert used.client.execute(staged_writes.get_report(used.keys, "r")) == {
        "matched": 100, "affected": 50, "missing": 50, "max_replays_reached": 0, "unreadable": 0,
    }  # fmt: skip
    assert used.batch_progress("b").dead == 50
    assert used.depth().waiting == 140


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_results_delayed_and_events_are_tables_too(spark: Any, used: Queue) -> None:
    from datetime import timedelta

    results = view(spark, used, "results", batchId="b", partitions=3)
    assert results.where("payload = '42' AND batch_id = 'b'").count() == 100
    assert view(spark, used, "results").count() == 100
    with pytest.raises(PySparkException, match="CMQ-304"):
        view(spark, used, "results", batchId="nope").count()

    used.add_many({"payload": n, "delay": timedelta(minutes=n)} for n in range(1, 41))
    delayed = view(spark, used, "delayed", partitions=4)
    assert delayed.rdd.getNumPartitions() == 4
    assert sorted(int(row["payload"]) for row in delayed.collect()) == list(range(1, 41))
    middle = used.job_status(delayed.where("payload = '20'").first()["job_id"]).due_ms
    assert view(spark, used, "delayed", since=middle).count() == 21
    assert view(spark, used, "delayed", until=middle).count() == 19

    for n in range(5):
        fields = ("e", "completed", "id", f"j{n}", "ts", 1_779_000_000_000, "duration_us", n)
        used.client.execute(
            redis_command("XADD", used.keys.events, f"{1000 + n}-0", *fields, parse=as_raw)
        )
    events = view(spark, used, "events", since="1970-01-01T00:00:01.001", until=1004)
    assert sorted(row["duration_us"] for row in events.collect()) == [1, 2, 3]
    assert view(spark, used, "events", since="2026-01-01").count() == 0


@pytest.mark.parametrize("parts", [1, 2, 4, 7])
def test_ranges_cover_everything_once_and_are_of_like_size(queue: Queue, parts: int) -> None:
    """A long silence, a burst, a trickle, another burst: what real streams look like."""
    key = queue.keys.stream
    bursts = [
        f"{ms}-{n}"
        for start in (10**12, 10**12 + 10**7)
        for ms in range(start, start + 500)
        for n in (0, 1)
    ]
    trickle = [f"{10**12 + 10**6 * n}-5" for n in range(1, 9)]
    ids = sorted({"5-0", *bursts, *trickle}, key=stream_partitioning.parse_stream_id)
    add(queue, key, *ids)
    end = stream_partitioning.parse_stream_id(
        queue.client.execute(stream_partitioning.last_id(key))
    )
    found = queue.client.run_flow(stream_partitioning.split_range(key, (0, 0), end, parts))
    assert 1 <= len(found) <= parts
    pages = [
        queue.client.execute(stream_partitioning.read_page(key, *each, 10_000)) for each in found
    ]
    assert [entry[0].decode() for page in pages for entry in page] == ids
    assert max(len(page) for page in pages) <= len(ids) / parts * 2 + 10
    assert (
        queue.client.run_flow(stream_partitioning.split_range(f"{key}-none", (0, 0), end, parts))
        == []
    )


def test_a_payload_that_does_not_fit_its_schema_is_null() -> None:
    from pyspark.sql import types as t

    schema = t.StructType(
        [
            t.StructField("n", t.IntegerType()),
            t.StructField("d", t.DecimalType(5, 2)),
            t.StructField("at", t.TimestampType()),
            t.StructField("day", t.DateType()),
            t.StructField("m", t.MapType(t.StringType(), t.LongType())),
            t.StructField("text", t.StringType()),
        ]
    )
    fit = coercer(schema)
    assert fit("no map") is None
    assert fit({}) == dict.fromkeys(schema.names)
    bad = {"n": 2**31, "d": "1000.00", "at": "soon", "day": 7, "m": [], "text": []}
    assert fit(bad) == dict.fromkeys(schema.names)
    good = fit({"n": 1, "d": "1.5", "at": 0, "day": "2026-05-17", "m": {"a": 1}, "text": 7})
    assert str(good["d"]) == "1.50"
    assert good["at"].isoformat() == "1970-01-01T00:00:00+00:00"
    assert (good["m"], good["text"], str(good["day"])) == ([("a", 1)], "7", "2026-05-17")
