"""A consumer: all parts of a worker, run together, ending together.

async def handle(job):
    print(job.name, job.payload)

await Consumer("emails", handle, server="redis://localhost").run()
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
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
from airflow_provider_chasqui.engine.tracing import traced
from airflow_provider_chasqui.engine.verdict import Verdict
from airflow_provider_chasqui.engine.workers import Workers
from airflow_provider_chasqui.queue import LOCAL, AsyncQueue
from airflow_provider_chasqui.store.target import Target

_LAST_FLUSH_S = 5.0
_LAST_RESIGN_S = 2.5
_LAST_READ_S = 3.0
_CUT_OFF_S = 1.0


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
        self._crew: Crew | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_early = False

    @property
    def metrics(self) -> Metrics | None:
        """The counters, once it runs."""
        return self._crew.desk.metrics if self._crew else None

    @property
    def running(self) -> int:
        """How many jobs run right now."""
        return len(self._crew.desk.running) if self._crew else 0

    def stop(self) -> None:
        """Ask it to end; safe from any thread and from a signal handler, more than once."""
        self._stop_early = True
        if self._crew is not None and self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._crew.desk.stop)

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
        self._loop = asyncio.get_running_loop()
        crew = self._crew = Crew(queue, traced(self._handlers, queue), self._config)
        if self._stop_early:
            crew.desk.stop()
        await crew.run()


class Crew:
    """The parts of one consumer from its start to its end."""

    def __init__(self, queue: AsyncQueue, handlers: Handlers, config: ConsumerConfig):
        self.desk = Desk(queue, config)
        self._config = config
        self._settler = Settler(self.desk)
        self._verdict = Verdict(self.desk, self._settler)
        self._workers = Workers(self.desk, self._settler, self._verdict)
        self._threads = Threads(self.desk, self._settler, self._verdict)
        # No retries inside: after a lost connection the reader must learn its new client id.
        self._lane = queue.another_drive(retries=0)
        self._reader = Reader(
            self.desk, handlers, self._workers, self._threads, self._settler, self._verdict,
            self._lane,
        )  # fmt: skip
        self._leaders: list[Promoter | Scheduler] = []
        if config.promoter:
            self._leaders.append(Promoter(self.desk, self._settler, config.promoter))
        if config.scheduler:
            self._leaders.append(Scheduler(self.desk, config.scheduler))

    async def run(self) -> None:
        """Work until the desk is told to stop, then end in order."""
        try:
            async with asyncio.TaskGroup() as group:
                leading = [
                    group.create_task(leader.run(), name="chasqui-leader")
                    for leader in self._leaders
                ]
                settling = group.create_task(self._settler.run(), name="chasqui-settler")
                keeper = Keeper(self.desk, self._hand_back)
                keeping = group.create_task(keeper.run(), name="chasqui-keeper")
                working = group.create_task(self._workers.run(), name="chasqui-workers")
                reading = group.create_task(self._reader.run(), name="chasqui-reader")
                await self.desk.stopping.wait()
                await self._end_reading(reading)
                await self._end_working(working)
                await self._end_settling(settling)
                # Not cancelled while they resign: the next leader would wait for the lock's end.
                if leading:
                    await asyncio.wait(leading, timeout=_LAST_RESIGN_S)
                for task in (*leading, keeping):
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise _plainest(failures) from None
        finally:
            await self._leave()

    def _hand_back(self) -> int:
        """Give back what was read and not begun."""
        rest = [entry for entry, _ in self._workers.channel.drain()] + self._threads.drain()
        for entry in rest:
            self._verdict.unstarted(entry)
        return len(rest)

    async def _end_reading(self, reading: asyncio.Task[None]) -> None:
        """The read may be about to block when the first unblocking arrives: ask until it ends."""
        give_up_at = asyncio.get_running_loop().time() + _LAST_READ_S
        while not reading.done() and asyncio.get_running_loop().time() < give_up_at:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._reader.unblock()
            await asyncio.wait({reading}, timeout=0.1)
        reading.cancel()  # the server does not answer
        await asyncio.wait({reading})

    async def _end_working(self, working: asyncio.Task[None]) -> None:
        desk = self.desk
        self._hand_back()
        self._workers.channel.close()
        self._threads.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain.total_seconds()):
                await desk.quiet()
        if desk.running:
            log.warning("stopping: %d jobs are cut off and handed back", len(desk.running))
        self._threads.cut_off()
        working.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await desk.quiet()
        self._abandon()

    def _abandon(self) -> None:
        """Hand back what cannot be ended: a thread in a long call, a task that will not go."""
        running = list(self.desk.running.values())
        if running:
            log.warning("stopping: %d handlers do not end; their jobs run elsewhere", len(running))
        for run in running:
            self._verdict.interrupted(run)

    async def _end_settling(self, settling: asyncio.Task[None]) -> None:
        """Settle what is left; a server that is away is not waited for."""
        self._settler.close()
        await asyncio.wait({settling}, timeout=_LAST_FLUSH_S)
        settling.cancel()

    async def _leave(self) -> None:
        """Whatever ended us: no outcome is kept from the server, and the group forgets us."""
        desk, settler = self.desk, self._settler
        orderly = desk.stopping.is_set()
        if not orderly:
            self._hand_back()
            self._threads.close()
            self._threads.cut_off()
            self._abandon()
        try:
            async with asyncio.timeout(_LAST_FLUSH_S):
                if not orderly:
                    await settler.flush()
                if not settler.waiting:
                    sweep = delivery.sweep(desk.keys, desk.group, 0, desk.consumer)
                    await desk.queue.drive.run(sweep)
        except (ChasquiError, TimeoutError):
            pass
        if settler.waiting:
            log.warning("stopping: %d outcomes could not be settled", settler.waiting)
        await self._lane.close()


def _plainest(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """One failure says more than a group of one."""
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure
