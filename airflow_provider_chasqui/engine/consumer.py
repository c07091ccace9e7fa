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

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.executor import AsyncExecutor
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.engine.heartbeat import Heartbeat
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler
from airflow_provider_chasqui.engine.promoter import Promoter
from airflow_provider_chasqui.engine.reader import StreamReader
from airflow_provider_chasqui.engine.scheduler import Scheduler
from airflow_provider_chasqui.engine.thread_executor import ThreadExecutor
from airflow_provider_chasqui.engine.tracing import wrap_handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import DEFAULT_URL, RedisTarget

_FINAL_FLUSH_TIMEOUT_S = 5.0
_LEADER_RELEASE_TIMEOUT_S = 2.5
_READER_STOP_TIMEOUT_S = 3.0
_INTERRUPT_TIMEOUT_S = 1.0


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
        server: str | RedisTarget = DEFAULT_URL,
    ):
        self._config = config or ConsumerConfig()
        self._handlers = Handlers.from_callable(handler)
        self._queue_or_name = queue
        self._server = server
        self._runtime: ConsumerRuntime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested = False

    @property
    def metrics(self) -> Metrics | None:
        """The counters, once it runs."""
        return self._runtime.state.metrics if self._runtime else None

    @property
    def running_jobs(self) -> int:
        """How many jobs run right now."""
        return len(self._runtime.state.running) if self._runtime else 0

    def stop(self) -> None:
        """Ask it to end; safe from any thread and from a signal handler, more than once."""
        self._stop_requested = True
        if self._runtime is not None and self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._runtime.state.stop)

    def stop_on(self, *signals: signal.Signals) -> None:
        """Stop when the process gets one of these signals."""
        loop = asyncio.get_running_loop()
        for each in signals:
            loop.add_signal_handler(each, self.stop)

    async def run(self) -> None:
        """Work until stopped."""
        if isinstance(self._queue_or_name, AsyncQueue):
            await self._run_with_queue(self._queue_or_name)
        else:
            async with AsyncQueue(self._queue_or_name, self._server) as queue:
                await self._run_with_queue(queue)

    async def _run_with_queue(self, queue: AsyncQueue) -> None:
        self._loop = asyncio.get_running_loop()
        crew = self._runtime = ConsumerRuntime(
            queue, wrap_handlers(self._handlers, queue), self._config
        )
        if self._stop_requested:
            crew.state.stop()
        await crew.run()


class ConsumerRuntime:
    """The parts of one consumer from its start to its end."""

    def __init__(self, queue: AsyncQueue, handlers: Handlers, config: ConsumerConfig):
        self.state = ConsumerState(queue, config)
        self._config = config
        self._writer = OutcomeWriter(self.state)
        self._outcomes = OutcomeHandler(self.state, self._writer)
        self._async_executor = AsyncExecutor(self.state, self._writer, self._outcomes)
        self._thread_executor = ThreadExecutor(self.state, self._writer, self._outcomes)
        # No retries inside: after a lost connection the reader must learn its new client id.
        self._reader_client = queue.new_client(retries=0)
        self._reader = StreamReader(
            self.state, handlers, self._async_executor, self._thread_executor, self._writer, self._outcomes,
            self._reader_client,
        )  # fmt: skip
        self._leader_services: list[Promoter | Scheduler] = []
        if config.promoter:
            self._leader_services.append(Promoter(self.state, self._writer, config.promoter))
        if config.scheduler:
            self._leader_services.append(Scheduler(self.state, config.scheduler))

    async def run(self) -> None:
        """Work until the desk is told to stop, then end in order."""
        try:
            async with asyncio.TaskGroup() as group:
                leading = [
                    group.create_task(leader.run(), name="chasqui-leader")
                    for leader in self._leader_services
                ]
                settling = group.create_task(self._writer.run(), name="chasqui-outcome-writer")
                keeper = Heartbeat(self.state, self._requeue_unstarted)
                keeping = group.create_task(keeper.run(), name="chasqui-claim-heartbeat")
                working = group.create_task(self._async_executor.run(), name="chasqui-executor")
                reading = group.create_task(self._reader.run(), name="chasqui-reader")
                await self.state.stopping.wait()
                await self._stop_reader(reading)
                await self._stop_executors(working)
                await self._stop_writer(settling)
                # Not cancelled while they resign: the next leader would wait for the lock's end.
                if leading:
                    await asyncio.wait(leading, timeout=_LEADER_RELEASE_TIMEOUT_S)
                for task in (*leading, keeping):
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise _unwrap_single(failures) from None
        finally:
            await self._cleanup()

    def _requeue_unstarted(self) -> int:
        """Give back what was read and not begun."""
        rest = [
            entry for entry, _ in self._async_executor.buffer.take_all()
        ] + self._thread_executor.take_unstarted()
        for entry in rest:
            self._outcomes.entry_not_started(entry)
        return len(rest)

    async def _stop_reader(self, reader_task: asyncio.Task[None]) -> None:
        """The read may be about to block when the first unblocking arrives: ask until it ends."""
        give_up_at = asyncio.get_running_loop().time() + _READER_STOP_TIMEOUT_S
        while not reader_task.done() and asyncio.get_running_loop().time() < give_up_at:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._reader.unblock()
            await asyncio.wait({reader_task}, timeout=0.1)
        reader_task.cancel()  # the server does not answer
        await asyncio.wait({reader_task})

    async def _stop_executors(self, executor_task: asyncio.Task[None]) -> None:
        desk = self.state
        self._requeue_unstarted()
        self._async_executor.buffer.close()
        self._thread_executor.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_timeout.total_seconds()):
                await desk.wait_idle()
        if desk.running:
            log.warning("stopping: %d jobs are cut off and handed back", len(desk.running))
        self._thread_executor.interrupt_all()
        executor_task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
                await desk.wait_idle()
        self._abandon_running()

    def _abandon_running(self) -> None:
        """Hand back what cannot be ended: a thread in a long call, a task that will not go."""
        running = list(self.state.running.values())
        if running:
            log.warning("stopping: %d handlers do not end; their jobs run elsewhere", len(running))
        for run in running:
            self._outcomes.run_interrupted(run)

    async def _stop_writer(self, writer_task: asyncio.Task[None]) -> None:
        """Settle what is left; a server that is away is not waited for."""
        self._writer.close()
        await asyncio.wait({writer_task}, timeout=_FINAL_FLUSH_TIMEOUT_S)
        writer_task.cancel()

    async def _cleanup(self) -> None:
        """Whatever ended us: no outcome is kept from the server, and the group forgets us."""
        desk, settler = self.state, self._writer
        orderly = desk.stopping.is_set()
        if not orderly:
            self._requeue_unstarted()
            self._thread_executor.close()
            self._thread_executor.interrupt_all()
            self._abandon_running()
        try:
            async with asyncio.timeout(_FINAL_FLUSH_TIMEOUT_S):
                if not orderly:
                    await settler.flush()
                if not settler.unwritten:
                    sweep = consumer_group.remove_idle_consumers(
                        desk.keys, desk.group, 0, desk.consumer_id
                    )
                    await desk.queue.client.execute(sweep)
        except (ChasquiError, TimeoutError):
            pass
        if settler.unwritten:
            log.warning("stopping: %d outcomes could not be settled", settler.unwritten)
        await self._reader_client.close()


def _unwrap_single(error_group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One failure says more than a group of one."""
    failure: BaseException = error_group
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure
