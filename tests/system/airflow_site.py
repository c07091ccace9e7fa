"""A whole real Airflow: API server, scheduler, triggerer and DAG processor, each a process."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.servers import _die_with_parent, free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
PARTS = ("api-server", "scheduler", "triggerer", "dag-processor")
USER = "admin"
T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float, what: str, every: float = 0.25) -> T:
    """Return what the condition answers once it is true."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds:g} s")
        time.sleep(every)
    return answer


class AirflowSite:
    """Airflow with a database, a folder of DAGs and processes of its own, gone with the tests.

    `kill` ends one part like a power cut; `launch` starts it again.
    """

    def __init__(self, dags: Path, env: dict[str, str]):
        self.home = Path(tempfile.mkdtemp(prefix="chasqui-airflow-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = self._environment(dags) | env
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx.Client(base_url=self.url, timeout=30)

    def _environment(self, dags: Path) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        return env | {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__PARALLELISM": "6",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start(self) -> AirflowSite:
        """Make the database, start all parts, and return when they are healthy."""
        self.run("db", "migrate")
        for part in PARTS:
            self.launch(part)
        until(self.healthy, START_SECONDS, "a healthy Airflow")
        passwords = self.home / "simple_auth_manager_passwords.json.generated"
        self.password: str = json.loads(passwords.read_text())[USER]
        login = self._http.post("/auth/token", json={"username": USER, "password": self.password})
        login.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {login.json()['access_token']}"
        return self

    def run(self, *args: str) -> str:
        """Run an `airflow` command and return what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *args],
            env=self._env, cwd=self.home, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"airflow {' '.join(args)}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def launch(self, part: str) -> None:
        with self.log(part).open("ab") as out:
            self._processes[part] = subprocess.Popen(
                [sys.executable, "-m", "airflow", part],
                env=self._env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )  # fmt: skip

    def kill(self, part: str) -> None:
        """End a part, and all that it started, like a power cut."""
        process = self._processes.pop(part)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, part: str) -> Path:
        return self.home / f"{part}.log"

    def healthy(self) -> bool:
        for part, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError(f"{part} ended:\n{self.log(part).read_text()[-4000:]}")
        try:
            health = self._http.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def api(self, method: str, path: str, **body: Any) -> Any:
        """Call the public API as an administrator."""
        answer = self._http.request(method, f"/api/v2/{path}", json=body or None)
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, **conf: Any) -> str:
        """Start a DAG run, waiting for the DAG to be parsed first; returns the run's id."""
        until(lambda: self._known(dag_id), 60, f"the DAG {dag_id!r}")
        run = self.api("POST", f"dags/{dag_id}/dagRuns", conf=conf, logical_date=None)
        return str(run["dag_run_id"])

    def _known(self, dag_id: str) -> bool:
        return self._http.get(f"/api/v2/dags/{dag_id}").is_success

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
        self._http.close()
        for part in list(self._processes):
            self.kill(part)
        shutil.rmtree(self.home, ignore_errors=True)
