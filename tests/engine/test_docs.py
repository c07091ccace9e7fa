"""The code on the pages of this room runs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.core.policy import RetryPolicy
from airflow_provider_chasqui.queue import AsyncQueue
from tests.engine.conftest import until, working

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text("utf-8")
FIRST, HANDLERS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


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
        job_id = (await queue.add({"to": "ada"}, name="welcome")).id
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
        done = (await queue.add({"to": "ada"}, name="welcome")).id
        await queue.add({}, name="welcome")
        await queue.add({}, name="other", retry=RetryPolicy(1))
        assert await queue.wait(done) == {"sent": 1}
        letters = await until(lambda: _two(queue))
    assert {each.reason for each in letters} == {"unrecoverable", "retries_exhausted"}


async def _two(queue: AsyncQueue) -> Any:
    letters = await queue.letters()
    return letters if len(letters) == 2 else None


class _Job:
    def __init__(self, payload: Any):
        self.payload = payload

    def progress(self, value: Any) -> None: ...
