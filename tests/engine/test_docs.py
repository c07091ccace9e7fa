"""The code on the pages of this room runs."""

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
from tests.engine.conftest import until, working

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


FIRST, HANDLERS = examples("workers.md")


async def test_the_ten_lines_are_a_worker(server, queue_name: str, capsys) -> None:
    """As printed, but for the queue's name and its server, and with a signal at the end."""
    text = FIRST.replace("asyncio.run(main())", "")
    text = text.replace('"emails"', repr(queue_name)).replace(
        '"redis://localhost"', repr(server.url)
    )
    page: dict[str, Any] = {}
    exec(compile(text, "workers.md", "exec"), page)
    async with AsyncQueue(queue_name, server.url) as queue:
        running = asyncio.create_task(page["main"]())
        job_id = (await queue.add({"to": "ada"}, job_name="welcome")).job_id
        said = ""
        while job_id not in said:
            await asyncio.sleep(0.02)
            said += capsys.readouterr().out
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 10)
    assert said == f"{job_id} welcome {{'to': 'ada'}} 0\n"


async def test_the_handlers_do_what_the_table_says(queue: AsyncQueue) -> None:
    page: dict[str, Any] = {}
    exec(compile(HANDLERS, "workers.md", "exec"), page)
    assert isinstance(page["resize"](_Job({"busy": True})), Snooze)
    assert isinstance(await page["everything_else"](_Job({})), Retry)
    with pytest.raises(Unrecoverable):
        await page["welcome"](_Job({}), _Job({}))
    async with working(queue, page["handlers"], store_results=True):
        done = (await queue.add({"to": "ada"}, job_name="welcome")).job_id
        await queue.add({}, job_name="welcome")
        await queue.add({}, job_name="other", retry=RetryPolicy(1))
        assert await queue.wait(done) == {"sent": 1}
        letters = await until(lambda: _two(queue))
    assert {each.reason for each in letters} == {"unrecoverable", "retries_exhausted"}


async def test_a_program_of_ones_own_serves_its_metrics(
    server, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed, but for the queue's name, its server and the port."""
    started: list[http_server.MetricsServer] = []

    class Kept(http_server.MetricsServer):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(http_server, "MetricsServer", Kept)
    text = examples("metrics.md")[-1].replace('"redis://localhost"', repr(server.url))
    text = text.replace('"emails"', repr(queue_name)).replace("port=9100", "port=0")
    page: dict[str, Any] = {}
    exec(compile(text, "metrics.md", "exec"), page)
    running = asyncio.create_task(page["main"]())
    try:
        async with AsyncQueue(queue_name, server.url) as queue, httpx.AsyncClient() as http:
            await queue.add({"to": "ada"}, job_name="welcome")

            async def counted() -> bool:
                found = await http.get(f"http://127.0.0.1:{started[0].port}/metrics")
                return re.search(r"chasquimq_jobs_completed_total{.*welcome.*} 1.0", found.text)

            await until(counted)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        started[0].close()


async def test_the_handler_that_may_run_twice_charges_by_the_id() -> None:
    payments = mock.AsyncMock()
    page: dict[str, Any] = {"payments": payments}
    exec(compile(examples("guarantees.md")[0], "guarantees.md", "exec"), page)
    job = _Job({"card": "c", "cents": 5})
    job.id = "order-7"
    await page["charge"](job)
    payments.charge.assert_awaited_once_with("c", 5, idempotency_key="order-7")


async def _two(queue: AsyncQueue) -> Any:
    letters = await queue.dead_letters()
    return letters if len(letters) == 2 else None


class _Job:
    id = ""

    def __init__(self, payload: Any):
        self.payload = payload

    def progress(self, value: Any) -> None: ...
