"""Response times of the page with 100 000 waiting jobs and 100 000 dead letters.

    pytest tests/browser/test_page_performance.py -s

prints the numbers in docs/ui.md.
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
from tests.browser.page import Browser
from tests.support.plugin_site import PluginEnvironment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

JOBS = 100_000
_CHUNK = 5_000
# These limits detect a page that reads the whole queue. They are too generous to fail because the
# machine is busy.
_MAX_DURATION_S = 2.0
_MAX_RESPONSE_BYTES = 200_000
_PLUGIN_LOAD_TIME = """
const entries = performance.getEntriesByType('resource');
const start = entries.find(e => e.name.includes('chasqui/static/chasqui.js'));
const last = entries.filter(e => e.name.includes('/chasqui/api/')).at(-1);
return last.responseEnd - start.startTime
"""


@pytest.fixture
def large_queue(queue: Queue) -> Queue:
    """A queue with 100 000 waiting jobs and 100 000 dead letters."""
    body = encode_payload({"to": "ada@example.org", "template": "spring", "n": 12345})
    fields: dict[str, str | int] = {
        "n": "welcome",
        "source_id": "1-1",
        "reason": "retries_exhausted",
        "error": "ConnectionError: the mail server refused the message",
        "attempts": 3,
        "failed_at": 1_700_000_000_000,
    }
    arguments = [argument for field in fields.items() for argument in field]
    for start in range(0, JOBS, _CHUNK):
        queue.add_batch(({"n": n} for n in range(_CHUNK)), batch_id=f"part-{start}")
        envelopes = (encode_envelope(f"job-{n}", body, 0) for n in range(start, start + _CHUNK))
        queue.client.pipeline(
            [
                redis_command("XADD", queue.keys.dlq, "*", "d", envelope, *arguments, parse=as_raw)
                for envelope in envelopes
            ]
        )
    depth = queue.depth()
    assert (depth.waiting, depth.dead) == (JOBS, JOBS)
    return queue


def _measure(send: Callable[[], httpx.Response]) -> tuple[float, int]:
    """Return the median duration in seconds and the size of the response in bytes."""
    durations, response = [], send()
    for _ in range(5):
        started = time.perf_counter()
        response = send()
        durations.append(time.perf_counter() - started)
        assert response.status_code == 200, response.text
    return median(durations), len(response.content)


def test_response_times_do_not_grow_with_the_queue(
    large_queue: Queue, environment: PluginEnvironment, browser: Browser
) -> None:
    base = "/chasqui/api/connections/native/queue"
    params: dict[str, Any] = {"queue_name": large_queue.name}
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "overview": ("/chasqui/api/overview", {"search": large_queue.name}),
        "queue": (base, params),
        "page of jobs": (f"{base}/jobs", params),
        "dead letters": (f"{base}/dead-letters", params),
        "no match": (f"{base}/dead-letters", params | {"text": "no such text"}),
        "batches": (f"{base}/batches", params),
        "one job": (f"{base}/job", params | {"job_id": "batch:part-95000:0:4999"}),
    }
    print()
    with environment.site.client("ada") as ada:
        for name, (url, query) in requests.items():
            duration, size = _measure(lambda url=url, query=query: ada.get(url, params=query))
            print(f"  API {name:16} {duration * 1000:7.0f} ms {size / 1024:7.1f} KB")
            assert duration < _MAX_DURATION_S, name
            assert size < _MAX_RESPONSE_BYTES, name
        no_match = ada.get(f"{base}/dead-letters", params=params | {"text": "no such text"}).json()
    assert (no_match["scanned"], no_match["dead_letters"]) == (MAX_SCANNED, [])

    for name, tab in (("queue page", ""), ("dead letters", "dead-letters")):
        started = time.perf_counter()
        browser.open(conn="native", queue=large_queue.name, tab=tab)
        browser.element(".cq-chart" if not tab else ".cq-dead-letters tbody tr")
        total_ms = (time.perf_counter() - started) * 1000
        plugin_ms = browser.driver.execute_script(_PLUGIN_LOAD_TIME)
        print(f"  browser {name:12} {total_ms:7.0f} ms in total, {plugin_ms:7.0f} ms of the plugin")
