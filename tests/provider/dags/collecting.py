"""DAGs of test_collect_operator.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Any

from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.sdk import DAG, get_current_context

from airflow_provider_chasqui import SqlTable
from airflow_provider_chasqui.operators.collect import ChasquiCollectOperator

FOLDER = "{{ dag_run.conf.folder }}"
BATCH = {"queue_name": "{{ dag_run.conf.queue }}", "batch_id": "{{ dag_run.conf.batch }}"}


class SqliteHook(DbApiHook):
    """Hook of a SQLite file, because the provider of SQLite may not be installed."""

    conn_name_attr = "sqlite_conn_id"
    placeholder = "?"

    def get_conn(self) -> sqlite3.Connection:
        conf = get_current_context()["dag_run"].conf
        return sqlite3.connect(conf["folder"] + "/results.db")


def collect(dag_id: str, **options: Any) -> None:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1)):
        ChasquiCollectOperator(task_id="collect", batch=BATCH, **options)


collect("collect_directory", results=f"{FOLDER}/results/", key_column="id")
collect("collect_object", results="memory://bucket/{{ dag_run.conf.batch }}", key_column="id")
collect(
    "collect_files",
    results=f"{FOLDER}/good.parquet",
    failures=f"file://{FOLDER}/bad.jsonl",
    schema={"double": "int64"},
)
collect("collect_failures", failures=f"{FOLDER}/bad.jsonl", require_finished=False)
collect(
    "collect_table",
    results=SqlTable("{{ dag_run.conf.table }}", hook=SqliteHook),
    failures=f"{FOLDER}/bad.jsonl",
    key_column="id",
)
collect(
    "collect_two_tables",
    results=f"{FOLDER}/good.jsonl",
    failures=SqlTable("failed", columns=["index", "error"], hook=SqliteHook),
)
