"""Entries on their way from the reader to the workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """A buffer whose items workers take without awaiting while it holds some.

    What is put wakes one worker; a worker that has to wait with more in the buffer calls the next
    (`call_next`). So handlers that never wait are run by one worker in a row, without a wake-up
    each. asyncio.Queue costs ten times as much per item, and capacity is counted elsewhere.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self.items)

    def put(self, items: Sequence[T]) -> None:
        self.items.extend(items)
        self._wake(1)

    def call_next(self) -> None:
        """Let another worker go on, if there is something to do."""
        if self.items:
            self._wake(1)

    async def filled(self) -> bool:
        """Wait until `items` holds something; False once the channel is closed."""
        while not self.items:
            if self._closed:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return True

    def drain(self) -> list[T]:
        """Take everything out again."""
        rest = list(self.items)
        self.items.clear()
        return rest

    def close(self) -> None:
        """Let no one wait any more."""
        self._closed = True
        self._wake(len(self._waiting))

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
