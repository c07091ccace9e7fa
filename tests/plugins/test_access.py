"""Permissions: who may read a connection, see payloads and make changes; changes are logged."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE_HEADERS
from tests.plugins.sample_data import add_dead_letters
from tests.support.plugin_site import PluginEnvironment, PluginSite
from tests.support.team_auth import FOREIGN_CONNECTION, FOREIGN_DAG, READER, RESTRICTED_USER

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

DEAD_LETTERS_URL = "/chasqui/api/connections/native/queue/dead-letters"
_LIST_ROUTES = """
import json
from airflow_provider_chasqui.plugins.plugin import ChasquiPlugin
[mounted] = ChasquiPlugin().fastapi_apps
app = mounted["app"]
from starlette.routing import Route
assert all(isinstance(route, Route) for route in app.routes), "a mount skips the permission check"
print(json.dumps([[mounted["url_prefix"] + r.path, sorted(r.methods)] for r in app.routes]))
"""
_OTHER_PATHS = (
    "docs",
    "redoc",
    "openapi.json",
    "static/chasqui.js",
    "static/icon.svg",
    "",
    "api",
    "x/y",
)


@pytest.fixture
def connection_id() -> str:
    return "native"


def test_every_route_rejects_a_user_who_is_not_logged_in(site: PluginSite) -> None:
    routes = [(path, method) for path, methods in site.python(_LIST_ROUTES) for method in methods]
    routes += [(f"/chasqui/{path}", "GET") for path in _OTHER_PATHS]
    assert len(routes) > 25
    with site.client() as anonymous:
        open_routes = [
            (method, path, status)
            for path, method in routes
            if (status := anonymous.request(method, _fill(path)).status_code) != 401
        ]
        forged = anonymous.get(
            "/chasqui/api/overview", headers={"Authorization": "Bearer not.a.token"}
        )
    assert open_routes == []
    assert forged.status_code in (401, 403)


def _fill(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "native", path)


def test_a_logged_in_user_gets_the_static_files_and_no_other_file(site: PluginSite) -> None:
    with site.client("vera") as vera:
        bundle = vera.get("/chasqui/static/chasqui.js")
        outside = vera.get("/chasqui/static/..%2fplugin.py")
        plugins = vera.get("/api/v2/plugins").json()["plugins"]
    assert bundle.status_code == 200
    assert bundle.headers["content-type"].startswith("text/javascript")
    assert outside.status_code == 404
    [plugin] = [plugin for plugin in plugins if plugin["name"] == "chasqui"]
    destinations = {app["destination"] for app in plugin["react_apps"]}
    assert destinations == {"nav", "dag", "task_instance"}


def test_an_operator_reads_and_changes_and_a_viewer_does_not(
    site: PluginSite, queue: Queue
) -> None:
    add_dead_letters(queue, 2)
    url, params = DEAD_LETTERS_URL, {"queue_name": queue.name}
    with site.client("vera") as vera, site.client("olga") as olga:
        hidden = vera.get(url, params=params)
        page = olga.get(url, params=params)
        replay = vera.post(f"{url}/replay", params=params, json={}, headers=CHANGE_HEADERS)
        purge = vera.post(f"{url}/purge", params=params, json={}, headers=CHANGE_HEADERS)
        allowed = olga.post(
            f"{url}/replay", params=params, json={"dry_run": False}, headers=CHANGE_HEADERS
        )
        overview = {
            user: client.get("/chasqui/api/overview").json()
            for user, client in (("vera", vera), ("olga", olga))
        }
    assert hidden.status_code == 403
    assert len(page.json()["dead_letters"]) == 2
    assert (replay.status_code, purge.status_code) == (403, 403)
    assert (allowed.status_code, allowed.json()["affected"]) == (200, 2)
    assert (overview["vera"]["connections"], overview["vera"]["hidden_connections"]) == ([], 3)
    assert all(connection["can_edit"] for connection in overview["olga"]["connections"])


def test_no_route_of_a_connection_is_open_without_the_right_to_it(site: PluginSite) -> None:
    """Tina has the role op, and no access to the connection of another team."""
    routes = [
        (path.replace("{connection_id}", FOREIGN_CONNECTION), method)
        for path, methods in site.python(_LIST_ROUTES)
        for method in methods
        if "{connection_id}" in path
    ]
    assert len(routes) > 12
    body = {"params": {"queue_name": "q", "job_id": "j"}, "json": {}, "headers": CHANGE_HEADERS}
    with site.client(RESTRICTED_USER) as tina:
        statuses = {
            (method, path): tina.request(method, _fill(path), **body).status_code  # type: ignore[arg-type]
            for path, method in routes
        }
        overview = tina.get("/chasqui/api/overview").json()
        watchers = tina.get("/chasqui/api/watchers").json()["watchers"]
    assert {route: status for route, status in statuses.items() if status != 403} == {}
    assert FOREIGN_CONNECTION not in {connection["id"] for connection in overview["connections"]}
    assert overview["hidden_connections"] == 1
    assert FOREIGN_CONNECTION not in {watcher["connection"] for watcher in watchers}


def test_the_jobs_of_a_dag_are_hidden_from_users_without_the_right_to_it(
    environment: PluginEnvironment, queue: Queue
) -> None:
    site = environment.site
    source = f"airflow:{FOREIGN_DAG}/run-1/send"
    payloads = [{"salary": 120_000}, {"salary": 130_000}]
    dead = {"error": "ValueError: salary 120000", "payload": lambda _: {"salary": 120_000}}
    add_dead_letters(queue, 1, batch_id="old-payroll", source=source, **dead)
    add_dead_letters(queue, 1, job_name="free", **dead)
    queue.add_batch(payloads, batch_id="payroll", source=source)
    url = "/chasqui/api/connections/native/queue"
    params = {"queue_name": queue.name}
    replies: dict[str, list[Any]] = {}
    for user in ("olga", RESTRICTED_USER):
        with site.client(user) as client:
            rows = client.get(f"{url}/dead-letters", params=params).json()["dead_letters"]
            of_dag = next(row for row in rows if row["job_name"] != "free")
            free = next(row for row in rows if row["job_name"] == "free")
            replies[user] = [
                client.get(f"{url}/job", params=params | {"job_id": "batch:payroll:0:0"}).json(),
                client.get(f"{url}/dead-letters/{of_dag['id']}", params=params).json(),
                client.get(f"{url}/batches/payroll", params=params).json(),
                of_dag,
                free,
            ]
    secrets = ("120000", FOREIGN_DAG)
    for reply in replies[RESTRICTED_USER][:4]:
        assert not any(secret in json.dumps(reply) for secret in secrets)
    assert replies[RESTRICTED_USER][0]["payload"]["hidden"] is True
    assert all("120000" in json.dumps(replies["olga"][index]) for index in (0, 1, 3, 4))
    assert "120000" in replies[RESTRICTED_USER][4]["error"]


def test_a_reader_does_not_see_payloads_by_default(site: PluginSite, queue: Queue) -> None:
    add_dead_letters(queue, 1)
    with site.client(READER) as rita:
        params = {"queue_name": queue.name}
        (row,) = rita.get(DEAD_LETTERS_URL, params=params).json()["dead_letters"]
        detail = rita.get(f"{DEAD_LETTERS_URL}/{row['id']}", params=params).json()
    assert (row["error"], detail["error"], detail["payload"]["hidden"]) == (None, None, True)
    assert row["reason"] == "retries_exhausted"


@pytest.mark.parametrize(("payloads", "hidden"), [("none", True), ("readers", False)])
def test_the_option_payloads_decides_who_sees_payloads(
    payloads: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_chasqui.plugins.api.permissions import visible_settings
    from airflow_provider_chasqui.plugins.api.settings import read_settings

    monkeypatch.setenv("AIRFLOW__CHASQUI__PAYLOADS", payloads)
    settings = asyncio.run(visible_settings(None, "native", read_settings()))
    assert settings.hide_payloads is hidden


def test_an_unknown_value_of_the_option_payloads_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider_chasqui.plugins.api.settings import read_settings

    monkeypatch.setenv("AIRFLOW__CHASQUI__PAYLOADS", "everybody")
    with pytest.raises(InvalidArgument, match="none, editors, readers"):
        read_settings()


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"Content-Type": "application/json"}, b'{"dry_run": false}'),
        ({"Content-Type": "text/plain", **CHANGE_HEADERS}, b'{"dry_run": false}'),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"dry_run=false"),
        ({"X-Chasqui-Change": "0", "Content-Type": "application/json"}, b'{"dry_run": false}'),
    ],
)
def test_a_page_of_another_site_cannot_use_the_session_cookie(
    site: PluginSite, queue: Queue, headers: dict[str, str], content: bytes
) -> None:
    add_dead_letters(queue, 1)
    with site.client() as browser:
        browser.cookies.set("_token", site.token("ada"))
        response = browser.post(
            f"{DEAD_LETTERS_URL}/purge",
            params={"queue_name": queue.name},
            headers=headers,
            content=content,
        )
    assert response.status_code == 403
    assert queue.depth().dead == 1


def test_each_change_is_in_the_audit_log_and_a_dry_run_is_not(
    site: PluginSite, queue: Queue
) -> None:
    add_dead_letters(queue, 3)
    ids = [dead_letter.id for dead_letter in queue.dead_letters()]
    url, params = DEAD_LETTERS_URL, {"queue_name": queue.name}
    with site.client("olga") as olga:
        olga.post(f"{url}/replay", params=params, json={"ids": ids}, headers=CHANGE_HEADERS)
        body = {"ids": ids[:2], "dry_run": False}
        olga.post(f"{url}/replay", params=params, json=body, headers=CHANGE_HEADERS)
        body = {"filter": {"job_name": "welcome"}, "dry_run": False}
        olga.post(f"{url}/purge", params=params, json=body, headers=CHANGE_HEADERS)
    entries = _audit_log(site, queue.name)
    assert [(entry["event"], entry["owner"]) for entry in entries] == [
        ("chasqui_replay", "olga"),
        ("chasqui_purge", "olga"),
    ]
    replay, purge = (json.loads(entry["extra"]) for entry in entries)
    assert (replay["ids"], replay["outcome"]["affected"]) == (ids[:2], 2)
    assert (purge["filter"], purge["outcome"]["affected"]) == ({"job_name": "welcome"}, 1)


def test_a_large_change_has_a_valid_audit_entry_with_its_outcome(
    site: PluginSite, queue: Queue
) -> None:
    ids = [f"1700000000000-{number}" for number in range(1000)]
    with site.client("olga") as olga:
        olga.post(
            f"{DEAD_LETTERS_URL}/purge",
            params={"queue_name": queue.name},
            json={"ids": ids, "dry_run": False},
            headers=CHANGE_HEADERS,
        )
    (entry,) = _audit_log(site, queue.name)
    details = json.loads(entry["extra"])
    assert details["ids"]["count"] == 1000
    assert details["outcome"]["affected"] == 0


def _audit_log(site: PluginSite, queue_name: str) -> list[dict[str, Any]]:
    with site.client("ada") as ada:
        params = {"order_by": "id", "limit": 100, "offset": 0}
        rows = ada.get("/api/v2/eventLogs", params=params).json()["event_logs"]
    return [row for row in rows if queue_name in (row["extra"] or "")]


def test_the_page_does_not_use_a_connection_of_another_type(ada: httpx.Client) -> None:
    url = "/chasqui/api/connections/elsewhere/queue"
    response = ada.get(url, params={"queue_name": "q"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "CMQ-330"


def test_the_password_of_a_connection_is_not_shown(
    environment: PluginEnvironment, ada: httpx.Client
) -> None:
    text = ada.get("/chasqui/api/overview").text
    assert environment.url("native").removeprefix("redis://") in text
    assert "password" not in text
