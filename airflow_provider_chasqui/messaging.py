"""Helpers for DAGs that process messages.

`get_messages` returns the messages of the events that started a run. `queue_not_empty_asset` and
`leased_messages` are for runs that lease messages and ack them at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import count
from typing import Any

from airflow.sdk import Asset, AssetWatcher, TaskGroup
from airflow.sdk.exceptions import DuplicateTaskIdFound

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import JobNotFound
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators._parsing import safe_task_id
from airflow_provider_chasqui.operators.messages import (
    DEFAULT_LEASE_TTL,
    ChasquiAckMessagesOperator,
    ChasquiLeaseMessagesOperator,
)


def get_messages(
    context: Mapping[str, Any], *, chasqui_conn_id: str = DEFAULT_CONN_ID
) -> list[dict[str, Any]]:
    """Return the messages that started the run, without duplicates, in the order of the queue.

    Call it in a task: `get_messages(get_current_context())`.

    :param context: the context of the task.
    :param chasqui_conn_id: the id of the Airflow connection.
    :return: one dict per message, with `id`, `name`, `payload`, `entry_id`, `created_at_ms` and
        `attempt`, which counts from 1.
    :raises JobNotFound: if the messages were stored in Redis and have expired there.
    """
    messages: dict[tuple[str, str], dict[str, Any]] = {}
    with ChasquiHook(chasqui_conn_id) as hook:
        for payload in _event_payloads(context):
            for message in _load_messages(payload, hook):
                messages[payload["queue_name"], message["entry_id"]] = message
    return sorted(messages.values(), key=lambda message: StreamId.parse(message["entry_id"]))


def _event_payloads(context: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            payload = (event.extra or {}).get("payload")
            if isinstance(payload, Mapping) and "queue_name" in payload:
                yield payload


def _load_messages(event_payload: Mapping[str, Any], hook: ChasquiHook) -> list[dict[str, Any]]:
    if "window" not in event_payload:
        return list(event_payload.get("messages", ()))
    queue = hook.queue(event_payload["queue_name"])
    messages = queue.client.execute(watchers.load_window(queue.keys, event_payload["window"]))
    if messages is None:
        raise JobNotFound(
            f"the messages of the window {event_payload['window']} have expired: large windows are "
            f"stored in Redis for {watchers.WINDOW_TTL_S // 86400} days",
            queue_name=queue.name,
        )
    entry_ids = set(event_payload["entry_ids"])
    return [message for message in messages if message["entry_id"] in entry_ids]


def queue_not_empty_asset(
    queue_name: str,
    *,
    lease_ttl: timedelta | float | str = DEFAULT_LEASE_TTL,
    interval: timedelta | float | str = timedelta(seconds=15),
    chasqui_conn_id: str = DEFAULT_CONN_ID,
    trigger_queue: str | None = None,
) -> Asset:
    """Return an asset that schedules DAG runs while a queue has messages.

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the name of the queue.
    :param lease_ttl: the duration of a lease, one hour by default; the same as that of
        `leased_messages`.
    :param interval: the time between two events, 15 seconds by default.
    :param chasqui_conn_id: the id of the Airflow connection. The name of the asset contains it,
        unless it is `chasqui_default`.
    :param trigger_queue: the queue of the triggerer that runs the trigger. Airflow 3.3 ignores it.
        Default: None.
    :raises InvalidArgument: if a duration is not above 0.
    """
    from airflow_provider_chasqui.triggers.queue_not_empty import ChasquiQueueNotEmptyTrigger

    trigger = ChasquiQueueNotEmptyTrigger(
        queue_name=queue_name,
        lease_ttl=parse_duration(lease_ttl, "lease_ttl").total_seconds(),
        interval=parse_duration(interval, "interval").total_seconds(),
        chasqui_conn_id=chasqui_conn_id,
        trigger_queue=trigger_queue,
    )
    name = f"queue_not_empty_{_asset_suffix(queue_name, chasqui_conn_id)}"
    return Asset(name=name, watchers=[AssetWatcher(name=name, trigger=trigger)])


def _asset_suffix(queue_name: str, chasqui_conn_id: str) -> str:
    """Return a text that differs for different queues, also on different connections."""
    suffix = safe_task_id(queue_name)
    if suffix != queue_name:
        suffix += f"_{hashlib.sha256(queue_name.encode()).hexdigest()[:8]}"
    if chasqui_conn_id != DEFAULT_CONN_ID:
        suffix += f"_{safe_task_id(chasqui_conn_id)}"
    return suffix


class leased_messages:  # noqa: N801
    """Context manager that leases messages of a queue for the duration of a DAG run.

        with DAG("orders", schedule=[queue_not_empty_asset("orders")]):
            with leased_messages("orders", max_messages=200) as messages:
                handle.expand(message=messages)

    The value of the context is the output of the task that leases the messages. If all tasks that
    are created inside the context succeed, also those in nested groups, the messages are acked.
    Otherwise they are delivered again after `retry_after`, and moved to the DLQ after
    `max_attempts` runs. Teardown tasks count only if they fail the run (`on_failure_fail_dagrun`).

    The lease task is a setup task and the ack task its teardown, so clearing a task of the context
    also leases messages and acks them again. If a run is deleted or marked as failed before the ack
    task, its messages become available when `lease_ttl` has passed. The trigger of
    `queue_not_empty_asset` renews the leases of active runs.

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the name of the queue.
    :param max_messages: the maximum number of messages per run, 100 by default.
    :param lease_ttl: the duration of a lease, one hour by default. If the DAG is not scheduled with
        `queue_not_empty_asset`, no trigger renews it, so it is the maximum duration of a run.
    :param max_attempts: the maximum number of runs that lease a message, 5 by default.
    :param retry_after: the time until messages of a failed run are delivered again, 30 seconds by
        default.
    :param group_id: the id of the group of your tasks. The ids of the other tasks are
        `lease_<group_id>` and `ack_<group_id>`. Default: `process_<queue>`, with the tasks
        `lease_<queue>` and `ack_<queue>`, and a number if a DAG leases messages of a queue twice.
    :param task_arguments: arguments of BaseOperator for the lease task and the ack task, for
        example `{"retries": 3}`. Default: none.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    def __init__(
        self,
        queue_name: str,
        *,
        max_messages: int = 100,
        lease_ttl: timedelta | float | str = DEFAULT_LEASE_TTL,
        max_attempts: int = 5,
        retry_after: timedelta | float | str = timedelta(seconds=30),
        group_id: str | None = None,
        task_arguments: Mapping[str, Any] | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
    ):
        shared_arguments: dict[str, Any] = {
            **(task_arguments or {}),
            "queue_name": queue_name,
            "lease_ttl": lease_ttl,
            "max_attempts": max_attempts,
            "chasqui_conn_id": chasqui_conn_id,
        }
        if group_id is None:
            self._group, suffix = _add_group(queue_name)
        else:
            self._group, suffix = TaskGroup(group_id), group_id
        self._lease_task = ChasquiLeaseMessagesOperator(
            task_id=f"lease_{suffix}", max_messages=max_messages, **shared_arguments
        )
        self._ack_task = ChasquiAckMessagesOperator(
            task_id=f"ack_{suffix}",
            messages=self._lease_task.output,
            retry_after=retry_after,
            **shared_arguments,
        )
        self._ack_task.as_teardown(setups=self._lease_task, on_failure_fail_dagrun=True)

    def __enter__(self) -> Any:
        self._group.__enter__()
        return self._lease_task.output

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._group.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._lease_task >> self._group >> self._ack_task
        self._ack_task.required_task_ids = tuple(
            task.task_id
            for task in self._group.iter_tasks()
            if not task.is_teardown or task.on_failure_fail_dagrun
        )


def _add_group(queue_name: str) -> tuple[TaskGroup, str]:
    """Add the group of the user's tasks to the DAG.

    :return: the group, and the part of its id that the lease task and the ack task share with it.
    """
    suffix = base = safe_task_id(queue_name)
    for number in count(1):
        try:
            return TaskGroup(f"process_{suffix}"), suffix
        except DuplicateTaskIdFound:
            suffix = f"{base}__{number}"
    raise AssertionError("count() has no end")
