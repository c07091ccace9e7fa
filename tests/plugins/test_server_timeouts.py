"""A dead or hanging Redis server is reported and does not slow down the API server."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PluginEnvironment, PluginSite
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

# The time limit of the page, and the delay that a busy machine may add to any response.
REQUEST_TIMEOUT_S = 2.0
_MARGIN_S = 3.0


def _connections(client: httpx.Client) -> dict[str, dict[str, Any]]:
    overview = client.get("/chasqui/api/overview").json()
    return {connection["id"]: connection for connection in overview["connections"]}


def test_a_hanging_server_delays_the_page_by_the_time_limit_and_nothing_else(
    environment: PluginEnvironment, site: PluginSite, ada: httpx.Client
) -> None:
    server = environment.servers["spare"]
    with Queue("there", server.url) as queue:
        queue.add(1)
    _connections(ada)
    server.pause()
    try:
        other_durations: list[float] = []
        stop = threading.Event()

        def send_other_requests() -> None:
            with site.client("vera") as vera:
                while not stop.is_set():
                    started = time.monotonic()
                    vera.get("/api/v2/version")
                    other_durations.append(time.monotonic() - started)

        thread = threading.Thread(target=send_other_requests)
        thread.start()
        try:
            started = time.monotonic()
            first = _connections(ada)
            first_duration = time.monotonic() - started
        finally:
            stop.set()
            thread.join()
        started = time.monotonic()
        second = _connections(ada)
        second_duration = time.monotonic() - started
    finally:
        server.resume()

    assert first_duration < REQUEST_TIMEOUT_S + _MARGIN_S
    assert not first["spare"]["ok"]
    assert first["spare"]["error"]["code"] in ("CMQ-331", "CMQ-001")
    assert first["native"]["ok"]
    assert first["portable"]["ok"]
    assert len(other_durations) > 5
    assert max(other_durations) < REQUEST_TIMEOUT_S
    assert not second["spare"]["ok"]
    # The page does not call the server again during the cooldown.
    assert second_duration < REQUEST_TIMEOUT_S
    wait_until(lambda: _connections(ada)["spare"]["ok"], 20, "recovery of the connection spare")


def test_a_killed_server_is_reported_and_recovers_after_a_restart(
    environment: PluginEnvironment, ada: httpx.Client
) -> None:
    server = environment.servers["spare"]
    server.kill()
    try:
        error = wait_until(lambda: _connections(ada)["spare"]["error"], 20, "an error of spare")
        response = ada.get("/chasqui/api/connections/spare/queue", params={"queue_name": "there"})
    finally:
        server.restart()
    assert error["code"] == "CMQ-001"
    assert response.status_code == 503
    assert response.json()["error"]["code"] == error["code"]
    wait_until(lambda: _connections(ada)["spare"]["ok"], 20, "recovery of the connection spare")
