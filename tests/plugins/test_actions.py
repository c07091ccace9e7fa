"""Actions of the page: cancel a batch or a job, pause and resume a queue."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE_HEADERS
from tests.plugins.test_access import _audit_log
from tests.support.plugin_site import PluginSite
from tests.support.team_auth import READER

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

QUEUE_URL = "/chasqui/api/connections/native/queue"


@pytest.fixture
def connection_id() -> str:
    return "native"


def change(client: httpx.Client, queue: Queue, path: str, body: Any, **params: str) -> Any:
    return client.post(
        f"{QUEUE_URL}{path}",
        params={"queue_name": queue.name, **params},
        json=body,
        headers=CHANGE_HEADERS,
    )


def test_an_editor_cancels_a_batch(site: PluginSite, queue: Queue) -> None:
    queue.add_batch(range(5), batch_id="b")
    with site.client("olga") as olga:
        assert change(olga, queue, "/batches/b/cancel", {}).json() == {"result": "cancelled"}
        assert change(olga, queue, "/batches/b/cancel", {}).json() == {
            "result": "already_cancelled"
        }
        assert change(olga, queue, "/batches/missing/cancel", {}).status_code == 404
        row = olga.get(f"{QUEUE_URL}/batches/b", params={"queue_name": queue.name}).json()
    assert row["cancelled_at"] == queue.batch_progress("b").cancelled_at_ms
    assert row["can_edit"]
    entries = _audit_log(site, queue.name)
    assert [entry["event"] for entry in entries] == ["chasqui_cancel_batch"] * 3
    outcomes = [json.loads(entry["extra"])["outcome"] for entry in entries]
    assert outcomes[:2] == [{"result": "cancelled"}, {"result": "already_cancelled"}]
    assert "CMQ-" in outcomes[2]["error"]


def test_an_editor_cancels_a_job(site: PluginSite, queue: Queue) -> None:
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    with site.client("olga") as olga:
        assert change(olga, queue, "/job/cancel", {}, job_id="later").json() == {
            "result": "cancelled"
        }
    assert queue.depth().delayed == 0


def test_an_editor_pauses_and_resumes_a_queue_and_a_job_name(
    site: PluginSite, queue: Queue
) -> None:
    with site.client("olga") as olga:
        for body in ({"paused": True}, {"paused": True, "job_name": "mail"}):
            assert change(olga, queue, "/pause", body).status_code == 200
        assert queue.depth().paused
        summary = olga.get(QUEUE_URL, params={"queue_name": queue.name}).json()
        assert (summary["paused"], summary["paused_job_names"]) == (True, ["mail"])
        change(olga, queue, "/pause", {"paused": False})
        change(olga, queue, "/pause", {"paused": False, "job_name": "mail"})
    depth = queue.depth()
    assert (depth.paused, depth.paused_job_names) == (False, ())
    assert [entry["event"] for entry in _audit_log(site, queue.name)] == [
        *("chasqui_pause", "chasqui_pause", "chasqui_resume", "chasqui_resume"),
    ]


def test_a_reader_changes_nothing(site: PluginSite, queue: Queue) -> None:
    queue.add_batch(range(5), batch_id="b")
    with site.client(READER) as rita:
        statuses = [
            change(rita, queue, path, body, job_id="x").status_code
            for path, body in (
                ("/batches/b/cancel", {}),
                ("/job/cancel", {}),
                ("/pause", {"paused": True}),
            )
        ]
        row = rita.get(f"{QUEUE_URL}/batches/b", params={"queue_name": queue.name}).json()
    assert statuses == [403, 403, 403]
    assert not row["can_edit"]
    assert not queue.batch_progress("b").cancelled
    assert not queue.depth().paused
