"""Run an async function for every row of a CSV file, and write the results as Parquet."""

from __future__ import annotations

import asyncio
import csv
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_chasqui import job

FOLDER = "{{ params.folder }}"


@job(queue_name="customers", retry=3)
async def classify(customer_id: int, name: str) -> dict[str, str | int]:
    """Call an API for one customer. A job may run twice, so it must be idempotent."""
    await asyncio.sleep(0.001)
    return {"initial": name[:1], "length": len(name)}


with DAG(
    "chasqui_map_rows",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    params={"folder": "/tmp/chasqui_map_rows", "rows": 2000},
    tags=["chasqui", "example"],
):

    @task
    def export() -> str:
        """Write the input, which is usually there already."""
        params = get_current_context()["params"]
        path = Path(params["folder"]) / "customers.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["customer_id", "name"])
            writer.writerows((n, f"customer {n}") for n in range(params["rows"]))
        return str(path)

    classify.map(
        export(),
        results=f"{FOLDER}/results/",
        key_column="customer_id",
        schema={"initial": "string", "length": "int64"},
        workers=2,
        max_failed_ratio=0.01,
    )
