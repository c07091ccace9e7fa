"""A real Airflow on this machine: each of its parts a process, gone with whoever started it."""

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
Say = Callable[[str], None]


class LocalAirflow:
    """Airflow with a folder, a database and processes of its own, on the loopback interface only.

    What the processes say is in `logs`. `kill` ends one part like a power cut, `launch` starts it
    again; `close` gives all of them `patience` seconds to end.
    """

    patience = 30.0

    def __init__(self, home: Path, dags: Path, port: int | None = None):
        self.home = home
        self.dags = dags
        self.logs = home / "logs"
        self.port = port or find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx.Client(base_url=self.url, timeout=60)

    def environment(self) -> dict[str, str]:
        """The settings that all parts start with."""
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
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    @property
    def _secret(self) -> str:
        """What signs logins and task tokens; the same for all parts and from start to start."""
        file = self.home / "secret"
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(64))
        return file.read_text()

    def start_airflow(self, say: Say = lambda what: None) -> None:
        """Make the database, start all parts, log in, and return when they are healthy."""
        say("makes its database")
        self.run("db", "migrate")
        say(f"starts {', '.join(PARTS)}")
        for part in PARTS:
            if part == "scheduler":
                self.await_api()  # a task that begins before there is an API to talk to fails
            self.launch(part)
        self._until(self._is_healthy, "Airflow did not become healthy")
        self._http.headers["Authorization"] = f"Bearer {self.token(USER)}"

    def run(self, *args: str) -> str:
        """Run an `airflow` command and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *args],
            env=self.environment(), cwd=self.home, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ConnectionFailed(
                f"airflow {' '.join(args)} failed:\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def launch(self, part: str) -> None:
        """Start one of Airflow's parts."""
        self.start_process(part, ["-m", "airflow", part], {}, self.home)

    def start_process(
        self, name: str, command: Sequence[str], env: dict[str, str], cwd: Path
    ) -> None:
        """Start a Python process that is to run as long as the site."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._log(name).open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command],
                env=self.environment() | env, cwd=cwd,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, preexec_fn=_end_with(os.getpid()),
            )  # fmt: skip

    def await_api(self) -> None:
        """Return when the API server answers."""
        self._until(self._answers, "Airflow's API did not answer")

    def check(self) -> None:
        """Raise, with the end of its log, if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = self._log(name).read_text(errors="replace")[-3000:]
                raise ConnectionFailed(f"{name} has ended:\n{said}")

    def password_of(self, user: str) -> str:
        file = self.home / "airflow" / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(file.read_text())[user])

    def token(self, user: str) -> str:
        """Log in; returns what a user shows to the API."""
        login = {"username": user, "password": self.password_of(user)}
        answer = self._http.post("/auth/token", json=login)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def api(self, method: str, path: str, **body: Any) -> Any:
        """Call Airflow's public API as an administrator."""
        answer = self._http.request(method, f"/api/v2/{path}", json=body or None)
        if answer.is_error:
            raise ConnectionFailed(f"Airflow refused {method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, **conf: Any) -> str:
        """Start a DAG run, once Airflow has read the DAG; returns the run's id."""

        def is_known() -> bool:
            return self._http.get(f"/api/v2/dags/{dag_id}").is_success

        self._until(is_known, f"Airflow did not find the DAG {dag_id!r}")
        run = self.api("POST", f"dags/{dag_id}/dagRuns", conf=conf, logical_date=None)
        return str(run["dag_run_id"])

    def kill(self, part: str) -> None:
        """End a part, and all that it started, like a power cut."""
        process = self._processes.pop(part)
        # What it started and left behind is in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End every process."""
        self._http.close()
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + self.patience
        for name, process in list(self._processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.kill(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
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

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"{otherwise} within {START_SECONDS:.0f} s; see {self.logs}")
            time.sleep(0.25)

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


def _end_with(parent: int) -> Callable[[], None] | None:
    """On Linux, let the kernel end a part even if its owner is killed with SIGKILL."""
    # The kernel looks at the thread that started the part, and the main one alone lives to the end.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before the kernel was told to watch it
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec
