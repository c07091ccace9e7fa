"""Random requests about a queue full of invalid data: no request causes a server error."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE_HEADERS
from tests.support.plugin_site import PluginEnvironment
from tests.support.redis_state import plain_client

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

REQUESTS = 150
VALUES = ["", "0", "-1", "1e400", "NaN", "null", "true", "\x00", "\ud7ff", "é" * 300]
VALUES += ["../../etc/passwd", "%00", "1-1", "1-", "-", "+", "$", "*", "9" * 400]
VALUES += ["'; DROP TABLE", "<script>", "{}", "[]", "{chasqui:x}", "a}b", " "]
VALUES += ["99999999999999999999-1", "18446744073709551615-1"]
PATHS = ["", "/jobs", "/delayed", "/repeats", "/consumers", "/job", "/batches", "/batches/{}"]
PATHS += ["/dead-letters", "/dead-letters/facets", "/dead-letters/{}", "/events", "/{}"]
PARAMETERS = ["queue_name", "limit", "cursor", "job_id", "state", "group", "search", "reason"]
PARAMETERS += ["job_name", "text", "batch_id", "older_than_s", "newer_than_s", "newest_first"]
PARAMETERS += ["start", "from", "order"]


def add_invalid_data(client: Any, queue: Queue) -> None:
    """Write values under every key of the queue that no producer or worker writes."""
    keys = queue.keys
    for junk in (b"", b"\xff\xfe", b"\x93\xc1", b"x" * 3000):
        client.xadd(keys.stream, {"d": junk, "n": junk})
        client.xadd(keys.dlq, {"d": junk, "reason": junk, "attempts": junk, "failed_at": junk})
        client.xadd(keys.dlq, {"x": junk})
        client.xadd(keys.events, {"e": junk, "id": junk, "ts": junk})
        client.zadd(keys.delayed, {junk: 1e300})
        client.zadd(keys.repeat, {junk: 1e300})
        client.hset(keys.batch("b"), mapping={"total": junk, "parts": junk, "sent:x": junk})
        client.set(keys.watcher_state("default"), junk)


def random_request(rng: random.Random, queue_name: str) -> tuple[str, str, dict[str, Any]]:
    """Return the method, the path and the other arguments of a request."""
    path = rng.choice(PATHS).format(rng.choice(VALUES).replace("/", "%2F") or "x")
    params = {name: rng.choice(VALUES) for name in rng.sample(PARAMETERS, rng.randrange(5))}
    if rng.random() < 0.8:
        params["queue_name"] = queue_name
    if rng.random() < 0.7:
        return "GET", path, {"params": params}
    action = rng.choice(("replay", "purge"))
    bodies: list[Any] = [None, [], "x", 7, {"filter": 3}, {"filter": {"ids": "x"}}, {"limit": -1}]
    bodies += [{"dry_run": "?"}]
    bodies += [{"filter": {rng.choice(PARAMETERS): rng.choice(VALUES)}, "dry_run": True}]
    content = json.dumps(rng.choice(bodies)) if rng.random() < 0.9 else "{not json"
    headers = CHANGE_HEADERS | {"Content-Type": "application/json"}
    arguments = {"params": params, "headers": headers, "content": content}
    return "POST", f"/dead-letters/{action}", arguments


def test_no_request_causes_a_server_error(
    environment: PluginEnvironment, ada: httpx.Client, queue: Queue, connection_id: str
) -> None:
    with plain_client(environment.url(connection_id)) as client:
        add_invalid_data(client, queue)
    rng = random.Random(10)
    statuses: set[int] = set()
    for _ in range(REQUESTS):
        method, path, arguments = random_request(rng, queue.name)
        url = f"/chasqui/api/connections/{connection_id}/queue{path}"
        try:
            request = ada.build_request(method, url, **arguments)
        except (httpx.InvalidURL, UnicodeError):
            continue
        response = ada.send(request)
        assert response.status_code < 500, (method, path, arguments, response.text[:500])
        assert "Traceback" not in response.text
        statuses.add(response.status_code)
    assert {200, 422} <= statuses
    assert ada.get("/chasqui/api/overview").status_code == 200
