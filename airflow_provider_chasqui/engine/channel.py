"""Entries on their way from the reader to the workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """A buffer that workers take from without awaiting while it holds something.

    asyncio.Queue costs ten times as much per item, and the engine's capacity is counted elsewhere.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[T]) -> None:
        self._items.extend(items)
        for _ in range(min(len(items), len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def take(self) -> T | None:
        """Return the next item, or None once the channel is closed."""
        while not self._items:
            if self._closed:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return self._items.popleft()

    def close(self) -> list[T]:
        """Let no one wait any more; returns what nobody took."""
        self._closed = True
        rest = list(self._items)
        self._items.clear()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        return rest
