"""Spark reads a queue as tables, without consuming from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.batch import batch_job_id
from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, staged_writes
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark.stream_partitioning import last_id, read_page, split_range
from airflow_provider_chasqui.spark.views import coercer
from tests.spark.writing import queue_url


def view(spark: Any, queue: Queue, name: str, **options: Any) -> Any:
    reader = spark.read.format("chasqui").option("queueName", queue.name).option("view", name)
    return reader.option("url", queue_url(queue)).options(**options).load()


def add(queue: Queue, stream: str, *entries: str) -> None:
    """Add entries with these ids to a stream."""
    queue.client.pipeline(
        [redis_command("XADD", stream, entry, "d", "x", parse=as_raw) for entry in entries]
    )


@pytest.fixture
def used(queue: Queue) -> Queue:
    """Return a queue with 300 jobs: 100 done, 100 dead (two errors), 90 waiting, 10 running."""
    queue.add_batch([{"id": n, "tags": ["a"], "raw": b"\x01"} for n in range(300)], batch_id="b")
    keys, client = queue.keys, queue.client
    client.execute(consumer_group.create(keys, "default"))
    raw = client.execute(consumer_group.read(keys, "default", "tests", 210, 0))
    entries: list[Any] = [consumer_group.parse_entry(entry, 2**62) for entry in raw]
    completions = [Completion(entry.id, entry.job.id, b"\x2a") for entry in entries[:100]]
    assert all(client.execute(consumer_group.ack_with_results(keys, "default", completions)))
    dead_letters = [
        NewDeadLetter(
            entry.id,
            encode_job(entry.job),
            "",
            "retries_exhausted",
            error=f"Error{n % 2}: no",
            attempts=3,
            failed_at_ms=1_779_000_000_000,
            job_id=entry.job.id,
        )
        for n, entry in enumerate(entries[100:200])
    ]
    assert all(client.execute(consumer_group.move_to_dlq(keys, "default", "tests", dead_letters)))
    return queue


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_jobs_are_read_without_consuming_them(spark: Any, used: Queue) -> None:
    add(used, used.keys.stream, "*")
    before = used.depth()
    jobs = view(spark, used, "jobs", payloadSchema="id BIGINT, tags ARRAY<STRING>, raw BINARY")
    rows = jobs.orderBy("data.id").collect()
    assert len(rows) == 101
    unreadable, first = rows[0], rows[1]
    assert (unreadable["job_id"], unreadable["payload"]) == (None, None)
    assert unreadable["payload_raw"] == b"x"
    assert (first["job_id"], first["batch_id"], first["attempt"]) == ("batch:b:0:200", "b", 1)
    assert json.loads(first["payload"]) == {"id": 200, "tags": ["a"], "raw": {"base64": "AQ=="}}
    assert first["data"].asDict() == {"id": 200, "tags": ["a"], "raw": b"\x01"}
    assert used.depth() == before
    assert jobs.where("created_at > enqueued_at").count() == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_dead_letters_are_selected_in_sql_and_replayed_once(spark: Any, used: Queue) -> None:
    dead_letters = view(spark, used, "dlq")
    counts = dead_letters.groupBy("error").count().collect()
    assert {row["error"]: row["count"] for row in counts} == {
        "Error0: no": 50,
        "Error1: no": 50,
    }
    row = dead_letters.orderBy("entry_id").first()
    assert (row["reason"], row["attempts"], row["batch_id"]) == ("retries_exhausted", 3, "b")
    assert used.batch_progress("b").dead == 100
    selected = dead_letters.where("error LIKE 'Error1%'").cache()
    assert selected.count() == 50
    for _ in range(2):
        writer = selected.write.format("chasqui").mode("append").option("action", "replay")
        writer = writer.option("queueName", used.name).option("url", queue_url(used))
        writer.option("batchId", "r").option("maxReplays", 2).save()
    assert used.client.execute(staged_writes.get_report(used.keys, "r")) == {
        "matched": 100,
        "affected": 50,
        "missing": 50,
        "max_replays_reached": 0,
        "unreadable": 0,
    }
    assert used.batch_progress("b").dead == 50
    assert used.depth().waiting == 140


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_results_delayed_jobs_and_events_are_read_as_tables(spark: Any, used: Queue) -> None:
    from datetime import timedelta

    results = view(spark, used, "results", batchId="b", partitions=3)
    assert results.where("payload = '42' AND batch_id = 'b'").count() == 100
    assert results.select("job_id").distinct().count() == 100
    # As a worker of ChasquiMQ stores them: the result of a job of the batch, and of another job.
    used.client.execute(redis_command("HDEL", used.keys.batch_results("b", 0, 0), 7, parse=as_raw))
    for job_id in (batch_job_id("b", 0, 7), "alone"):
        key = used.keys.result(job_id)
        used.client.execute(redis_command("SET", key, b"\x2b", parse=as_raw))
    assert results.where("payload = '42'").count() == 99
    assert [row["job_id"] for row in results.where("payload = '43'").collect()] == ["batch:b:0:7"]
    assert view(spark, used, "results").select("job_id").distinct().count() == 101
    assert view(spark, used, "results").count() == 101
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
def test_ranges_cover_every_entry_once_and_have_similar_sizes(queue: Queue, parts: int) -> None:
    """The stream has a long gap, a burst, single entries and another burst."""
    key = queue.keys.stream
    bursts = [
        f"{ms}-{n}"
        for start in (10**12, 10**12 + 10**7)
        for ms in range(start, start + 500)
        for n in (0, 1)
    ]
    single_entries = [f"{10**12 + 10**6 * n}-5" for n in range(1, 9)]
    ids = sorted({"5-0", *bursts, *single_entries}, key=StreamId.parse)
    add(queue, key, *ids)
    start, end = StreamId(0), queue.client.execute(last_id(key))
    ranges = queue.client.run_flow(split_range(key, start, end, parts))
    assert 1 <= len(ranges) <= parts
    pages = [queue.client.execute(read_page(key, *bounds, 10_000)) for bounds in ranges]
    assert [entry[0].decode() for page in pages for entry in page] == ids
    assert max(len(page) for page in pages) <= len(ids) / parts * 2 + 10
    assert queue.client.run_flow(split_range(f"{key}-none", start, end, parts)) == []


def test_a_payload_that_does_not_match_its_schema_is_null() -> None:
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
    coerce = coercer(schema)
    assert coerce("no map") is None
    assert coerce({}) == dict.fromkeys(schema.names)
    bad = {"n": 2**31, "d": "1000.00", "at": "soon", "day": 7, "m": [], "text": []}
    assert coerce(bad) == dict.fromkeys(schema.names)
    good = coerce({"n": 1, "d": "1.5", "at": 0, "day": "2026-05-17", "m": {"a": 1}, "text": 7})
    assert str(good["d"]) == "1.50"
    assert good["at"].isoformat() == "1970-01-01T00:00:00+00:00"
    assert (good["m"], good["text"], str(good["day"])) == ([("a", 1)], "7", "2026-05-17")
