"""How the page looks, light and dark, wide and narrow: nothing sticks out of it.

With CHASQUI_PICTURES=1 the pictures of docs/ui.md are taken anew.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Reader
from tests.plugins.sample_data import bury
from tests.support.plugin_site import World
from tests.support.workers import working

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400), pytest.mark.xdist_group("airflow")]

_SUM = """
const shown = document.querySelector('.cq');
const ink = getComputedStyle(shown).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
return [ink[0] + ink[1] + ink[2], shown.scrollWidth - shown.clientWidth];
"""


# How high the window must be to show what is there, and all of Airflow's own navigation.
_HEIGHT = """
const parts = [...document.querySelectorAll('.cq *')];
const end = Math.max(...parts.map(each => each.getBoundingClientRect().bottom));
return Math.max(600, Math.min(900, end + 30)) + outerHeight - innerHeight;
"""


def an_hour_of_events(queue: Queue, dice: random.Random) -> None:
    """What workers would have written, up to a minute ago; only on a queue that is new."""
    if queue.last_event_id() != "0-0":
        return
    now = int(time.time() * 1000)
    for minute in range(60, 1, -1):
        ends = int(45 + 25 * math.sin(minute / 8) + dice.random() * 15)
        for number in range(ends):
            at = now - minute * 60_000 + number * 60_000 // ends
            kind = dice.choices(("completed", "retry-scheduled", "dlq"), (95, 4, 1))[0]
            fields = ("e", kind, "id", f"{minute}-{number}", "ts", str(at), "attempt", "1")
            queue.client.execute(
                redis_command("XADD", queue.keys.events, f"{at}-0", *fields, parse=as_raw)
            )


@pytest.fixture
def scene(the_world: World) -> Iterator[str]:
    """A queue on which something of everything has happened; its worker goes on."""
    url, dice = the_world.url("native"), random.Random(7)
    with Queue("emails", url) as queue:
        queue.client.dialect()
        an_hour_of_events(queue, dice)
        bury(
            queue, 140, name="newsletter",
            error="ConnectionError: the mail server said no (smtp.example.org:25)",
            payload=lambda n: {"to": f"reader{n}@example.org", "api_key": "k", "lang": "en"},
        )  # fmt: skip
        bury(queue, 9, name="welcome", reason="timeout", error="TimeoutError: over 30 s")
        queue.add_many(
            {"payload": {"n": n}, "job_name": "reminder", "delay": timedelta(hours=n + 1)}
            for n in range(40)
        )
        for index, jobs in enumerate((1200, 400, 90)):
            queue.add_batch([{"n": n} for n in range(jobs)], batch_id=f"spring-{index + 1}")

        with Queue("embeddings", the_world.url("portable")) as other:
            other.add_batch([{"n": n} for n in range(700)], batch_id="nightly")

        def handle(job) -> None:
            time.sleep(0.01 + dice.random() / 50)
            if dice.random() < 0.02:
                raise RuntimeError("SMTP 550: mailbox unavailable")

        retry = RetryDefaults(max_attempts=1)
        with working(url, "emails", handle, concurrency=4, retry=retry):
            yield "emails"


VIEWS: dict[str, tuple[dict[str, str], str]] = {
    "overview": ({}, 'a[href*="queue=emails"]'),
    "queue": ({"queue": "emails"}, ".cq-chart"),
    "batches": ({"queue": "emails", "tab": "batches"}, ".cq-bar"),
    "letters": ({"queue": "emails", "tab": "letters"}, ".cq-letters tbody tr"),
    "job": (
        {"queue": "emails", "job": "batch:spring-1:0:0"},
        ".cq-timeline .cq-ok, .cq-timeline .cq-bad",
    ),
}


# Those that a page shows; the others are only looked at.
SHOWN = {"overview-light", "queue-dark", "batches-light", "letters-light", "job-light"}
LOOKS = [
    ("light", 1440, tuple(VIEWS)),
    ("dark", 1440, tuple(VIEWS)),
    ("light", 900, ("queue",)),
    ("dark", 900, ("overview", "letters")),
]


def test_every_view_in_both_looks_and_nothing_sticks_out(
    reader: Reader, scene: str, pictures: Path, tmp_path: Path
) -> None:
    inks: dict[str, set[float]] = {"light": set(), "dark": set()}
    for look, width, views in LOOKS:
        reader.theme(look)
        for name in views:
            reader.driver.set_window_size(width, 1000)
            place, sign = VIEWS[name]
            reader.open(**({"conn": "native"} | place if place else {}))
            reader.one(sign)
            bright, sticks_out = reader.driver.execute_script(_SUM)
            inks[look].add(bright)
            assert sticks_out <= 0, (name, look, width)
            reader.driver.set_window_size(width, reader.driver.execute_script(_HEIGHT))
            shown = width == 1440 and f"{name}-{look}" in SHOWN
            reader.keep(pictures if shown else tmp_path, f"{name}-{look}")
    assert max(inks["light"]) < min(inks["dark"])


def test_a_letter_and_the_tabs_of_airflows_own_pages(
    reader: Reader, scene: str, sent: str, pictures: Path
) -> None:
    reader.theme("light")
    reader.open(conn="native", queue="emails", tab="letters", name="newsletter")
    reader.click(".cq-row-open")
    reader.one('dialog [aria-label="Payload"]')
    reader.keep(pictures, "letter-light")
    reader.open(f"/dags/newsletter/runs/{sent}/tasks/send/plugin/chasqui-task")
    reader.one(".cq-batch")
    reader.keep(pictures, "task-light")
    reader.open("/dags/newsletter/plugin/chasqui-dag")
    reader.one(".cq-tab .cq-bar")
    reader.keep(pictures, "dag-light")
