"""`job.map()` with scheduler, executor and triggerer, and worker tasks that are killed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.local_airflow import AirflowSite

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(400),
]
ROWS = 3000


def test_every_row_has_its_result_although_workers_are_killed(
    airflow_site: AirflowSite, tmp_path: Path
) -> None:
    """Three jobs kill the process of the worker task that runs them first."""
    pq.write_table(pa.table({"n": range(ROWS)}), tmp_path / "rows.parquet")
    run = airflow_site.trigger("map_rows_with_kills", folder=str(tmp_path))
    assert airflow_site.wait("map_rows_with_kills", run, 300) == "success"
    rows = pq.read_table(tmp_path / "results").to_pylist()
    assert [row["n"] for row in rows] == list(range(ROWS))
    assert [row["square"] for row in rows] == [n * n for n in range(ROWS)]
    assert {row["status"] for row in rows} == {"done"}
    tries: dict[str, int] = {}
    for task in airflow_site.tasks("map_rows_with_kills", run):
        task_id = task["task_id"].removeprefix("square.")
        tries[task_id] = max(task["try_number"], tries.get(task_id, 0))
    assert (tries["send"], tries["collect"]) == (1, 1)
    assert tries["work"] > 1
