"""A real Airflow site for the tests of the page: database, users, API server, a DAG that ran."""

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
from pathlib import Path
from typing import Any

import httpx

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0
USERS = {"ada": "admin", "olga": "op", "vera": "viewer"}


class Site:
    """One Airflow with an API server of its own, gone when the tests are gone."""

    def __init__(self, connections: dict[str, str], **config: str):
        self.home = Path(tempfile.mkdtemp(prefix="chasqui-airflow-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.home / "api-server.log"
        self.dags = self.home / "dags"
        self.dags.mkdir()
        self._env = self._environment(connections, config)
        self._process: subprocess.Popen[bytes] | None = None
        self._tokens: dict[str, str] = {}

    def _environment(self, connections: dict[str, str], config: dict[str, str]) -> dict[str, str]:
        # A fork of a test worker is no Airflow of its own: nothing of the outer one may leak in.
        env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        env |= {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
        env |= {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{role}" for name, role in USERS.items()
            ),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        return env | {f"AIRFLOW__CHASQUI__{name.upper()}": text for name, text in config.items()}

    def start(self) -> Site:
        """Make the database, start the API server and return when it answers."""
        self.airflow("db", "migrate")
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "api-server"],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"Airflow did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)
        return self

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/version", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def airflow(self, *args: str) -> str:
        """Run an Airflow command of this site to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *args],
            env=self._env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(args)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def password(self, user: str) -> str:
        file = self.home / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(file.read_text())[user])

    def token(self, user: str) -> str:
        if user not in self._tokens:
            body = {"username": user, "password": self.password(user)}
            answer = httpx.post(f"{self.url}/auth/token", json=body, timeout=20)
            answer.raise_for_status()
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def client(self, user: str | None = None, **options: Any) -> httpx.Client:
        """A client of the Chasqui API, logged in as that user, or as nobody."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, **options)

    def close(self) -> None:
        if self._process is not None:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self._process.pid, sign)
                    self._process.wait(10)
                    break
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue
        shutil.rmtree(self.home, ignore_errors=True)


def connection(url: str, **extra: Any) -> str:
    """A server as an Airflow connection in JSON."""
    host, _, port = url.removeprefix("redis://").partition("/")[0].partition(":")
    return json.dumps({"conn_type": "chasqui", "host": host, "port": int(port), "extra": extra})
