"""The wall clock. Code that takes a `clock` parameter uses `current_time_ms` by default."""

from __future__ import annotations

import time


def current_time_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
