"""Watchers: registered with Airflow, read from its database, with their lag and last trouble."""

from __future__ import annotations

import httpx
import pytest

from airflow_provider_chasqui.core.commands import consumer_group, watchers
from airflow_provider_chasqui.queue import Queue
from tests.plugins.sample_data import watch
from tests.support.plugin_site import PageSite

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


@pytest.fixture
def where() -> str:
    return "native"


def test_a_watcher_with_its_lag_and_its_last_error(
    site: PageSite, queue: Queue, ada: httpx.Client
) -> None:
    watch(site, queue.name)
    queue.add_many({"payload": n} for n in range(5))
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "triggerer", 2, 0, 60_000))
    trouble = watchers.WatcherState("host-1", None, 7, "the database is locked")
    queue.client.execute(watchers.save_state(queue.keys, "default", trouble))

    found = ada.get("/chasqui/api/watchers").json()["watchers"]
    [mine] = [each for each in found if each["name"] == queue.name]
    assert (mine["queue"], mine["connection"], mine["group"]) == (queue.name, "native", "default")
    assert (mine["lag"], mine["pending"]) == (3, 2)
    assert (mine["last_error"], mine["host"]) == ("the database is locked", "host-1")
    assert mine["seconds_since_seen"] < 60
    assert "no triggerer runs it" in mine["problem"]
