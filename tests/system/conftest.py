"""One real Airflow for all tests that want one: put them into xdist_group("airflow")."""

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
    """A Redis of the site's own, which keeps what it has when it is restarted."""
    with RedisServer.start(redis86_binary, aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def site_server(site_redis: RedisServer) -> Server:
    """The server that the connection `chasqui_default` of the site leads to."""
    return Server(site_redis.url, "native")


@pytest.fixture(scope="session")
def statsd() -> Iterator[StatsdServer]:
    """Where the site sends its statistics."""
    server = StatsdServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def airflow_site(site_server: Server, statsd: StatsdServer) -> Iterator[AirflowSite]:
    """A whole Airflow, shared by all tests of this process; about half a minute to start.

    Its DAGs are in tests/system/dags; what varies comes in a run's conf.
    """
    env = {
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(site_server.url, "auto"),
        "AIRFLOW__CHASQUI__RECHECK_INTERVAL": "5",
        **statsd.settings,
    }
    site = AirflowSite(DAGS, env)
    try:
        yield site.start()
    finally:
        site.close()
