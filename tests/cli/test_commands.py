"""Every command of the CLI, with text and JSON output, on every server."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_chasqui import Unrecoverable
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.cli.conftest import CliResult
from tests.conftest import Server

Cli = Callable[..., CliResult]


def run_worker(server: Server, name: str) -> None:
    """Run a consumer until the queue is empty."""

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


def test_inspect(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add(1)
    assert "0 (no consumer group yet)" in cli("inspect", queue.name).out
    queue.add(1, delay=timedelta(hours=1))
    result = cli("inspect", queue.name)
    assert result.code == 0
    for name in ("waiting", "running", "delayed", "dead", "repeatable jobs", "next due in"):
        assert name in result.out
    status = cli("inspect", queue.name, "--json").json
    assert status["stream_depth"] == status["waiting"] == status["delayed_depth"] == 1
    assert status["group_created"] is False
    assert 3500_000 < status["next_due_ms"] - current_time_ms() <= 3600_000
    assert status["dialect"] == server.dialect


def test_watch_shows_changes(cli: Cli, queue: Queue) -> None:
    queue.add(1)
    result = cli("watch", queue.name, "--interval-ms", "1", "--count", "2")
    assert result.code == 0
    assert "waiting" in result.out
    assert "=" in result.out
    lines = cli("watch", queue.name, "--interval-ms", "1", "--count", "3", "--json").lines
    assert [row["stream_depth"] for row in lines] == [1, 1, 1]


def test_add_prints_the_id_and_whether_it_existed(cli: Cli, queue: Queue) -> None:
    result = cli("add", queue.name, '{"to": "ada"}', "--job-name", "welcome")
    assert result.code == 0
    found = queue.job_status(result.out.strip())
    assert found.job is not None
    assert (found.job.name, found.job.payload) == ("welcome", {"to": "ada"})
    args = ("add", queue.name, "1", "--job-id", "mine", "--dedup-ttl", "1d", "--json")
    assert cli(*args).json == {"queue_name": queue.name, "job_id": "mine", "created": True}
    assert cli(*args).json == {"queue_name": queue.name, "job_id": "mine", "created": False}
    assert "already existed" in cli(*args[:-1]).out
    cli("add", queue.name, "--delay", "1h30m", "--job-id", "later")
    assert queue.job_status("later").state == "delayed"
    cli("add", queue.name, "--run-at", "2040-01-01T00:00Z", "--job-id", "x", "--max-attempts", "1")
    assert queue.job_status("x").state in ("delayed", "unknown")


def test_add_reads_stdin(cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('["from", "stdin"]'))
    job_id = cli("add", queue.name, "-").out.strip()
    found = queue.job_status(job_id)
    assert found.job is not None
    assert found.job.payload == ["from", "stdin"]


def test_lines_are_enqueued_once_as_a_batch(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n"three"\n')
    args = ("add", queue.name, "--lines", str(file), "--batch-id", "b", "--job-name", "welcome")
    assert "batch b: 3 jobs enqueued" in cli(*args).out
    assert cli(*args, "--json").json == {"queue_name": queue.name, "batch_id": "b", "total": 3}
    assert queue.depth().waiting == 3

    file.write_text('{"n": 1}\n{oops\n')
    bad = cli("add", queue.name, "--lines", str(file), "--batch-id", "c")
    assert bad.code == 2
    assert "line 2 is not JSON" in bad.err
    assert queue.depth().waiting == 3  # no line was enqueued


def test_the_wait_for_lines_fails_if_a_job_died(
    cli: Cli, queue: Queue, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text("1\n")
    args = ("add", queue.name, "--lines", str(file), "--batch-id", "b")
    cli(*args, "--job-name", "die")
    run_worker(server, queue.name)
    waited = cli(*args, "--job-name", "die", "--wait", "10s")
    assert waited.code == 1
    assert "0 done, 1 dead" in waited.out
    assert "CMQ-306" in waited.err
    as_json = cli(*args, "--job-name", "die", "--wait", "10s", "--json")
    assert (as_json.code, as_json.json["dead"]) == (1, 1)


def test_jobs_in_pages(cli: Cli, queue: Queue, server: Server) -> None:
    ids = [row.job_id for row in queue.add_many([{"payload": n} for n in range(5)])]
    for n in range(3):
        queue.add(n, job_id=f"later-{n}", delay=timedelta(hours=n + 1))
    first = cli("jobs", queue.name, "--state", "waiting", "--limit", "3", "--json").json
    assert [row["id"] for row in first["jobs"]] == ids[:3]
    assert {row["attempt"] for row in first["jobs"]} == {1}  # counted from 1, as in events
    args = ("jobs", queue.name, "--state", "waiting", "--limit", "3", "--json", "--after")
    remaining = cli(*args, first["next"]).json
    assert [row["id"] for row in remaining["jobs"]] == ids[3:]
    assert remaining["next"] is None
    later = cli("jobs", queue.name, "--state", "delayed", "--limit", "2", "--json").json
    assert [row["id"] for row in later["jobs"]] == ["later-0", "later-1"]
    args = ("jobs", queue.name, "--state", "delayed", "--json", "--after", later["next"])
    assert [row["id"] for row in cli(*args).json["jobs"]] == ["later-2"]

    from airflow_provider_chasqui.core.commands import consumer_group

    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "me", 2, 0))
    running = cli("jobs", queue.name, "--state", "running", "--json").json["jobs"]
    assert [(row["id"], row["consumer"]) for row in running] == [(ids[0], "me"), (ids[1], "me")]
    every = cli("jobs", queue.name, "--json").json["jobs"]
    states = ["running"] * 2 + ["waiting"] * 3 + ["delayed"] * 3
    assert [row["state"] for row in every] == states
    table = cli("jobs", queue.name).out
    assert ids[0] in table
    assert "due in" in table
    assert "no running jobs" in cli("jobs", queue.name, "--state", "running", "--group", "x").out


def test_job_shows_the_timeline_of_a_job(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add({"n": 1}, job_id="fine", job_name="welcome")
    queue.add("\x1b[2Jbad", job_id="bad", job_name="die")
    run_worker(server, queue.name)
    fine = cli("job", queue.name, "fine", "--json").json
    assert (fine["queue_name"], fine["state"]) == (queue.name, "done")
    assert fine["result"] == {"did": {"n": 1}}
    assert fine["progress"] == {"half": True}
    assert [row["event"] for row in fine["events"]] == ["active", "completed"]
    bad = cli("job", queue.name, "bad", "--json").json
    assert (bad["state"], bad["reason"], bad["attempt"]) == ("dead", "unrecoverable", 1)
    assert [row["event"] for row in bad["events"]] == ["active", "failed", "dlq"]
    result = cli("job", queue.name, "bad").out
    assert "\x1b[2J" not in result  # control characters are escaped
    assert "\\x1b[2Jbad" in result
    unknown = cli("job", queue.name, "missing")
    assert unknown.code == 1
    assert "CMQ-308" in unknown.err


def test_cancel(cli: Cli, queue: Queue) -> None:
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    queue.add(1, job_id="now")
    answers = cli("cancel", queue.name, "later", "now", "--json").json["cancelled"]
    assert answers == {"later": "cancelled", "now": "requested"}
    assert "requested" in cli("cancel", queue.name, "now").out
    unknown = cli("cancel", queue.name, "now", "nope")
    assert (unknown.code, "nope: not found" in unknown.out) == (1, True)


def test_a_finished_job_is_not_cancelled(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add(1, job_id="good")
    queue.add(1, job_id="bad", job_name="die")
    run_worker(server, queue.name)
    result = cli("cancel", queue.name, "good", "bad", "--json")
    assert (result.code, result.json["cancelled"]) == (1, {"good": "done", "bad": "dead"})


def test_queues_are_listed(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add(1)
    queue.add(1, delay=timedelta(hours=1))
    queue.pause("slow")
    rows = cli("queues", "--search", queue.name, "--json").json["queues"]
    assert [(row["queue"], row["waiting"], row["delayed"]) for row in rows] == [(queue.name, 1, 1)]
    text = cli("queues", "--search", queue.name).out
    assert queue.name in text
    assert "slow" in text
    assert "no queues" in cli("queues", "--search", "no such queue").out


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"], ["jobs"], ["consumers"], ["job", "--", "j"], ["cancel", "--", "j"],
        ["dlq", "peek"], ["dlq", "show", "--", "1-1"], ["dlq", "replay", "-y"],
        ["dlq", "purge", "-y"], ["batch", "list"], ["batch", "show", "--", "b"],
        ["batch", "cancel", "--", "b"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_unknown_queue_is_an_error_with_the_nearest_name(
    cli: Cli, queue: Queue, command: list[str]
) -> None:
    queue.add(1)
    index = command.index("--") if "--" in command else len(command)
    arguments = [*command[:index], queue.name + "x", *command[index + 1 :]]
    result = cli(*arguments)
    assert result.code == 1
    assert f"did you mean '{queue.name}'" in result.err
    assert "CMQ-401" in result.err


def test_an_unknown_batch_is_an_error_with_the_nearest_id(cli: Cli, queue: Queue) -> None:
    queue.add_batch([1], batch_id="nightly-2026-11-18")
    result = cli("batch", "show", queue.name, "nightly-2026-11-19")
    assert result.code == 1
    assert "CMQ-304" in result.err
    assert "did you mean 'nightly-2026-11-18'?" in result.err


def test_inspect_counts_recent_outcomes(cli: Cli, queue: Queue, server: Server) -> None:
    names = ["ok"] * 300 + ["die"] * 2
    queue.add_many([{"payload": "x", "job_name": name} for name in names])
    run_worker(server, queue.name)
    status = cli("inspect", queue.name, "--json").json
    recent = [status[f"recent_{name}"] for name in ("completed", "failed", "retried", "dead")]
    assert recent == [300, 2, 0, 2]
    assert "300 completed, 2 failed, 0 retried, 2 dead" in cli("inspect", queue.name).out


def test_a_dead_letter_is_shown_with_its_traceback(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add("no such street", job_name="die", job_id="j1")
    run_worker(server, queue.name)
    dlq_id = cli("dlq", "peek", queue.name, "--json").json["dead_letters"][0]["dlq_id"]
    for wanted in (dlq_id, "j1"):
        text = cli("dlq", "show", queue.name, wanted).out
        assert "Unrecoverable: no such street" in text
        assert "Traceback" in text
        assert cli("dlq", "show", queue.name, wanted, "--json").json["job_id"] == "j1"
    unknown = cli("dlq", "show", queue.name, "j2")
    assert (unknown.code, "CMQ-308" in unknown.err) == (1, True)


def test_long_ids_keep_both_ends(cli: Cli, queue: Queue, server: Server) -> None:
    batch_id = "greetings~write~manual__2026-11-16T13-00-00"
    queue.add_batch(["a", "b"], batch_id=batch_id, job_name="die")
    run_worker(server, queue.name)
    text = cli("dlq", "peek", queue.name).out
    assert "batch:greetings" in text
    assert all(f"{batch_id[-8:]}:0:{index}" in text for index in (0, 1))


def test_batch_results_are_printed_or_written(
    cli: Cli, queue: Queue, server: Server, tmp_path: Path
) -> None:
    queue.add_batch([1, 2, 3], batch_id="b", keys=["x", "y", "z"])
    queue.add_batch([None], batch_id="dead", job_name="die")
    run_worker(server, queue.name)
    printed = cli("batch", "results", queue.name, "b").lines
    assert [(row["key"], row["status"], row["result"]) for row in printed] == [
        ("x", "done", {"did": 1}),
        ("y", "done", {"did": 2}),
        ("z", "done", {"did": 3}),
    ]
    file, failures = str(tmp_path / "out.parquet"), str(tmp_path / "bad.jsonl")
    options = ("--to", file, "--failures", failures, "--key-column", "id")
    written = cli("batch", "results", queue.name, "b", *options, "--result-type", "json")
    assert f"{file}: 3 rows in 1 file(s)" in written.out
    table = pq.read_table(file)
    assert table.select(["id", "result"]).to_pydict() == {
        "id": ["x", "y", "z"],
        "result": [f'{{"did":{n}}}' for n in (1, 2, 3)],
    }
    assert Path(failures).read_text() == ""
    cli("batch", "results", queue.name, "dead", "--to", str(tmp_path / "all.jsonl"))
    (row,) = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert (row["status"], row["attempts"]) == ("dead", 1)
    assert cli("batch", "results", queue.name, "missing").code == 1


def test_batch_shows_progress_and_waits(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add_batch([1, 2, 3, 4], batch_id="b")
    half = cli("batch", "show", queue.name, "b")
    assert "0/4" in half.out
    assert "running" in half.out
    late = cli("batch", "show", queue.name, "b", "--wait", "--timeout", "100ms")
    assert late.code == 1
    assert "CMQ-102" in late.err
    queue.add_batch([1, 2], batch_id="mixed", job_name="die")
    run_worker(server, queue.name)
    done = cli("batch", "show", queue.name, "b", "--wait", "--json")
    assert done.code == 0
    assert (done.json["done"], done.json["dead"], done.json["finished"]) == (4, 0, True)
    died = cli("batch", "show", queue.name, "mixed", "--wait", "--show-dead", "1")
    assert died.code == 1
    assert "CMQ-306" in died.err
    assert "dead: batch:mixed:0:0" in died.out
    listed = cli("batch", "list", queue.name, "--json").json["batches"]
    assert {row["batch_id"]: row["dead"] for row in listed} == {"b": 0, "mixed": 2}
    assert "finished" in cli("batch", "list", queue.name).out
    missing = cli("batch", "show", queue.name, "missing")
    assert (missing.code, "CMQ-304" in missing.err) == (1, True)


def test_dead_letters_are_listed_replayed_and_purged(
    cli: Cli, queue: Queue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add_many(
        [{"payload": f"error {n}", "job_name": "die", "job_id": f"j{n}"} for n in range(4)]
    )
    run_worker(server, queue.name)
    page = cli("dlq", "peek", queue.name, "--limit", "3", "--json").json
    assert [row["job_id"] for row in page["dead_letters"]] == ["j0", "j1", "j2"]
    assert page["reasons"] == {"unrecoverable": 3}
    remaining = cli("dlq", "peek", queue.name, "--after", page["next"], "--json").json
    assert [row["payload"] for row in remaining["dead_letters"]] == ["error 3"]
    one = cli("dlq", "peek", queue.name, "--text", "error 2", "--json").json["dead_letters"]
    assert [row["job_id"] for row in one] == ["j2"]
    result = cli("dlq", "peek", queue.name, "--limit", "3").out
    assert page["dead_letters"][0]["dlq_id"] in result
    for text in ("unrecoverable", "j0", "Unrecoverable: error 0", '"error 1"', "3 of 4"):
        assert text in result

    dry = cli("dlq", "replay", queue.name, "--dry-run", "--json").json
    assert (dry["affected"], dry["dry_run"]) == (4, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    refused = cli("dlq", "replay", queue.name)
    assert refused.code == 1
    assert "replay 4 dead letters" in refused.err
    assert queue.depth().dead == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli("dlq", "purge", queue.name).code == 1  # no answer to the confirmation
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    replayed = "replayed 1 of 1 selected dead letters; the queue has"
    assert f"{replayed} 3" in cli("dlq", "replay", queue.name, "--job-id", "j0").out
    assert f"{replayed} 2" in cli("dlq", "replay", queue.name, "--limit", "1", "--yes").out
    purged = cli("dlq", "purge", queue.name, "--all", "--yes", "--json").json
    assert (purged["action"], purged["affected"]) == ("purge", 2)
    assert (queue.depth().waiting, queue.depth().dead) == (2, 0)
    assert "no dead letters" in cli("dlq", "peek", queue.name).out


def test_repeats_are_added_listed_and_removed(cli: Cli, queue: Queue) -> None:
    key = cli("repeat", "add", queue.name, '{"x": 1}', "--every", "1h", "--job-name", "tick").out
    assert key.strip() == "tick::every:3600000"
    added = cli(
        "repeat", "add", queue.name, "--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--key", "k",
        "--misfire", "fire-all:3", "--limit", "9", "--json",
    ).json  # fmt: skip
    assert added["key"] == "k"
    listed = cli("repeatable", "list", queue.name, "--json").json["repeats"]
    by_key = {row["key"]: row for row in listed}
    assert by_key["k"]["tz"] == "Europe/Berlin"
    assert (by_key["k"]["misfire"], by_key["k"]["limit"]) == ("fire-all", 9)
    assert by_key["tick::every:3600000"]["payload"] == {"x": 1}
    assert "every 3600000ms" in cli("repeat", "list", queue.name).out
    removed = cli("repeat", "remove", queue.name, "k")
    assert (removed.code, removed.out.strip()) == (0, "removed")
    again = cli("repeat", "remove", queue.name, "k")
    assert (again.code, again.out.startswith("not found; ")) == (1, True)
    assert "did you mean 'tick::every:3600000'?" in cli("repeat", "remove", queue.name, "tick").out
    assert cli("repeat", "remove", queue.name, "k", "--json").json["removed"] is False


def test_events_prints_one_line_per_event(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add("x", job_id="a", job_name="die")
    run_worker(server, queue.name)
    result = cli("events", queue.name, "--from", "0", "--no-follow", "--event", "dlq").out
    assert " dlq id=a attempt=1 name=die reason=unrecoverable" in result
    lines = cli("events", queue.name, "--from", "0", "--limit", "2", "--json").lines
    assert [row["event"] for row in lines] == ["active", "failed"]
    of_job = cli("events", queue.name, "--from", "0", "--no-follow", "--job-id", "b", "--json")
    assert of_job.out == ""
    assert cli("events", queue.name, "--event", "nonsense").code == 2


def test_pause_and_resume(cli: Cli, queue: Queue) -> None:
    assert "paused queue" in cli("pause", queue.name).out
    assert "jobs named 'n'" in cli("pause", queue.name, "--job-name", "n").out
    status = cli("inspect", queue.name, "--json").json
    assert (status["paused"], status["paused_job_names"]) == (True, ["n"])
    assert "the queue, jobs named 'n'" in cli("inspect", queue.name).out
    assert "resumed queue" in cli("resume", queue.name).out
    assert "resumed jobs named 'n'" in cli("resume", queue.name, "--job-name", "n").out
    assert not queue.paused()


def test_consumers_shows_consumers_and_leaders(cli: Cli, queue: Queue, server: Server) -> None:
    queue.add(1)  # Redis 7 creates a consumer with its first entry
    assert "no consumers" in cli("consumers", queue.name).out

    async def run_and_list() -> tuple[CliResult, CliResult]:
        async def handle(job) -> None: ...

        async with AsyncQueue(queue.name, server.url, dialect=server.dialect) as opened:
            consumer = Consumer(opened, handle, ConsumerConfig(consumer_id="c-me"))
            running = asyncio.create_task(consumer.run())
            while not await asyncio.to_thread(has_leader):
                assert not running.done(), running.exception()
                await asyncio.sleep(0.02)
            text = await asyncio.to_thread(cli, "consumers", queue.name)
            json = await asyncio.to_thread(cli, "consumers", queue.name, "--json")
            consumer.stop()
            await running
        return text, json

    def has_leader() -> bool:
        status = cli("consumers", queue.name, "--json").json
        return status["leaders"]["promoter"] is not None and bool(status["consumers"])

    text, json = asyncio.run(run_and_list())
    assert "c-me" in text.out
    assert json.json["consumers"][0]["promoter"] is True
    assert json.json["leaders"]["promoter"] == "c-me"


def test_migrate_rsmq(cli: Cli, queue: Queue, server: Server, queue_name: str) -> None:
    from airflow_provider_chasqui.rsmq.client import RsmqClient

    source = queue_name.replace("-", "")
    with RsmqClient(server.url) as rsmq:
        rsmq.create_queue(source)
        for n in range(3):
            rsmq.send_message(source, f'{{"n": {n}}}')
    args = ("migrate", "rsmq", source, queue.name)
    first = cli(*args, "--limit", "1", "--parse-json", "--json").json
    assert (first["moved"], first["queue_name"]) == (1, queue.name)
    assert "moved 2 messages" in cli(*args, "--job-name", "old").out
    jobs = cli("jobs", queue.name, "--json").json["jobs"]
    assert [row["payload"] for row in jobs] == [{"n": 0}, '{"n": 1}', '{"n": 2}']
    missing = cli("migrate", "rsmq", "missing", queue.name)
    assert missing.code == 1
    assert "CMQ-401" in missing.err
