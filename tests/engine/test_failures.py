"""Failed attempts are visible: logs, metrics and dead letters; and job names without a handler."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui import Handlers, Retry, Unrecoverable, job
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.engine.failure_log import FailureLog
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.supervisor.logging_setup import _JsonFormatter
from tests.engine.conftest import empty, working
from tests.support.waiting import wait_until_async

FAST = Backoff.fixed(timedelta(milliseconds=1))


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.WARNING]


def traceback_of(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


@pytest.mark.parametrize("kind", ["async", "suspended", "plain"])
async def test_a_failed_attempt_is_logged_with_its_traceback(
    queue: AsyncQueue, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def shout(text: str) -> str:
        return text.lowr()  # type: ignore[attr-defined,no-any-return]

    async def run_async(job: Any) -> str:
        return shout(job.payload)

    async def run_suspended(job: Any) -> str:
        await asyncio.sleep(0)
        return shout(job.payload)

    def run_plain(job: Any) -> str:
        return shout(job.payload)

    handlers = {"async": run_async, "suspended": run_suspended, "plain": run_plain}
    sent = await queue.add("x", job_name="shout", retry=RetryPolicy(5, FAST))
    async with working(queue, handlers[kind]) as consumer:
        [dead_letter] = await wait_until_async(queue.dead_letters)
        metrics = consumer.metrics
    first, summary = warnings(caplog)
    assert first.getMessage().startswith(
        f"outcomes: job {sent.job_id} (shout) failed in attempt 1 of 5 and is retried in 0.001 s: "
        "AttributeError: 'str' object has no attribute 'lowr'"
    )
    assert (first.job_id, first.job_name, first.attempt) == (sent.job_id, "shout", 1)  # type: ignore[attr-defined]
    text = traceback_of(first)
    assert "return text.lowr()" in text
    assert "engine/executor.py" not in text
    assert "thread_executor.py" not in text
    # Four more attempts, the last of which was dead-lettered.
    assert "4 more failed attempts of shout (1 dead-lettered) with AttributeError" in (
        summary.getMessage()
    )
    assert sent.job_id in summary.getMessage()
    assert "return text.lowr()" in dead_letter.detail
    assert dead_letter.error == "AttributeError: 'str' object has no attribute 'lowr'"
    assert dict(metrics.errors) == {("shout", "AttributeError"): 5}
    assert sample(metrics, "chasqui_job_errors") == {("shout", "AttributeError"): 5.0}


def sample(metrics: Any, name: str) -> dict[tuple[str, str], float]:
    families = {family.name: family for family in PrometheusCollector(metrics).collect()}
    return {
        (found.labels["name"], found.labels["error"]): found.value
        for found in families[name].samples
    }


async def test_many_failures_write_few_log_lines(
    queue: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Any) -> None:
        if job.payload % 2:
            raise Unrecoverable(f"row {job.payload}")
        raise ValueError(f"row {job.payload}")

    await queue.add_batch(range(1000), job_name="row", retry=RetryPolicy(1))
    async with working(queue, handle) as consumer:
        await wait_until_async(lambda: empty(queue))
        metrics = consumer.metrics
    lines = [record.getMessage() for record in warnings(caplog)]
    assert len(lines) == 4
    assert sum("499 more failed attempts of row (499 dead-lettered)" in line for line in lines) == 2
    assert dict(metrics.errors) == {("row", "ValueError"): 500, ("row", "Unrecoverable"): 500}


async def test_a_returned_retry_is_visible_without_a_traceback(
    queue: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Any) -> Retry:
        return Retry(timedelta(milliseconds=1), "not ready")

    await queue.add(1, job_name="wait", retry=RetryPolicy(2))
    async with working(queue, handle) as consumer:
        [dead_letter] = await wait_until_async(queue.dead_letters)
        metrics = consumer.metrics
    first = warnings(caplog)[0]
    assert "(wait) failed in attempt 1 of 2" in first.getMessage()
    assert "not ready" in first.getMessage()
    assert not first.exc_info
    assert dead_letter.detail is None
    assert dict(metrics.errors) == {("wait", "Retry"): 2}


async def test_a_timeout_shows_where_the_handler_was(
    queue: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(queue_name=queue.name, timeout=timedelta(milliseconds=50), retry=1)
    async def slow(n: int) -> None:
        await asyncio.sleep(60)  # here

    await queue.add({"n": 1}, job_name="slow")
    async with working(queue, slow):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert "await asyncio.sleep(60)  # here" in traceback_of(warnings(caplog)[0])
    assert "await asyncio.sleep(60)  # here" in dead_letter.detail


def test_json_log_lines_have_the_job(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog("q").record("j", "n", 2, ValueError("x"), "ValueError: x", "", False)
    fields = json.loads(_JsonFormatter(1).format(caplog.records[0]))
    assert {"queue": "q", "job_id": "j", "job_name": "n", "attempt": 2}.items() <= fields.items()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def error(line: str) -> Exception:
    try:
        exec(compile(f"\n{line}", "jobs.py", "exec"), {})
    except Exception as raised:
        return raised
    raise AssertionError


def test_repeats_are_summarized_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = FailureLog("q", clock)
    for number in range(3):
        failures.record(f"j{number}", "n", 1, error("1/0"), "ZeroDivisionError", "is dead", True)
    assert len(caplog.records) == 1
    clock.now = 30.0
    failures.flush()
    assert len(caplog.records) == 1
    clock.now = 61.0
    failures.flush()
    failures.flush()
    assert "2 more failed attempts of n (2 dead-lettered)" in caplog.records[1].getMessage()
    assert "jobs.py:2" in caplog.records[1].getMessage()
    assert len(caplog.records) == 2
    clock.now = 1000.0  # quiet for a long time: a new failure has its traceback again
    failures.flush()
    failures.record("j9", "n", 1, error("1/0"), "ZeroDivisionError", "is retried", False)
    assert caplog.records[2].exc_info
    assert len(caplog.records) == 3


def test_the_number_of_different_errors_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog("q", Clock())
    for number in range(1000):
        failures.record("j", f"name-{number}", 1, ValueError("x"), "ValueError: x", "is dead", True)
    failures.flush(final=True)
    assert len(caplog.records) < 110
    assert "more failed attempts of other jobs" in caplog.records[-1].getMessage()


async def test_a_job_name_without_a_handler_is_reported_once_and_uses_no_attempt(
    queue: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    handlers = Handlers()

    @handlers.on("welcome", "goodbye")
    async def handle(job: Any) -> None: ...

    added = [await queue.add(n, job_name="welcom", retry=RetryPolicy(1)) for n in range(3)]
    async with working(queue, handlers) as consumer:
        await wait_until_async(lambda: _all_delayed(queue, 3))
        metrics = consumer.metrics
    [line] = [record.getMessage() for record in warnings(caplog)]
    assert "no handler for the job name 'welcom'" in line
    assert "this worker has goodbye, welcome" in line
    assert metrics.counts["no_handler"] >= 3
    assert await queue.dead_letters() == []

    @handlers.on("welcom")
    async def correct(job: Any) -> None:
        assert job.attempt == 0
        ran.append(job.payload)

    async with working(queue, handlers):
        await wait_until_async(lambda: len(ran) == 3)
        await wait_until_async(lambda: empty(queue))
    assert sorted(ran) == [0, 1, 2]
    assert {(await queue.job_status(one.job_id)).state for one in added} == {"done"}


async def _all_delayed(queue: AsyncQueue, count: int) -> bool:
    depth = await queue.depth()
    return depth.delayed == count and not depth.waiting and not depth.running


async def test_a_name_that_stays_without_a_handler_is_dead_lettered(queue: AsyncQueue) -> None:
    batch = await queue.add_batch([1, 2], job_name="unknown")
    timeout = timedelta(milliseconds=100)
    async with working(queue, Handlers(), missing_handler_timeout=timeout):
        progress = await queue.wait_batch(batch.batch_id, timeout=timedelta(seconds=20))
    assert (progress.done, progress.dead) == (0, 2)
    dead_letters = await queue.dead_letters()
    assert {(dead.reason, dead.attempts) for dead in dead_letters} == {("no_handler", 0)}
    assert "no handler for the job name 'unknown'" in dead_letters[0].error
