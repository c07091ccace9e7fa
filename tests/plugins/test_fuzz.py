"""Questions that no page would ask, about a queue full of garbage: a plain answer, never a 500."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from tests.plugins.conftest import CHANGE
from tests.support.plugin_site import World
from tests.support.redis_state import plain_client

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

QUESTIONS = 150
JUNK = [
    "", "0", "-1", "1e400", "NaN", "null", "true", "\x00", "\ud7ff", "é" * 300, "../../etc/passwd",
    "%00", "1-1", "1-", "-", "+", "$", "*", "9" * 400, "'; DROP TABLE", "<script>", "{}", "[]",
    "{chasqui:x}", "a}b", " ", "99999999999999999999-1", "18446744073709551615-1",
]  # fmt: skip
PATHS = [
    "", "/jobs", "/delayed", "/repeats", "/consumers", "/job", "/batches", "/batches/{}",
    "/letters", "/letters/facets", "/letters/{}", "/events", "/{}",
]  # fmt: skip
NAMES = [
    "queue_name", "limit", "after", "id", "state", "group", "search", "reason", "name", "text",
    "batch", "older_than_s", "newer_than_s", "newest_first", "cursor", "from", "order",
]  # fmt: skip


def litter(client: Any, queue: Queue) -> None:
    """Things under every key that nobody of us would write."""
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


def question(dice: random.Random, queue: str) -> tuple[str, str, dict[str, Any]]:
    """Method, path and the rest of one request."""
    path = dice.choice(PATHS).format(dice.choice(JUNK).replace("/", "%2F") or "x")
    params = {name: dice.choice(JUNK) for name in dice.sample(NAMES, dice.randrange(5))}
    if dice.random() < 0.8:
        params["queue_name"] = queue
    if dice.random() < 0.7:
        return "GET", path, {"params": params}
    verb = dice.choice(("replay", "purge"))
    body: Any = dice.choice(
        [None, [], "x", 7, {"filter": 3}, {"filter": {"ids": "x"}}, {"limit": -1}, {"dry_run": "?"},
         {"filter": {dice.choice(NAMES): dice.choice(JUNK)}, "dry_run": True}]
    )  # fmt: skip
    sent = {"params": params, "headers": CHANGE | {"Content-Type": "application/json"}}
    raw = json.dumps(body) if dice.random() < 0.9 else "{not json"
    return "POST", f"/letters/{verb}", sent | {"content": raw}


def test_any_question_gets_a_plain_answer(
    the_world: World, ada: httpx.Client, queue: Queue, where: str
) -> None:
    with plain_client(the_world.url(where)) as client:
        litter(client, queue)
    dice = random.Random(10)
    seen: set[int] = set()
    for _ in range(QUESTIONS):
        method, path, rest = question(dice, queue.name)
        url = f"/chasqui/api/connections/{where}/queue{path}"
        try:
            request = ada.build_request(method, url, **rest)
        except (httpx.InvalidURL, UnicodeError):
            continue
        answer = ada.send(request)
        assert answer.status_code < 500, (method, path, rest, answer.text[:500])
        assert "Traceback" not in answer.text
        seen.add(answer.status_code)
    assert {200, 422} <= seen
    assert ada.get("/chasqui/api/overview").status_code == 200
