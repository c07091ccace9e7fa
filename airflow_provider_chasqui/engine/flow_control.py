"""Flow control of a worker: pauses of the queue and of job names.

The heartbeat reads once per second what is paused, and the reader does so when it connects. A queue
without pauses costs the reader one comparison per read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_chasqui.core.commands import flow_control
from airflow_provider_chasqui.core.commands.flow_control import PauseState
from airflow_provider_chasqui.core.errors import KeyTypeMismatch
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.backoff import ErrorBackoff, log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.executor import AsyncExecutor
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler
from airflow_provider_chasqui.engine.thread_executor import ThreadExecutor
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient

UnstartedEntry = tuple[StreamEntry, Handler]


class FlowControl:
    """Decides which entries may start, and keeps those that may not.

    While the queue is paused, entries that were read and not started stay with this worker, in
    their order. Entries of a paused job name are parked in the delayed set.

    `active` tells whether anything is paused, so that `admit` must be called.
    """

    def __init__(
        self,
        state: ConsumerState,
        async_executor: AsyncExecutor,
        thread_executor: ThreadExecutor,
        writer: OutcomeWriter,
        outcomes: OutcomeHandler,
    ):
        self._state = state
        self._async_executor = async_executor
        self._thread_executor = thread_executor
        self._outcomes = outcomes
        self._pauses = PauseState()
        self._held: list[UnstartedEntry] = []
        self._last_position = 0
        self._backoff = ErrorBackoff("flow control")
        self.active = False
        writer.on_not_parked = self._start_not_parked

    async def refresh(self, client: AsyncRedisClient) -> bool:
        """Read what is paused and apply it.

        :param client: the client to ask.
        :return: whether the queue was paused since the last call.
        """
        try:
            pauses = await client.run_flow(flow_control.pause_state(self._state.keys))
        except KeyTypeMismatch as error:  # another program has written the key
            self._backoff.record(error)
            return False
        self._backoff.reset()
        became_paused = self._apply(pauses)
        for job_name in pauses.resuming:
            await client.run_flow(flow_control.unpark(self._state.keys, job_name))
        return became_paused

    def admit(self, entries: Sequence[UnstartedEntry]) -> list[UnstartedEntry]:
        """Return the entries that may start now; hold or park the others.

        :param entries: entries for which slots are reserved.
        """
        if self._state.paused:
            self._held += entries
            return []
        admitted = []
        for entry, handler in entries:
            if entry.job.name in self._pauses.job_names:
                self._outcomes.entry_parked(entry, handler, self._parked_score(entry.job.name))
            else:
                admitted.append((entry, handler))
        return admitted

    def take_unstarted(self) -> list[UnstartedEntry]:
        """Remove and return all entries that this worker has read and not started."""
        entries = [*self._held, *self._async_executor.buffer.take_all()]
        entries += self._thread_executor.take_unstarted()
        self._held = []
        return entries

    def _apply(self, pauses: PauseState) -> bool:
        state, previous = self._state, self._pauses
        state.metrics.gauges["paused"] = int(pauses.queue)
        if pauses.queue:
            # The worker is healthy and ready although it does not read.
            state.metrics.gauges["read_at"] = time.monotonic()
        self._discard_held()
        if pauses == previous:
            return False
        _log_changes(state.queue.name, previous, pauses)
        entries = self.take_unstarted()
        self._pauses, self.active, state.paused = pauses, bool(pauses), pauses.queue
        self._start(self.admit(entries))
        return pauses.queue and not previous.queue

    def _start_not_parked(self, entries: Sequence[UnstartedEntry]) -> None:
        """Start entries whose name was resumed before this worker noticed it.

        They are started here, and not requeued, so that resumed jobs keep their order.
        """
        self._state.reserve(len(entries))
        if self._state.stopping.is_set():
            for entry, _ in entries:
                self._outcomes.entry_not_started(entry)
            return
        resumed = {entry.job.name for entry, _ in entries}
        self._pauses = replace(self._pauses, job_names=self._pauses.job_names - resumed)
        self._start(self.admit(entries))

    def _discard_held(self) -> None:
        """Drop the held entries that were cancelled or claimed by another worker."""
        state, entries = self._state, self._held
        if not (entries and (state.lost_claims or state.cancelled_ids)):
            return
        self._held = []
        for item in entries:
            if item[0].id in state.lost_claims or item[0].id in state.cancelled_ids:
                self._outcomes.entry_discarded(item[0])
            else:
                self._held.append(item)

    def _start(self, entries: Sequence[UnstartedEntry]) -> None:
        if async_entries := [item for item in entries if item[1].is_async]:
            self._async_executor.buffer.put(async_entries)
        if thread_entries := [item for item in entries if not item[1].is_async]:
            self._thread_executor.submit(thread_entries)

    def _parked_score(self, job_name: str) -> int:
        self._last_position = max(self._last_position + 1, self._state.clock())
        return flow_control.parked_score(job_name, self._last_position)


def _log_changes(queue_name: str, previous: PauseState, current: PauseState) -> None:
    if current.queue != previous.queue:
        verb = "paused" if current.queue else "resumed"
        log.info("flow control: queue %r was %s", queue_name, verb)
    for job_name in sorted(current.job_names - previous.job_names):
        log.info("flow control: job name %r of queue %r was paused", job_name, queue_name)
    for job_name in sorted(previous.job_names - current.job_names):
        log.info("flow control: job name %r of queue %r was resumed", job_name, queue_name)
