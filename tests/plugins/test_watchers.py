"""Watchers: registered with Airflow, read from its database, with their lag and last trouble."""

from __future__ import annotations

import httpx
import pytest

from airflow_provider_chasqui.core.ops import delivery, watching
from airflow_provider_chasqui.queue import Queue
from tests.plugins.site import PageSite

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

# What the DAG processor does for a DAG with a watched asset.
_REGISTER = """
from airflow.models.asset import AssetModel, AssetWatcherModel
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger
with create_session() as session:
    trigger = Trigger.from_object(ChasquiMessageTrigger(queue_name={0!r}, chasqui_conn_id="native"))
    asset = AssetModel(name={0!r}, uri="chasqui://native/" + {0!r})
    session.add_all([trigger, asset])
    session.flush()
    session.add(AssetWatcherModel(name={0!r}, asset_id=asset.id, trigger_id=trigger.id))
print("null")
"""


@pytest.fixture
def where() -> str:
    return "native"


def test_a_watcher_with_its_lag_and_its_last_error(
    site: PageSite, queue: Queue, ada: httpx.Client
) -> None:
    site.python(_REGISTER.format(queue.name))
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
