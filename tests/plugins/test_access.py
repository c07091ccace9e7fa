"""Permissions: anonymous users are rejected, viewers read, editors change, changes are logged."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE_HEADERS
from tests.plugins.sample_data import add_dead_letters
from tests.support.plugin_site import PluginEnvironment, PluginSite

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


def test_a_viewer_can_read_and_an_operator_can_change(site: PluginSite, queue: Queue) -> None:
    add_dead_letters(queue, 2)
    url, params = DEAD_LETTERS_URL, {"queue_name": queue.name}
    with site.client("vera") as vera, site.client("olga") as olga:
        page = vera.get(url, params=params)
        replay = vera.post(f"{url}/replay", params=params, json={}, headers=CHANGE_HEADERS)
        purge = vera.post(f"{url}/purge", params=params, json={}, headers=CHANGE_HEADERS)
        allowed = olga.post(
            f"{url}/replay", params=params, json={"dry_run": False}, headers=CHANGE_HEADERS
        )
        can_edit = {
            user: [
                connection["can_edit"]
                for connection in client.get("/chasqui/api/overview").json()["connections"]
            ]
            for user, client in (("vera", vera), ("olga", olga))
        }
    assert len(page.json()["dead_letters"]) == 2
    assert (replay.status_code, purge.status_code) == (403, 403)
    assert (allowed.status_code, allowed.json()["affected"]) == (200, 2)
    assert not any(can_edit["vera"])
    assert all(can_edit["olga"])


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
