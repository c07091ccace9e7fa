"""Message watchers: their status, the messages they hold, and windows too large for an event.

A watcher is a trigger that reads messages of a queue and starts DAG runs from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.commands import consumer_group, delayed, inspect
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.keys import Keys

_STATE_TTL_S = 24 * 3600
_PROMOTE_LIMIT = 1000
_MAX_EXPIRED_COUNTED = 100
_RENEW_PAGE = 1000
_RUN_CONSUMER_PREFIX = "airflow"
WINDOW_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class WatcherState:
    """The status that a watcher reports."""

    host: str
    last_delivered: str | None = None
    delivered: int = 0
    last_error: str | None = None

    def after_delivery(self, entry_id: str | None, count: int) -> WatcherState:
        """Return the status after a delivery.

        :param entry_id: the id of the last delivered entry, if any.
        :param count: the number of delivered messages.
        """
        last_delivered = entry_id or self.last_delivered
        delivered = self.delivered + count
        return replace(self, last_delivered=last_delivered, delivered=delivered, last_error=None)


@dataclass(frozen=True, slots=True)
class WatcherStatus:
    """A watcher and the backlog of its consumer group.

    `watcher` and `seconds_since_seen` are None if no watcher has reported within a day.
    """

    group: str
    watcher: WatcherState | None
    seconds_since_seen: int | None
    lag: int | None
    pending: int


def save_state(keys: Keys, group: str, watcher: WatcherState) -> Command[Any]:
    """Store the status of a watcher for a day.

    :param keys: the keys of the queue.
    :param group: the consumer group of the watcher.
    :param watcher: the status.
    """
    content = json.dumps(asdict(watcher))
    return redis_command(
        "SET", keys.watcher_state(group), content, "EX", _STATE_TTL_S, parse=as_raw
    )


def get_status(keys: Keys, group: str) -> CommandFlow[WatcherStatus]:
    """Return the status of the watcher of a consumer group.

    :param keys: the keys of the queue.
    :param group: the consumer group of the watcher.
    """
    depth = yield from inspect.depth(keys, group)
    raw_state, ttl_s = yield [
        redis_command("GET", keys.watcher_state(group), parse=as_raw),
        redis_command("TTL", keys.watcher_state(group), parse=int),
    ]
    watcher = _parse_state(raw_state)
    seconds_since_seen = _STATE_TTL_S - ttl_s if watcher else None
    return WatcherStatus(group, watcher, seconds_since_seen, depth.lag, depth.running)


def _parse_state(raw_state: bytes | None) -> WatcherState | None:
    try:
        return WatcherState(**json.loads(raw_state)) if raw_state else None
    except (TypeError, ValueError):
        return None


def count_available(keys: Keys, group: str, lease_ttl_ms: int) -> CommandFlow[int]:
    """Return how many messages can be leased now: not yet read, or with an expired lease.

    Due delayed messages are promoted first, because a queue of messages may have no worker that
    does it.

    :param keys: the keys of the queue.
    :param group: the consumer group.
    :param lease_ttl_ms: the duration of a lease in milliseconds.
    """
    yield from delayed.promote_and_delete_index(keys, _PROMOTE_LIMIT)
    idle_range = ("IDLE", lease_ttl_ms, "-", "+", _MAX_EXPIRED_COUNTED)
    entries, pending, expired = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        consumer_group.pending_count(keys, group),
        redis_command(
            "XPENDING", keys.stream, group, *idle_range, parse=len, default_if_missing=lambda: 0
        ),
    ]
    return max(0, int(entries) - int(pending)) + int(expired)


def entries_held_by(
    keys: Keys, group: str, consumer: str, limit: int
) -> CommandFlow[list[tuple[StreamEntry, int]]]:
    """Return the readable entries that are pending for a consumer, with their delivery counts.

    :param keys: the keys of the queue.
    :param group: the consumer group.
    :param consumer: the name of the consumer.
    :param limit: the maximum number of entries.
    """
    pending = yield consumer_group.pending_entries(keys, group, consumer, limit)
    replies = yield [consumer_group.get_entry(keys, row.entry_id) for row in pending]
    held = []
    for row, raw_entries in zip(pending, replies, strict=True):
        if not raw_entries:
            continue
        entry = consumer_group.parse_entry(raw_entries[0], consumer_group.NO_SIZE_LIMIT)
        if isinstance(entry, StreamEntry):
            held.append((entry, row.deliveries))
    return held


def run_consumer_name(
    dag_id: str, run_id: str, task_id: str, map_index: int, deployment: str = ""
) -> str:
    """Return the name of the consumer that leases messages for a DAG run.

    :param dag_id: the id of the DAG.
    :param run_id: the id of the run.
    :param task_id: the task that leases the messages. A run may lease messages in several tasks.
    :param map_index: the map index of the task, or -1.
    :param deployment: the name of the Airflow deployment, without slashes. Default: no name.
    """
    index = f"[{map_index}]" if map_index >= 0 else ""
    return f"{_run_consumer_prefix(deployment)}{dag_id}/{run_id}/{task_id}{index}"


def parse_run_consumer_name(consumer: str, deployment: str = "") -> tuple[str, str] | None:
    """Return the DAG id and the run id of a consumer.

    :param consumer: the name of the consumer.
    :param deployment: the name of the Airflow deployment. Default: no name.
    :return: None if the consumer does not belong to a DAG run of the deployment.
    """
    prefix = _run_consumer_prefix(deployment)
    if not consumer.startswith(prefix):
        return None
    # A run id may contain slashes; the ids of DAGs and tasks may not.
    dag_id, _, rest = consumer.removeprefix(prefix).partition("/")
    run_id, _, task_id = rest.rpartition("/")
    return (dag_id, run_id) if dag_id and run_id and task_id else None


def _run_consumer_prefix(deployment: str) -> str:
    return f"{_RUN_CONSUMER_PREFIX}@{deployment}/" if deployment else f"{_RUN_CONSUMER_PREFIX}/"


def consumers_with_leases(keys: Keys, group: str) -> Command[list[str]]:
    """Return the names of the consumers that hold entries of a group.

    :param keys: the keys of the queue.
    :param group: the consumer group.
    """
    return redis_command(
        "XPENDING",
        keys.stream,
        group,
        parse=lambda reply: [name.decode("utf-8", "replace") for name, _ in reply[3] or ()],
        default_if_missing=list,
    )


def renew_leases(keys: Keys, group: str, consumer: str) -> CommandFlow[int]:
    """Start the leases of all entries that a consumer holds again. Delivery counts do not change.

    :param keys: the keys of the queue.
    :param group: the consumer group.
    :param consumer: the name of the consumer.
    :return: the number of renewed leases.
    """
    renewed, after = 0, "-"
    while True:
        page = yield consumer_group.pending_entries(keys, group, consumer, _RENEW_PAGE, after)
        if page:
            entry_ids = [row.entry_id for row in page]
            renewals = yield consumer_group.renew_claims(keys, group, consumer, entry_ids)
            renewed += sum(map(bool, renewals))
            after = f"({entry_ids[-1]}"
        if len(page) < _RENEW_PAGE:
            return renewed


def wait_for_entry(keys: Keys, block_ms: int) -> Command[Any]:
    """Wait for a new entry without reading it for a group.

    :param keys: the keys of the queue.
    :param block_ms: how long to wait, in milliseconds.
    """
    return redis_command(
        "XREAD",
        "COUNT",
        1,
        "BLOCK",
        block_ms,
        "STREAMS",
        keys.stream,
        "$",
        parse=as_raw,
        block_ms=block_ms,
    )


def save_window(keys: Keys, window_id: str, content: str) -> Command[Any]:
    """Store the messages of a window that is too large for a trigger event, for a week.

    :param keys: the keys of the queue.
    :param window_id: the id of the window.
    :param content: the messages as JSON.
    """
    return redis_command(
        "SET", keys.message_window(window_id), content, "EX", WINDOW_TTL_S, parse=as_raw
    )


def load_window(keys: Keys, window_id: str) -> Command[list[dict[str, Any]] | None]:
    """Return the messages of a stored window, or None if it has expired.

    :param keys: the keys of the queue.
    :param window_id: the id of the window.
    """
    return redis_command(
        "GET",
        keys.message_window(window_id),
        parse=lambda reply: json.loads(reply) if reply else None,
    )
