"""Watchers: what a reader of messages last saw, and windows that are kept for a second look."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op, as_int, as_is, command
from airflow_provider_chasqui.core.ops import delayed, delivery, looking

_NOTE_LIFE_S = 24 * 3600
_PROMOTE_AT_MOST = 1000
_EXPIRED_SEEN = 100
_ANY_SIZE = 2**62
WINDOW_LIFE_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Watcher:
    """What a watcher says of itself."""

    host: str
    last_delivered: str | None = None
    delivered: int = 0
    last_error: str | None = None

    def saw(self, entry_id: str | None, count: int) -> Watcher:
        last = entry_id or self.last_delivered
        return replace(self, last_delivered=last, delivered=self.delivered + count, last_error=None)


@dataclass(frozen=True, slots=True)
class WatcherStatus:
    """A watcher, and what its group has before it. `seen_s_ago` is None if none was ever there."""

    group: str
    watcher: Watcher | None
    seen_s_ago: int | None
    lag: int | None
    pending: int


def note(keys: Keys, group: str, watcher: Watcher) -> Op[Any]:
    """Keep what a watcher says of itself."""
    says = {
        "host": watcher.host,
        "last_delivered": watcher.last_delivered,
        "delivered": watcher.delivered,
        "last_error": watcher.last_error,
    }
    key = keys.watcher(group)
    return command("SET", key, json.dumps(says), "EX", _NOTE_LIFE_S, parse=as_is)


def status(keys: Keys, group: str) -> Flow[WatcherStatus]:
    """Return how the watcher of a group is doing."""
    depth = yield from looking.depth(keys, group)
    raw, left_s = yield [
        command("GET", keys.watcher(group), parse=as_is),
        command("TTL", keys.watcher(group), parse=int),
    ]
    watcher = _note(raw)
    seen = _NOTE_LIFE_S - left_s if watcher else None
    return WatcherStatus(group, watcher, seen, depth.lag, depth.running)


def _note(raw: bytes | None) -> Watcher | None:
    """What a watcher wrote; what cannot be read was written by no watcher."""
    try:
        return Watcher(**json.loads(raw)) if raw else None
    except (TypeError, ValueError):
        return None


def left(keys: Keys, group: str, life_ms: int) -> Flow[int]:
    """How many messages could be taken now: not yet read, or with a lease that ran out.

    Delayed messages that came due are put in their place first: a queue of messages may have no
    worker that would do it.
    """
    yield delayed.promote(keys, _PROMOTE_AT_MOST)
    idle = ("IDLE", life_ms, "-", "+", _EXPIRED_SEEN)
    length, pending, expired = yield [
        command("XLEN", keys.stream, parse=as_int),
        command("XPENDING", keys.stream, group, parse=_pending, absent=lambda: 0),
        command("XPENDING", keys.stream, group, *idle, parse=len, absent=lambda: 0),
    ]
    return max(0, int(length) - int(pending)) + int(expired)


def _pending(reply: Any) -> int:
    return int(reply[0])


def held_by(keys: Keys, group: str, holder: str, most: int) -> Flow[list[tuple[Entry, int]]]:
    """Entries that a consumer holds, with how often each was delivered, this time included."""
    held = yield command(
        "XPENDING", keys.stream, group, "-", "+", most, holder, parse=as_is, absent=list
    )
    raw = yield [command("XRANGE", keys.stream, row[0], row[0], parse=as_is) for row in held]
    found = []
    for row, entries in zip(held, raw, strict=True):
        entry = delivery.delivery(entries[0], _ANY_SIZE) if entries else None
        if isinstance(entry, Entry):
            found.append((entry, int(row[3])))
    return found


def next_entry(keys: Keys, block_ms: int) -> Op[Any]:
    """Wait for a new entry without taking it."""
    tail = ("STREAMS", keys.stream, "$")
    return command("XREAD", "COUNT", 1, "BLOCK", block_ms, *tail, parse=as_is, block_ms=block_ms)


def keep_window(keys: Keys, window: str, text: str) -> Op[Any]:
    """Keep the messages of a window that is too large for an event."""
    return command("SET", keys.window(window), text, "EX", WINDOW_LIFE_S, parse=as_is)


def kept_window(keys: Keys, window: str) -> Op[list[dict[str, Any]] | None]:
    """The messages of a kept window, or None if its time is over."""
    return command(
        "GET", keys.window(window), parse=lambda reply: json.loads(reply) if reply else None
    )
