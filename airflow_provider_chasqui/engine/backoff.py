"""Trouble with the server, logged once when it begins and once when it ends."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("chasqui")

_INITIAL_DELAY_S, _MAX_DELAY_S = 0.1, 2.0


class ErrorBackoff:
    """The standing of one part with its server.

    `sleep` is how the part waits: one that ends at once on a stop sleeps only until then. The first
    `shrugs` failures in a row are not worth a warning, since the next try usually helps.
    """

    def __init__(
        self,
        component: str,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        silent_failures: int = 0,
    ):
        self._component = component
        self._sleep = sleep
        self._silent_failures = silent_failures
        self._failures = 0

    def reset(self) -> None:
        if self._failures > self._silent_failures:
            log.info("%s: recovered after %d failures", self._component, self._failures)
        self._failures = 0

    def record(self, error: Exception) -> float:
        """Note a failure; returns how long to wait, longer from time to time."""
        if self._failures == self._silent_failures:
            log.warning("%s: %s; trying again until it works", self._component, error)
        self._failures += 1
        wait: float = min(_MAX_DELAY_S, _INITIAL_DELAY_S * 2 ** min(self._failures - 1, 10))
        return wait * (0.5 + random.random() / 2)

    async def record_and_sleep(self, error: Exception) -> None:
        """Note a failure and wait."""
        await self._sleep(self.record(error))
