"""Airflow as teams run it: PostgreSQL, the FAB auth manager, and a path below the host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connection_json, working
from tests.support.environments import ROOT, create_environment
from tests.support.local_airflow import AirflowSite
from tests.support.postgres import PostgresServer, postgres_programs
from tests.system.conftest import DAGS

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("production-site"),
    pytest.mark.timeout(500),
]

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
PACKAGES = ("apache-airflow-providers-fab", "psycopg2-binary", "asyncpg")
ROLES = {"ada": "Admin", "olga": "Op", "vera": "Viewer"}


class ProductionSite(AirflowSite):
    """An Airflow with one user per role of FAB. Every password is the name of the user."""

    def password_of(self, user: str) -> str:
        return {"admin": "ada"}.get(user, user)

    def token(self, user: str) -> str:
        login = {"username": self.password_of(user), "password": self.password_of(user)}
        response = self._http.post("/auth/token", json=login)
        response.raise_for_status()
        return str(response.json()["access_token"])

    def start(self) -> ProductionSite:
        self.run("db", "migrate")
        for name, role in ROLES.items():
            options = {"username": name, "password": name, "role": role, "firstname": name}
            options |= {"lastname": name, "email": f"{name}@example.org"}
            self.run("users", "create", *[f"--{key}={value}" for key, value in options.items()])
        self.start_airflow()
        return self

    def client(self, user: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    programs = postgres_programs()
    if programs is None:
        message = "PostgreSQL is not installed (Debian: postgresql)"
        if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    server = PostgresServer(programs).start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def site(postgres: PostgresServer, site_server: Server) -> Iterator[ProductionSite]:
    from airflow import __version__ as airflow_version

    airflow = f"apache-airflow=={airflow_version}"
    python = create_environment("production-site", "-e", str(ROOT), airflow, *PACKAGES)
    env = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url,
        "AIRFLOW__CORE__AUTH_MANAGER": FAB,
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(site_server.url, "auto"),
    }
    site = ProductionSite(DAGS, env, base_path="/airflow", python=str(python))
    try:
        yield site.start()
    finally:
        site.close()


@pytest.fixture(scope="module")
def run_id(site: ProductionSite, site_server: Server) -> Iterator[str]:
    """The id of a finished run that enqueued a job and waited for it in the triggerer."""

    async def echo(job: object) -> object:
        return job.payload  # type: ignore[attr-defined]

    run_id = site.trigger("await_one", queue="production-site")
    site.wait_until_deferred("await_one", run_id, "send")
    with working(site_server, "production-site", echo, store_results=True):
        state = site.wait("await_one", run_id, 240)
        assert state == "success", site.task_log("await_one", run_id, "send")
        yield run_id


def test_a_deferred_wait_ends_on_postgresql(site: ProductionSite, run_id: str) -> None:
    assert site.xcom("await_one", run_id, "use") == 21


def test_the_link_of_a_task_opens_the_page_below_the_base_path(
    site: ProductionSite, run_id: str
) -> None:
    links = site.api("GET", f"dags/await_one/dagRuns/{run_id}/taskInstances/send/links")
    link = links["extra_links"]["Chasqui job"]
    assert link.startswith("/airflow/plugin/chasqui?")
    with site.client("ada") as ada:
        page = ada.get(f"http://127.0.0.1:{site.port}{link}")
        assert page.status_code == 200
        assert '<base href="/airflow/"' in page.text
        bundle = ada.get("/chasqui/static/chasqui.js")
        assert bundle.status_code == 200


@pytest.mark.parametrize(("user", "status"), [("ada", 200), ("olga", 200), ("vera", 403)])
def test_reading_the_page_needs_the_plugins_permission_of_fab(
    site: ProductionSite, run_id: str, user: str, status: int
) -> None:
    with site.client(user) as client:
        assert client.get("/chasqui/api/overview").status_code == status


@pytest.mark.parametrize(("user", "status"), [("ada", 200), ("vera", 403)])
def test_replaying_needs_the_permission_to_edit_connections(
    site: ProductionSite, site_server: Server, user: str, status: int
) -> None:
    path = "/chasqui/api/connections/chasqui_default/queue/dead-letters/replay"
    with Queue("production-dlq", site_server.url) as queue, site.client(user) as client:
        queue.add("x")
        response = client.post(
            path,
            params={"queue_name": "production-dlq"},
            json={"dry_run": True},
            headers={"X-Chasqui-Change": "1"},
        )
    assert response.status_code == status, response.text


def test_nothing_is_readable_without_a_login(site: ProductionSite) -> None:
    response = httpx.get(f"{site.url}/chasqui/api/overview", timeout=30)
    assert response.status_code == 401
