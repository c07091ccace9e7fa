"""The page in a real browser: numbers change, letters are opened and replayed, a batch finishes."""

from __future__ import annotations

import time

import pytest
from selenium.webdriver.common.keys import Keys

from airflow_provider_chasqui.core.commands import consumer_group, watchers
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Reader
from tests.plugins.sample_data import bury, watch
from tests.support.plugin_site import World
from tests.support.workers import working

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("airflow")]


def test_the_page_opens_from_the_navigation_and_its_numbers_change(
    reader: Reader, queue: Queue
) -> None:
    queue.add_many({"payload": n} for n in range(3))
    reader.open("/")
    reader.click("nav a, [data-testid=nav-sidebar] a", "Chasqui")
    reader.see("native dialect")
    reader.labelled("Find a queue").send_keys(queue.name)

    def number() -> str:
        return reader.one(".cq-table tbody tr", queue.name).text.split()[1]

    reader.wait(lambda: number() == "3", "the number of jobs")

    queue.add_many({"payload": n} for n in range(4))
    reader.wait(lambda: number() == "7", "the new number, without a reload")


def test_a_selection_of_letters_is_opened_tried_dry_and_replayed(
    reader: Reader, queue: Queue
) -> None:
    bury(queue, 3, name="welcome", payload=lambda n: {"to": f"ada{n}", "password": "s3cr3t"})
    bury(queue, 2, name="digest", reason="timeout", error="TimeoutError: too slow")
    reader.open(conn="native", queue=queue.name, tab="letters")
    reader.see("5 letters")

    reader.labelled("Text in the error").send_keys("mail server")
    reader.see("3 fit among 5 looked at")
    reader.click(".cq-row-open", "mail server")
    payload = reader.one('dialog [aria-label="Payload"]').text
    assert '"to": "ada' in payload
    assert "s3cr3t" not in payload
    reader.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    reader.wait(lambda: not reader.find("dialog"), "the letter to close")

    reader.click("tbody tr:nth-child(1) input")
    reader.click("tbody tr:nth-child(2) input")
    reader.see("2 selected")
    reader.press("Replay selected")
    reader.see("Dry run: 2 letters would go back on the queue.")
    assert queue.depth().dead == 5
    reader.press("Replay 2 letters", "dialog")
    reader.see("Done: 2 letters put back.")
    reader.press("Close", "dialog")
    reader.see("1 fit among 3 looked at")
    depth = queue.depth()
    assert (depth.dead, depth.waiting) == (3, 2)


def test_a_purge_wants_to_be_meant(reader: Reader, queue: Queue) -> None:
    bury(queue, 4)
    reader.open(conn="native", queue=queue.name, tab="letters")
    reader.press("Purge all")
    reader.see("Dry run: 4 letters would be deleted for good.")
    button = reader.one("dialog .cq-solid", "Purge 4 letters")
    assert not button.is_enabled()
    reader.click('dialog input[type="checkbox"]')
    reader.press("Purge 4 letters", "dialog")
    reader.see("Done: 4 letters deleted.")
    assert queue.depth().dead == 0


def test_a_batch_finishes_before_the_readers_eyes(
    reader: Reader, the_world: World, queue: Queue
) -> None:
    queue.add_batch([{"n": n} for n in range(30)], batch_id="nightly")
    reader.open(conn="native", queue=queue.name, tab="batches")
    assert reader.attribute('[role="progressbar"]', "aria-valuenow") == "0"

    def handle(job) -> None:
        time.sleep(0.05)
        if job.payload["n"] == 4:
            raise ValueError("no")

    retry = RetryDefaults(max_attempts=1)
    with working(the_world.url("native"), queue.name, handle, retry=retry, concurrency=2):
        reader.wait(
            lambda: reader.attribute('[role="progressbar"]', "aria-valuenow") == "30",
            "the full bar",
        )
    assert "29 of 30" not in reader.text()
    reader.click(".cq-table a", "nightly")
    reader.see("ended with dead jobs")
    reader.click(".cq-ids a", "batch:nightly:0:4")
    reader.see("Died")
    reader.see("ValueError: no")


def test_from_the_job_to_its_task_and_from_the_task_to_its_job(
    reader: Reader, the_world: World, sent: str
) -> None:
    reader.open(conn="native", queue="newsletter", job="report-1")
    reader.click(".cq-facts a", "newsletter / report")
    reader.wait(
        lambda: (
            f"/runs/{sent}" in reader.driver.current_url.replace("%3A", ":").replace("%2B", "+")
        ),
        "the task",
    )
    reader.one("a", "Chasqui")

    task = f"/dags/newsletter/runs/{sent}/tasks"
    reader.open(f"{task}/send/plugin/chasqui-task")
    reader.see("Batch")
    assert reader.attribute('[role="progressbar"]', "aria-valuemax") == "40"
    reader.open(f"{task}/elsewhere/plugin/chasqui-task")
    reader.see("This task sent nothing to Chasqui")
    reader.open("/dags/newsletter/plugin/chasqui-dag")
    reader.see("batch of 40")


def test_watchers_are_shown_with_their_lag_and_their_trouble(
    reader: Reader, the_world: World, queue: Queue
) -> None:
    watch(the_world.site, queue.name)
    queue.add_many({"payload": n} for n in range(5))
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "triggerer", 2, 0, 60_000))
    trouble = watchers.WatcherState("host-1", None, 7, "the database is locked")
    queue.client.execute(watchers.save_state(queue.keys, "default", trouble))
    reader.open()
    reader.click(".cq a", "Watchers")

    def row() -> list[str]:
        cells = reader.one(".cq-table tbody tr", queue.name)
        return [each.text for each in cells.find_elements("css selector", "th, td")]

    reader.wait(lambda: row()[1:5] == [queue.name, "3", "2", "0"], "lag and what is in hand")
    assert row()[7] == "the database is locked"
    queue.add("one more")
    reader.wait(lambda: row()[2] == "4", "the new lag, without a reload")
    reader.click(".cq-table a", queue.name)
    reader.one(".cq-chart")


def test_a_viewer_sees_the_letters_and_cannot_touch_them(reader: Reader, queue: Queue) -> None:
    bury(queue, 2)
    reader.log_in("vera")
    reader.open(conn="native", queue=queue.name, tab="letters")
    reader.see("2 letters")
    buttons = [each for each in reader.find(".cq-actions button")]
    assert [each.text for each in buttons] == ["Replay all", "Purge all"]
    assert not any(each.is_enabled() for each in buttons)


def test_everything_can_be_reached_by_keys(reader: Reader, queue: Queue) -> None:
    bury(queue, 1)
    reader.open(conn="native", queue=queue.name)
    reader.one('[role="tab"][aria-selected="true"]', "Overview").send_keys(Keys.ARROW_RIGHT)
    chosen = reader.one('[role="tab"][aria-selected="true"]', "Jobs")
    assert reader.driver.switch_to.active_element == chosen
    chosen.send_keys(Keys.END)
    reader.one('[role="tab"][aria-selected="true"]', "Consumers").send_keys(*[Keys.ARROW_LEFT] * 2)
    reader.one('[role="tab"][aria-selected="true"]', "Dead letters")
    reader.one(".cq-row-open").send_keys(Keys.ENTER)
    reader.one("dialog[open]")
    reader.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    reader.wait(lambda: not reader.find("dialog"), "the letter to close")


def test_nothing_that_can_be_pressed_is_without_a_name(reader: Reader, queue: Queue) -> None:
    bury(queue, 2)
    queue.add_batch([1, 2], batch_id="b")
    reader.open(conn="native", queue=queue.name)
    reader.one(".cq-chart")
    for tab in ("overview", "jobs", "delayed", "batches", "letters", "repeats", "consumers"):
        reader.click(f"#cq-tab-{tab}")
        reader.one(f'#cq-tab-{tab}[aria-selected="true"]')
        reader.one("#cq-panel > *")
        nameless = reader.driver.execute_script(
            """return [...document.querySelectorAll(
                 '.cq :is(button, a, input, select, [role=img], [role=progressbar])')]
               .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()
                              || e.labels?.length)).map(e => e.outerHTML)"""
        )
        assert nameless == []


def test_a_server_that_dies_is_said_so_and_the_page_lives_on(
    reader: Reader, the_world: World
) -> None:
    server = the_world.servers["spare"]
    with Queue("mortal", server.url) as queue:
        queue.add(1)
    reader.open(conn="spare", queue="mortal")
    reader.one(".cq-number", "Waiting")
    server.kill()
    try:
        reader.one(".cq-trouble", "check that the server runs")
        assert reader.one(".cq-number", "Waiting").text.split() == ["Waiting", "1"]
        reader.open()
        reader.see("check that the server runs")
        reader.see("native dialect")
    finally:
        server.restart()
    reader.wait(lambda: not reader.find(".cq-trouble"), "the page noticing that it is back")
