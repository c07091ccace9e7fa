"""Watchers: registered with Airflow, read from its database, with their lag and last trouble."""

from __future__ import annotations

import httpx
import pytest

from airflow_provider_chasqui.core.ops import delivery, watching
from airflow_provider_chasqui.queue import Queue
from tests.plugins.site import PageSite
from tests.plugins.story import watch

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


@pytest.fixture
def where() -> str:
    return "native"


def test_a_watcher_with_its_lag_and_its_last_error(
    site: PageSite, queue: Queue, ada: httpx.Client
) -> None:
    watch(site, queue.name)
    queue.add_many({"payload": n} for n in range(5))
    queue.drive.run(delivery.make_group(queue.keys, "default"))
    queue.drive.run(delivery.read(queue.keys, "default", "triggerer", 2, 0, 60_000))
    trouble = watching.Watcher("host-1", None, 7, "the database is locked")
    queue.drive.run(watching.note(queue.keys, "default", trouble))

    found = ada.get("/chasqui/api/watchers").json()["watchers"]
    [mine] = [each for each in found if each["name"] == queue.name]
    assert (mine["queue"], mine["connection"], mine["group"]) == (queue.name, "native", "default")
    assert (mine["lag"], mine["pending"]) == (3, 2)
    assert (mine["last_error"], mine["host"]) == ("the database is locked", "host-1")
    assert mine["seen_s_ago"] < 60
    assert "no triggerer runs it" in mine["problem"]
