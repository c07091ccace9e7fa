"""Wall clock of the package. It is the default of every `clock` parameter."""

from __future__ import annotations

import time


def current_time_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
