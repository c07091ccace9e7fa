"""A DAG that maps the rows of a file with workers that are killed."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_chasqui import Context, job
from airflow_provider_chasqui.core.config import ConsumerConfig

FOLDER = "{{ dag_run.conf.folder }}"
RETRY = {"max_attempts": 9, "backoff": {"kind": "fixed", "delay": "50ms"}}


@job(queue_name="map-system", retry=RETRY)
async def square(n: int, context: Context) -> dict[str, int]:
    if n % 1000 == 400 and context.attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # the process of the Airflow task
    return {"square": n * n}


with DAG("map_rows_with_kills", schedule=None, start_date=datetime(2026, 1, 1)):
    square.map(
        f"{FOLDER}/rows.parquet",
        results=f"{FOLDER}/results/",
        workers=2,
        key_column="n",
        schema={"square": "int64"},
        config=ConsumerConfig(claim_after=timedelta(seconds=4), concurrency=20),
        worker_options={"retries": 6, "retry_delay": timedelta(seconds=1)},
    )
