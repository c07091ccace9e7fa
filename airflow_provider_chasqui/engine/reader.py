"""Reads entries into the workers' hands: new ones, and those a dead consumer left behind."""

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
from airflow_provider_chasqui.engine.thread_executor import ThreadExecutor
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient

_MAX_UNWRITTEN = 20_000
# Of one read so many entries are weighed: enough to know, and for free.
_SIZE_SAMPLE = 8
# At the first contact these are mistakes in the settings; later they are trouble that may pass.
_CONFIGURATION_ERRORS = (AuthenticationFailed, PermissionDenied, ServerTooOld, KeyTypeMismatch)


class StreamReader:
    """Keeps the workers busy, on a connection of its own whose blocked read can be ended."""

    def __init__(
        self, state: ConsumerState, handlers: Handlers, async_executor: AsyncExecutor, thread_executor: ThreadExecutor,
        writer: OutcomeWriter, outcomes: OutcomeHandler, client: AsyncRedisClient,
    ):  # fmt: skip
        self._state = state
        self._handlers = handlers
        self._async_executor = async_executor
        self._thread_executor = thread_executor
        self._writer = writer
        self._outcomes = outcomes
        self._client = client
        # A lost connection is made anew at once; only if that fails too, something is the matter.
        self._backoff = ErrorBackoff("reading", state.sleep_unless_stopping, silent_failures=1)
        self._client_id: int | None = None
        self._last_client_id = 0
        self._has_connected = False
        self._last_claim_at = 0.0
        self._was_nonempty = False

    async def run(self) -> None:
        """Read until the desk is told to stop."""
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
        """End the read that is under way; the server answers it at once."""
        if self._client_id is not None:
            await self._unblock(self._client_id)

    async def _unblock(self, client_id: int) -> None:
        op = redis_command("CLIENT", "UNBLOCK", client_id, parse=as_int)
        await self._state.queue.client.execute(op)

    async def _connect(self) -> None:
        await self._create_group()
        client_id = await self._client.execute(redis_command("CLIENT", "ID", parse=as_int))
        self._state.has_cancel_requests = await self._client.execute(
            consumer_group.any_cancel_requested(self._state.keys)
        )
        if self._has_connected:
            with suppress(ChasquiError):  # the lost connection may be waiting there for entries
                await self._unblock(self._last_client_id)
            await self._requeue_undelivered()
        self._client_id = self._last_client_id = client_id
        self._has_connected = True

    async def _create_group(self) -> None:
        try:
            await self._client.execute(consumer_group.create(self._state.keys, self._state.group))
        except QueueFull:
            # Without memory not even a group that is there can be made; yet it is we who free some.
            found = consumer_group.consumers(self._state.keys, self._state.group)
            await self._client.execute(replace(found, default_if_missing=None))
            return
        except ChasquiError as error:
            if "BUSYGROUP" not in error.message:
                raise
            return
        if self._has_connected:
            log.warning(
                "reading: the consumer group %r of queue %r was gone and is made anew",
                self._state.group, self._state.queue.name,
            )  # fmt: skip

    async def _requeue_undelivered(self) -> None:
        """Hand back what we were given in a reply that never arrived.

        It did not run, so the delivery must not count: the entry is added anew.
        """
        desk = self._state
        most = len(desk.in_flight) + desk.config.read_count + desk.config.concurrency
        pending = await self._client.execute(
            consumer_group.pending_entries(desk.keys, desk.group, desk.consumer_id, most)
        )
        unheard = [each for each in pending if each.entry_id not in desk.in_flight]
        found = await self._client.pipeline(
            [consumer_group.get_entry(desk.keys, e.entry_id) for e in unheard]
        )
        for each, raw in zip(unheard, found, strict=True):
            if raw and each.entry_id not in desk.in_flight:
                entry = consumer_group.parse_entry(raw[0], desk.config.max_payload_bytes)
                desk.in_flight[entry.id] = entry
                if isinstance(entry, InvalidEntry):
                    self._outcomes.entry_invalid(entry)
                else:
                    self._writer.requeue(entry, entry.job.attempt + each.deliveries - 1)

    async def _read_and_dispatch(self) -> None:
        desk = self._state
        if self._writer.unwritten > _MAX_UNWRITTEN:  # the server takes no outcomes: hold on
            await desk.sleep_unless_stopping(0.05)
            return
        room = await desk.wait_for_capacity()
        if not room:
            return
        # What comes while every worker is busy is for other consumers: no waiting for it then.
        block_ms = to_ms(desk.config.block_timeout) if desk.has_idle_worker else 0
        desk.read_started()
        raw = await self._read(min(room, desk.config.read_count), block_ms)
        desk.metrics.gauges["read_at"] = time.monotonic()
        if raw:
            self._was_nonempty = True
            await self._accept_entries(raw)
            if desk.has_idle_worker:
                # Handlers first, then the next read: a job that waits for nobody is begun a third
                # sooner. With all hands busy the read goes first, for it is what they wait for.
                await asyncio.sleep(0)
            return
        if self._was_nonempty and not desk.stopping.is_set():
            self._writer.emit(event_fields("drained", "", desk.clock()))
        self._was_nonempty = False
        if not block_ms:
            await desk.wait_for_idle_worker()

    async def _read(self, count: int, block_ms: int) -> list[Any]:
        desk, config = self._state, self._state.config
        portable = await self._client.dialect() == "portable"
        if portable:
            # No blocking longer than the claim is due: this dialect cannot wake for idle entries.
            every = max(0.05, min(1.0, config.claim_after.total_seconds() / 3))
            if time.monotonic() - self._last_claim_at >= every:
                self._last_claim_at = time.monotonic()
                idle = consumer_group.claim(
                    desk.keys, desk.group, desk.consumer_id, to_ms(config.claim_after), count
                )
                claimed = await self._run_or_reconnect(idle)
                if claimed:
                    return claimed
            block_ms = min(block_ms, int(every * 1000))
        read = consumer_group.read(
            desk.keys, desk.group, desk.consumer_id, count, block_ms, to_ms(config.claim_after)
        )
        return await self._run_or_reconnect(read)

    async def _run_or_reconnect(self, read_command: AnyCommand[list[Any]]) -> list[Any]:
        try:
            return await self._client.execute(read_command)
        except ChasquiError as error:
            if "NOGROUP" not in error.message and "no longer exists" not in error.message:
                raise
            self._client_id = None  # begin anew: the group, and perhaps the connection
            return []

    async def _accept_entries(self, raw_entries: list[Any]) -> None:
        desk = self._state
        held, most_bytes = desk.in_flight, desk.config.max_payload_bytes
        counts = desk.metrics.counts
        desk.metrics.read_sizes.observe(len(raw_entries))
        desk.observe_entry_size(_sample_max_size(raw_entries))
        fresh: list[ParsedEntry] = []
        for each in raw_entries:
            entry = consumer_group.parse_entry(each, most_bytes)
            if entry.previous_deliveries:
                counts["reclaimed"] += 1
                if desk.acked_since_read_started(entry.id):
                    continue
            if entry.id not in held:  # else it was renewed too late, and is still being worked on
                held[entry.id] = entry
                fresh.append(entry)
        if desk.has_cancel_requests:
            fresh = await self._drop_cancelled(fresh)
        self._dispatch(fresh)

    async def _drop_cancelled(self, entries: list[ParsedEntry]) -> list[ParsedEntry]:
        desk = self._state
        jobs = [entry for entry in entries if isinstance(entry, StreamEntry)]
        try:
            op = consumer_group.cancel_requested_at(desk.keys, [entry.job.id for entry in jobs])
            asked = await self._client.execute(op) if jobs else []
        except ChasquiError:
            return entries  # the keeper will ask again; what we hold must not be let fall
        for entry, asked_ms in zip(jobs, asked, strict=True):
            if asked_ms >= entry.job.created_at_ms:
                desk.cancelled_ids.add(entry.id)
                desk.reserve(1)
                self._outcomes.run_cancelled(Run(entry, None))
        return [entry for entry in entries if entry.id not in desk.cancelled_ids]

    def _dispatch(self, entries: Sequence[ParsedEntry]) -> None:
        desk, handlers = self._state, self._handlers
        attempts = desk.config.retry.max_attempts_for
        most = attempts(None)
        waiting: list[tuple[StreamEntry, Handler]] = []
        blocking: list[tuple[StreamEntry, Handler]] = []
        for entry in entries:
            if isinstance(entry, InvalidEntry):
                self._outcomes.entry_invalid(entry)
                continue
            job = entry.job
            job.attempt += entry.previous_deliveries
            if job.attempt >= (most if job.retry is None else attempts(job.retry)):
                self._outcomes.retries_exhausted(entry)
                continue
            handler = handlers.get(job.name) or _missing_handler(job.name)
            (waiting if handler.is_async else blocking).append((entry, handler))
        desk.reserve(len(waiting) + len(blocking))
        if waiting:
            self._async_executor.buffer.put(waiting)
        if blocking:
            self._thread_executor.submit(blocking)


def _sample_max_size(raw_entries: list[Any]) -> int:
    """The largest field among a few of the entries."""
    some = raw_entries[:: len(raw_entries) // _SIZE_SAMPLE + 1]
    return max((len(field) for each in some for field in each[1] or ()), default=0)


def _missing_handler(job_name: str) -> Handler:
    async def refuse(_: Any) -> None:
        raise LookupError(f"this worker has no handler for the job name {job_name!r}")

    return Handler(refuse, True, False)
