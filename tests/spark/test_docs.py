"""The code in docs/spark.md, and the Spark code in docs/airflow/index.md, runs in a session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connect
from tests.test_snippets import ROOT, Block, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Page:
    """A page whose code is run from top to bottom, with separate queues."""

    def __init__(self, name: str, queue_suffix: str, namespace: dict[str, Any]):
        self._queue_suffix = queue_suffix
        self.namespace = namespace
        self.blocks: list[Block] = [
            block for block in blocks(ROOT / "docs" / name) if block.language == "python"
        ]

    def queue(self, name: str) -> str:
        return f"{name}-{self._queue_suffix}"

    def run(self) -> None:
        from airflow.sdk import DAG

        for block in self.blocks:
            text = re.sub(r'"(emails|alerts)"', rf'"\1-{self._queue_suffix}"', block.text)
            with DAG(f"snippet_{block.line}"):
                exec(compile(text, str(block), "exec"), self.namespace)


@pytest.fixture
def session(
    spark: SparkSession, native_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkSession]:
    """Return the session with the server registered, as a reader of the page does."""
    from airflow_provider_chasqui.spark.source import register

    connect(monkeypatch, native_server)
    register(spark, native_server.url)
    yield spark
    for query in spark.streams.active:
        query.stop()
    register(spark)


def add_dead_letters(queue: str, server: Server, *errors: str) -> None:
    with LeaseQueue(queue, server.url) as leases:
        leases.produce([{"to": f"user{n}"} for n in range(len(errors))])
        for lease, error in zip(leases.lease("test", len(errors)), errors, strict=True):
            leases.dead_letter(lease, error=error)


def test_the_code_of_the_spark_page_runs(
    session: SparkSession, native_server: Server, queue_name: str, tmp_path: Path, capfd: Any
) -> None:
    from airflow.sdk import task

    df = session.createDataFrame(
        [(n, f"u{n}@example.org") for n in range(20)], "id long, to string"
    )
    namespace = {
        "df": df,
        "spark": session,
        "task": task,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    page = Page("spark.md", queue_name, namespace)
    add_dead_letters(
        page.queue("emails"), native_server, "Timeout: no", "Timeout: no", "KeyError: 'to'"
    )
    page.run()
    assert re.search(r"Timeout: no\|\s+2\|", capfd.readouterr().out)
    assert page.namespace["count"].function(session) == 1
    (query,) = session.streams.active
    query.processAllAvailable()
    with Queue(page.queue("emails"), native_server.url) as emails:
        assert emails.batch_progress("may-17").total == 20
        assert emails.depth().waiting == 22
        assert [dead_letter.error for dead_letter in emails.dead_letters()] == ["KeyError: 'to'"]
    with Queue(page.queue("alerts"), native_server.url) as alerts:
        assert alerts.depth().waiting == 1


def test_the_pyspark_task_of_the_airflow_page_counts_dead_letters(
    session: SparkSession, native_server: Server, queue_name: str
) -> None:
    page = Page("airflow/index.md", queue_name, {})
    page.blocks = [block for block in page.blocks if "@task.pyspark" in block.text]
    add_dead_letters(
        page.queue("emails"), native_server, "Timeout: no", "KeyError: 'to'", "Timeout: no"
    )
    page.run()
    counts = page.namespace["dead_letters_by_error"].function(session)
    assert counts == {"Timeout: no": 2, "KeyError: 'to'": 1}
