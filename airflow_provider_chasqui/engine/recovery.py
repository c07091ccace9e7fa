"""Recovery of stalled jobs: jobs whose worker crashed, hung or lost its connection.

An entry that was delivered to a worker stays pending until it is acked. The worker's heartbeat
(`engine/heartbeat.py`) renews its claim three times per `claim_after`. A worker that dies stops
renewing, and then the job is stalled. It is recovered in these steps:

1. After `claim_after` any reader of the group may claim the entry. Servers with native commands do
   this within the blocking read (`XREADGROUP ... CLAIM`), so no extra command is sent. Other
   servers need a separate `claim` script, which the reader sends every `claim_interval_s`.
2. The reader adds the number of earlier deliveries to `job.attempt`, so crashed runs count as
   attempts (`StreamReader._dispatch`). A job without attempts left is moved to the dead-letter
   queue instead (`OutcomeHandler.crashed_attempts_exhausted`).
3. A worker that was only paused and comes back learns from its heartbeat that it lost the claim.
   It drops entries it has not started, and sets `context.claim_lost` for those it has.

There is one more case: the connection breaks after the server delivered entries and before the
reply arrived. The worker itself is alive and would never run them. After it reconnects it finds
them with XPENDING and requeues them at once (`requeue_lost_deliveries`).
"""

from __future__ import annotations

import time
from typing import Any

from airflow_provider_chasqui.core.command import AnyCommand
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.job import InvalidEntry
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient


class StalledJobRecovery:
    """Finds the entries that a worker received and will never run."""

    def __init__(
        self,
        state: ConsumerState,
        client: AsyncRedisClient,
        writer: OutcomeWriter,
        outcomes: OutcomeHandler,
    ):
        self._state = state
        self._client = client
        self._writer = writer
        self._outcomes = outcomes
        self._last_claim_at = 0.0
        self.claim_after_ms = to_ms(state.config.claim_after)
        self.claim_interval_s = max(0.05, min(1.0, state.config.claim_after.total_seconds() / 3))

    def next_claim(self, count: int) -> AnyCommand[list[Any]] | None:
        """Return the command that claims stalled entries, or None if it is not due yet.

        Only for servers whose read command cannot claim.

        :param count: the maximum number of entries to claim.
        """
        now = time.monotonic()
        if now - self._last_claim_at < self.claim_interval_s:
            return None
        self._last_claim_at = now
        state = self._state
        return consumer_group.claim(
            state.keys, state.group, state.consumer_id, self.claim_after_ms, count
        )

    async def requeue_lost_deliveries(self) -> None:
        """Requeue the entries that were delivered in a reply that never arrived.

        They did not run, so the lost delivery does not count as an attempt: the entry is added to
        the stream again with its attempt number corrected.
        """
        state = self._state
        limit = len(state.in_flight) + state.config.read_count + state.config.concurrency
        pending = await self._client.execute(
            consumer_group.pending_entries(state.keys, state.group, state.consumer_id, limit)
        )
        undelivered = [entry for entry in pending if entry.entry_id not in state.in_flight]
        replies = await self._client.pipeline(
            [consumer_group.get_entry(state.keys, entry.entry_id) for entry in undelivered]
        )
        for pending_entry, raw_entries in zip(undelivered, replies, strict=True):
            if not raw_entries or pending_entry.entry_id in state.in_flight:
                continue
            entry = consumer_group.parse_entry(raw_entries[0], state.config.max_payload_bytes)
            state.in_flight[entry.id] = entry
            if isinstance(entry, InvalidEntry):
                self._outcomes.entry_invalid(entry)
            else:
                attempt = entry.job.attempt + pending_entry.deliveries - 1
                self._writer.requeue(entry, attempt)
