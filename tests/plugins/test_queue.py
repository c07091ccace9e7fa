"""What the API says about a queue is what happened on it."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from airflow_provider_chasqui.core.cron import Cron
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import Ask
from tests.plugins.sample_data import bury
from tests.support.plugin_site import PageSite, World
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


def test_a_queue_is_found_with_its_numbers(queue: Queue, ada: httpx.Client, where: str) -> None:
    queue.add_many({"payload": n} for n in range(12))
    queue.add({"later": 1}, delay=timedelta(hours=1))
    bury(queue, 2)

    def found():
        answer = ada.get("/chasqui/api/overview", params={"search": queue.name}).json()
        [mine] = [each for each in answer["connections"] if each["id"] == where]
        return mine if mine["queues"] else None

    connection = until(found, 30, "the queue on the page")
    [row] = connection["queues"]
    assert (row["waiting"], row["delayed"], row["dead"]) == (12, 1, 2)
    assert row["oldest_ms"] >= 0
    assert connection["ok"]
    assert connection["dialect"] == where
    assert connection["version"].startswith("Redis 8" if where == "native" else "Valkey")


def test_a_batch_moves_on_and_its_job_has_a_timeline(
    the_world: World, queue: Queue, where: str, look: Ask
) -> None:
    queue.add_batch([{"n": n} for n in range(20)], batch_id="b-1", job_name="count")
    before = look("/batches")["batches"][0]

    def handle(job):
        if job.payload["n"] == 7:
            raise ValueError("seven is not for me")
        return {"twice": job.payload["n"] * 2}

    retry = RetryDefaults(max_attempts=1)
    with working(the_world.url(where), queue.name, handle, retry=retry, store_results=True):
        until(lambda: look("/batches/b-1")["finished"], 30, "the end of the batch")
    after = look("/batches/b-1")
    assert (before["done"], before["dead"], before["total"]) == (0, 0, 20)
    assert (after["done"], after["dead"], after["dead_ids"]) == (19, 1, ["batch:b-1:0:7"])

    good = look("/job", id="batch:b-1:0:3")
    assert good["state"] == "done"
    assert good["result"]["text"] == '{\n  "twice": 6\n}'
    assert [event["name"] for event in good["events"]] == ["active", "completed"]
    bad = look("/job", id="batch:b-1:0:7")
    assert (bad["state"], bad["name"]) == ("dead", "count")
    assert "seven is not for me" in bad["letter"]["error"]
    assert bad["events"][-1]["name"] == "dlq"

    summary = look(minutes=15)
    assert sum(beat["completed"] for beat in summary["beats"]) == 19
    assert sum(beat["dead"] for beat in summary["beats"]) == 1


def test_lists_of_a_queue(the_world: World, queue: Queue, where: str, look: Ask) -> None:
    ids = [
        added.job_id for added in queue.add_many({"payload": n, "job_name": "x"} for n in range(5))
    ]
    late = queue.add("late", delay=timedelta(minutes=9), job_name="late").job_id
    queue.repeat("x", Cron("0 6 * * *", tz="Europe/Berlin"), job_name="daily", key="k")

    first = look("/jobs", limit=3)
    second = look("/jobs", limit=3, after=first["after"])
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids
    assert second["after"] is None
    assert [job["id"] for job in look("/delayed")["jobs"]] == [late]
    [repeat] = look("/repeats")["repeats"]
    assert (repeat["key"], repeat["schedule"]) == ("k", "0 6 * * * (Europe/Berlin)")

    with working(the_world.url(where), queue.name, lambda job: None, consumer_id="ada-1"):
        names = until(
            lambda: [c["name"] for g in look("/consumers")["groups"] for c in g["consumers"]],
            20,
            "a consumer",
        )
    assert names == ["ada-1"]


def test_letters_are_filtered_opened_and_masked(queue: Queue, look: Ask) -> None:
    bury(queue, 3, name="welcome", error="boom: mail")
    secret = {"to": "ada", "password": "s3cr3t", "deep": [{"API_KEY": "k3y"}], "raw": b"\x00\xff"}
    bury(queue, 2, name="digest", reason="timeout", error="slow", payload=lambda _: secret)

    by_name = look("/letters", name="digest")["letters"]
    assert {letter["reason"] for letter in by_name} == {"timeout"}
    assert len(look("/letters", text="mail")["letters"]) == 3
    assert len(look("/letters", reason="timeout", text="mail")["letters"]) == 0
    assert len(look("/letters", newer_than_s=3600)["letters"]) == 5
    assert len(look("/letters", older_than_s=3600)["letters"]) == 0
    assert dict(look("/letters/facets")["reasons"]) == {"retries_exhausted": 3, "timeout": 2}

    whole = look(f"/letters/{by_name[0]['id']}")
    text = whole["payload"]["text"]
    assert '"to": "ada"' in text
    assert '"raw": "bytes:AP8="' in text
    assert "s3cr3t" not in text
    assert "k3y" not in text


def test_a_selection_is_tried_dry_then_replayed_then_purged(
    queue: Queue, look: Ask, change: Ask
) -> None:
    bury(queue, 6)
    ids = [letter["id"] for letter in look("/letters")["letters"]]
    dry = change("replay", ids=ids[:4])
    assert (dry["matched"], dry["affected"], queue.depth().dead) == (4, 4, 6)
    done = change("replay", ids=ids[:4], dry_run=False)
    assert (done["affected"], queue.depth().dead, queue.depth().waiting) == (4, 2, 4)
    again = change("replay", ids=ids[:4], dry_run=False)
    assert again["affected"] == 0
    purged = change("purge", filter={"name": "welcome"}, dry_run=False)
    assert (purged["affected"], queue.depth().dead) == (2, 0)


def test_bad_questions_get_a_plain_answer(ada: httpx.Client) -> None:
    base = "/chasqui/api/connections/native/queue"
    for path, params, status in (
        ("", {"queue_name": "{x}"}, 422),
        ("/batches/nope", {"queue_name": "q"}, 404),
        ("/letters/1-1", {"queue_name": "q"}, 404),
        ("/letters/abc", {"queue_name": "q"}, 422),
        ("/letters", {"queue_name": "q", "older_than_s": "soon"}, 422),
        ("/jobs", {"queue_name": "q", "limit": 10_000}, 422),
    ):
        answer = ada.get(base + path, params=params)
        assert answer.status_code == status, (path, answer.text)
    unknown = ada.get(f"{base}/job", params={"queue_name": "q", "id": "nobody"}).json()
    assert (unknown["state"], unknown["gave_up"], unknown["origin"]) == ("unknown", False, None)


@pytest.fixture(scope="session")
def sent(the_world: World) -> str:
    """A real run of the DAG newsletter; returns its run id."""
    return the_world.newsletter


def test_from_a_task_to_its_batch_and_back(site: PageSite, sent: str) -> None:
    with site.client("ada") as ada:
        base = f"/chasqui/api/dags/newsletter/runs/{sent}/tasks"
        [batch] = ada.get(f"{base}/send").json()["links"]
        [job] = ada.get(f"{base}/report").json()["links"]
        foreign = ada.get(f"{base}/elsewhere").json()
        whole_dag = ada.get("/chasqui/api/dags/newsletter").json()["links"]
        queue = "/chasqui/api/connections/native/queue"
        member = f"batch:{batch['batch']}:0:0"
        back = [
            ada.get(f"{queue}/job", params={"queue_name": "newsletter", "id": each}).json()[
                "origin"
            ]
            for each in (member, "report-1")
        ]
    assert (batch["connection"], batch["queue"]) == ("native", "newsletter")
    assert batch["progress"]["total"] == 40
    assert job["job"] == "report-1"
    assert foreign == {"links": []}
    assert {link["task_id"] for link in whole_dag} == {"send", "report"}
    place = {"dag_id": "newsletter", "run_id": sent, "map_index": -1}
    assert back == [place | {"task_id": "send"}, place | {"task_id": "report"}]
