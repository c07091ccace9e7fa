"""Messages in DAGs: what started a run, and what a run has leased.

`messages_of` reads the messages in a run's events; `doorbell` and `leased_messages` are for runs
that hold messages until they are done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetWatcher, TaskGroup

from airflow_provider_chasqui.core.errors import UnknownJob
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators.messages import (
    HOUR,
    ChasquiSettleMessagesOperator,
    ChasquiTakeMessagesOperator,
)


def messages_of(
    context: Mapping[str, Any], *, chasqui_conn_id: str = DEFAULT_CONN_ID
) -> list[dict[str, Any]]:
    """Return the messages that started the run, each once, in the order of the queue.

    Call it in a task: `messages_of(get_current_context())`. Every message is a dict with `id`,
    `name`, `payload`, `entry_id`, `created_at_ms` and `attempt`.
    """
    found: dict[str, dict[str, Any]] = {}
    with ChasquiHook(chasqui_conn_id) as hook:
        for manifest in _manifests(context):
            for message in _messages(manifest, hook):
                found[f"{manifest['queue_name']}/{message['entry_id']}"] = message
    return sorted(found.values(), key=lambda message: _order(message["entry_id"]))


def _manifests(context: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            payload = (event.extra or {}).get("payload")
            if isinstance(payload, Mapping) and "queue_name" in payload:
                yield payload


def _messages(manifest: Mapping[str, Any], hook: ChasquiHook) -> list[dict[str, Any]]:
    if "window" not in manifest:
        return list(manifest.get("messages", ()))
    queue = hook.queue(manifest["queue_name"])
    kept = queue.drive.run(watching.kept_window(queue.keys, manifest["window"]))
    if kept is None:
        raise UnknownJob(
            f"the window {manifest['window']} of messages is no longer kept: such windows last "
            f"{watching.WINDOW_LIFE_S // 86400} days",
            queue=queue.name,
        )
    meant = set(manifest["entry_ids"])
    return [message for message in kept if message["entry_id"] in meant]


def _order(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))


def doorbell(
    queue_name: str,
    *,
    lease: timedelta = HOUR,
    ring_every: timedelta = timedelta(seconds=15),
    chasqui_conn_id: str = DEFAULT_CONN_ID,
) -> Asset:
    """Return an asset to schedule a DAG by: it rings while the queue holds messages."""
    from airflow_provider_chasqui.triggers.doorbell import ChasquiDoorbellTrigger

    bell = ChasquiDoorbellTrigger(
        queue_name=queue_name,
        lease=lease.total_seconds(),
        ring_every=ring_every.total_seconds(),
        chasqui_conn_id=chasqui_conn_id,
    )
    name = f"doorbell_{queue_name}"
    return Asset(name=name, watchers=[AssetWatcher(name=name, trigger=bell)])


class leased_messages:
    """The messages of a queue, for the length of a DAG run.

        with DAG("orders", schedule=[doorbell("orders")]):
            with leased_messages("orders", max_batch=200) as messages:
                handle.expand(message=messages)

    Tasks made inside get the messages; when all of them went well the messages are handed in, else
    they come back after `retry_after`, and become letters after `max_attempts` runs. A run that
    dies keeps them until the `lease` is over.
    """

    def __init__(
        self,
        queue_name: str,
        *,
        max_batch: int = 100,
        lease: timedelta = HOUR,
        max_attempts: int = 5,
        retry_after: timedelta = timedelta(seconds=30),
        chasqui_conn_id: str = DEFAULT_CONN_ID,
    ):
        common: dict[str, Any] = {
            "queue_name": queue_name,
            "lease": lease,
            "max_attempts": max_attempts,
            "chasqui_conn_id": chasqui_conn_id,
        }
        self._take = ChasquiTakeMessagesOperator(
            task_id=f"take_{queue_name}", max_batch=max_batch, **common
        )
        self._settle = ChasquiSettleMessagesOperator(
            task_id=f"settle_{queue_name}",
            messages=self._take.output,
            retry_after=retry_after,
            **common,
        )
        self._group = TaskGroup(f"with_{queue_name}")

    def __enter__(self) -> Any:
        self._group.__enter__()
        return self._take.output

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._group.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._take >> self._group >> self._settle
        self._settle.watched_tasks = tuple(self._group.children)
