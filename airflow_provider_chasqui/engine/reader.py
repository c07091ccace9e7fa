"""Reads entries into the workers' hands: new ones, and those a dead consumer left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    LoginRefused,
    NotPermitted,
    QueueFull,
    ServerTooOld,
    WrongType,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import Entry, Rejected
from airflow_provider_chasqui.core.op import AnyOp, as_int, command
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.core.ops.delivery import Delivery
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handler, Handlers
from airflow_provider_chasqui.engine.health import Health, log
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.threads import Threads
from airflow_provider_chasqui.engine.verdict import Verdict
from airflow_provider_chasqui.engine.workers import Workers
from airflow_provider_chasqui.store.drive import AsyncDriver

_UNSETTLED_MOST = 20_000
# Of one read so many entries are weighed: enough to know, and for free.
_WEIGHED = 8
# At the first contact these are mistakes in the settings; later they are trouble that may pass.
_MISTAKES = (LoginRefused, NotPermitted, ServerTooOld, WrongType)


class Reader:
    """Keeps the workers busy, on a connection of its own whose blocked read can be ended."""

    def __init__(
        self, desk: Desk, handlers: Handlers, workers: Workers, threads: Threads,
        settler: Settler, verdict: Verdict, drive: AsyncDriver,
    ):  # fmt: skip
        self._desk = desk
        self._handlers = handlers
        self._workers = workers
        self._threads = threads
        self._settler = settler
        self._verdict = verdict
        self._drive = drive
        # A lost connection is made anew at once; only if that fails too, something is the matter.
        self._health = Health("reading", desk.pause, shrugs=1)
        self._client_id: int | None = None
        self._last_id = 0
        self._began = False
        self._claimed_at = 0.0
        self._had_some = False

    async def run(self) -> None:
        """Read until the desk is told to stop."""
        while not self._desk.stopping.is_set():
            try:
                if self._client_id is None:
                    await self._begin()
                await self._turn()
                self._health.fine()
            except ChasquiError as error:
                self._client_id = None
                if not self._began and isinstance(error, _MISTAKES):
                    raise
                await self._health.trouble(error)

    async def unblock(self) -> None:
        """End the read that is under way; the server answers it at once."""
        if self._client_id is not None:
            await self._unblock(self._client_id)

    async def _unblock(self, client_id: int) -> None:
        op = command("CLIENT", "UNBLOCK", client_id, parse=as_int)
        await self._desk.queue.drive.run(op)

    async def _begin(self) -> None:
        await self._make_group()
        client_id = await self._drive.run(command("CLIENT", "ID", parse=as_int))
        self._desk.cancels_asked = await self._drive.run(delivery.cancels_asked(self._desk.keys))
        if self._began:
            with suppress(ChasquiError):  # the lost connection may be waiting there for entries
                await self._unblock(self._last_id)
            await self._recover()
        self._client_id = self._last_id = client_id
        self._began = True

    async def _make_group(self) -> None:
        try:
            await self._drive.run(delivery.make_group(self._desk.keys, self._desk.group))
        except QueueFull:
            # Without memory not even a group that is there can be made; yet it is we who free some.
            found = delivery.consumers(self._desk.keys, self._desk.group)
            await self._drive.run(replace(found, absent=None))
            return
        except ChasquiError as error:
            if "BUSYGROUP" not in error.message:
                raise
            return
        if self._began:
            log.warning(
                "reading: the consumer group %r of queue %r was gone and is made anew",
                self._desk.group, self._desk.queue.name,
            )  # fmt: skip

    async def _recover(self) -> None:
        """Hand back what we were given in a reply that never arrived.

        It did not run, so the delivery must not count: the entry is added anew.
        """
        desk = self._desk
        most = len(desk.held) + desk.config.read_count + desk.config.concurrency
        pending = await self._drive.run(
            delivery.pending_of(desk.keys, desk.group, desk.consumer, most)
        )
        unheard = [each for each in pending if each.entry_id not in desk.held]
        found = await self._drive.many([delivery.entry_at(desk.keys, e.entry_id) for e in unheard])
        for each, raw in zip(unheard, found, strict=True):
            if raw and each.entry_id not in desk.held:
                entry = delivery.delivery(raw[0], desk.config.max_payload_bytes)
                desk.held[entry.id] = entry
                if isinstance(entry, Rejected):
                    self._verdict.rejected(entry)
                else:
                    self._settler.release(entry, entry.job.attempt + each.deliveries - 1)

    async def _turn(self) -> None:
        desk = self._desk
        if self._settler.waiting > _UNSETTLED_MOST:  # the server takes no outcomes: hold on
            await desk.pause(0.05)
            return
        room = await desk.room()
        if not room:
            return
        # What comes while every worker is busy is for other consumers: no waiting for it then.
        block_ms = desk.config.block_ms if desk.hands_free else 0
        desk.reads()
        raw = await self._read(min(room, desk.config.read_count), block_ms)
        desk.metrics.gauges["read_at"] = time.monotonic()
        if raw:
            self._had_some = True
            await self._take(raw)
            if desk.hands_free:
                # Handlers first, then the next read: a job that waits for nobody is begun a third
                # sooner. With all hands busy the read goes first, for it is what they wait for.
                await asyncio.sleep(0)
            return
        if self._had_some and not desk.stopping.is_set():
            self._settler.tell(event_fields("drained", "", desk.clock()))
        self._had_some = False
        if not block_ms:
            await desk.free_hand()

    async def _read(self, count: int, block_ms: int) -> list[Any]:
        desk, config = self._desk, self._desk.config
        portable = await self._drive.dialect() == "portable"
        if portable:
            # No blocking longer than the claim is due: this dialect cannot wake for idle entries.
            every = max(0.05, min(1.0, config.claim_idle_ms / 3000))
            if time.monotonic() - self._claimed_at >= every:
                self._claimed_at = time.monotonic()
                idle = delivery.claim(
                    desk.keys, desk.group, desk.consumer, config.claim_idle_ms, count
                )
                claimed = await self._with_group(idle)
                if claimed:
                    return claimed
            block_ms = min(block_ms, int(every * 1000))
        read = delivery.read(
            desk.keys, desk.group, desk.consumer, count, block_ms, config.claim_idle_ms
        )
        return await self._with_group(read)

    async def _with_group(self, op: AnyOp[list[Any]]) -> list[Any]:
        try:
            return await self._drive.run(op)
        except ChasquiError as error:
            if "NOGROUP" not in error.message and "no longer exists" not in error.message:
                raise
            self._client_id = None  # begin anew: the group, and perhaps the connection
            return []

    async def _take(self, raw: list[Any]) -> None:
        desk = self._desk
        held, most_bytes = desk.held, desk.config.max_payload_bytes
        counts = desk.metrics.counts
        desk.metrics.reads.see(len(raw))
        desk.weighed(_largest(raw))
        fresh: list[Delivery] = []
        for each in raw:
            entry = delivery.delivery(each, most_bytes)
            if entry.deliveries:
                counts["reclaimed"] += 1
                if desk.settled_meanwhile(entry.id):
                    continue
            if entry.id not in held:  # else it was renewed too late, and is still being worked on
                held[entry.id] = entry
                fresh.append(entry)
        if desk.cancels_asked:
            fresh = await self._without_cancelled(fresh)
        self._hand_out(fresh)

    async def _without_cancelled(self, fresh: list[Delivery]) -> list[Delivery]:
        desk = self._desk
        jobs = [entry for entry in fresh if isinstance(entry, Entry)]
        try:
            op = delivery.cancel_marks(desk.keys, [entry.job.id for entry in jobs])
            asked = await self._drive.run(op) if jobs else []
        except ChasquiError:
            return fresh  # the keeper will ask again; what we hold must not be let fall
        for entry, asked_ms in zip(jobs, asked, strict=True):
            if asked_ms >= entry.job.created_at_ms:
                desk.cancelled.add(entry.id)
                desk.took(1)
                self._verdict.cancelled(Run(entry, None))
        return [entry for entry in fresh if entry.id not in desk.cancelled]

    def _hand_out(self, fresh: Sequence[Delivery]) -> None:
        desk, handlers = self._desk, self._handlers
        attempts = desk.config.retry.attempts
        most = attempts(None)
        waiting: list[tuple[Entry, Handler]] = []
        blocking: list[tuple[Entry, Handler]] = []
        for entry in fresh:
            if isinstance(entry, Rejected):
                self._verdict.rejected(entry)
                continue
            job = entry.job
            job.attempt += entry.deliveries
            if job.attempt >= (most if job.retry is None else attempts(job.retry)):
                self._verdict.exhausted(entry)
                continue
            handler = handlers.get(job.name) or _no_handler(job.name)
            (waiting if handler.is_async else blocking).append((entry, handler))
        desk.took(len(waiting) + len(blocking))
        if waiting:
            self._workers.channel.put(waiting)
        if blocking:
            self._threads.put(blocking)


def _largest(raw: list[Any]) -> int:
    """The largest field among a few of the entries."""
    some = raw[:: len(raw) // _WEIGHED + 1]
    return max((len(field) for each in some for field in each[1] or ()), default=0)


def _no_handler(name: str) -> Handler:
    async def refuse(_: Any) -> None:
        raise LookupError(f"this worker has no handler for the job name {name!r}")

    return Handler(refuse, True, False)
