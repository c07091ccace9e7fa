"""ChasquiConsumeOperator: the counts of its runs, and when it stops."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.core.outcome import Retry, Snooze
from airflow_provider_chasqui.operators import consume
from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator, RunLimiter


def count_runs(*outcomes: Any) -> tuple[int, int, int]:
    """Return the started, done and failed runs of a handler with these outcomes."""
    limiter = RunLimiter(None)

    def handle(job: Any) -> Any:
        if isinstance(job, Exception):
            raise job
        return job

    handler: Any = SimpleNamespace(call=handle, accepts_context=False, is_async=False)
    run = limiter.wrap(handler)
    for outcome in outcomes:
        with suppress(ValueError):
            run(outcome, None)
    return limiter.started, limiter.done, limiter.failed


def test_a_returned_retry_has_failed_and_a_snooze_counts_as_neither() -> None:
    assert count_runs("result", None) == (2, 2, 0)
    assert count_runs(ValueError("no"), Retry(timedelta(0))) == (2, 0, 2)
    assert count_runs(Snooze(timedelta(seconds=1))) == (1, 0, 0)


def test_the_task_stops_although_the_depth_could_not_be_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume, "_POLL_INTERVAL_S", 0.001)
    replies = iter([ConnectionFailed("no connection")])

    async def depth() -> Any:
        if (error := next(replies, None)) is not None:
            raise error
        return SimpleNamespace(waiting=0, next_due_ms=None)

    async def consumers() -> list[Any]:
        return []

    stops: list[bool] = []
    queue: Any = SimpleNamespace(depth=depth, consumers=consumers)
    consumer: Any = SimpleNamespace(stop=lambda: stops.append(True))
    operator = ChasquiConsumeOperator(task_id="consume", queue_name="q", handler=print)
    asyncio.run(asyncio.wait_for(operator._stop_when_done(queue, consumer, "me", None), 5))
    assert stops == [True]
