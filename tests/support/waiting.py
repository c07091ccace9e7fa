"""Waiting for something outside the test to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], seconds: float = 40, what: str = "it", every: float = 0.25
) -> T:
    """Return what the condition answers once it is true. It is asked often first, then more rarely,
    at least `every` so many seconds."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause)
        pause = min(every, pause * 1.25)
    return answer
