"""The unchanged example DAGs that process messages."""

from __future__ import annotations

import runpy
from pathlib import Path

from airflow.sdk import DAG

EXAMPLES = Path(__file__).parents[3] / "example_dags"

for name in ("messages_to_runs", "lease_orders"):
    for value in runpy.run_path(str(EXAMPLES / f"{name}.py")).values():
        if isinstance(value, DAG):
            globals()[name] = value
