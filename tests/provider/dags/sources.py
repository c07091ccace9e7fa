"""DAGs of test_sources.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.sdk import DAG, Asset, ObjectStoragePath, get_current_context, task

from airflow_provider_chasqui import FileSource, SqlSource
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

QUEUE = "{{ dag_run.conf.queue }}"
ASSET_PATH = f"{tempfile.gettempdir()}/chasqui-source-asset-{os.getpid()}.jsonl"


def dag(dag_id: str) -> DAG:
    return DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1))


def send(source: Any, task_id: str = "send", **options: Any) -> ChasquiEnqueueOperator:
    return ChasquiEnqueueOperator(task_id=task_id, queue_name=QUEUE, source=source, **options)


class SqliteHook(DbApiHook):
    """Hook of a SQLite file, because the provider of SQLite may not be installed."""

    conn_name_attr = "sqlite_conn_id"

    def get_conn(self) -> sqlite3.Connection:
        conf = get_current_context()["dag_run"].conf
        return sqlite3.connect(conf["folder"] + "/rows.db")


with dag("source_path"):
    send("{{ dag_run.conf.path }}", key_column="id", columns=["id", "name"], rename={"name": "n"})

with dag("source_object_path"):
    send(ObjectStoragePath("{{ dag_run.conf.path }}"))

with dag("source_typed_csv"):
    send(FileSource("{{ dag_run.conf.path }}", schema={"code": "string"}, delimiter=";"))

with dag("source_sql"):
    send(
        SqlSource(
            "SELECT id, name FROM {{ dag_run.conf.table }} WHERE id >= ? ORDER BY id",
            parameters=["{{ dag_run.conf.first }}"],
            fetch_size=7,
            hook=SqliteHook,
        ),
        key_column="id",
    )


def read_rows(ds: str, dag_run: Any) -> Iterator[dict[str, Any]]:
    for n in range(dag_run.conf["count"]):
        yield {"id": n, "day": ds}


with dag("source_function"):
    send(read_rows)

with dag("source_upstream"):

    @task
    def rows() -> list[dict[str, Any]]:
        return [{"id": 1, "name": "{{ ds }}"}, {"id": 2, "name": "b"}]

    @task
    def path() -> str:
        return str(get_current_context()["dag_run"].conf["path"])

    @task
    def nothing() -> None: ...

    send(rows(), "rows_of_a_task", key_column="id")
    send(path(), "path_of_a_task")
    send(FileSource([path.override(task_id="again")()]), "paths_of_a_task")
    send(nothing(), "none_of_a_task", retries=3)

with dag("source_asset"):
    send(Asset(f"file://{ASSET_PATH}"))

with dag("source_decorated"):

    @task.chasqui(queue_name=QUEUE, returns="source", key_column="id")
    def table() -> Iterator[Any]:
        import pyarrow as pa

        for start in (0, 10):
            yield pa.table({"id": list(range(start, start + 10))})

    @task.chasqui(queue_name=QUEUE, returns="source")
    def file() -> str:
        return str(get_current_context()["dag_run"].conf["path"])

    table() >> file()
