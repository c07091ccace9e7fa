"""The test of a DAG on the page testing.md passes, in a process and an Airflow of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


def test_the_test_of_a_dag_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs/airflow/testing.md").read_text("utf-8")
    dag, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/newsletter.py").write_text(dag)
    (tmp_path / "test_newsletter.py").write_text(test)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")},
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr
