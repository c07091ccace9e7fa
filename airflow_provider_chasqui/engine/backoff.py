"""Backoff of a component after server errors, with one log line per outage.

The delays between attempts of a *job* are decided elsewhere: `core/retry.py` and
`OutcomeHandler.retry_or_dead_letter` in `engine/outcomes.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("chasqui")

_INITIAL_DELAY_S, _MAX_DELAY_S = 0.1, 2.0


class ErrorBackoff:
    """Exponential backoff of one component, and the log lines when an outage begins and ends.

    :param component: the component's name, which starts every log line.
    :param sleep: how to wait. A component that must end at once on a stop passes a function that
        returns early.
    :param silent_failures: the number of consecutive failures that are not logged, because the
        next attempt usually succeeds.
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
        """Record a success."""
        if self._failures > self._silent_failures:
            log.info("%s: recovered after %d failures", self._component, self._failures)
        self._failures = 0

    def record(self, error: Exception) -> float:
        """Record a failure.

        :param error: what failed; logged once per outage.
        :return: the number of seconds to wait before the next attempt.
        """
        if self._failures == self._silent_failures:
            log.warning("%s: %s; retrying until it succeeds", self._component, error)
        self._failures += 1
        delay: float = min(_MAX_DELAY_S, _INITIAL_DELAY_S * 2 ** min(self._failures - 1, 10))
        return delay * (0.5 + random.random() / 2)

    async def record_and_sleep(self, error: Exception) -> None:
        """Record a failure and wait.

        :param error: what failed; logged once per outage.
        """
        await self._sleep(self.record(error))
