"""Trouble with the server, logged once when it begins and once when it ends."""

from __future__ import annotations

import asyncio
import logging
import random

log = logging.getLogger("chasqui")


class Health:
    """The standing of one part with its server."""

    def __init__(self, part: str, first_wait: float = 0.1, longest_wait: float = 2.0):
        self._part = part
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    def fine(self) -> None:
        if self._failures:
            log.info("%s: recovered after %d failures", self._part, self._failures)
            self._failures = 0

    async def trouble(self, error: Exception) -> None:
        """Note a failure and wait, longer from time to time."""
        if not self._failures:
            log.warning("%s: %s; trying again until it works", self._part, error)
        self._failures += 1
        wait = min(self._longest_wait, self._first_wait * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(wait * (0.5 + random.random() / 2))
