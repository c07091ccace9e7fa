"""A dead or a hanging server: the page says so, and the API server does not even notice."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PageSite, World
from tests.support.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

# What the page promises, and what a busy machine may add to any answer.
PATIENCE = 2.0
_SLACK = 3.0


def _overview(client: httpx.Client) -> dict[str, dict]:
    answer = client.get("/chasqui/api/overview").json()
    return {each["id"]: each for each in answer["connections"]}


def test_a_hanging_server_costs_the_page_its_patience_and_others_nothing(
    the_world: World, site: PageSite, ada: httpx.Client
) -> None:
    server = the_world.servers["spare"]
    with Queue("there", server.url) as queue:
        queue.add(1)
    _overview(ada)
    server.pause()
    try:
        waits: list[float] = []
        stop = threading.Event()

        def others() -> None:
            with site.client("vera") as vera:
                while not stop.is_set():
                    began = time.monotonic()
                    vera.get("/api/v2/version")
                    waits.append(time.monotonic() - began)

        thread = threading.Thread(target=others)
        thread.start()
        try:
            began = time.monotonic()
            seen = _overview(ada)
            took = time.monotonic() - began
        finally:
            stop.set()
            thread.join()
        began = time.monotonic()
        again = _overview(ada)
        took_again = time.monotonic() - began
    finally:
        server.resume()

    assert took < PATIENCE + _SLACK
    assert not seen["spare"]["ok"]
    assert seen["spare"]["error"]["code"] in ("CMQ-331", "CMQ-001")
    assert seen["native"]["ok"]
    assert seen["portable"]["ok"]
    assert len(waits) > 5
    assert max(waits) < PATIENCE
    assert not again["spare"]["ok"]
    assert took_again < PATIENCE  # it was not asked again at once
    until(lambda: _overview(ada)["spare"]["ok"], 20, "the page noticing that it is back")


def test_a_killed_server_is_shown_as_dead_and_found_again(
    the_world: World, ada: httpx.Client
) -> None:
    server = the_world.servers["spare"]
    server.kill()
    try:
        seen = until(lambda: _dead(ada), 20, "the page noticing")
        one = ada.get("/chasqui/api/connections/spare/queue", params={"queue_name": "there"})
    finally:
        server.restart()
    assert "check that the server runs" in seen["error"]["message"]
    assert one.status_code == 503
    assert one.json()["error"]["code"] == seen["error"]["code"]
    until(lambda: _overview(ada)["spare"]["ok"], 20, "the page noticing that it is back")


def _dead(client: httpx.Client):
    seen = _overview(client)["spare"]
    return None if seen["ok"] else seen
