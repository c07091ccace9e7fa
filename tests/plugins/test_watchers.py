"""Asset watchers on the page: registered with Airflow, with their lag and their last error."""

from __future__ import annotations

import httpx
import pytest

from airflow_provider_chasqui.core.commands import consumer_group, watchers
from airflow_provider_chasqui.queue import Queue
from tests.plugins.sample_data import register_watcher
from tests.support.plugin_site import PluginSite

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


@pytest.fixture
def connection_id() -> str:
    return "native"


def test_a_watcher_is_listed_with_its_lag_and_its_last_error(
    site: PluginSite, queue: Queue, ada: httpx.Client
) -> None:
    register_watcher(site, queue.name)
    queue.add_many({"payload": n} for n in range(5))
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "triggerer", 2, 0))
    state = watchers.WatcherState("host-1", None, 7, "the database is locked")
    queue.client.execute(watchers.save_state(queue.keys, "default", state))

    rows = ada.get("/chasqui/api/watchers").json()["watchers"]
    [row] = [row for row in rows if row["name"] == queue.name]
    assert (row["queue"], row["connection"], row["group"]) == (queue.name, "native", "default")
    assert (row["lag"], row["pending"]) == (3, 2)
    assert (row["last_error"], row["host"]) == ("the database is locked", "host-1")
    assert row["seconds_since_seen"] < 60
    assert "No triggerer runs this watcher" in row["problem"]
