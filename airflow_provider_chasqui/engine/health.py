"""Trouble with the server, logged once when it begins and once when it ends."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("chasqui")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0


class Health:
    """The standing of one part with its server.

    `sleep` is how the part waits: one that ends at once on a stop sleeps only until then. The first
    `shrugs` failures in a row are not worth a warning, since the next try usually helps.
    """

    def __init__(
        self,
        part: str,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        shrugs: int = 0,
    ):
        self._part = part
        self._sleep = sleep
        self._shrugs = shrugs
        self._failures = 0

    def fine(self) -> None:
        if self._failures > self._shrugs:
            log.info("%s: recovered after %d failures", self._part, self._failures)
        self._failures = 0

    def note(self, error: Exception) -> float:
        """Note a failure; returns how long to wait, longer from time to time."""
        if self._failures == self._shrugs:
            log.warning("%s: %s; trying again until it works", self._part, error)
        self._failures += 1
        wait: float = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._failures - 1, 10))
        return wait * (0.5 + random.random() / 2)

    async def trouble(self, error: Exception) -> None:
        """Note a failure and wait."""
        await self._sleep(self.note(error))
