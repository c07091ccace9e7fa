"""The reader: reads entries of a consumer group and dispatches them to the executors.

It reads new entries and those of stalled workers; see `engine/recovery.py` for the latter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_provider_chasqui.core.command import AnyCommand, as_int, redis_command
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.consumer_group import ParsedEntry
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    KeyTypeMismatch,
    PermissionDenied,
    QueueFull,
    ServerTooOld,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.engine.backoff import ErrorBackoff, log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.executor import AsyncExecutor
from airflow_provider_chasqui.engine.handlers import Handler, Handlers
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler
from airflow_provider_chasqui.engine.recovery import StalledJobRecovery
from airflow_provider_chasqui.engine.thread_executor import ThreadExecutor
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient

_MAX_UNWRITTEN = 20_000
# Number of entries sampled per read to estimate the size of the largest field.
_SIZE_SAMPLE = 8
# At the first connection these errors mean wrong settings; later they may be temporary.
_CONFIGURATION_ERRORS = (AuthenticationFailed, PermissionDenied, ServerTooOld, KeyTypeMismatch)


class StreamReader:
    """Reads entries on its own connection, so that a blocked read can be ended on a stop."""

    def __init__(
        self,
        state: ConsumerState,
        handlers: Handlers,
        async_executor: AsyncExecutor,
        thread_executor: ThreadExecutor,
        writer: OutcomeWriter,
        outcomes: OutcomeHandler,
        client: AsyncRedisClient,
    ):
        self._state = state
        self._handlers = handlers
        self._async_executor = async_executor
        self._thread_executor = thread_executor
        self._writer = writer
        self._outcomes = outcomes
        self._client = client
        self._recovery = StalledJobRecovery(state, client, writer, outcomes)
        # One failure is expected after a dropped connection; warn from the second on.
        self._backoff = ErrorBackoff("reader", state.sleep_unless_stopping, silent_failures=1)
        self._client_id: int | None = None
        self._last_client_id = 0
        self._has_connected = False
        self._was_nonempty = False

    async def run(self) -> None:
        """Read until the consumer stops.

        :raises ChasquiError: if the first connection fails because of wrong settings.
        """
        while not self._state.stopping.is_set():
            try:
                if self._client_id is None:
                    await self._connect()
                await self._read_and_dispatch()
                self._backoff.reset()
            except ChasquiError as error:
                self._client_id = None
                if not self._has_connected and isinstance(error, _CONFIGURATION_ERRORS):
                    raise
                await self._backoff.record_and_sleep(error)

    async def unblock(self) -> None:
        """End the blocked read, if there is one; the server replies to it at once."""
        if self._client_id is not None:
            await self._unblock(self._client_id)

    async def _unblock(self, client_id: int) -> None:
        command = redis_command("CLIENT", "UNBLOCK", client_id, parse=as_int)
        await self._state.queue.client.execute(command)

    async def _connect(self) -> None:
        await self._create_group()
        client_id = await self._client.execute(redis_command("CLIENT", "ID", parse=as_int))
        self._state.has_cancel_requests = await self._client.execute(
            consumer_group.any_cancel_requested(self._state.keys)
        )
        if self._has_connected:
            # The server may still deliver entries to the blocked read of the lost connection.
            with suppress(ChasquiError):
                await self._unblock(self._last_client_id)
            await self._recovery.requeue_lost_deliveries()
        self._client_id = self._last_client_id = client_id
        self._has_connected = True

    async def _create_group(self) -> None:
        state = self._state
        try:
            await self._client.execute(consumer_group.create(state.keys, state.group))
        except QueueFull:
            # At maxmemory, XGROUP CREATE fails even if the group exists. Verify that it does and
            # continue, because consuming frees memory. The command raises if it does not.
            consumers = consumer_group.consumers(state.keys, state.group)
            await self._client.execute(replace(consumers, default_if_missing=None))
            return
        except ChasquiError as error:
            if "BUSYGROUP" not in error.message:
                raise
            return
        if self._has_connected:
            log.warning(
                "reader: consumer group %r of queue %r was missing; recreated",
                state.group,
                state.queue.name,
            )

    async def _read_and_dispatch(self) -> None:
        state = self._state
        # The server does not accept outcomes: do not start more jobs until it does.
        if self._writer.unwritten > _MAX_UNWRITTEN:
            await state.sleep_unless_stopping(0.05)
            return
        capacity = await state.wait_for_capacity()
        if not capacity:
            return
        # Do not wait for new entries while all slots are busy; other consumers can run those.
        block_ms = to_ms(state.config.block_timeout) if state.has_free_slot else 0
        state.read_started()
        raw_entries = await self._read(min(capacity, state.config.read_count), block_ms)
        state.metrics.gauges["read_at"] = time.monotonic()
        if raw_entries:
            self._was_nonempty = True
            await self._accept_entries(raw_entries)
            if state.has_free_slot:
                # A slot is idle: start the handlers before the next read, which lowers the
                # latency. If all slots are busy, read first. See docs/performance.md.
                await asyncio.sleep(0)
            return
        if self._was_nonempty and not state.stopping.is_set():
            self._writer.emit(event_fields("drained", "", state.clock()))
        self._was_nonempty = False
        if not block_ms:
            await state.wait_for_free_slot()

    async def _read(self, count: int, block_ms: int) -> list[Any]:
        """Return raw entries: new ones, and those of stalled workers."""
        state, recovery = self._state, self._recovery
        if await self._client.dialect() == "portable":
            claim = recovery.next_claim(count)
            if claim is not None and (stalled := await self._run_or_reconnect(claim)):
                return stalled
            # A portable read does not return when an entry becomes claimable: wake for it.
            block_ms = min(block_ms, int(recovery.claim_interval_s * 1000))
        read = consumer_group.read(
            state.keys, state.group, state.consumer_id, count, block_ms, recovery.claim_after_ms
        )
        return await self._run_or_reconnect(read)

    async def _run_or_reconnect(self, read_command: AnyCommand[list[Any]]) -> list[Any]:
        try:
            return await self._client.execute(read_command)
        except ChasquiError as error:
            if "NOGROUP" not in error.message and "no longer exists" not in error.message:
                raise
            self._client_id = None  # connect again, which also creates the group
            return []

    async def _accept_entries(self, raw_entries: list[Any]) -> None:
        state = self._state
        in_flight, max_bytes = state.in_flight, state.config.max_payload_bytes
        counts = state.metrics.counts
        state.metrics.read_sizes.observe(len(raw_entries))
        state.observe_entry_size(_sample_max_size(raw_entries))
        entries: list[ParsedEntry] = []
        for raw_entry in raw_entries:
            entry = consumer_group.parse_entry(raw_entry, max_bytes)
            if entry.previous_deliveries:
                counts["reclaimed"] += 1
                if state.acked_since_read_started(entry.id):
                    continue
            # Skip an entry that this worker runs already and whose claim it renewed too late.
            if entry.id not in in_flight:
                in_flight[entry.id] = entry
                entries.append(entry)
        if state.has_cancel_requests:
            entries = await self._drop_cancelled(entries)
        self._dispatch(entries)

    async def _drop_cancelled(self, entries: list[ParsedEntry]) -> list[ParsedEntry]:
        state = self._state
        valid = [entry for entry in entries if isinstance(entry, StreamEntry)]
        try:
            command = consumer_group.cancel_requested_at(
                state.keys, [entry.job.id for entry in valid]
            )
            requested_at = await self._client.execute(command) if valid else []
        except ChasquiError:
            return entries  # start them; the heartbeat checks for cancellations again
        for entry, requested_ms in zip(valid, requested_at, strict=True):
            if requested_ms >= entry.job.created_at_ms:
                state.cancelled_ids.add(entry.id)
                state.reserve(1)
                self._outcomes.run_cancelled(Run(entry, None))
        return [entry for entry in entries if entry.id not in state.cancelled_ids]

    def _dispatch(self, entries: Sequence[ParsedEntry]) -> None:
        """Hand entries to the executors; dead-letter those that are invalid or out of attempts."""
        state, handlers = self._state, self._handlers
        max_attempts_for = state.config.retry.max_attempts_for
        default_max_attempts = max_attempts_for(None)
        async_entries: list[tuple[StreamEntry, Handler]] = []
        thread_entries: list[tuple[StreamEntry, Handler]] = []
        for entry in entries:
            if isinstance(entry, InvalidEntry):
                self._outcomes.entry_invalid(entry)
                continue
            job = entry.job
            job.attempt += entry.previous_deliveries  # crashed runs count as attempts
            if job.attempt >= (
                default_max_attempts if job.retry is None else max_attempts_for(job.retry)
            ):
                self._outcomes.crashed_attempts_exhausted(entry)
                continue
            handler = handlers.get(job.name) or _missing_handler(job.name)
            (async_entries if handler.is_async else thread_entries).append((entry, handler))
        state.reserve(len(async_entries) + len(thread_entries))
        if async_entries:
            self._async_executor.buffer.put(async_entries)
        if thread_entries:
            self._thread_executor.submit(thread_entries)


def _sample_max_size(raw_entries: list[Any]) -> int:
    """Return the size of the largest field among a few of the entries."""
    sample = raw_entries[:: len(raw_entries) // _SIZE_SAMPLE + 1]
    return max((len(field) for raw_entry in sample for field in raw_entry[1] or ()), default=0)


def _missing_handler(job_name: str) -> Handler:
    async def refuse(_: Any) -> None:
        raise LookupError(
            f"this worker has no handler for the job name {job_name!r}; register one with "
            "Handlers.on, or a default handler"
        )

    return Handler(refuse, True, False)
