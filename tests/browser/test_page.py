"""The page in a real browser: live numbers, replay and purge, batches, links, permissions."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from airflow_provider_chasqui.core.commands import consumer_group, watchers
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Browser
from tests.plugins.sample_data import add_dead_letters, register_watcher
from tests.support.plugin_site import PluginEnvironment
from tests.support.team_auth import READER
from tests.support.workers import working

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]

TABS = ("overview", "jobs", "delayed", "batches", "dead-letters", "repeats", "consumers")
_WITHOUT_NAME = """
return [...document.querySelectorAll(
    '.cq :is(button, a, input, select, [role=img], [role=progressbar])')]
    .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
    .map(e => e.outerHTML)
"""


def test_the_page_opens_from_the_navigation_and_updates_its_numbers(
    browser: Browser, queue: Queue
) -> None:
    queue.add_many({"payload": n} for n in range(3))
    browser.open("/")
    browser.click("nav a, [data-testid=nav-sidebar] a", "Chasqui")
    browser.wait_for_text("native dialect")
    browser.labelled("Search queues").send_keys(queue.name)

    def waiting() -> str:
        return browser.element(".cq-table tbody tr", queue.name).text.split()[1]

    browser.wait(lambda: waiting() == "3", "3 waiting jobs")

    queue.add_many({"payload": n} for n in range(4))
    browser.wait(lambda: waiting() == "7", "7 waiting jobs without a reload")


def test_selected_dead_letters_are_shown_and_replayed_after_a_dry_run(
    browser: Browser, queue: Queue
) -> None:
    add_dead_letters(
        queue, 3, job_name="welcome", payload=lambda n: {"to": f"ada{n}", "password": "s3cr3t"}
    )
    add_dead_letters(queue, 2, job_name="digest", reason="timeout", error="TimeoutError: too slow")
    browser.open(conn="native", queue=queue.name, tab="dead-letters")
    browser.wait_for_text("5 dead letters")

    browser.labelled("Search in errors").send_keys("mail server")
    browser.wait_for_text("3 matches, 5 dead letters in total")
    browser.click(".cq-row-open", "mail server")
    payload = browser.element('dialog [aria-label="Payload"]').text
    assert '"to": "ada' in payload
    assert "s3cr3t" not in payload
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.wait(lambda: not browser.find("dialog"), "closed dialog")

    browser.click("tbody tr:nth-child(1) input")
    browser.click("tbody tr:nth-child(2) input")
    browser.wait_for_text("2 selected")
    browser.press("Replay selected")
    browser.wait_for_text("Dry run: 2 dead letters would be moved back to the queue.")
    assert queue.depth().dead == 5
    browser.press("Replay 2 dead letters", "dialog")
    browser.wait_for_text("2 dead letters moved back to the queue.")
    browser.press("Close", "dialog")
    browser.wait_for_text("1 match, 3 dead letters in total")
    depth = queue.depth()
    assert (depth.dead, depth.waiting) == (3, 2)


def test_a_purge_must_be_confirmed(browser: Browser, queue: Queue) -> None:
    add_dead_letters(queue, 4)
    browser.open(conn="native", queue=queue.name, tab="dead-letters")
    browser.press("Purge all")
    browser.wait_for_text("Dry run: 4 dead letters would be deleted.")
    button = browser.element("dialog .cq-solid", "Purge 4 dead letters")
    assert not button.is_enabled()
    browser.click('dialog input[type="checkbox"]')
    browser.press("Purge 4 dead letters", "dialog")
    browser.wait_for_text("4 dead letters deleted.")
    assert queue.depth().dead == 0


def test_the_progress_of_a_batch_is_shown_until_it_finishes(
    browser: Browser, environment: PluginEnvironment, queue: Queue
) -> None:
    queue.add_batch([{"n": n} for n in range(30)], batch_id="nightly")
    browser.open(conn="native", queue=queue.name, tab="batches")
    assert browser.attribute('[role="progressbar"]', "aria-valuenow") == "0"

    def handle(job: Any) -> None:
        time.sleep(0.05)
        if job.payload["n"] == 4:
            raise ValueError("four is not allowed")

    retry = RetryDefaults(max_attempts=1)
    with working(environment.url("native"), queue.name, handle, retry=retry, concurrency=2):
        browser.wait(
            lambda: browser.attribute('[role="progressbar"]', "aria-valuenow") == "30",
            "progress 30 of 30",
        )
    assert "29 of 30" not in browser.text()
    browser.click(".cq-table a", "nightly")
    browser.wait_for_text("finished, 1 dead")
    browser.click(".cq-ids a", "batch:nightly:0:4")
    browser.element(".cq-timeline li", "Dead")
    browser.wait_for_text("ValueError: four is not allowed")


def test_a_batch_is_cancelled_after_a_confirmation(browser: Browser, queue: Queue) -> None:
    queue.add_batch(range(30), batch_id="nightly")
    browser.open(conn="native", queue=queue.name, batch="nightly")
    browser.press("Cancel batch")
    browser.wait_for_text("30 unfinished jobs of batch nightly will not run")
    assert not queue.batch_progress("nightly").cancelled
    browser.press("Keep as it is", "dialog")
    browser.press("Cancel batch")
    browser.press("Cancel batch", "dialog")
    browser.wait_for_text("The batch is cancelled.")
    browser.press("Close", "dialog footer")
    browser.element(".cq-state", "cancelled")
    browser.wait(lambda: not browser.find(".cq-headline button"), "no cancel button")
    assert queue.batch_progress("nightly").cancelled


def test_a_queue_is_paused_and_resumed_and_a_job_cancelled(browser: Browser, queue: Queue) -> None:
    job_id = queue.add(1, delay=timedelta(hours=1)).job_id
    browser.open(conn="native", queue=queue.name)
    browser.press("Pause queue")
    browser.press("Pause queue", "dialog")
    browser.wait_for_text("The queue is paused.")
    browser.press("Close", "dialog footer")
    browser.element(".cq-state", "paused")
    assert queue.depth().paused
    browser.press("Resume queue")
    browser.press("Resume queue", "dialog")
    browser.wait_for_text("The queue is resumed.")
    assert not queue.depth().paused
    browser.open(conn="native", queue=queue.name, job=job_id)
    browser.press("Cancel job")
    browser.press("Cancel job", "dialog")
    browser.wait_for_text("The job is cancelled.")
    assert queue.depth().delayed == 0


def test_a_job_links_to_its_task_and_a_task_to_its_batch(browser: Browser, run_id: str) -> None:
    browser.open(conn="native", queue="newsletter", job="report-1")
    browser.click(".cq-facts a", "newsletter / report")

    def current_url() -> str:
        return browser.driver.current_url.replace("%3A", ":").replace("%2B", "+")

    browser.wait(lambda: f"/runs/{run_id}" in current_url(), "URL of the task instance")
    browser.element("a", "Chasqui")

    tasks = f"/dags/newsletter/runs/{run_id}/tasks"
    browser.open(f"{tasks}/send/plugin/chasqui-task")
    browser.wait_for_text("Batch")
    assert browser.attribute('[role="progressbar"]', "aria-valuemax") == "40"
    browser.open(f"{tasks}/elsewhere/plugin/chasqui-task")
    browser.wait_for_text("This task enqueued no jobs")
    browser.open("/dags/newsletter/plugin/chasqui-dag")
    browser.wait_for_text("batch of 40")


def test_watchers_are_shown_with_their_lag_and_their_problem(
    browser: Browser, environment: PluginEnvironment, queue: Queue
) -> None:
    register_watcher(environment.site, queue.name)
    queue.add_many({"payload": n} for n in range(5))
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "triggerer", 2, 0))
    state = watchers.WatcherState("host-1", None, 7, "the database is locked")
    queue.client.execute(watchers.save_state(queue.keys, "default", state))
    browser.open()
    browser.click(".cq a", "Watchers")

    def row() -> list[str]:
        element = browser.element(".cq-table tbody tr", queue.name)
        return [cell.text for cell in element.find_elements("css selector", "th, td")]

    browser.wait(lambda: row()[1:5] == [queue.name, "3", "2", "0"], "lag 3 and 2 pending")
    assert row()[7] == "the database is locked"
    queue.add("one more")
    browser.wait(lambda: row()[2] == "4", "lag 4 without a reload")
    browser.click(".cq-table a", queue.name)
    browser.element(".cq-chart")


def test_a_reader_sees_dead_letters_and_cannot_change_them(browser: Browser, queue: Queue) -> None:
    add_dead_letters(queue, 2)
    browser.log_in(READER)
    browser.open(conn="native", queue=queue.name, tab="dead-letters")
    browser.wait_for_text("2 dead letters")
    buttons = browser.find(".cq-actions button")
    assert [button.text for button in buttons] == ["Replay all", "Purge all"]
    assert not any(button.is_enabled() for button in buttons)


def test_the_page_can_be_used_with_the_keyboard(browser: Browser, queue: Queue) -> None:
    add_dead_letters(queue, 1)
    selected = '[role="tab"][aria-selected="true"]'
    browser.open(conn="native", queue=queue.name)
    browser.element(selected, "Overview").send_keys(Keys.ARROW_RIGHT)
    jobs = browser.element(selected, "Jobs")
    assert browser.driver.switch_to.active_element == jobs
    jobs.send_keys(Keys.END)
    browser.element(selected, "Consumers").send_keys(*[Keys.ARROW_LEFT] * 2)
    browser.element(selected, "Dead letters")
    browser.element(".cq-row-open").send_keys(Keys.ENTER)
    browser.element("dialog[open]")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.wait(lambda: not browser.find("dialog"), "closed dialog")


def test_every_control_has_an_accessible_name(browser: Browser, queue: Queue) -> None:
    add_dead_letters(queue, 2)
    queue.add_batch([1, 2], batch_id="b")
    browser.open(conn="native", queue=queue.name)
    browser.element(".cq-chart")
    for tab in TABS:
        browser.click(f"#cq-tab-{tab}")
        browser.element(f'#cq-tab-{tab}[aria-selected="true"]')
        browser.element("#cq-panel > *")
        assert browser.driver.execute_script(_WITHOUT_NAME) == [], tab


def test_the_page_reports_a_dead_server_and_recovers(
    browser: Browser, environment: PluginEnvironment
) -> None:
    server = environment.servers["spare"]
    with Queue("mortal", server.url) as queue:
        queue.add(1)
    browser.open(conn="spare", queue="mortal")
    browser.element(".cq-stat", "Waiting")
    server.kill()
    try:
        browser.element(".cq-error-notice", "CMQ-001")
        # The last known numbers stay on screen.
        assert browser.element(".cq-stat", "Waiting").text.split() == ["Waiting", "1"]
        browser.open()
        browser.wait_for_text("CMQ-001")
        browser.wait_for_text("native dialect")
    finally:
        server.restart()
    browser.wait(lambda: not browser.find(".cq-error-notice"), "no error notice after the restart")
