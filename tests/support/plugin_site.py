"""The API server of a real Airflow with several users, for the tests of the Chasqui page."""

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
from tests.support.team_auth import READER, RESTRICTED_USER, TeamAuthManager
from tools.redis_server import REDIS8, find

ROLES = {"ada": "admin", "olga": "op", "vera": "viewer", RESTRICTED_USER: "op", READER: "viewer"}
DAGS = Path(__file__).parents[1] / "plugins" / "dags"


class PluginSite(AirflowSite):
    """An Airflow that runs only its API server; `airflow dags test` runs the DAGs.

    :param connections: Airflow connections as JSON, by id.
    :param config: options of the `[chasqui]` section.
    """

    def __init__(self, connections: dict[str, str], **config: str):
        env = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
        env |= {f"AIRFLOW__CHASQUI__{name.upper()}": text for name, text in config.items()}
        env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(
            f"{name}:{role}" for name, role in ROLES.items()
        )
        env["AIRFLOW__CORE__AUTH_MANAGER"] = f"{TeamAuthManager.__module__}.TeamAuthManager"
        super().__init__(DAGS, env)
        self._tokens: dict[str, str] = {}
        atexit.register(self.close)

    def start(self) -> Self:
        """Create the database, start the API server and wait until it is ready."""
        self.run("db", "migrate")
        self.launch("api-server")
        self.await_api()
        return self

    def token(self, user: str) -> str:
        """Return an access token of a user; it is requested once."""
        if user not in self._tokens:
            self._tokens[user] = super().token(user)
        return self._tokens[user]

    def client(self, user: str | None = None) -> httpx.Client:
        """Return a client that is logged in as a user, or not logged in for None."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def python(self, code: str) -> Any:
        """Run Python code with the settings of this site and return the JSON on its last line."""
        process = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])

    def close(self) -> None:
        """Stop the API server."""
        atexit.unregister(self.close)
        super().close()


class PluginEnvironment:
    """The site and the Redis servers of its connections, shared by all tests of a process.

    Tests may pause, kill and restart the server `spare`, but not `native` and `portable`.
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
        self.site = PluginSite(connections, mask_fields="password, api_key").start()

    @cached_property
    def newsletter_run_id(self) -> str:
        """The id of a real run of the DAG newsletter, which is run on first access."""
        self.site.run("dags", "test", "newsletter")
        with self.site.client("ada") as ada:
            [run] = ada.get("/api/v2/dags/newsletter/dagRuns").json()["dag_runs"]
        return str(run["dag_run_id"])

    def url(self, connection_id: str) -> str:
        """Return the URL of the server of a connection."""
        return self.servers[connection_id].url


@cache
def plugin_environment() -> PluginEnvironment:
    """Return the environment of this process; it is started on the first call."""
    return PluginEnvironment()
