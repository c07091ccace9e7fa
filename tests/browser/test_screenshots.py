"""Screenshots of every view, light and dark, wide and narrow: no view scrolls horizontally.

With CHASQUI_PICTURES=1 the images in docs/images are replaced.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.cron import Cron
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Browser
from tests.plugins.sample_data import add_dead_letters
from tests.support.plugin_site import PluginEnvironment
from tests.support.workers import working

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400), pytest.mark.xdist_group("airflow")]

# The brightness of the text, and by how much the content is wider than the page.
_MEASURE_PAGE = """
const root = document.querySelector('.cq');
const rgb = getComputedStyle(root).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
return [rgb[0] + rgb[1] + rgb[2], root.scrollWidth - root.clientWidth];
"""

# The window height that shows the whole content and Airflow's own navigation.
_WINDOW_HEIGHT = """
const elements = [...document.querySelectorAll('.cq *')];
const bottom = Math.max(...elements.map(element => element.getBoundingClientRect().bottom));
return Math.max(600, Math.min(900, bottom + 30)) + outerHeight - innerHeight;
"""


def add_events_of_one_hour(queue: Queue, rng: random.Random) -> None:
    """Add the events of an hour of work, if the queue has no events yet."""
    if queue.last_event_id() != "0-0":
        return
    now_ms = int(time.time() * 1000)
    for minute in range(60, 1, -1):
        count = int(45 + 25 * math.sin(minute / 8) + rng.random() * 15)
        for number in range(count):
            at_ms = now_ms - minute * 60_000 + number * 60_000 // count
            name = rng.choices(("completed", "retry-scheduled", "dlq"), (95, 4, 1))[0]
            fields = ("e", name, "id", f"{minute}-{number}", "ts", str(at_ms), "attempt", "1")
            queue.client.execute(
                redis_command("XADD", queue.keys.events, f"{at_ms}-0", *fields, parse=as_raw)
            )


@pytest.fixture
def sample_queue(environment: PluginEnvironment) -> Iterator[str]:
    """The queue `emails` with jobs in every state and a worker; a second queue is on `portable`."""
    url, rng = environment.url("native"), random.Random(7)
    with Queue("emails", url) as queue:
        queue.client.dialect()
        add_events_of_one_hour(queue, rng)
        add_dead_letters(
            queue,
            140,
            job_name="newsletter",
            error="ConnectionError: smtp.example.org:25 refused the connection",
            payload=lambda n: {"to": f"reader{n}@example.org", "api_key": "k", "lang": "en"},
        )
        add_dead_letters(
            queue, 9, job_name="welcome", reason="timeout", error="TimeoutError: over 30 s"
        )
        queue.add_many(
            {"payload": {"n": n}, "job_name": "reminder", "delay": timedelta(hours=n + 1)}
            for n in range(40)
        )
        queue.repeat({}, Cron("0 6 * * *", tz="Europe/Berlin"), job_name="digest", key="daily")
        for index, jobs in enumerate((1200, 400, 90)):
            queue.add_batch([{"n": n} for n in range(jobs)], batch_id=f"spring-{index + 1}")

        with Queue("embeddings", environment.url("portable")) as other:
            other.add_batch([{"n": n} for n in range(700)], batch_id="nightly")

        def handle(job: Any) -> None:
            time.sleep(0.03 + rng.random() / 20)
            if rng.random() < 0.02:
                raise RuntimeError("SMTP 550: mailbox unavailable")

        retry = RetryDefaults(max_attempts=1)
        with working(url, "emails", handle, concurrency=4, retry=retry):
            yield "emails"


# The query parameters of each view, and an element that is visible when it is loaded.
VIEWS: dict[str, tuple[dict[str, str], str]] = {
    "overview": ({}, 'a[href*="queue=emails"]'),
    "queue": ({"queue": "emails"}, ".cq-chart"),
    "jobs": ({"queue": "emails", "tab": "jobs"}, ".cq-table tbody tr, .cq-empty"),
    "delayed": ({"queue": "emails", "tab": "delayed"}, ".cq-table tbody tr"),
    "batches": ({"queue": "emails", "tab": "batches"}, ".cq-progress"),
    "dead-letters": ({"queue": "emails", "tab": "dead-letters"}, ".cq-dead-letters tbody tr"),
    "repeats": ({"queue": "emails", "tab": "repeats"}, ".cq-table tbody tr"),
    "consumers": ({"queue": "emails", "tab": "consumers"}, ".cq-table tbody tr"),
    "batch": ({"queue": "emails", "batch": "spring-1"}, ".cq-batch .cq-progress"),
    "job": (
        {"queue": "emails", "job": "batch:spring-1:0:0"},
        ".cq-timeline .cq-ok, .cq-timeline .cq-bad",
    ),
}

# The screenshots that the documentation shows.
DOCUMENTED = {"overview-light", "queue-dark", "batches-light", "dead-letters-light", "job-light"}
LAYOUTS = [
    ("light", 1440, tuple(VIEWS)),
    ("dark", 1440, ("overview", "queue", "batches", "dead-letters", "job")),
    ("light", 900, ("queue", "jobs")),
    ("dark", 900, ("overview", "dead-letters")),
]


def test_every_view_fits_in_both_themes(
    browser: Browser, sample_queue: str, screenshots: Path, tmp_path: Path
) -> None:
    brightness: dict[str, set[float]] = {"light": set(), "dark": set()}
    for theme, width, views in LAYOUTS:
        browser.set_theme(theme)
        for view in views:
            browser.driver.set_window_size(width, 1000)
            params, loaded = VIEWS[view]
            browser.open(**({"conn": "native"} | params if params else {}))
            browser.element(loaded)
            text_brightness, overflow = browser.driver.execute_script(_MEASURE_PAGE)
            brightness[theme].add(text_brightness)
            assert overflow <= 0, (view, theme, width)
            browser.driver.set_window_size(width, browser.driver.execute_script(_WINDOW_HEIGHT))
            documented = width == 1440 and f"{view}-{theme}" in DOCUMENTED
            name = f"{view}-{theme}" if width == 1440 else f"{view}-{theme}-{width}"
            browser.save_screenshot(screenshots if documented else tmp_path, name)
    assert max(brightness["light"]) < min(brightness["dark"])


def test_a_dead_letter_its_replay_and_the_tabs_of_a_dag_and_a_task(
    browser: Browser, sample_queue: str, run_id: str, screenshots: Path, tmp_path: Path
) -> None:
    browser.set_theme("light")
    browser.open(conn="native", queue="emails", tab="dead-letters", job_name="newsletter")
    browser.click(".cq-row-open")
    browser.element('dialog [aria-label="Payload"]')
    browser.save_screenshot(screenshots, "dead-letter-light")
    browser.press("Replay", "dialog")
    browser.element("dialog .cq-result")
    browser.save_screenshot(tmp_path, "replay-light")
    browser.press("Cancel", "dialog")
    browser.press("Purge all matching")
    browser.element("dialog .cq-confirm")
    browser.save_screenshot(tmp_path, "purge-light")
    browser.open(f"/dags/newsletter/runs/{run_id}/tasks/send/plugin/chasqui-task")
    browser.element(".cq-batch")
    browser.save_screenshot(screenshots, "task-light")
    browser.open("/dags/newsletter/plugin/chasqui-dag")
    browser.element(".cq-tab .cq-progress")
    browser.save_screenshot(screenshots, "dag-light")
    browser.open(view="watchers")
    browser.wait_for_text("No watchers")
    browser.save_screenshot(tmp_path, "watchers-light")
