"""With a hundred thousand jobs and as many letters the page is as quick as with ten.

    pytest tests/browser/test_page_performance.py -s

prints the figures that docs/ui.md states.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
import pytest

from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands.dead_letters import MAX_SCANNED
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Reader
from tests.support.plugin_site import World

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

MANY = 100_000
_CHUNK = 5_000
# Generous: it shall catch a page that reads everything, not a busy machine.
_SLOWEST_S = 2.0
_LARGEST = 200_000


@pytest.fixture
def full(queue: Queue) -> Queue:
    """A queue with a hundred thousand jobs and a hundred thousand letters."""
    body = encode_payload({"to": "ada@example.org", "template": "spring", "n": 12345})
    for start in range(0, MANY, _CHUNK):
        queue.add_batch(({"n": n} for n in range(_CHUNK)), batch_id=f"part-{start}")
        queue.client.pipeline(
            [
                redis_command(
                    "XADD", queue.keys.dlq, "*", "d", encode_envelope(f"job-{n}", body, 0),
                    "n", "welcome", "source_id", "1-1", "reason", "retries_exhausted",
                    "error", "ConnectionError: the mail server said no", "attempts", 3,
                    "failed_at", 1_700_000_000_000, parse=as_raw,
                )
                for n in range(start, start + _CHUNK)
            ]
        )  # fmt: skip
    depth = queue.depth()
    assert (depth.waiting, depth.dead) == (MANY, MANY)
    return queue


def _measured(ask: Callable[[], httpx.Response]) -> tuple[float, int]:
    times, answer = [], ask()
    for _ in range(5):
        began = time.perf_counter()
        answer = ask()
        times.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
    return median(times), len(answer.content)


def test_no_answer_grows_with_the_queue(full: Queue, the_world: World, reader: Reader) -> None:
    base = "/chasqui/api/connections/native/queue"
    place: dict[str, Any] = {"queue_name": full.name}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "overview": ("/chasqui/api/overview", {"search": full.name}),
        "queue": (base, place),
        "jobs, a page": (f"{base}/jobs", place),
        "letters, a page": (f"{base}/letters", place),
        "letters, no fit": (f"{base}/letters", place | {"text": "nobody says this"}),
        "batches": (f"{base}/batches", place),
        "one job": (f"{base}/job", place | {"id": "batch:part-95000:0:4999"}),
    }
    print()
    with the_world.site.client("ada") as ada:
        for name, (url, params) in asked.items():
            took, size = _measured(lambda url=url, params=params: ada.get(url, params=params))
            print(f"  API {name:16} {took * 1000:7.0f} ms {size / 1024:7.1f} KB")
            assert took < _SLOWEST_S, name
            assert size < _LARGEST, name
        missed = ada.get(f"{base}/letters", params=place | {"text": "nobody"}).json()
    assert (missed["looked"], missed["letters"]) == (MAX_SCANNED, [])

    for name, tab in (("queue page", ""), ("dead letters", "letters")):
        began = time.perf_counter()
        reader.open(conn="native", queue=full.name, tab=tab)
        reader.one(".cq-chart" if not tab else ".cq-letters tbody tr")
        whole = time.perf_counter() - began
        ours = reader.driver.execute_script(
            "const all = performance.getEntriesByType('resource');"
            "const start = all.find(e => e.name.includes('chasqui/static/chasqui.js'));"
            "const last = all.filter(e => e.name.includes('/chasqui/api/')).at(-1);"
            "return last.responseEnd - start.startTime"
        )
        print(f"  browser {name:12} {whole * 1000:7.0f} ms in all, {ours:7.0f} ms of it ours")
