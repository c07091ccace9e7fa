"""A whole Chasqui on this machine: Airflow's four parts, a Valkey and workers, each a process."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from airflow_provider_chasqui.core.errors import BadInput, NotConnected
from airflow_provider_chasqui.embedded import EmbeddedServer

EXAMPLES = Path(__file__).parents[2] / "example_dags"
PARTS = ("api-server", "triggerer", "dag-processor", "scheduler")
USER = "admin"
START_SECONDS = 300.0
END_SECONDS = 30.0
_SPARK = {
    "spark-defaults.conf": (
        "spark.ui.enabled false\n"
        "spark.ui.showConsoleProgress false\n"
        "spark.sql.shuffle.partitions 2\n"
    ),
    "log4j2.properties": (
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n\n"
    ),
}
_PR_SET_PDEATHSIG = 1
Say = Callable[[str], None]


class Site:
    """Airflow, a server and workers of our own in one folder; gone with whoever started them.

    Everything listens on the loopback interface only. What the processes say is in `logs`. DAGs are
    read again every `reread` seconds.
    """

    def __init__(
        self, home: Path, *, dags: Path = EXAMPLES, port: int | None = None, reread: int = 30
    ):
        if not EXAMPLES.is_dir():
            raise BadInput("the demo runs the example DAGs: start it from a checkout of the source")
        self.home = home
        self.dags = dags
        self.logs = home / "logs"
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = EmbeddedServer(folder=home / "valkey")
        self.password = ""
        self._reread = reread
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx.Client(base_url=self.url, timeout=60)

    def start_server(self) -> None:
        """Start the Valkey; its data is kept in the folder."""
        for name in ("logs", "valkey", "airflow", "spark"):
            self.home.joinpath(name).mkdir(parents=True, exist_ok=True)
        for name, text in _SPARK.items():
            self.home.joinpath("spark", name).write_text(text)
        self.server.start()

    def start_worker(self, *queues: str, options: Sequence[str] = ()) -> None:
        """Start a worker for these queues, with the handlers of the examples."""
        args = ["example_handlers:handlers", *options]
        for queue in queues:
            args += ["--queue", queue]
        command = ["-m", "airflow_provider_chasqui.cli", "worker", *args]
        self._launch("worker", command, {"CHASQUI_URL": self.server.url}, EXAMPLES)

    def start_airflow(self, say: Say) -> None:
        """Make the database, start all parts, log in, and return when they are healthy."""
        say("makes its database")
        self._airflow("db", "migrate")
        say(f"starts {', '.join(PARTS)}")
        for part in PARTS:
            if part == "scheduler":
                # A task that begins before there is an API to talk to fails.
                self._until(self._answers, START_SECONDS, "Airflow's API did not answer")
            self._launch(part, ["-m", "airflow", part], {}, self.home)
        self._until(self._healthy, START_SECONDS, "Airflow did not become healthy")
        passwords = self.home / "airflow" / "simple_auth_manager_passwords.json.generated"
        self.password = json.loads(passwords.read_text())[USER]
        login = self._http.post("/auth/token", json={"username": USER, "password": self.password})
        login.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {login.json()['access_token']}"

    def api(self, method: str, path: str, **body: Any) -> Any:
        """Call Airflow's public API as an administrator."""
        answer = self._http.request(method, f"/api/v2/{path}", json=body or None)
        if answer.is_error:
            raise NotConnected(f"Airflow refused {method} {path}: {answer.text}")
        return answer.json()

    def trigger(self, dag_id: str) -> str:
        """Start a DAG run, once Airflow has read the DAG; returns the path of the run."""

        def known() -> bool:
            return self._http.get(f"/api/v2/dags/{dag_id}").is_success

        self._until(known, START_SECONDS, f"Airflow did not find the DAG {dag_id!r}")
        run = self.api("POST", f"dags/{dag_id}/dagRuns", logical_date=None)
        return f"dags/{dag_id}/dagRuns/{run['dag_run_id']}"

    def check(self) -> None:
        """Raise, with the end of its log, if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = self._log(name).read_text(errors="replace")[-3000:]
                raise NotConnected(f"{name} has ended:\n{said}")

    def close(self) -> None:
        """End every process, the server last."""
        self._http.close()
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            # What it started and left behind is in its group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        self.server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            return self._http.get("/api/v2/version").is_success
        except httpx.HTTPError:
            return False

    def _healthy(self) -> bool:
        try:
            health = self._http.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def _until(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise NotConnected(f"{otherwise} within {seconds:.0f} s; see {self.logs}")
            time.sleep(0.25)

    def _airflow(self, *args: str) -> None:
        with self._log("setup").open("ab") as out:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", *args],
                env=self._environment(), cwd=self.home, stdout=out, stderr=out, check=False,
            )  # fmt: skip
        if done.returncode:
            raise NotConnected(f"airflow {' '.join(args)} failed; see {self._log('setup')}")

    def _launch(self, name: str, command: list[str], env: dict[str, str], cwd: Path) -> None:
        with self._log(name).open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command],
                env=self._environment() | env, cwd=cwd,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, preexec_fn=_end_with(os.getpid()),
            )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _environment(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        chasqui = {"conn_type": "chasqui", "host": "127.0.0.1", "port": self.server.port}
        spark = {"conn_type": "spark", "host": "local[2]"}
        return env | {
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "4",
            # A busy scheduler may take a task that was resumed at once for one that was killed.
            "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "2",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "2",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self._secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": str(self._reread),
            "AIRFLOW__CHASQUI__CONNECTIONS": "chasqui_default",
            "AIRFLOW_CONN_CHASQUI_DEFAULT": json.dumps(chasqui),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "FLAGSHIP_HOME": str(self.home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.home / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does, so that it cleans up behind itself."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with(parent: int) -> Callable[[], None] | None:
    """On Linux, let the kernel end a part even if its owner is killed with SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before the kernel was told to watch it
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec
