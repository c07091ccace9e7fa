"""Recovery of stalled jobs: jobs whose worker crashed, hung or lost its connection.

An entry that was delivered to a worker stays pending until it is acked. The worker's heartbeat
(`engine/heartbeat.py`) renews its claim three times per `claim_after`. A worker that dies stops
renewing, and then the job is stalled. It is recovered in these steps:

1. After `claim_after` any reader of the group may claim the entry. Every `claim_interval_s` the
   reader does not send a blocking read, but the script `claim_and_read`. The script compares the
   time of the server with the time that the reader expects (`core/server_clock.py`): after a jump
   of the clock every running job looks stalled, so nothing is claimed for `claim_after`, and live
   workers can renew first. A blocking read that claims (`XREADGROUP ... CLAIM`) could not do this.
2. The reader adds the number of earlier deliveries to `job.attempt`, so crashed runs count as
   attempts (`StreamReader._dispatch`). A job without attempts left is moved to the dead-letter
   queue instead (`OutcomeHandler.attempts_exhausted`).
3. A worker that was only paused and comes back learns from its heartbeat that it lost the claim.
   It drops entries it has not started, and sets `context.claim_lost` for those it has.

There is one more case: the connection breaks after the server delivered entries and before the
reply arrived. The worker itself is alive and would never run them. After it reconnects it finds
them with XPENDING and requeues them at once (`requeue_lost_deliveries`).
"""

from __future__ import annotations

import time
from typing import Any

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.job import InvalidEntry
from airflow_provider_chasqui.core.server_clock import ServerClock
from airflow_provider_chasqui.engine.backoff import log
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
        self._next_claim_at = float("-inf")
        self._claim_after_ms = to_ms(state.config.claim_after)
        self._server_clock = ServerClock(time.monotonic, self._claim_after_ms)
        self.claim_interval_s = max(0.05, min(1.0, state.config.claim_after.total_seconds() / 3))

    @property
    def claim_due(self) -> bool:
        """Whether the next read should claim the entries of stalled workers."""
        return time.monotonic() >= self._next_claim_at

    async def claim_and_read(self, count: int) -> list[Any]:
        """Return raw entries: those of stalled workers, and new ones.

        :param count: the maximum number of entries.
        """
        state, clock, sent_at = self._state, self._server_clock, time.monotonic()
        self._next_claim_at = sent_at + self.claim_interval_s
        command = consumer_group.claim_and_read(
            state.keys,
            state.group,
            state.consumer_id,
            self._claim_after_ms,
            count,
            clock.claim_until_ms(),
        )
        server_ms, entries = await self._client.execute(command)
        if jump_s := clock.observe(server_ms, sent_at):
            log.warning(
                "reader: the clock of the server jumped forward by %.1f s; stalled jobs of queue "
                "%r are not claimed for %.1f s, so that live workers can renew their claims first",
                jump_s,
                state.queue.name,
                self._claim_after_ms / 1000,
            )
        return entries

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
