"""Counts the outcomes of a worker per minute on the server, for the page and the command line."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from airflow_provider_chasqui.core.commands import counters, delayed
from airflow_provider_chasqui.core.commands.counters import OutcomeKey
from airflow_provider_chasqui.core.commands.idempotency import IDEMPOTENCY_TTL_MS, new_token
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.engine.backoff import ErrorBackoff
from airflow_provider_chasqui.engine.consumer_state import ConsumerState

_INTERVAL_S = 1.0
# The server forgets the token of a call after that time, so the call must not be repeated.
_MAX_RESEND_S = IDEMPOTENCY_TTL_MS / 1000 * 0.8


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call whose reply is not known yet. It is sent again with the same token."""

    token: str
    minute: int
    counts: dict[OutcomeKey, int]
    created_at: float


class OutcomeCounter:
    """Sends what was counted since the last call, once per second and at the end.

    An idle worker sends nothing. A worker that is killed loses the counts of the last second.

    :param state: the state of the consumer.
    """

    def __init__(self, state: ConsumerState):
        self._state = state
        self._sent: Counter[OutcomeKey] = Counter()
        self._pending: _PendingCall | None = None
        self._backoff = ErrorBackoff("outcome counter", silent_failures=3)

    async def run(self) -> None:
        """Send the counts until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.flush()
                self._backoff.reset()
            except ChasquiError as error:
                await self._backoff.record_and_sleep(error)

    async def flush(self) -> None:
        """Send the counts since the last call.

        :raises ChasquiError: if the server is unreachable; the next call sends them again.
        """
        client = self._state.queue.client
        if self._pending is None:
            counts = self._new_counts()
            if not counts:
                return
            now_ms = await client.execute(delayed.server_time_ms())
            self._pending = _PendingCall(
                new_token(), now_ms // counters.MINUTE_MS, counts, time.monotonic()
            )
            self._sent.update(counts)
        call = self._pending
        if time.monotonic() - call.created_at < _MAX_RESEND_S:
            await client.execute(
                counters.count_outcomes(self._state.keys, call.token, call.minute, call.counts)
            )
        self._pending = None

    def _new_counts(self) -> dict[OutcomeKey, int]:
        metrics = self._state.metrics
        totals: Counter[OutcomeKey] = Counter()
        for outcome, by_name in (
            ("completed", metrics.completed),
            ("failed", metrics.failed),
            ("retried", metrics.retried),
        ):
            for job_name, total in by_name.items():
                totals[outcome, job_name] = total
        for (_, job_name), total in metrics.dead_lettered.items():
            totals["dead", job_name] += total
        return {
            key: total - self._sent[key] for key, total in totals.items() if total > self._sent[key]
        }
