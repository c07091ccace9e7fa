"""What started this DAG run: the messages in its events, read the same however often it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import UnknownJob
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook


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
