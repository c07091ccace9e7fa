"""Tasks that Airflow resumes with the event of a trigger of an earlier try."""

from __future__ import annotations

import asyncio
import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_chasqui.operators._payloads import PayloadList
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_triggers import run_trigger

COMMON: dict[str, Any] = {
    "task_id": "send",
    "retries": 2,
    "wait_for_completion": True,
    "deferrable": True,
}
# These arguments make a second `execute` of the same try fail.
SENT_ONCE: dict[str, dict[str, Any]] = {
    "payload": {"payload": 0, "on_change": "fail"},
    "batch": {"batch": [0, 1, 2], "on_change": "fail"},
    "spark": {"source_sql": "SELECT 1", "on_existing": "fail"},
}


class WritesWithoutSpark(ChasquiSparkSubmitOperator):
    """Operator whose batch is written by this process, because only the wait is tested."""

    def _submit(self, context: Any, hook: Any, queue: Queue, batch_id: str, source: Any) -> None:
        queue.add_batch([0, 1, 2], batch_id=batch_id)


def build_operator(kind: str, queue_name: str) -> Any:
    operator_class = WritesWithoutSpark if kind == "spark" else ChasquiEnqueueOperator
    return operator_class(queue_name=queue_name, **SENT_ONCE[kind], **COMMON)


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


def defer(execute: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the trigger with which a task defers, and the arguments with which it is resumed."""
    with pytest.raises(TaskDeferred) as deferred:
        execute(*args, **kwargs)
    return deferred.value.trigger, json.loads(json.dumps(deferred.value.kwargs or {}))


@pytest.mark.parametrize("kind", ["payload", "batch", "spark"])
def test_the_event_of_a_trigger_from_before_a_clear_is_ignored(
    queue: Queue, connected: Server, kind: str
) -> None:
    """SQLite gives the id of the deleted trigger to the trigger of the next try."""
    operator = build_operator(kind, queue.name)
    first_trigger, _ = defer(operator.execute, context_of_try(operator, 1))
    context = context_of_try(operator, 2)
    trigger, kwargs = defer(operator.execute, context)
    event = asyncio.run(run_trigger(first_trigger))
    assert event["status"] != "finished"
    # What this try sent is not sent again, nor compared with what the DAG file now contains.
    operator.payload, operator.batch = 7, PayloadList([7, 8])
    resumed, kwargs = defer(operator.execute_complete, context, event, **kwargs)
    names = ("batch_id", "job_id", "owner")
    expected = [getattr(trigger, name, None) for name in names]
    assert [getattr(resumed, name, None) for name in names] == expected

    executed: list[str] = []

    async def handle(job: Any) -> None:
        executed.append(job.id)

    with working(connected, queue.name, handle):
        event = asyncio.run(run_trigger(resumed))
    assert operator.execute_complete(context, event, **kwargs)
    assert len(executed) == (1 if kind == "payload" else 3)
