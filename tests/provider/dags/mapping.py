"""DAGs of test_map.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_chasqui import Context, Unrecoverable, job

FOLDER = "{{ dag_run.conf.folder }}"


@job(queue_name="squares", retry={"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "50ms"}})
async def square(n: int, context: Context) -> dict[str, int]:
    if n % 100 == 7:
        raise Unrecoverable("a seven")
    if n % 100 == 9 and context.attempt == 0:
        raise ValueError("busy")
    return {"square": n * n}


@job(queue_name="fleet")
async def cube(n: int) -> int:
    return n**3


@job(queue_name="environment")
async def read_variable(name: str) -> str:
    from airflow.sdk import Variable

    return str(Variable.get(name))


def dag(dag_id: str) -> DAG:
    return DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1))


with dag("map_files"):
    mapped = square.map(
        f"{FOLDER}/*.parquet",
        results=f"{FOLDER}/results/",
        failures=f"{FOLDER}/failed.jsonl",
        workers=2,
        concurrency=50,
        key_column="id",
        columns=["n"],
        schema={"square": "int64"},
        max_failed_ratio=0.02,
        worker_options={"retries": 1},
    )

    @task
    def use(report: dict[str, Any]) -> int:
        return int(report["results"]["rows"])

    use(mapped.output)

with dag("map_fleet"):
    cube.map(f"{FOLDER}/*.parquet", columns=["n"], results=f"{FOLDER}/cubes.jsonl", workers=0)

with dag("map_too_many_failures"):
    square.map(f"{FOLDER}/*.parquet", columns=["n"], results=f"{FOLDER}/out.jsonl", max_failed=3)

with dag("map_upstream"):

    @task
    def names() -> list[dict[str, str]]:
        return [{"name": get_current_context()["dag_run"].conf["variable"]}]

    read_variable.map(names(), results=f"{FOLDER}/out.jsonl", group_id="read")
