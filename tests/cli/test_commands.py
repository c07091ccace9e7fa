"""Every command, for people and for machines, on every server."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui import Unrecoverable
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.cli.conftest import Answer
from tests.conftest import Server

Front = Callable[..., Answer]


def work(server: Server, name: str) -> None:
    """Run what is on the queue, as a worker would, until it is empty."""

    async def handle(job, context) -> object:
        context.progress({"half": True})
        if job.name == "die":
            raise Unrecoverable(job.payload or "no such address")
        return {"did": job.payload}

    async def until_empty() -> None:
        async with AsyncQueue(name, server.url, dialect=server.dialect) as queue:
            consumer = Consumer(queue, handle, ConsumerConfig(store_results=True))
            running = asyncio.create_task(consumer.run())
            while (depth := await queue.depth()).waiting or depth.running:
                await asyncio.sleep(0.02)
            consumer.stop()
            await running

    asyncio.run(until_empty())


def test_inspect(front: Front, queue: Queue, server: Server) -> None:
    empty = front("inspect", queue.name)
    assert "0 (group not created)" in empty.out
    queue.add(1)
    queue.add(1, delay=timedelta(hours=1))
    said = front("inspect", queue.name)
    assert said.code == 0
    for row in ("stream depth", "pending", "DLQ depth", "delayed depth",
                "oldest delayed lag (ms)", "repeatable count"):  # fmt: skip
        assert row in said.out
    facts = front("inspect", queue.name, "--json").json
    assert facts["stream_depth"] == facts["waiting"] == facts["delayed_depth"] == 1
    assert facts["group_created"] is False
    assert 3500_000 < facts["next_due_ms"] - current_time_ms() <= 3600_000
    assert facts["dialect"] == server.dialect


def test_watch_shows_what_changed(front: Front, queue: Queue) -> None:
    queue.add(1)
    said = front("watch", queue.name, "--interval-ms", "1", "--count", "2")
    assert said.code == 0
    assert "stream depth" in said.out
    assert "=" in said.out
    lines = front("watch", queue.name, "--interval-ms", "1", "--count", "3", "--json").lines
    assert [each["stream_depth"] for each in lines] == [1, 1, 1]


def test_add_gives_the_id_and_says_if_it_was_taken(front: Front, queue: Queue) -> None:
    said = front("add", queue.name, '{"to": "ada"}', "--job-name", "welcome")
    assert said.code == 0
    found = queue.job_status(said.out.strip())
    assert found.job is not None
    assert (found.job.name, found.job.payload) == ("welcome", {"to": "ada"})
    args = ("add", queue.name, "1", "--id", "mine", "--dedup-ttl", "1d", "--json")
    assert front(*args).json == {"queue": queue.name, "id": "mine", "created": True}
    assert front(*args).json == {"queue": queue.name, "id": "mine", "created": False}
    assert "was there already" in front(*args[:-1]).out
    front("add", queue.name, "--delay", "1h30m", "--id", "later")
    assert queue.job_status("later").state == "delayed"
    front("add", queue.name, "--run-at", "2040-01-01T00:00Z", "--id", "x", "--max-attempts", "1")
    assert queue.job_status("x").state in ("delayed", "unknown")


def test_add_reads_stdin(front: Front, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('["from", "stdin"]'))
    job_id = front("add", queue.name, "-").out.strip()
    found = queue.job_status(job_id)
    assert found.job is not None
    assert found.job.payload == ["from", "stdin"]


def test_lines_become_a_batch_once_however_often_they_are_sent(
    front: Front, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n"three"\n')
    args = ("add", queue.name, "--lines", str(file), "--batch-id", "b", "--job-name", "welcome")
    assert "batch b: 3 jobs handed off" in front(*args).out
    assert front(*args, "--json").json == {"queue": queue.name, "batch": "b", "total": 3}
    assert queue.depth().waiting == 3

    file.write_text('{"n": 1}\n{oops\n')
    bad = front("add", queue.name, "--lines", str(file), "--batch-id", "c")
    assert bad.code == 2
    assert "line 2 is not JSON" in bad.err
    assert queue.depth().waiting == 3  # not even its first line was sent


def test_jobs_in_pages(front: Front, queue: Queue, server: Server) -> None:
    ids = [each.job_id for each in queue.add_many([{"payload": n} for n in range(5)])]
    for n in range(3):
        queue.add(n, job_id=f"later-{n}", delay=timedelta(hours=n + 1))
    first = front("jobs", queue.name, "--state", "waiting", "--limit", "3", "--json").json
    assert [each["id"] for each in first["jobs"]] == ids[:3]
    args = ("jobs", queue.name, "--state", "waiting", "--limit", "3", "--json", "--after")
    rest = front(*args, first["next"]).json
    assert [each["id"] for each in rest["jobs"]] == ids[3:]
    assert rest["next"] is None
    later = front("jobs", queue.name, "--state", "delayed", "--limit", "2", "--json").json
    assert [each["id"] for each in later["jobs"]] == ["later-0", "later-1"]
    args = ("jobs", queue.name, "--state", "delayed", "--json", "--after", later["next"])
    assert [each["id"] for each in front(*args).json["jobs"]] == ["later-2"]

    from airflow_provider_chasqui.core.commands import consumer_group

    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "me", 2, 0, 30_000))
    running = front("jobs", queue.name, "--state", "running", "--json").json["jobs"]
    assert [(each["id"], each["consumer"]) for each in running] == [(ids[0], "me"), (ids[1], "me")]
    every = front("jobs", queue.name, "--json").json["jobs"]
    states = ["running"] * 2 + ["waiting"] * 3 + ["delayed"] * 3
    assert [each["state"] for each in every] == states
    table = front("jobs", queue.name).out
    assert ids[0] in table
    assert "due in" in table
    assert "no running jobs" in front("jobs", f"{queue.name}-none", "--state", "running").out


def test_a_job_is_told_from_its_beginning_to_its_end(
    front: Front, queue: Queue, server: Server
) -> None:
    queue.add({"n": 1}, job_id="fine", job_name="welcome")
    queue.add("\x1b[2Jgone", job_id="bad", job_name="die")
    work(server, queue.name)
    fine = front("job", queue.name, "fine", "--json").json
    assert (fine["state"], fine["result"]) == ("done", {"did": {"n": 1}})
    assert fine["progress"] == {"half": True}
    assert [each["event"] for each in fine["events"]] == ["active", "completed"]
    bad = front("job", queue.name, "bad", "--json").json
    assert (bad["state"], bad["reason"]) == ("dead", "unrecoverable")
    assert [each["event"] for each in bad["events"]] == ["active", "failed", "dlq"]
    said = front("job", queue.name, "bad").out
    assert "\x1b[2J" not in said  # what a job says cannot drive the terminal
    assert "\\x1b[2Jgone" in said
    unknown = front("job", queue.name, "nobody")
    assert unknown.code == 1
    assert "CMQ-308" in unknown.err


def test_cancel(front: Front, queue: Queue) -> None:
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    queue.add(1, job_id="now")
    answers = front("cancel", queue.name, "later", "now", "--json").json["cancelled"]
    assert answers == {"later": "cancelled", "now": "asked"}
    assert "workers are asked" in front("cancel", queue.name, "now").out


def test_a_batch_is_followed_to_its_end(front: Front, queue: Queue, server: Server) -> None:
    queue.add_batch([1, 2, 3, 4], batch_id="b")
    half = front("batch", queue.name, "b")
    assert "0/4" in half.out
    assert "under way" in half.out
    late = front("batch", queue.name, "b", "--wait", "--timeout", "100ms")
    assert late.code == 1
    assert "CMQ-102" in late.err
    queue.add_batch([1, 2], batch_id="mixed", job_name="die")
    work(server, queue.name)
    done = front("batch", queue.name, "b", "--wait", "--json")
    assert done.code == 0
    assert (done.json["done"], done.json["dead"], done.json["finished"]) == (4, 0, True)
    died = front("batch", queue.name, "mixed", "--wait", "--dead", "1")
    assert died.code == 1
    assert "CMQ-306" in died.err
    assert "dead: batch:mixed:0:0" in died.out
    listed = front("batches", queue.name, "--json").json["batches"]
    assert {each["id"]: each["dead"] for each in listed} == {"b": 0, "mixed": 2}
    assert "finished" in front("batches", queue.name).out
    nobody = front("batch", queue.name, "nobody")
    assert (nobody.code, "CMQ-304" in nobody.err) == (1, True)


def test_letters_are_seen_replayed_and_purged(
    front: Front, queue: Queue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add_many(
        [{"payload": f"error {n}", "job_name": "die", "job_id": f"j{n}"} for n in range(4)]
    )
    work(server, queue.name)
    page = front("dlq", "peek", queue.name, "--limit", "3", "--json").json
    assert [each["job_id"] for each in page["dead_letters"]] == ["j0", "j1", "j2"]
    assert page["reasons"] == {"unrecoverable": 3}
    rest = front("dlq", "peek", queue.name, "--after", page["next"], "--json").json
    assert [each["payload"] for each in rest["dead_letters"]] == ["error 3"]
    one = front("dlq", "peek", queue.name, "--text", "error 2", "--json").json["dead_letters"]
    assert [each["job_id"] for each in one] == ["j2"]
    said = front("dlq", "peek", queue.name).out
    assert page["dead_letters"][0]["dlq_id"] in said
    assert "unrecoverable" in said

    dry = front("dlq", "replay", queue.name, "--dry-run", "--json").json
    assert (dry["affected"], dry["dry_run"]) == (4, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    refused = front("dlq", "replay", queue.name)
    assert refused.code == 1
    assert "replay 4 letters" in refused.err
    assert queue.depth().dead == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert front("dlq", "purge", queue.name).code == 1  # nobody there to say yes
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "replayed 1 of 100 entries" in front("dlq", "replay", queue.name, "--job", "j0").out
    assert (
        "replayed 1 of 1 entries" in front("dlq", "replay", queue.name, "--limit", "1", "--yes").out
    )
    purged = front("dlq", "purge", queue.name, "--all", "--yes", "--json").json
    assert (purged["verb"], purged["affected"]) == ("purge", 2)
    assert (queue.depth().waiting, queue.depth().dead) == (2, 0)
    assert "no letters" in front("dlq", "peek", queue.name).out


def test_repeats_are_added_listed_and_removed(front: Front, queue: Queue) -> None:
    key = front("repeat", "add", queue.name, '{"x": 1}', "--every", "1h", "--job-name", "tick").out
    assert key.strip() == "tick::every:3600000"
    added = front(
        "repeat", "add", queue.name, "--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--key", "k",
        "--misfire", "fire-all:3", "--limit", "9", "--json",
    ).json  # fmt: skip
    assert added["key"] == "k"
    listed = front("repeatable", "list", queue.name, "--json").json["repeats"]
    by_key = {each["key"]: each for each in listed}
    assert by_key["k"]["tz"] == "Europe/Berlin"
    assert (by_key["k"]["missed"], by_key["k"]["limit"]) == ("fire-all", 9)
    assert by_key["tick::every:3600000"]["payload"] == {"x": 1}
    assert "every 3600000ms" in front("repeat", "list", queue.name).out
    gone = front("repeat", "remove", queue.name, "k")
    assert (gone.code, gone.out.strip()) == (0, "removed")
    again = front("repeat", "remove", queue.name, "k")
    assert (again.code, again.out.strip()) == (1, "not found")
    assert front("repeat", "remove", queue.name, "k", "--json").json["removed"] is False


def test_events_are_lines(front: Front, queue: Queue, server: Server) -> None:
    queue.add("x", job_id="a", job_name="die")
    work(server, queue.name)
    said = front("events", queue.name, "--from", "0", "--no-follow", "--event", "dlq").out
    assert " dlq id=a attempt=1 name=die reason=unrecoverable" in said
    lines = front("events", queue.name, "--from", "0", "--limit", "2", "--json").lines
    assert [each["event"] for each in lines] == ["active", "failed"]
    of_job = front("events", queue.name, "--from", "0", "--no-follow", "--job", "b", "--json")
    assert of_job.out == ""
    assert front("events", queue.name, "--event", "nonsense").code == 2


def test_consumers_and_who_leads(front: Front, queue: Queue, server: Server) -> None:
    assert "nobody takes jobs" in front("consumers", queue.name).out
    queue.add(1)  # an old Redis does not know a consumer before its first job

    async def look() -> tuple[Answer, Answer]:
        async def handle(job) -> None: ...

        async with AsyncQueue(queue.name, server.url, dialect=server.dialect) as opened:
            consumer = Consumer(opened, handle, ConsumerConfig(consumer_id="c-me"))
            running = asyncio.create_task(consumer.run())
            while not await asyncio.to_thread(leads):
                assert not running.done(), running.exception()
                await asyncio.sleep(0.02)
            told = await asyncio.to_thread(front, "consumers", queue.name)
            json = await asyncio.to_thread(front, "consumers", queue.name, "--json")
            consumer.stop()
            await running
        return told, json

    def leads() -> bool:
        facts = front("consumers", queue.name, "--json").json
        return facts["leaders"]["promoter"] is not None and bool(facts["consumers"])

    told, json = asyncio.run(look())
    assert "c-me" in told.out
    assert json.json["consumers"][0]["promoter"] is True
    assert json.json["leaders"]["promoter"] == "c-me"


def test_drain_rsmq(front: Front, queue: Queue, server: Server, queue_name: str) -> None:
    from airflow_provider_chasqui.rsmq.client import RsmqClient

    source = queue_name.replace("-", "")
    with RsmqClient(server.url) as rsmq:
        rsmq.create_queue(source)
        for n in range(3):
            rsmq.send_message(source, f'{{"n": {n}}}')
    args = ("drain", "rsmq", source, queue.name)
    first = front(*args, "--max", "1", "--parse", "--json").json
    assert (first["moved"], first["queue"]) == (1, queue.name)
    assert "moved 2 messages" in front(*args, "--job-name", "old").out
    jobs = front("jobs", queue.name, "--json").json["jobs"]
    assert [each["payload"] for each in jobs] == [{"n": 0}, '{"n": 1}', '{"n": 2}']
    nobody = front("drain", "rsmq", "nobody", queue.name)
    assert nobody.code == 1
    assert "CMQ-401" in nobody.err
