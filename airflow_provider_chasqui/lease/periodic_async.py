"""Periodic background task for asyncio. `periodic.py` has the same for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


class AsyncPeriodicTask:
    """Task that awaits a function repeatedly until it is stopped.

    :param function: the function. It must handle its errors.
    :param interval: the seconds before each call.
    :param name: the name of the task.
    """

    def __init__(self, function: Callable[[], Awaitable[None]], interval: float, name: str):
        self._function = function
        self._interval = interval
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._function()
