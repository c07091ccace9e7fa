"""Reads entries into the workers' hands: new ones, and those a dead consumer left behind."""

from __future__ import annotations

import time
from typing import Any

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import Entry, Rejected
from airflow_provider_chasqui.core.op import AnyOp, as_int, command
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handler, Handlers
from airflow_provider_chasqui.engine.health import Health, log
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.threads import Threads
from airflow_provider_chasqui.engine.verdict import Verdict
from airflow_provider_chasqui.engine.workers import Workers
from airflow_provider_chasqui.store.drive import AsyncDriver

_UNSETTLED_MOST = 20_000


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
        self._health = Health("reading")
        self._client_id: int | None = None
        self._claimed_at = 0.0
        self._had_some = False

    async def run(self) -> None:
        """Read until the desk is told to stop."""
        while not self._desk.stopping.is_set():
            try:
                if self._client_id is None:
                    await self._begin()
                room = await self._desk.room()
                if self._settler.waiting > _UNSETTLED_MOST:  # the server takes no acks: hold on
                    await self._desk.pause(0.05)
                    continue
                if self._desk.stopping.is_set():
                    return
                self._take(await self._read(min(room, self._desk.config.read_count)))
                self._health.fine()
            except ChasquiError as error:
                self._client_id = None
                if self._desk.stopping.is_set():
                    return
                await self._health.trouble(error)

    async def unblock(self) -> None:
        """End the read that is under way; the server answers it at once."""
        if self._client_id is not None:
            op = command("CLIENT", "UNBLOCK", self._client_id, parse=as_int)
            await self._desk.queue.drive.run(op)

    async def _begin(self) -> None:
        await self._make_group()
        self._client_id = await self._drive.run(command("CLIENT", "ID", parse=as_int))

    async def _make_group(self) -> bool:
        try:
            await self._drive.run(delivery.make_group(self._desk.keys, self._desk.group))
        except ChasquiError as error:
            if "BUSYGROUP" not in error.message:
                raise
            return False
        return True

    async def _read(self, count: int) -> list[Any]:
        desk, config = self._desk, self._desk.config
        portable = await self._drive.dialect() == "portable"
        block_ms = config.block_ms
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
            if await self._make_group():
                log.warning(
                    "reading: the consumer group %r of queue %r was gone and is made anew",
                    self._desk.group, self._desk.queue.name,
                )  # fmt: skip
            return []

    def _take(self, raw: list[Any]) -> None:
        desk = self._desk
        if not raw:
            if self._had_some:
                self._settler.tell(event_fields("drained", "", desk.clock()))
            self._had_some = False
            return
        self._had_some = True
        counts = desk.metrics.counts
        counts["reads"] += 1
        counts["entries"] += len(raw)
        desk.metrics.gauges["batch_size"] = len(raw)
        waiting: list[tuple[Entry, Handler]] = []
        blocking: list[tuple[Entry, Handler]] = []
        for each in raw:
            entry = delivery.delivery(each, desk.config.max_payload_bytes)
            if entry.deliveries:
                counts["reclaimed"] += 1
            if entry.id in desk.held:  # ours, and renewed too late: it is still being worked on
                continue
            desk.held.add(entry.id)
            if isinstance(entry, Rejected):
                self._verdict.rejected(entry)
                continue
            job = entry.job
            job.attempt += entry.deliveries
            if job.attempt >= desk.config.retry.attempts(job.retry):
                self._verdict.exhausted(entry)
                continue
            handler = self._handlers.get(job.name) or _no_handler(job.name)
            (waiting if handler.is_async else blocking).append((entry, handler))
        desk.took(len(waiting) + len(blocking))
        if waiting:
            self._workers.channel.put(waiting)
        if blocking:
            self._threads.put(blocking)


def _no_handler(name: str) -> Handler:
    async def refuse(_: Any) -> None:
        raise LookupError(f"this worker has no handler for the job name {name!r}")

    return Handler(refuse, True, False)
