"""The example DAGs run unchanged, with a real server and real workers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import Dags, connect, working
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(240)]
EXAMPLES = Path(__file__).parents[2] / "example_dags"


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Start a server per test, because the queue names of the examples are fixed."""
    with RedisServer.start(valkey_binary()) as process:
        server = Server(process.url, "portable")
        connect(monkeypatch, server)
        yield server


@pytest.fixture
def examples(dags: Callable[[Path], Dags], own_server: Server) -> Dags:
    return dags(EXAMPLES)


def queue(server: Server, name: str) -> Queue:
    return Queue(name, server.url, dialect=server.dialect)


def test_enqueue_and_wait(examples: Dags, own_server: Server) -> None:
    async def thumbnail(job: Any) -> Any:
        return {"file": f"{job.payload['width']}-{job.payload['image']}"}

    with working(own_server, "thumbnails", thumbnail, store_results=True):
        run = examples.run("chasqui_enqueue_and_wait")
    assert run.xcom("publish") == "published 320-cat.png"


def test_batch_of_ten_thousand(
    examples: Dags, own_server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    async def send(job: Any) -> None:
        if job.payload["to"] == "user77@example.org":
            raise Unrecoverable("no such mailbox")

    with working(own_server, "emails", send, concurrency=200):
        run = examples.run("chasqui_batch_of_ten_thousand")
    assert run.xcom("report") == "9999 of 10000 sent, 1 dead"
    output = "".join(capfd.readouterr())
    assert re.search(r"10000 of 10000 \w+ \(100%\), 1 dead", output)


def test_cancel_on_failure(examples: Dags, own_server: Server) -> None:
    run = examples.run("chasqui_cancel_on_failure")
    states = {"import_rows": "success", "check_source": "failed", "cancel": "success"}
    assert run.states() == states
    handle = run.xcom("import_rows")
    assert handle["batch_id"].startswith("import-manual__")
    assert run.xcom("cancel")["result"] == "cancelled"
    with queue(own_server, "rows") as rows:
        assert rows.batch_progress(handle["batch_id"]).cancelled


def test_fan_out_with_back_pressure(examples: Dags, own_server: Server) -> None:
    rows_run = []

    async def handle(job: Any) -> None:
        rows_run.append((job.payload["region"], job.payload["row"]))

    with queue(own_server, "rows") as rows:
        rows.add_many([{"payload": {"region": "old", "row": n}} for n in range(1500)])
        with working(own_server, "rows", handle):
            run = examples.run("chasqui_fan_out_with_back_pressure")
    assert run.state == "success"
    assert len(set(rows_run)) == len(rows_run) == 1500 + 600


def test_dlq_replay_daily(examples: Dags, own_server: Server) -> None:
    """A manual run only counts. With dry_run=false it replays dead letters that are old enough."""

    async def fail(job: Any) -> None:
        raise Unrecoverable("the mail server is down")

    with queue(own_server, "emails") as emails:
        emails.add_many([{"payload": n} for n in range(5)])
        with working(own_server, "emails", fail):
            wait_until(lambda: emails.depth().dead == 5, message="five dead letters")
        dag = examples.get("chasqui_dlq_replay_daily")
        assert (dag.max_active_runs, dag.catchup) == (1, False)
        dry_run = examples.run("chasqui_dlq_replay_daily", older_than=0)
        assert dry_run.xcom("replay_emails")["affected"] == 5
        assert dry_run.xcom("replay_emails")["dry_run"]
        assert emails.depth().dead == 5
        too_young = examples.run("chasqui_dlq_replay_daily", dry_run=False)
        assert too_young.xcom("replay_emails")["matched"] == 0
        run = examples.run("chasqui_dlq_replay_daily", older_than="0s", dry_run=False)
        assert run.xcom("replay_emails")["affected"] == 5
        assert (emails.depth().dead, emails.depth().waiting) == (0, 5)


def test_results_to_next_task(examples: Dags, own_server: Server) -> None:
    def embed(job: Any) -> list[float]:
        return [float(len(word)) for word in job.payload["text"].split()]

    with working(own_server, "embeddings", embed, store_results=True):
        run = examples.run("chasqui_results_to_next_task")
    assert run.xcom("longest") == 2


def test_consume_in_a_task(examples: Dags, own_server: Server) -> None:
    with queue(own_server, "archive") as archive:
        archive.add_many([{"payload": n} for n in range(300)])
        archive.add(1, delay=timedelta(hours=1))
        archive.add(None, job_name="bad", retry=None)
        run = examples.run("chasqui_consume_in_a_task")
        report = run.xcom("archive")
        assert (report["done"], archive.depth().waiting) == (300, 0)
        assert report["failed"] > 0
        assert archive.depth().delayed == 2


def test_map_rows(examples: Dags, own_server: Server, tmp_path: Path) -> None:
    run = examples.run("chasqui_map_rows", folder=str(tmp_path), rows=500)
    assert run.state == "success"
    rows = pq.read_table(tmp_path / "results").to_pylist()
    assert [row["customer_id"] for row in rows] == list(range(500))
    assert {(row["status"], row["initial"]) for row in rows} == {("done", "c")}


def test_parsing_the_examples_imports_neither_redis_nor_pyspark() -> None:
    code = """
import glob, runpy, sys
for file in sorted(glob.glob(sys.argv[1] + "/*.py")):
    runpy.run_path(file)
heavy = {"redis", "hiredis", "pyspark"} & set(sys.modules)
assert not heavy, heavy
"""
    command = [sys.executable, "-c", code, str(EXAMPLES)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert process.returncode == 0, process.stderr
