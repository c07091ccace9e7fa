"""A whole real Airflow for the tests: impatient, quick to notice who is gone, gone with them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

from demo.local_airflow import LocalAirflow
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    "AIRFLOW__CORE__PARALLELISM": "6",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    "PYTHONPATH": str(ROOT),
}


class AirflowSite(LocalAirflow):
    """Airflow in a folder that goes with it, and what tests ask about DAG runs."""

    patience = 0.0

    def __init__(self, dags: Path, env: dict[str, str]):
        super().__init__(Path(tempfile.mkdtemp(prefix="chasqui-airflow-")), dags)
        self._env = env

    def environment(self) -> dict[str, str]:
        return super().environment() | SETTINGS | self._env

    def start(self) -> Self:
        self.start_airflow()
        return self

    def state(self, dag_id: str, run_id: str) -> str:
        return str(self.api("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100"
        return list(self.api("GET", path)["task_instances"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        return {each["task_id"]: each["state"] for each in self.tasks(dag_id, run_id)}

    def wait(self, dag_id: str, run_id: str, seconds: float = 120) -> str:
        """Return the state in which a run ended."""

        def ended() -> str | None:
            state = self.state(dag_id, run_id)
            return state if state in ("success", "failed") else None

        return until(ended, seconds, f"the end of {dag_id}")

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", f"{path}?deserialize=true&stringify=false")["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        return json.dumps(self.api("GET", path)["content"])

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.home, ignore_errors=True)
