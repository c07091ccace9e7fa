"""Who gets in: nobody without a login, readers to look, editors to change; and it is noted."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE
from tests.plugins.sample_data import bury
from tests.support.plugin_site import PageSite, World

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

_ROUTES = """
import json
from airflow_provider_chasqui.plugins.plugin import ChasquiPlugin
[mounted] = ChasquiPlugin().fastapi_apps
app = mounted["app"]
from starlette.routing import Route
assert all(isinstance(route, Route) for route in app.routes), "a mount would slip past the guard"
print(json.dumps([[mounted["url_prefix"] + r.path, sorted(r.methods)] for r in app.routes]))
"""


@pytest.fixture
def where() -> str:
    return "native"


def test_every_route_refuses_who_is_not_logged_in(site: PageSite) -> None:
    routes = [(path, method) for path, methods in site.python(_ROUTES) for method in methods]
    routes += [(f"/chasqui/{name}", "GET") for name in _HIDDEN]
    assert len(routes) > 25
    with site.client() as nobody:
        open_ones = [
            (method, path, status)
            for path, method in routes
            if (status := nobody.request(method, _filled(path)).status_code) != 401
        ]
        forged = nobody.get(
            "/chasqui/api/overview", headers={"Authorization": "Bearer not.a.token"}
        )
    assert open_ones == []
    assert forged.status_code in (401, 403)


_HIDDEN = (
    "docs",
    "redoc",
    "openapi.json",
    "static/chasqui.js",
    "static/icon.svg",
    "",
    "api",
    "x/y",
)


def _filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "native", path)


def test_the_files_of_the_page_are_there_for_those_who_are(site: PageSite) -> None:
    with site.client("vera") as vera:
        bundle = vera.get("/chasqui/static/chasqui.js")
        away = vera.get("/chasqui/static/..%2fplugin.py")
        plugins = vera.get("/api/v2/plugins").json()["plugins"]
    assert bundle.status_code == 200
    assert bundle.headers["content-type"].startswith("text/javascript")
    assert away.status_code == 404
    [ours] = [each for each in plugins if each["name"] == "chasqui"]
    assert {each["destination"] for each in ours["react_apps"]} == {"nav", "dag", "task_instance"}


def test_a_viewer_looks_and_an_operator_changes(site: PageSite, queue: Queue) -> None:
    bury(queue, 2)
    url = "/chasqui/api/connections/native/queue/letters"
    params = {"queue_name": queue.name}
    with site.client("vera") as vera, site.client("olga") as olga:
        seen = vera.get(url, params=params)
        refused = vera.post(f"{url}/replay", params=params, json={}, headers=CHANGE)
        refused_purge = vera.post(f"{url}/purge", params=params, json={}, headers=CHANGE)
        allowed = olga.post(f"{url}/replay", params=params, json={"dry_run": False}, headers=CHANGE)
        rights = {
            user: [
                each["may_change"]
                for each in client.get("/chasqui/api/overview").json()["connections"]
            ]
            for user, client in (("vera", vera), ("olga", olga))
        }
    assert len(seen.json()["letters"]) == 2
    assert (refused.status_code, refused_purge.status_code) == (403, 403)
    assert (allowed.status_code, allowed.json()["affected"]) == (200, 2)
    assert not any(rights["vera"])
    assert all(rights["olga"])


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"Content-Type": "application/json"}, b'{"dry_run": false}'),
        ({"Content-Type": "text/plain", **CHANGE}, b'{"dry_run": false}'),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"dry_run=false"),
        ({"X-Chasqui-Change": "0", "Content-Type": "application/json"}, b'{"dry_run": false}'),
    ],
)
def test_a_foreign_page_cannot_use_the_cookie(
    site: PageSite, queue: Queue, headers: dict[str, str], content: bytes
) -> None:
    bury(queue, 1)
    with site.client() as browser:
        browser.cookies.set("_token", site.token("ada"))
        answer = browser.post(
            "/chasqui/api/connections/native/queue/letters/purge",
            params={"queue_name": queue.name},
            headers=headers,
            content=content,
        )
    assert answer.status_code == 403
    assert queue.depth().dead == 1


def test_each_change_stands_in_the_audit_log_and_a_dry_run_does_not(
    site: PageSite, queue: Queue
) -> None:
    bury(queue, 3)
    ids = [letter.id for letter in queue.dead_letters()]
    url, params = "/chasqui/api/connections/native/queue/letters", {"queue_name": queue.name}
    with site.client("olga") as olga:
        olga.post(f"{url}/replay", params=params, json={"ids": ids}, headers=CHANGE)
        body = {"ids": ids[:2], "dry_run": False}
        olga.post(f"{url}/replay", params=params, json=body, headers=CHANGE)
        body = {"filter": {"name": "welcome"}, "dry_run": False}
        olga.post(f"{url}/purge", params=params, json=body, headers=CHANGE)
    entries = _logged(site, queue.name)
    assert [(each["event"], each["owner"]) for each in entries] == [
        ("chasqui_replay", "olga"),
        ("chasqui_purge", "olga"),
    ]
    replay, purge = (json.loads(each["extra"]) for each in entries)
    assert (replay["ids"], replay["outcome"]["affected"]) == (ids[:2], 2)
    assert (purge["filter"], purge["outcome"]["affected"]) == ({"name": "welcome"}, 1)


def _logged(site: PageSite, queue_name: str) -> list[dict[str, Any]]:
    with site.client("ada") as ada:
        answer = ada.get("/api/v2/eventLogs", params={"order_by": "id", "limit": 100, "offset": 0})
        rows = answer.json()["event_logs"]
    return [row for row in rows if queue_name in (row["extra"] or "")]


def test_a_connection_of_another_kind_is_not_reached_through_the_page(ada: httpx.Client) -> None:
    url = "/chasqui/api/connections/elsewhere/queue"
    answer = ada.get(url, params={"queue_name": "q"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "CMQ-330"


def test_no_password_of_a_connection_is_shown(the_world: World, ada: httpx.Client) -> None:
    text = ada.get("/chasqui/api/overview").text
    assert the_world.url("native").removeprefix("redis://") in text
    assert "password" not in text
