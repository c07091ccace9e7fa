"""One Airflow for all system tests. Tests that use it belong to xdist_group("airflow")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.provider.conftest import connection_json
from tests.support.local_airflow import AirflowSite
from tests.support.servers import RedisServer
from tests.system.statsd import StatsdServer

DAGS = Path(__file__).parent / "dags"


@pytest.fixture(scope="session")
def site_redis(redis86_binary: Path) -> Iterator[RedisServer]:
    """A separate Redis server with AOF, which keeps its data over a restart."""
    with RedisServer.start(redis86_binary, aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def site_server(site_redis: RedisServer) -> Server:
    """The server of the connection `chasqui_default`."""
    return Server(site_redis.url, "native")


@pytest.fixture(scope="session")
def statsd() -> Iterator[StatsdServer]:
    """The server that receives the metrics of Airflow."""
    server = StatsdServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def airflow_site(site_server: Server, statsd: StatsdServer) -> Iterator[AirflowSite]:
    """A complete Airflow, shared by all tests of this process. It takes half a minute to start.

    Its DAGs are in tests/system/dags. Their parameters are in the conf of a run.
    """
    env = {
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(site_server.url, "auto"),
        "AIRFLOW__CHASQUI__POLL_INTERVAL": "5",
        # Short, for the test of a task that is killed after it has succeeded.
        "AIRFLOW__CORE__TASK_SUCCESS_OVERTIME": "6",
        **statsd.settings,
    }
    site = AirflowSite(DAGS, env)
    try:
        yield site.start()
    finally:
        site.close()
