"""Fixtures with the API of the page in a real Airflow, for several users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PluginEnvironment, PluginSite, plugin_environment

CHANGE_HEADERS = {"X-Chasqui-Change": "1"}

ApiCall = Callable[..., Any]


@pytest.fixture(scope="session")
def environment() -> PluginEnvironment:
    """The site and its servers; they stop with the process."""
    return plugin_environment()


@pytest.fixture
def site(environment: PluginEnvironment) -> PluginSite:
    return environment.site


@pytest.fixture(params=["native", "portable"])
def connection_id(request: pytest.FixtureRequest) -> str:
    """The id of a connection; the test runs once with each dialect."""
    return str(request.param)


@pytest.fixture
def queue(environment: PluginEnvironment, connection_id: str, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, environment.url(connection_id)) as queue:
        yield queue


@pytest.fixture
def ada(site: PluginSite) -> Iterator[httpx.Client]:
    """A client of an administrator."""
    with site.client("ada") as client:
        yield client


@pytest.fixture
def get_json(ada: httpx.Client, connection_id: str, queue_name: str) -> ApiCall:
    """Send a GET request about the queue of the test and return the JSON."""

    def call(path: str = "", **params: Any) -> Any:
        url = f"/chasqui/api/connections/{connection_id}/queue{path}"
        response = ada.get(url, params={"queue_name": queue_name, **params})
        assert response.status_code == 200, response.text
        return response.json()

    return call


@pytest.fixture
def change(ada: httpx.Client, connection_id: str, queue_name: str) -> ApiCall:
    """Replay or purge dead letters of the queue of the test and return the JSON."""

    def call(action: str, **body: Any) -> Any:
        url = f"/chasqui/api/connections/{connection_id}/queue/dead-letters/{action}"
        params = {"queue_name": queue_name}
        response = ada.post(url, params=params, json=body, headers=CHANGE_HEADERS)
        assert response.status_code == 200, response.text
        return response.json()

    return call
