"""Messages in DAGs: what started a run, and what a run has leased.

`get_messages` reads the messages in a run's events; `queue_not_empty_asset` and `leased_messages` are for runs
that hold messages until they are done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetWatcher, TaskGroup

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import JobNotFound
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators.messages import (
    DEFAULT_LEASE_TTL,
    ChasquiAckMessagesOperator,
    ChasquiLeaseMessagesOperator,
)


def get_messages(
    context: Mapping[str, Any], *, chasqui_conn_id: str = DEFAULT_CONN_ID
) -> list[dict[str, Any]]:
    """Return the messages that started the run, each once, in the order of the queue.

    Call it in a task: `get_messages(get_current_context())`. Every message is a dict with `id`,
    `name`, `payload`, `entry_id`, `created_at_ms` and `attempt`.
    """
    found: dict[str, dict[str, Any]] = {}
    with ChasquiHook(chasqui_conn_id) as hook:
        for manifest in _event_payloads(context):
            for message in _load_messages(manifest, hook):
                found[f"{manifest['queue_name']}/{message['entry_id']}"] = message
    return sorted(found.values(), key=lambda message: _stream_id_key(message["entry_id"]))


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
    kept = queue.client.execute(watchers.load_window(queue.keys, event_payload["window"]))
    if kept is None:
        raise JobNotFound(
            f"the window {event_payload['window']} of messages is no longer kept: such windows last "
            f"{watchers.WINDOW_TTL_S // 86400} days",
            queue_name=queue.name,
        )
    meant = set(event_payload["entry_ids"])
    return [message for message in kept if message["entry_id"] in meant]


def _stream_id_key(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))


def queue_not_empty_asset(
    queue_name: str,
    *,
    lease_ttl: timedelta = DEFAULT_LEASE_TTL,
    interval: timedelta = timedelta(seconds=15),
    chasqui_conn_id: str = DEFAULT_CONN_ID,
) -> Asset:
    """Return an asset to schedule a DAG by: it rings while the queue holds messages."""
    from airflow_provider_chasqui.triggers.queue_not_empty import ChasquiQueueNotEmptyTrigger

    bell = ChasquiQueueNotEmptyTrigger(
        queue_name=queue_name,
        lease_ttl=lease_ttl.total_seconds(),
        interval=interval.total_seconds(),
        chasqui_conn_id=chasqui_conn_id,
    )
    name = f"queue_not_empty_{queue_name}"
    return Asset(name=name, watchers=[AssetWatcher(name=name, trigger=bell)])


class leased_messages:
    """The messages of a queue, for the length of a DAG run.

        with DAG("orders", schedule=[queue_not_empty_asset("orders")]):
            with leased_messages("orders", max_messages=200) as messages:
                handle.expand(message=messages)

    Tasks made inside get the messages; when all of them went well the messages are handed in, else
    they come back after `retry_after`, and become letters after `max_attempts` runs. A run that
    dies keeps them until the `lease_ttl` is over.
    """

    def __init__(
        self,
        queue_name: str,
        *,
        max_messages: int = 100,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        max_attempts: int = 5,
        retry_after: timedelta = timedelta(seconds=30),
        chasqui_conn_id: str = DEFAULT_CONN_ID,
    ):
        common: dict[str, Any] = {
            "queue_name": queue_name,
            "lease_ttl": lease_ttl,
            "max_attempts": max_attempts,
            "chasqui_conn_id": chasqui_conn_id,
        }
        self._lease_task = ChasquiLeaseMessagesOperator(
            task_id=f"lease_{queue_name}", max_messages=max_messages, **common
        )
        self._ack_task = ChasquiAckMessagesOperator(
            task_id=f"ack_{queue_name}",
            messages=self._lease_task.output,
            retry_after=retry_after,
            **common,
        )
        self._group = TaskGroup(f"process_{queue_name}")

    def __enter__(self) -> Any:
        self._group.__enter__()
        return self._lease_task.output

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._group.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._lease_task >> self._group >> self._ack_task
        self._ack_task.required_task_ids = tuple(self._group.children)
