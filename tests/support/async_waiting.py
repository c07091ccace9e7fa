"""Waiting in asynchronous tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def wait_until(
    condition: Callable[[], Any], description: str, seconds: float = 10, interval: float = 0.02
) -> Any:
    """Return the value of a condition as soon as it is true.

    :param condition: a function or coroutine function.
    :param description: the awaited condition, for the failure message.
    :param seconds: the maximum time.
    :param interval: seconds between two checks.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert clock() < deadline, f"not within {seconds:g} s: {description}; last value {value!r}"
        await asyncio.sleep(interval)
