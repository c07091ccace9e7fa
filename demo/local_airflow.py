"""A complete Airflow on this machine, with one process per component.

The processes end with the process that started them.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.testing.embedded_server import find_free_port

PARTS = ("api-server", "triggerer", "dag-processor", "scheduler")
USER = "admin"
START_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1
ProgressCallback = Callable[[str], None]


class LocalAirflow:
    """Airflow with its own folder, database and processes, on the loopback interface only.

    The output of the processes is in the folder `logs`. `close` waits at most `stop_timeout`
    seconds for the processes to end, and then kills them.

    :param home: the folder.
    :param dags: the folder of the DAGs.
    :param port: the port of the API server; by default any free port.
    :param base_path: the path below which the API server serves everything, such as `/airflow`.
    :param python: the Python of the processes; by default the one of this process.
    """

    stop_timeout = 30.0

    def __init__(
        self,
        home: Path,
        dags: Path,
        port: int | None = None,
        base_path: str = "",
        python: str = sys.executable,
    ):
        self.home = home
        self.dags = dags
        self.logs = home / "logs"
        self.port = port or find_free_port()
        self.url = f"http://127.0.0.1:{self.port}{base_path}"
        self._python = python
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx.Client(base_url=self.url, timeout=60)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of all processes."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        return env | {
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self._secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "PATH": f"{Path(self._python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    @property
    def _secret(self) -> str:
        """The key that signs tokens; it stays the same after a restart."""
        file = self.home / "secret"
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(64))
        return file.read_text()

    def start_airflow(self, report: ProgressCallback = lambda action: None) -> None:
        """Create the database, start all components, log in, and return when they are healthy.

        :param report: called with a description of each step.
        :raises ConnectionFailed: if a component fails or is not healthy in time.
        """
        report("creating the database")
        self.run("db", "migrate")
        report(f"starting {', '.join(PARTS)}")
        for part in PARTS:
            if part == "scheduler":
                self.await_api()  # a task fails if it starts before the API server
            self.launch(part)
        self._until(self._is_healthy, "Airflow did not become healthy")
        self._http.headers["Authorization"] = f"Bearer {self.token(USER)}"

    def run(self, *args: str) -> str:
        """Run an `airflow` command and return its output."""
        process = subprocess.run(
            [self._python, "-m", "airflow", *args],
            env=self.environment(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise ConnectionFailed(
                f"airflow {' '.join(args)} failed:\n{process.stdout}\n{process.stderr}"
            )
        return process.stdout

    def launch(self, part: str) -> None:
        """Start a component of Airflow."""
        self.start_process(part, ["-m", "airflow", part], {}, self.home)

    def start_process(
        self, name: str, command: Sequence[str], env: dict[str, str], cwd: Path
    ) -> None:
        """Start a Python process that `close` stops.

        :param name: the name of the process and of its log file.
        :param command: the arguments of Python.
        :param env: additional environment variables.
        :param cwd: the working directory.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._log(name).open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [self._python, *command],
                env=self.environment() | env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_end_with(os.getpid()),
            )

    def await_api(self) -> None:
        """Return when the API server replies."""
        self._until(self._api_replies, "Airflow's API server did not reply")

    def check(self) -> None:
        """Raise `ConnectionFailed`, with the end of its log, if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                output = self._log(name).read_text(errors="replace")[-3000:]
                raise ConnectionFailed(
                    f"{name} has ended with exit code {process.returncode}:\n{output}"
                )

    def password_of(self, user: str) -> str:
        """Return the generated password of a user."""
        file = self.home / "airflow" / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(file.read_text())[user])

    def token(self, user: str) -> str:
        """Log in and return the API token of a user."""
        login = {"username": user, "password": self.password_of(user)}
        response = self._http.post("/auth/token", json=login)
        response.raise_for_status()
        return str(response.json()["access_token"])

    def api(self, method: str, path: str, **body: Any) -> Any:
        """Call Airflow's public API as an administrator and return the JSON response.

        :raises ConnectionFailed: if Airflow rejects the request.
        """
        response = self._http.request(method, f"/api/v2/{path}", json=body or None)
        if response.is_error:
            raise ConnectionFailed(f"Airflow rejected {method} {path}: {response.text}")
        return response.json() if response.content else None

    def trigger(self, dag_id: str, **conf: Any) -> str:
        """Wait until Airflow has parsed a DAG, start a run, and return its id."""

        def is_known() -> bool:
            return self._http.get(f"/api/v2/dags/{dag_id}").is_success

        self._until(is_known, f"Airflow did not find the DAG {dag_id!r}")
        run = self.api("POST", f"dags/{dag_id}/dagRuns", conf=conf, logical_date=None)
        return str(run["dag_run_id"])

    def kill(self, part: str) -> None:
        """Kill a component and all processes that it has started (SIGKILL)."""
        process = self._processes.pop(part)
        # Its child processes are in its process group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Stop all processes."""
        self._http.close()
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + self.stop_timeout
        for name, process in list(self._processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.kill(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _api_replies(self) -> bool:
        try:
            return self._http.get("/api/v2/version").is_success
        except httpx.HTTPError:
            return False

    def _is_healthy(self) -> bool:
        try:
            health = self._http.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def _until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"{failure} within {START_SECONDS:.0f} s; see {self.logs}")
            time.sleep(0.25)

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


def _end_with(parent: int) -> Callable[[], None] | None:
    """On Linux, let the kernel stop a component even if its owner is killed with SIGKILL."""
    # The kernel checks the thread that started the component. Only the main thread never ends.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the owner ended before prctl took effect
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec
