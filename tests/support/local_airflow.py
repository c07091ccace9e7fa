"""A complete local Airflow for tests, with short health-check timeouts and a temporary folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

from demo.local_airflow import LocalAirflow
from tests.support.waiting import wait_until

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
    """Airflow in a temporary folder, with queries about DAG runs.

    :param dags: the folder of the DAG files.
    :param env: additional environment variables of all Airflow processes.
    :param options: more arguments of `LocalAirflow`.
    """

    stop_timeout = 0.0

    def __init__(self, dags: Path, env: dict[str, str], **options: Any):
        super().__init__(Path(tempfile.mkdtemp(prefix="chasqui-airflow-")), dags, **options)
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
        return {task["task_id"]: task["state"] for task in self.tasks(dag_id, run_id)}

    def wait(self, dag_id: str, run_id: str, seconds: float = 120) -> str:
        """Return the final state of a run.

        :param seconds: the maximum time.
        """

        def final_state() -> str | None:
            state = self.state(dag_id, run_id)
            return state if state in ("success", "failed") else None

        return wait_until(final_state, seconds, f"the end of {dag_id}")

    def wait_until_deferred(
        self, dag_id: str, run_id: str, task_id: str, seconds: float = 120
    ) -> None:
        """Return when a task is deferred and the scheduler knows that its process has ended.

        The second condition avoids a race in Airflow 3.3.2 with the LocalExecutor. A deferring
        process sets the state `deferred` before it exits; under load it exits seconds later. If the
        trigger fires in between, the task is queued again under the same key and try number. The
        executor then reads the result of the first process and removes the key from `running`
        (`BaseExecutor.change_state`), so `executor.has_task` is false while the second process
        runs. `SchedulerJobRunner.process_executor_events` excludes only the state `scheduled` from
        its check for killed tasks, and fails the task: "Executor reported that the task instance
        finished with state success, but the task instance's state attribute is running".

        To reproduce it, send SIGSTOP to the executor's worker process right after the deferral and
        SIGCONT when the resumed task runs: without this wait the task fails, with it it succeeds.

        :param seconds: the maximum time.
        """
        wait_until(
            lambda: self.task_states(dag_id, run_id).get(task_id) == "deferred",
            seconds,
            f"the deferral of {dag_id}.{task_id}",
        )
        (task,) = (t for t in self.tasks(dag_id, run_id) if t["task_id"] == task_id)
        self.wait_until_process_ended(dag_id, run_id, task_id, seconds, task["try_number"])

    def wait_until_process_ended(
        self, dag_id: str, run_id: str, task_id: str, seconds: float = 120, try_number: int = 1
    ) -> None:
        """Return when the scheduler knows that the first process of a try of a task has ended.

        :param seconds: the maximum time.
        :param try_number: the number of the try, from 1.
        """
        event = (
            "Received executor event with state success for task instance TaskInstanceKey("
            f"dag_id={dag_id!r}, task_id={task_id!r}, run_id={run_id!r}, "
            f"try_number={try_number},"
        )
        scheduler_log = self.logs / "scheduler.log"
        wait_until(
            lambda: event in scheduler_log.read_text(errors="replace"),
            seconds,
            f"the executor event of the first process of try {try_number} of {dag_id}.{task_id}",
        )

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", f"{path}?deserialize=true&stringify=false")["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        return json.dumps(self.api("GET", path)["content"])

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.home, ignore_errors=True)
