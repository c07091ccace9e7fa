"""The code on docs/spark.md, and what docs/airflow/index.md says of Spark, runs in a session."""

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
    """A page whose code is run from top to bottom, with queues that no other test has."""

    def __init__(self, name: str, own: str, space: dict[str, Any]):
        self._own = own
        self.space = space
        self.blocks: list[Block] = [
            each for each in blocks(ROOT / "docs" / name) if each.language == "python"
        ]

    def queue(self, name: str) -> str:
        return f"{name}-{self._own}"

    def run(self) -> None:
        from airflow.sdk import DAG

        for block in self.blocks:
            text = re.sub(r'"(emails|alerts)"', rf'"\1-{self._own}"', block.text)
            with DAG(f"snippet_{block.line}"):
                exec(compile(text, str(block), "exec"), self.space)


@pytest.fixture
def session(
    spark: SparkSession, native_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkSession]:
    """The session, with the server told to it as a reader does."""
    from airflow_provider_chasqui.spark.source import register

    connect(monkeypatch, native_server)
    register(spark, native_server.url)
    yield spark
    for query in spark.streams.active:
        query.stop()
    register(spark)


def bury(queue: str, server: Server, *errors: str) -> None:
    with LeaseQueue(queue, server.url) as leases:
        leases.produce([{"to": f"user{n}"} for n in range(len(errors))])
        for lease, error in zip(leases.lease("test", len(errors)), errors, strict=True):
            leases.dead_letter(lease, error=error)


def test_the_spark_page_from_top_to_bottom(
    session: SparkSession, native_server: Server, queue_name: str, tmp_path: Path, capfd: Any
) -> None:
    from airflow.sdk import task

    df = session.createDataFrame(
        [(n, f"u{n}@example.org") for n in range(20)], "id long, to string"
    )
    page = Page("spark.md", queue_name, {
        "df": df, "spark": session, "task": task, "checkpoint": str(tmp_path / "checkpoint"),
    })  # fmt: skip
    bury(page.queue("emails"), native_server, "Timeout: no", "Timeout: no", "KeyError: 'to'")
    page.run()
    assert re.search(r"Timeout: no\|\s+2\|", capfd.readouterr().out)
    assert page.space["count"].function(session) == 1
    (query,) = session.streams.active
    query.processAllAvailable()
    with Queue(page.queue("emails"), native_server.url) as emails:
        assert emails.batch_progress("may-17").total == 20
        assert emails.depth().waiting == 22
        assert [letter.error for letter in emails.dead_letters()] == ["KeyError: 'to'"]
    with Queue(page.queue("alerts"), native_server.url) as alerts:
        assert alerts.depth().waiting == 1


def test_the_task_on_the_page_for_airflow_counts_letters(
    session: SparkSession, native_server: Server, queue_name: str
) -> None:
    page = Page("airflow/index.md", queue_name, {})
    page.blocks = [each for each in page.blocks if "@task.pyspark" in each.text]
    bury(page.queue("emails"), native_server, "Timeout: no", "KeyError: 'to'", "Timeout: no")
    page.run()
    counts = page.space["letters_by_error"].function(session)
    assert counts == {"Timeout: no": 2, "KeyError: 'to'": 1}
