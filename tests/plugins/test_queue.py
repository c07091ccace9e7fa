"""The API reports what happened on a queue."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.core.cron import Cron
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import ApiCall
from tests.plugins.sample_data import add_dead_letters
from tests.support.plugin_site import PluginEnvironment, PluginSite
from tests.support.waiting import wait_until
from tests.support.workers import working

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


def test_a_queue_is_listed_with_its_depth(
    queue: Queue, ada: httpx.Client, connection_id: str
) -> None:
    queue.add_many({"payload": n} for n in range(12))
    queue.add({"later": 1}, delay=timedelta(hours=1))
    add_dead_letters(queue, 2)

    def connection_with_queue() -> dict[str, Any] | None:
        overview = ada.get("/chasqui/api/overview", params={"search": queue.name}).json()
        [row] = [row for row in overview["connections"] if row["id"] == connection_id]
        return row if row["queues"] else None

    connection = wait_until(connection_with_queue, 30, f"queue {queue.name} in the overview")
    [row] = connection["queues"]
    assert (row["waiting"], row["delayed"], row["dead"]) == (12, 1, 2)
    assert row["oldest_age_ms"] >= 0
    assert connection["ok"]
    assert connection["dialect"] == connection_id
    assert connection["version"].startswith("Redis 8" if connection_id == "native" else "Valkey")


def test_a_batch_progresses_and_its_jobs_have_events(
    environment: PluginEnvironment, queue: Queue, connection_id: str, get_json: ApiCall
) -> None:
    queue.add_batch([{"n": n} for n in range(20)], batch_id="b-1", job_name="count")
    before = get_json("/batches")["batches"][0]

    def handle(job: Any) -> dict[str, int]:
        if job.payload["n"] == 7:
            raise ValueError("seven is not allowed")
        return {"twice": job.payload["n"] * 2}

    retry = RetryDefaults(max_attempts=1)
    url = environment.url(connection_id)
    with working(url, queue.name, handle, retry=retry, store_results=True):
        wait_until(lambda: get_json("/batches/b-1")["finished"], 30, "batch b-1 finished")
    after = get_json("/batches/b-1")
    assert (before["done"], before["dead"], before["total"]) == (0, 0, 20)
    assert (after["done"], after["dead"], after["dead_job_ids"]) == (19, 1, ["batch:b-1:0:7"])

    done = get_json("/job", job_id="batch:b-1:0:3")
    assert done["state"] == "done"
    assert done["result"]["text"] == '{\n  "twice": 6\n}'
    assert [event["name"] for event in done["events"]] == ["active", "completed"]
    dead = get_json("/job", job_id="batch:b-1:0:7")
    assert (dead["state"], dead["name"]) == ("dead", "count")
    assert "seven is not allowed" in dead["dead_letter"]["error"]
    assert dead["events"][-1]["name"] == "dlq"

    summary = get_json(minutes=15)
    assert sum(bucket["completed"] for bucket in summary["throughput"]) == 19
    assert sum(bucket["dead"] for bucket in summary["throughput"]) == 1


def test_jobs_delayed_jobs_repeats_and_consumers_are_listed(
    environment: PluginEnvironment, queue: Queue, connection_id: str, get_json: ApiCall
) -> None:
    ids = [job.job_id for job in queue.add_many({"payload": n, "job_name": "x"} for n in range(5))]
    delayed = queue.add("late", delay=timedelta(minutes=9), job_name="late").job_id
    queue.repeat("x", Cron("0 6 * * *", tz="Europe/Berlin"), job_name="daily", key="k")

    first = get_json("/jobs", limit=3)
    second = get_json("/jobs", limit=3, cursor=first["next_cursor"])
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids
    assert {job["attempt"] for job in first["jobs"]} == {1}
    assert second["next_cursor"] is None
    assert [job["id"] for job in get_json("/delayed")["jobs"]] == [delayed]
    [repeat] = get_json("/repeats")["repeats"]
    assert (repeat["key"], repeat["schedule"]) == ("k", "0 6 * * * (Europe/Berlin)")

    with working(environment.url(connection_id), queue.name, lambda job: None, consumer_id="ada-1"):
        names = wait_until(
            lambda: [
                consumer["name"]
                for group in get_json("/consumers")["groups"]
                for consumer in group["consumers"]
            ],
            20,
            "a consumer in /consumers",
        )
    assert names == ["ada-1"]


def test_dead_letters_are_filtered_and_their_secrets_are_masked(
    queue: Queue, get_json: ApiCall
) -> None:
    add_dead_letters(queue, 3, job_name="welcome", error="boom: mail")
    payload = {"to": "ada", "password": "s3cr3t", "deep": [{"API_KEY": "k3y"}], "raw": b"\x00\xff"}
    add_dead_letters(
        queue, 2, job_name="digest", reason="timeout", error="slow", payload=lambda _: payload
    )

    def matches(**filters: Any) -> list[dict[str, Any]]:
        return list(get_json("/dead-letters", **filters)["dead_letters"])

    by_name = matches(job_name="digest")
    assert {dead_letter["reason"] for dead_letter in by_name} == {"timeout"}
    assert len(matches(text="mail")) == 3
    assert len(matches(reason="timeout", text="mail")) == 0
    assert len(matches(newer_than_s=3600)) == 5
    assert len(matches(older_than_s=3600)) == 0
    facets = get_json("/dead-letters/facets")
    assert dict(facets["reasons"]) == {"retries_exhausted": 3, "timeout": 2}
    assert dict(facets["job_names"]) == {"welcome": 3, "digest": 2}

    text = get_json(f"/dead-letters/{by_name[0]['id']}")["payload"]["text"]
    assert '"to": "ada"' in text
    assert '"raw": {\n    "base64": "AP8="\n  }' in text
    assert "s3cr3t" not in text
    assert "k3y" not in text


def test_secrets_are_masked_wherever_they_are(queue: Queue, get_json: ApiCall) -> None:
    secret = "hunter2"
    payload = {
        **dict.fromkeys(("db_password", "access_token", "client_secret", "passphrase"), secret),
        "url": f"postgres://ada:{secret}@db.example/app",
        "headers": [["Authorization", f"Bearer {secret}"], ["Accept", "text/plain"]],
        "env": [{"name": "PASSWORD", "value": secret}, {"name": "LANG", "value": "qu"}],
        b"password": secret,
    }
    error = f"OperationalError: cannot connect to postgres://ada:{secret}@db.example/app"
    add_dead_letters(queue, 1, error=error, payload=lambda _: payload)
    page = get_json("/dead-letters")
    detail = get_json(f"/dead-letters/{page['dead_letters'][0]['id']}")
    job = get_json("/job", job_id=detail["job_id"])
    for reply in (page, detail, job):
        assert secret not in json.dumps(reply)
    for text in ("text/plain", '"qu"', "postgres://ada:***@db.example/app"):
        assert text in detail["payload"]["text"]
    assert "cannot connect to" in detail["error"]


def test_selected_dead_letters_are_replayed_after_a_dry_run_and_the_rest_is_purged(
    queue: Queue, get_json: ApiCall, change: ApiCall
) -> None:
    add_dead_letters(queue, 6)
    ids = [dead_letter["id"] for dead_letter in get_json("/dead-letters")["dead_letters"]]
    dry_run = change("replay", ids=ids[:4])
    assert (dry_run["matched"], dry_run["affected"], queue.depth().dead) == (4, 4, 6)
    replay = change("replay", ids=ids[:4], dry_run=False)
    assert (replay["affected"], queue.depth().dead, queue.depth().waiting) == (4, 2, 4)
    second_replay = change("replay", ids=ids[:4], dry_run=False)
    assert second_replay["affected"] == 0
    purge = change("purge", filter={"job_name": "welcome"}, dry_run=False)
    assert (purge["affected"], queue.depth().dead) == (2, 0)


def test_invalid_requests_get_a_client_error(ada: httpx.Client) -> None:
    base = "/chasqui/api/connections/native/queue"
    for path, params, status in (
        ("", {"queue_name": "{x}"}, 422),
        ("/batches/nope", {"queue_name": "q"}, 404),
        ("/dead-letters/1-1", {"queue_name": "q"}, 404),
        ("/dead-letters/abc", {"queue_name": "q"}, 422),
        ("/dead-letters", {"queue_name": "q", "older_than_s": "soon"}, 422),
        ("/jobs", {"queue_name": "q", "limit": 10_000}, 422),
    ):
        response = ada.get(base + path, params=params)
        assert response.status_code == status, (path, response.text)
    job = ada.get(f"{base}/job", params={"queue_name": "q", "job_id": "no-such-job"}).json()
    assert (job["state"], job["search_truncated"], job["origin"]) == ("unknown", False, None)


@pytest.fixture(scope="session")
def run_id(environment: PluginEnvironment) -> str:
    """The id of a real run of the DAG newsletter."""
    return environment.newsletter_run_id


def test_a_task_links_to_its_batch_and_a_job_to_its_task(site: PluginSite, run_id: str) -> None:
    with site.client("ada") as ada:
        tasks_url = f"/chasqui/api/dags/newsletter/runs/{run_id}/tasks"
        [batch] = ada.get(f"{tasks_url}/send").json()["links"]
        [job] = ada.get(f"{tasks_url}/report").json()["links"]
        other_task = ada.get(f"{tasks_url}/elsewhere").json()
        dag_links = ada.get("/chasqui/api/dags/newsletter").json()["links"]
        job_url = "/chasqui/api/connections/native/queue/job"
        origins = [
            ada.get(job_url, params={"queue_name": "newsletter", "job_id": job_id}).json()["origin"]
            for job_id in (f"batch:{batch['batch_id']}:0:0", "report-1", "report-12", "report-")
        ]
    assert (batch["connection"], batch["queue"]) == ("native", "newsletter")
    assert batch["progress"]["total"] == 40
    assert job["job_id"] == "report-1"
    assert other_task == {"links": []}
    assert {link["task_id"] for link in dag_links} == {"send", "report"}
    run = {"dag_id": "newsletter", "run_id": run_id, "map_index": -1}
    assert origins == [run | {"task_id": "send"}, run | {"task_id": "report"}, None, None]
