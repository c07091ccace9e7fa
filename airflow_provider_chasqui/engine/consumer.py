"""A consumer: all parts of a worker, run together, ending together.

async def handle(job):
    print(job.name, job.payload)

await Consumer("emails", handle, server="redis://localhost").run()
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.engine.health import log
from airflow_provider_chasqui.engine.keeper import Keeper
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.engine.promoter import Promoter
from airflow_provider_chasqui.engine.reader import Reader
from airflow_provider_chasqui.engine.scheduler import Scheduler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.threads import Threads
from airflow_provider_chasqui.engine.verdict import Verdict
from airflow_provider_chasqui.engine.workers import Workers
from airflow_provider_chasqui.queue import LOCAL, AsyncQueue
from airflow_provider_chasqui.store.target import Target

_LAST_FLUSH_S = 5.0


class Consumer:
    """Takes jobs from one queue and runs them until it is stopped.

    `queue` is a queue's name or an AsyncQueue, which then stays the caller's to close. `run`
    returns after `stop`: reading ends at once, what runs may finish within `config.drain`, the
    rest is handed back, and nothing stays unsettled. A part that fails ends them all and is raised.
    """

    def __init__(
        self,
        queue: str | AsyncQueue,
        handler: Handlers | Callable[..., Any],
        config: ConsumerConfig | None = None,
        *,
        server: str | Target = LOCAL,
    ):
        self._config = config or ConsumerConfig()
        self._handlers = Handlers.of(handler)
        self._given = queue
        self._server = server
        self._desk: Desk | None = None
        self._stop_early = False

    @property
    def metrics(self) -> Metrics | None:
        """The counters, once it runs."""
        return self._desk.metrics if self._desk else None

    @property
    def running(self) -> int:
        """How many jobs run right now."""
        return len(self._desk.running) if self._desk else 0

    def stop(self) -> None:
        """Ask it to end; safe to call from a signal handler, more than once."""
        self._stop_early = True
        if self._desk is not None:
            self._desk.stopping.set()

    def stop_on(self, *signals: signal.Signals) -> None:
        """Stop when the process gets one of these signals."""
        loop = asyncio.get_running_loop()
        for each in signals:
            loop.add_signal_handler(each, self.stop)

    async def run(self) -> None:
        """Work until stopped."""
        if isinstance(self._given, AsyncQueue):
            await self._run_on(self._given)
        else:
            async with AsyncQueue(self._given, self._server) as queue:
                await self._run_on(queue)

    async def _run_on(self, queue: AsyncQueue) -> None:
        desk = self._desk = Desk(queue, self._config)
        if self._stop_early:
            desk.stopping.set()
        settler = Settler(desk)
        verdict = Verdict(desk, settler)
        workers = Workers(desk, settler, verdict)
        threads = Threads(desk, settler, verdict)
        # No retries inside: after a lost connection the reader must learn its new client id.
        lane = queue.another_drive(retries=0)
        reader = Reader(desk, self._handlers, workers, threads, settler, verdict, lane)
        try:
            async with asyncio.TaskGroup() as group:
                for leading in self._leaders(desk, settler):
                    group.create_task(leading.run(), name="chasqui-leader")
                flusher = group.create_task(settler.run(), name="chasqui-settler")
                keeper = group.create_task(Keeper(desk).run(), name="chasqui-keeper")
                working = group.create_task(workers.run(), name="chasqui-workers")
                reading = group.create_task(reader.run(), name="chasqui-reader")
                await desk.stopping.wait()
                await self._wind_down(desk, reader, reading, workers, working, threads, verdict)
                await self._say_goodbye(desk, settler, flusher)
                keeper.cancel()
        except* ChasquiError as failures:
            raise failures.exceptions[0] from failures
        finally:
            await lane.close()

    def _leaders(self, desk: Desk, settler: Settler) -> list[Promoter | Scheduler]:
        parts: list[Promoter | Scheduler] = []
        if self._config.promoter:
            parts.append(Promoter(desk, settler, self._config.promoter))
        if self._config.scheduler:
            parts.append(Scheduler(desk, self._config.scheduler))
        return parts

    async def _wind_down(
        self, desk: Desk, reader: Reader, reading: asyncio.Task[None], workers: Workers,
        working: asyncio.Task[None], threads: Threads, verdict: Verdict,
    ) -> None:  # fmt: skip
        await self._end_reading(reader, reading)
        for entry, _ in workers.channel.close():
            verdict.unstarted(entry)
        for entry in threads.close():
            verdict.unstarted(entry)
        deadline = asyncio.get_running_loop().time() + self._config.drain.total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await desk.quiet()
                await asyncio.wait({working})
        if not working.done():
            log.warning("stopping: %d jobs are cut off and handed back", len(desk.running))
            working.cancel()
            await asyncio.wait({working})
        if desk.running:  # threads cannot be cut off; their entries will be claimed from us
            log.warning("stopping: %d plain handlers still run", len(desk.running))

    async def _end_reading(self, reader: Reader, reading: asyncio.Task[None]) -> None:
        """The read may be about to block when the first unblocking arrives: ask until it ends."""
        while not reading.done():
            with contextlib.suppress(ChasquiError):
                await reader.unblock()
            await asyncio.wait({reading}, timeout=0.1)

    async def _say_goodbye(
        self, desk: Desk, settler: Settler, flushing: asyncio.Task[None]
    ) -> None:
        """Settle what is left and leave the group; a server that is away is not waited for."""
        settler.close()
        await asyncio.wait({flushing}, timeout=_LAST_FLUSH_S)
        if not flushing.done():
            log.warning("stopping: %d outcomes could not be settled", settler.waiting)
            flushing.cancel()
            return
        with contextlib.suppress(ChasquiError):
            await desk.queue.drive.run(delivery.sweep(desk.keys, desk.group, 0, desk.consumer))
