"""Watchers: what a reader of messages last saw, and windows that are kept for a second look."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op, as_is, command
from airflow_provider_chasqui.core.ops import looking

_NOTE_LIFE_S = 24 * 3600
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
    watcher = Watcher(**json.loads(raw)) if raw else None
    seen = _NOTE_LIFE_S - left_s if watcher else None
    return WatcherStatus(group, watcher, seen, depth.lag, depth.running)


def keep_window(keys: Keys, window: str, text: str) -> Op[Any]:
    """Keep the messages of a window that is too large for an event."""
    return command("SET", keys.window(window), text, "EX", WINDOW_LIFE_S, parse=as_is)


def kept_window(keys: Keys, window: str) -> Op[list[dict[str, Any]] | None]:
    """The messages of a kept window, or None if its time is over."""
    return command(
        "GET", keys.window(window), parse=lambda reply: None if reply is None else json.loads(reply)
    )
