"""The API server of a real Airflow with three users, for the tests of the page."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import httpx

from tests.provider.conftest import connection_json
from tests.support.local_airflow import AirflowSite
from tests.support.servers import RedisServer, valkey_binary
from tools.redis_server import REDIS8, find

ROLES = {"ada": "admin", "olga": "op", "vera": "viewer"}
DAGS = Path(__file__).parent / "dags"


class PageSite(AirflowSite):
    """An Airflow of which only the API server runs: DAGs are run by `airflow dags test`."""

    def __init__(self, connections: dict[str, str], **config: str):
        env = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
        env |= {f"AIRFLOW__CHASQUI__{name.upper()}": text for name, text in config.items()}
        env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(
            f"{name}:{role}" for name, role in ROLES.items()
        )
        super().__init__(DAGS, env)
        self._tokens: dict[str, str] = {}
        atexit.register(self.close)

    def start(self) -> Self:
        """Make the database, start the API server, and return when it answers."""
        self.run("db", "migrate")
        self.launch("api-server")
        self.await_api()
        return self

    def token(self, user: str) -> str:
        if user not in self._tokens:
            self._tokens[user] = super().token(user)
        return self._tokens[user]

    def client(self, user: str | None = None) -> httpx.Client:
        """A client logged in as that user, or as nobody."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def python(self, code: str) -> Any:
        """Run Python with the settings of this site and return the JSON that it prints last."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(), cwd=self.home,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()


class World:
    """The site, and the servers that its connections lead to; one for all tests of a process.

    `native` and `portable` are steady; `spare` is there to be paused, killed and started again.
    """

    def __init__(self) -> None:
        portable = valkey_binary()
        self.servers = {
            "native": RedisServer.start(find(REDIS8) or portable),
            "portable": RedisServer.start(portable),
            "spare": RedisServer.start(portable),
        }
        connections = {
            name: connection_json(server.url, "auto") for name, server in self.servers.items()
        }
        connections["elsewhere"] = json.dumps({"conn_type": "http", "host": "127.0.0.1"})
        self.site = PageSite(connections, mask_fields="password, api_key").start()

    @cached_property
    def newsletter(self) -> str:
        """A real run of the DAG newsletter; returns its run id."""
        self.site.run("dags", "test", "newsletter")
        with self.site.client("ada") as ada:
            [run] = ada.get("/api/v2/dags/newsletter/dagRuns").json()["dag_runs"]
        return str(run["dag_run_id"])

    def url(self, connection_id: str) -> str:
        return self.servers[connection_id].url


@cache
def world() -> World:
    """Return the one world of this process, made by whoever asks first."""
    return World()
