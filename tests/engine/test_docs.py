"""Tests that run the Python examples of the worker pages in docs/."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine import http_server
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import working
from tests.support.waiting import wait_until_async

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


FIRST, DECLARED, HANDLERS = examples("workers.md")


async def test_the_first_example_is_a_worker(server, queue_name: str, capsys) -> None:
    """The printed example with another queue name and server; SIGTERM ends it."""
    text = FIRST.replace("asyncio.run(main())", "")
    text = text.replace('"emails"', repr(queue_name)).replace(
        '"redis://localhost"', repr(server.url)
    )
    page: dict[str, Any] = {}
    exec(compile(text, "workers.md", "exec"), page)
    async with AsyncQueue(queue_name, server.url) as queue:
        running = asyncio.create_task(page["main"]())
        job_id = (await queue.add({"to": "ada"}, job_name="welcome")).job_id
        output = ""
        while job_id not in output:
            await asyncio.sleep(0.02)
            output += capsys.readouterr().out
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 10)
    assert output == f"{job_id} welcome {{'to': 'ada'}} 1\n"


async def test_the_declared_example_is_run_by_a_consumer(queue: AsyncQueue) -> None:
    page: dict[str, Any] = {}
    exec(compile(DECLARED, "workers.md", "exec"), page)
    async with working(queue, page["welcome"], store_results=True):
        job_id = (await queue.add({"to": "ada"}, job_name="welcome")).job_id
        assert await queue.wait(job_id) == {"sent": "ada"}


async def test_the_example_handlers_have_the_documented_outcomes(queue: AsyncQueue) -> None:
    page: dict[str, Any] = {}
    exec(compile(HANDLERS, "workers.md", "exec"), page)
    assert isinstance(page["resize"](_Job({"busy": True})), Snooze)
    assert isinstance(await page["everything_else"](_Job({})), Retry)
    with pytest.raises(Unrecoverable):
        await page["send_welcome"](_Job({}), _Job({}))
    async with working(queue, page["handlers"], store_results=True):
        done = (await queue.add({"to": "ada"}, job_name="welcome")).job_id
        await queue.add({}, job_name="welcome")
        await queue.add({}, job_name="other", retry=RetryPolicy(1))
        assert await queue.wait(done) == {"sent": 1}
        dead_letters = await wait_until_async(lambda: _two_dead_letters(queue))
    assert {dead_letter.reason for dead_letter in dead_letters} == {
        "unrecoverable",
        "retries_exhausted",
    }


async def test_the_example_program_serves_its_metrics(
    server, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed example with another queue name, server and port."""
    started: list[http_server.MetricsServer] = []

    class RecordedServer(http_server.MetricsServer):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(http_server, "MetricsServer", RecordedServer)
    text = examples("metrics.md")[-1].replace('"redis://localhost"', repr(server.url))
    text = text.replace('"emails"', repr(queue_name)).replace("port=9100", "port=0")
    page: dict[str, Any] = {}
    exec(compile(text, "metrics.md", "exec"), page)
    running = asyncio.create_task(page["main"]())
    try:
        async with AsyncQueue(queue_name, server.url) as queue, httpx.AsyncClient() as http:
            await queue.add({"to": "ada"}, job_name="welcome")

            async def job_is_counted() -> Any:
                response = await http.get(f"http://127.0.0.1:{started[0].port}/metrics")
                return re.search(r"chasquimq_jobs_completed_total{.*welcome.*} 1.0", response.text)

            await wait_until_async(job_is_counted)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        started[0].close()


async def test_the_example_handler_charges_once_per_job_id() -> None:
    payments = mock.AsyncMock()
    page: dict[str, Any] = {"payments": payments}
    exec(compile(examples("guarantees.md")[0], "guarantees.md", "exec"), page)
    job = _Job({"card": "c", "cents": 5})
    job.id = "order-7"
    await page["charge"](job)
    payments.charge.assert_awaited_once_with("c", 5, idempotency_key="order-7")


async def _two_dead_letters(queue: AsyncQueue) -> Any:
    dead_letters = await queue.dead_letters()
    return dead_letters if len(dead_letters) == 2 else None


class _Job:
    id = ""

    def __init__(self, payload: Any):
        self.payload = payload

    def progress(self, value: Any) -> None: ...
