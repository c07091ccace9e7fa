"""Clocks of the package: wall clock for timestamps, monotonic clock for timeouts.

`current_time_ms` is the default of every `clock` parameter.
"""

from __future__ import annotations

import time


def current_time_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_seconds() -> float:
    """Return the time of a clock that never jumps, in seconds since an arbitrary point."""
    return time.monotonic()
