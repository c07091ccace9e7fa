"""The page of a real Airflow, asked as three users and as nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PageSite, World, world


@pytest.fixture(scope="session")
def the_world() -> World:
    """The site and its servers; it ends with the process."""
    return world()


@pytest.fixture
def site(the_world: World) -> PageSite:
    return the_world.site


@pytest.fixture(params=["native", "portable"])
def where(request: pytest.FixtureRequest) -> str:
    """The id of a connection; the test runs once on each dialect."""
    return str(request.param)


@pytest.fixture
def queue(the_world: World, where: str, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, the_world.url(where)) as queue:
        yield queue


@pytest.fixture
def ada(site: PageSite) -> Iterator[httpx.Client]:
    """An administrator."""
    with site.client("ada") as client:
        yield client


Ask = Callable[..., Any]


@pytest.fixture
def look(ada: httpx.Client, where: str, queue_name: str) -> Ask:
    """Ask the API about the queue of the test."""

    def ask(path: str = "", **params: Any) -> Any:
        url = f"/chasqui/api/connections/{where}/queue{path}"
        answer = ada.get(url, params={"queue_name": queue_name, **params})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


CHANGE = {"X-Chasqui-Change": "1"}


@pytest.fixture
def change(ada: httpx.Client, where: str, queue_name: str) -> Ask:
    """Replay or purge letters of the queue of the test."""

    def ask(verb: str, **body: Any) -> Any:
        url = f"/chasqui/api/connections/{where}/queue/letters/{verb}"
        answer = ada.post(url, params={"queue_name": queue_name}, json=body, headers=CHANGE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask
