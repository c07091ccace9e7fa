"""Watchers: what a reader of messages last saw, and windows that are kept for a second look."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
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
_NO_SIZE_LIMIT = 2**62
WINDOW_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class WatcherState:
    """What a watcher says of itself."""

    host: str
    last_delivered: str | None = None
    delivered: int = 0
    last_error: str | None = None

    def after_delivery(self, entry_id: str | None, count: int) -> WatcherState:
        last = entry_id or self.last_delivered
        return replace(self, last_delivered=last, delivered=self.delivered + count, last_error=None)


@dataclass(frozen=True, slots=True)
class WatcherStatus:
    """A watcher, and what its group has before it. `seconds_since_seen` is None if none was ever there."""

    group: str
    watcher: WatcherState | None
    seconds_since_seen: int | None
    lag: int | None
    pending: int


def save_state(keys: Keys, group: str, watcher: WatcherState) -> Command[Any]:
    """Keep what a watcher says of itself."""
    says = {
        "host": watcher.host,
        "last_delivered": watcher.last_delivered,
        "delivered": watcher.delivered,
        "last_error": watcher.last_error,
    }
    key = keys.watcher_state(group)
    return redis_command("SET", key, json.dumps(says), "EX", _STATE_TTL_S, parse=as_raw)


def get_status(keys: Keys, group: str) -> CommandFlow[WatcherStatus]:
    """Return how the watcher of a group is doing."""
    depth = yield from inspect.depth(keys, group)
    raw, left_s = yield [
        redis_command("GET", keys.watcher_state(group), parse=as_raw),
        redis_command("TTL", keys.watcher_state(group), parse=int),
    ]
    watcher = _parse_state(raw)
    seen = _STATE_TTL_S - left_s if watcher else None
    return WatcherStatus(group, watcher, seen, depth.lag, depth.running)


def _parse_state(raw: bytes | None) -> WatcherState | None:
    """What a watcher wrote; what cannot be read was written by no watcher."""
    try:
        return WatcherState(**json.loads(raw)) if raw else None
    except (TypeError, ValueError):
        return None


def count_available(keys: Keys, group: str, lease_ttl_ms: int) -> CommandFlow[int]:
    """How many messages could be taken now: not yet read, or with a lease that ran out.

    Delayed messages that came due are put in their place first: a queue of messages may have no
    worker that would do it.
    """
    yield delayed.promote(keys, _PROMOTE_LIMIT)
    idle = ("IDLE", lease_ttl_ms, "-", "+", _MAX_EXPIRED_COUNTED)
    length, pending, expired = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        redis_command(
            "XPENDING", keys.stream, group, parse=_parse_pending_count, default_if_missing=lambda: 0
        ),
        redis_command(
            "XPENDING", keys.stream, group, *idle, parse=len, default_if_missing=lambda: 0
        ),
    ]
    return max(0, int(length) - int(pending)) + int(expired)


def _parse_pending_count(reply: Any) -> int:
    return int(reply[0])


def entries_held_by(
    keys: Keys, group: str, consumer: str, limit: int
) -> CommandFlow[list[tuple[StreamEntry, int]]]:
    """Entries that a consumer holds, with how often each was delivered, this time included."""
    held = yield redis_command(
        "XPENDING",
        keys.stream,
        group,
        "-",
        "+",
        limit,
        consumer,
        parse=as_raw,
        default_if_missing=list,
    )
    raw = yield [redis_command("XRANGE", keys.stream, row[0], row[0], parse=as_raw) for row in held]
    found = []
    for row, entries in zip(held, raw, strict=True):
        entry = consumer_group.parse_entry(entries[0], _NO_SIZE_LIMIT) if entries else None
        if isinstance(entry, StreamEntry):
            found.append((entry, int(row[3])))
    return found


def wait_for_entry(keys: Keys, block_ms: int) -> Command[Any]:
    """Wait for a new entry without taking it."""
    tail = ("STREAMS", keys.stream, "$")
    return redis_command(
        "XREAD", "COUNT", 1, "BLOCK", block_ms, *tail, parse=as_raw, block_ms=block_ms
    )


def save_window(keys: Keys, window_id: str, content: str) -> Command[Any]:
    """Keep the messages of a window that is too large for an event."""
    return redis_command(
        "SET", keys.message_window(window_id), content, "EX", WINDOW_TTL_S, parse=as_raw
    )


def load_window(keys: Keys, window_id: str) -> Command[list[dict[str, Any]] | None]:
    """The messages of a kept window, or None if its time is over."""
    return redis_command(
        "GET",
        keys.message_window(window_id),
        parse=lambda reply: json.loads(reply) if reply else None,
    )
