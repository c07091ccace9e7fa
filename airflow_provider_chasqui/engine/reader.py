"""The reader: reads entries of a consumer group and dispatches them to the executors.

It reads new entries and those of stalled workers; see `engine/recovery.py` for the latter.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_chasqui.core.command import Command, as_int, redis_command
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.consumer_group import ParsedEntry
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    KeyTypeMismatch,
    PermissionDenied,
    QueueFull,
    RedisServerError,
    ServerTooOld,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.engine.backoff import ErrorBackoff, log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.executor import AsyncExecutor
from airflow_provider_chasqui.engine.flow_control import FlowControl
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
# The longest blocking read if the server refuses CLIENT ID or CLIENT UNBLOCK: a stop waits for it.
_MAX_BLOCK_WITHOUT_UNBLOCK_MS = 500
# The heartbeat notices within a second that the queue was resumed; this adds little to it.
_PAUSED_SLEEP_S = 0.1
_CLIENT_ID = redis_command("CLIENT", "ID", parse=as_int)


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
        flow_control: FlowControl,
        client: AsyncRedisClient,
    ):
        self._state = state
        self._handlers = handlers
        self._async_executor = async_executor
        self._thread_executor = thread_executor
        self._writer = writer
        self._outcomes = outcomes
        self._flow_control = flow_control
        self._client = client
        self._recovery = StalledJobRecovery(state, client, writer, outcomes)
        # One failure is expected after a dropped connection; warn from the second on.
        self._backoff = ErrorBackoff("reader", state.sleep_unless_stopping, silent_failures=1)
        self._connected = False
        self._has_connected = False
        # The id and the server of the connection; None if the server refuses CLIENT commands.
        self._client_id: int | None = None
        self._server_address: object = None
        # The longest wait of a read, and when a read of a lost connection has ended on the server.
        self._max_block_ms = to_ms(state.config.block_timeout)
        self._lost_read_ends_at = math.inf
        self._was_nonempty = False

    async def run(self) -> None:
        """Read until the consumer stops.

        :raises ChasquiError: if the first connection fails because of wrong settings.
        """
        while not self._state.stopping.is_set():
            try:
                if not self._connected:
                    await self._connect()
                await self._read_and_dispatch()
                self._backoff.reset()
            except ChasquiError as error:
                self._connected = False
                if not self._has_connected and isinstance(error, _CONFIGURATION_ERRORS):
                    raise
                await self._backoff.record_and_sleep(error)

    async def unblock(self) -> None:
        """End the blocked read, if there is one; the server replies to it at once.

        Nothing is sent if the server refuses CLIENT UNBLOCK, because such a read is short, or if
        the connection or the server has changed: the id may then belong to another program.
        """
        client_id = self._client_id
        if not self._connected or client_id is None:
            return
        client = self._state.queue.new_client(retries=0)
        try:
            await client.execute(_CLIENT_ID)  # opens the connection
            if (
                self._connected
                and self._client_id == client_id
                and client.server_address == self._server_address
            ):
                await client.execute(_unblock_command(client_id))
        finally:
            await client.close()

    async def _connect(self) -> None:
        await self._create_group()
        lost_block_ms = self._max_block_ms
        await self._get_client_id()
        await self._state.cancellations.reload(self._client)
        await self._flow_control.refresh(self._client)
        if self._has_connected:
            await self._recovery.requeue_lost_deliveries()
            # The server may still deliver entries to the blocked read of the lost connection. Its
            # client id is not valid any more if the server was restarted or replaced.
            self._lost_read_ends_at = time.monotonic() + lost_block_ms / 1000
        self._connected = self._has_connected = True

    async def _get_client_id(self) -> None:
        """Get the id for CLIENT UNBLOCK, or shorten the reads if the server refuses to use it."""
        replies = await self._client.pipeline_with_errors([_CLIENT_ID, _unblock_command(0)])
        block_ms = to_ms(self._state.config.block_timeout)
        refusals = [reply for reply in replies if isinstance(reply, ChasquiError)]
        for error in refusals:
            if (
                not isinstance(error, PermissionDenied | ServerTooOld)
                and type(error) is not RedisServerError
            ):
                raise error
        if refusals:
            self._client_id, block_ms = None, min(block_ms, _MAX_BLOCK_WITHOUT_UNBLOCK_MS)
            if not self._has_connected:
                log.info(
                    "reader: the server refuses CLIENT ID or CLIENT UNBLOCK, so reads wait for at "
                    "most %d ms: %s",
                    block_ms,
                    refusals[0],
                )
        else:
            self._client_id, self._server_address = replies[0], self._client.server_address
        self._max_block_ms = block_ms

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
        if state.paused:
            await state.sleep_unless_stopping(_PAUSED_SLEEP_S)
            return
        # Do not wait for new entries while all slots are busy; other consumers can run those.
        block_ms = self._max_block_ms if state.has_free_slot else 0
        if self._lost_read_ends_at < math.inf:
            block_ms = await self._requeue_after_lost_read(block_ms)
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
        if state.paused:
            return
        if self._was_nonempty and not state.stopping.is_set():
            self._writer.emit(event_fields("drained", "", state.clock()))
        self._was_nonempty = False
        if not block_ms:
            await state.wait_for_free_slot()

    async def _requeue_after_lost_read(self, block_ms: int) -> int:
        """Requeue what the read of a lost connection received; return how long to block."""
        remaining_s = self._lost_read_ends_at - time.monotonic()
        if remaining_s > 0:
            return min(block_ms, int(remaining_s * 1000) + 1)
        await self._recovery.requeue_lost_deliveries()
        self._lost_read_ends_at = math.inf
        return block_ms

    async def _read(self, count: int, block_ms: int) -> list[Any]:
        """Return raw entries: new ones, and those of stalled workers."""
        state, recovery = self._state, self._recovery
        try:
            if recovery.claim_due and (entries := await recovery.claim_and_read(count)):
                return entries
            # The read does not return when an entry becomes claimable: wake for it.
            block_ms = min(block_ms, int(recovery.claim_interval_s * 1000))
            return await self._client.execute(
                consumer_group.read(state.keys, state.group, state.consumer_id, count, block_ms)
            )
        except ChasquiError as error:
            if "NOGROUP" not in error.message and "no longer exists" not in error.message:
                raise
            self._connected = False  # connect again, which also creates the group
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
        self._dispatch(await self._drop_cancelled(entries))

    async def _drop_cancelled(self, entries: list[ParsedEntry]) -> list[ParsedEntry]:
        state = self._state
        valid = [entry for entry in entries if isinstance(entry, StreamEntry)]
        try:
            cancelled = await state.cancellations.find(self._client, valid)
        except ChasquiError:
            return entries  # start them; the heartbeat checks for cancellations again
        if not cancelled:
            return entries
        state.reserve(len(cancelled))
        for entry in cancelled:
            self._outcomes.run_cancelled(Run(entry, None))
        cancelled_ids = {entry.id for entry in cancelled}
        return [entry for entry in entries if entry.id not in cancelled_ids]

    def _dispatch(self, entries: Sequence[ParsedEntry]) -> None:
        """Hand entries to the executors; dead-letter those that are invalid or out of attempts."""
        state, handlers = self._state, self._handlers
        max_attempts_for = state.config.retry.max_attempts_for
        default_max_attempts = max_attempts_for(None)
        single_attempt = default_max_attempts == 1
        async_entries: list[tuple[StreamEntry, Handler]] = []
        thread_entries: list[tuple[StreamEntry, Handler]] = []
        for entry in entries:
            if isinstance(entry, InvalidEntry):
                self._outcomes.entry_invalid(entry)
                continue
            job = entry.job
            job.attempt += entry.previous_deliveries  # crashed runs count as attempts
            handler = handlers.get(job.name)
            max_attempts = default_max_attempts
            if job.retry is None and handler is not None:
                job.retry = handler.retry
            if job.retry is not None:
                max_attempts = max_attempts_for(job.retry)
                single_attempt = single_attempt or max_attempts == 1
            if job.attempt >= max_attempts:
                self._outcomes.attempts_exhausted(entry, max_attempts)
                continue
            if handler is None:
                self._outcomes.handler_missing(entry, handlers.job_names)
                continue
            (async_entries if handler.is_async else thread_entries).append((entry, handler))
        if entries:
            state.single_attempt = single_attempt
        state.reserve(len(async_entries) + len(thread_entries))
        if self._flow_control.active:
            async_entries = self._flow_control.admit(async_entries)
            thread_entries = self._flow_control.admit(thread_entries)
        if async_entries:
            self._async_executor.buffer.put(async_entries)
        if thread_entries:
            self._thread_executor.submit(thread_entries)


def _unblock_command(client_id: int) -> Command[int]:
    return redis_command("CLIENT", "UNBLOCK", client_id, parse=as_int)


def _sample_max_size(raw_entries: list[Any]) -> int:
    """Return the size of the largest field among a few of the entries."""
    sample = raw_entries[:: len(raw_entries) // _SIZE_SAMPLE + 1]
    return max((len(field) for raw_entry in sample for field in raw_entry[1] or ()), default=0)
