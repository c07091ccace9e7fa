"""Waiting for a condition that another thread, process or server makes true."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_PAUSE_S = 0.005


def wait_until(
    condition: Callable[[], T], seconds: float = 40, message: str = "", interval: float = 0.25
) -> T:
    """Return the first true value of a condition.

    :param condition: a function without parameters.
    :param seconds: the maximum time.
    :param message: the awaited state, used in the failure message. Default: the source code.
    :param interval: the longest pause between two checks. The first pauses are shorter.
    :raises AssertionError: after `seconds`, with the description and the last value.
    """
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, _failure(condition, seconds, message, value)
        time.sleep(pause)
        pause = min(interval, pause * 1.25)
    return value


async def wait_until_async(
    condition: Callable[[], Any], seconds: float = 20, message: str = "", interval: float = 0.01
) -> Any:
    """Return the first true value of a condition, which may be a coroutine function.

    The parameters are those of :func:`wait_until`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, _failure(condition, seconds, message, value)
        await asyncio.sleep(interval)


def _failure(condition: Callable[[], Any], seconds: float, message: str, value: object) -> str:
    description = message or _source(condition)
    return f"not true within {seconds:g} s: {description}; last value: {value!r}"


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
