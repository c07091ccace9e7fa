"""Base class of the triggers: fields are declared once, as those of a dataclass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.utils.state import TaskInstanceState

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks._stats import triggerer_stats


@dataclass(kw_only=True, eq=False, repr=False)
class DataclassTrigger(BaseTrigger):
    """A trigger whose dataclass fields are its serialized form. Fields contain JSON values only."""

    def __post_init__(self) -> None:
        BaseTrigger.__init__(self)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the constructor arguments, from which Airflow rebuilds it."""
        cls = type(self)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"{cls.__module__}.{cls.__qualname__}", values


def deadline_of(trigger: Any) -> float | None:
    """Return when a wait ends with a timeout, in seconds since the epoch; None for never.

    The scheduler creates the trigger of a task with `start_from_trigger` from constant arguments.
    Its deadline is `timeout_margin` seconds before the timeout that Airflow has computed.

    :param trigger: a trigger with the fields `deadline` and `timeout_margin`.
    """
    if trigger.deadline is not None:
        return float(trigger.deadline)
    timeout_after: datetime | None = getattr(trigger, "timeout_after", None)
    if trigger.timeout_margin is None or timeout_after is None:
        return None
    if timeout_after.tzinfo is None:
        timeout_after = timeout_after.replace(tzinfo=UTC)
    return timeout_after.timestamp() - float(trigger.timeout_margin)


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run the work of `on_kill` to its end.

    Airflow cancels a trigger again in each of its loops until `on_kill` has ended, which can take
    longer: its first question to Airflow takes seconds.

    :param work: the coroutine.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    await task


async def is_killed(trigger: BaseTrigger) -> bool:
    """Return whether the task instance of a trigger is no longer deferred.

    Airflow calls `on_kill` also if the trigger moved to another triggerer (apache/airflow#73454).
    The task instance is then still deferred, and the other triggerer runs the trigger. A trigger
    without a task instance counts as killed.

    :param trigger: the trigger.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    ti: Any = trigger.task_instance
    if ti is None:
        return True
    states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=_map_index(ti)
    )
    return not is_deferred(states, ti)


def is_deferred(states: dict[str, Any], ti: Any) -> bool:
    """Return whether a task instance is deferred.

    :param states: the reply of `get_task_states`: states by run id and task id. The id of a mapped
        task has its map index as a suffix.
    :param ti: the task instance.
    """
    map_index = _map_index(ti)
    name = ti.task_id if map_index == -1 else f"{ti.task_id}_{map_index}"
    return bool(states.get(ti.run_id, {}).get(name) == TaskInstanceState.DEFERRED)


def _map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def require_seconds(name: str, value: float, *, allow_zero: bool = False) -> None:
    """Check a number of seconds.

    :param name: the name of the argument, for the error message.
    :param value: the number.
    :param allow_zero: whether 0 is allowed; not by default.
    :raises InvalidArgument: if the number is too small.
    """
    if value < 0 or (value == 0 and not allow_zero):
        bound = "of at least 0" if allow_zero else "above 0"
        raise InvalidArgument(f"{name} must be a number of seconds {bound}, not {value!r}")


def build_event(payload: dict[str, Any], queue_name: str, owner: str | None = None) -> TriggerEvent:
    """Return the event that ends a wait, and count it if it reports an error.

    :param payload: the payload of the event; the status `error` marks an error.
    :param queue_name: the queue under which the error is counted.
    :param owner: the owner of the batch, which the task compares with its own; None, the default,
        adds none.
    """
    if payload.get("status") == "error":
        triggerer_stats.incr("trigger_errors", 1, queue_name)
    return TriggerEvent(payload if owner is None else payload | {"owner": owner})
