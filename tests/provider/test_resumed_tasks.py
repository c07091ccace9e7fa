"""Tasks that Airflow resumes with the event of a trigger of an earlier try."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working

COMMON: dict[str, Any] = {
    "task_id": "send",
    "retries": 2,
    "wait_for_completion": True,
    "deferrable": True,
}


class WritesWithoutSpark(ChasquiSparkSubmitOperator):
    """Operator whose batch is written by this process, because only the wait is tested."""

    def _submit(self, context: Any, hook: Any, queue: Queue, batch_id: str, source: Any) -> None:
        queue.add_batch([0, 1, 2], batch_id=batch_id)


def build_operator(kind: str, queue_name: str) -> Any:
    if kind == "payload":
        return ChasquiEnqueueOperator(queue_name=queue_name, payload=0, **COMMON)
    if kind == "batch":
        return ChasquiEnqueueOperator(queue_name=queue_name, batch=[0, 1, 2], **COMMON)
    return WritesWithoutSpark(queue_name=queue_name, source_sql="SELECT 1", **COMMON)


def context_of_try(operator: Any, number: int) -> dict[str, Any]:
    """Return the context of a try; each one follows a clear."""
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="send",
        map_index=-1,
        try_number=number,
        max_tries=number + 1,
        id=uuid.uuid4(),
        task=operator,
        start_date=None,
        xcom_push=lambda key, value: None,
    )
    return {"ti": ti}


def defer(execute: Any, *args: Any) -> Any:
    """Return the trigger with which a task defers."""
    with pytest.raises(TaskDeferred) as deferred:
        execute(*args)
    return deferred.value.trigger


async def run_trigger(trigger: Any) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("the trigger emitted no event")


@pytest.mark.parametrize("kind", ["payload", "batch", "spark"])
def test_the_event_of_a_trigger_from_before_a_clear_is_ignored(
    queue: Queue, connected: Server, kind: str
) -> None:
    """SQLite gives the id of the deleted trigger to the trigger of the next try."""
    operator = build_operator(kind, queue.name)
    first_trigger = defer(operator.execute, context_of_try(operator, 1))
    context = context_of_try(operator, 2)
    trigger = defer(operator.execute, context)
    event = asyncio.run(run_trigger(first_trigger))
    assert event["status"] != "finished"
    resumed = defer(operator.execute_complete, context, event)
    names = ("batch_id", "job_id", "owner")
    expected = [getattr(trigger, name, None) for name in names]
    assert [getattr(resumed, name, None) for name in names] == expected

    executed: list[str] = []

    async def handle(job: Any) -> None:
        executed.append(job.id)

    with working(connected, queue.name, handle):
        event = asyncio.run(run_trigger(resumed))
    assert operator.execute_complete(context, event)
    assert len(executed) == (1 if kind == "payload" else 3)
