"""The consumer: the worker of one queue within an event loop.

async def handle(job):
    print(job.name, job.payload)

await Consumer("emails", handle, server="redis://localhost").run()

A job passes these components: `StreamReader` reads its entry and finds the handler, an executor
(`AsyncExecutor` or `ThreadExecutor`) runs it, `OutcomeHandler` decides what follows, and
`OutcomeWriter` writes that to the server. `Heartbeat` renews the claims of running jobs.
`FlowControl` holds jobs back while the queue or their name is paused. `Promoter` and `Scheduler`
run in one worker of the queue at a time.
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
from airflow_provider_chasqui.engine.context import worker_queue
from airflow_provider_chasqui.engine.executor import AsyncExecutor
from airflow_provider_chasqui.engine.flow_control import FlowControl
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.engine.heartbeat import Heartbeat
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.engine.outcome_counter import OutcomeCounter
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
    """A worker that runs the jobs of one queue until it is stopped.

    After `stop` it reads nothing more. Running handlers may finish within
    `config.shutdown_timeout`, then they are cancelled. Jobs that did not finish are requeued, and
    `run` returns after all outcomes are written.

    :param queue: the name of a queue, or an open `AsyncQueue`, which the caller closes.
    :param handler: a declared job (`@job`), `Handlers` by job name, or a function for all jobs.
    :param config: the settings; None for the defaults.
    :param server: the server's URL or target; unused if `queue` is an `AsyncQueue`.
    :raises InvalidArgument: if the handler is not valid.
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
        """The metrics of this consumer; None before `run` was called."""
        return self._runtime.state.metrics if self._runtime else None

    @property
    def running_jobs(self) -> int:
        """The number of jobs that are running now."""
        return len(self._runtime.state.running) if self._runtime else 0

    def stop(self) -> None:
        """Stop the consumer.

        Can be called from any thread and from a signal handler, before `run`, and repeatedly.
        """
        self._stop_requested = True
        if self._runtime is not None and self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._runtime.state.stop)

    def stop_on(self, *signals: signal.Signals) -> None:
        """Stop when the process receives one of these signals. Call it in the event loop.

        :param signals: the signals, for example `signal.SIGTERM`.
        """
        loop = asyncio.get_running_loop()
        for signal_number in signals:
            loop.add_signal_handler(signal_number, self.stop)

    async def run(self) -> None:
        """Run jobs until stopped.

        Errors of the server are logged and retried.

        :raises ChasquiError: if the first connection fails because of wrong settings: the login,
            permissions, the server's version, or a key of another type.
        """
        if isinstance(self._queue_or_name, AsyncQueue):
            await self._run_with_queue(self._queue_or_name)
        else:
            async with AsyncQueue(self._queue_or_name, self._server) as queue:
                await self._run_with_queue(queue)

    async def _run_with_queue(self, queue: AsyncQueue) -> None:
        self._loop = asyncio.get_running_loop()
        handlers = wrap_handlers(self._handlers, queue)
        token = worker_queue.set(queue)  # the runtime runs handlers in copies of this context
        try:
            runtime = self._runtime = ConsumerRuntime(queue, handlers, self._config)
            if self._stop_requested:
                runtime.state.stop()
            await runtime.run()
        finally:
            worker_queue.reset(token)


class ConsumerRuntime:
    """The components of one consumer, and the order in which they start and stop.

    If a component fails, all others end too and `run` raises its error.
    """

    def __init__(self, queue: AsyncQueue, handlers: Handlers, config: ConsumerConfig):
        self.state = ConsumerState(queue, config)
        self._config = config
        self._writer = OutcomeWriter(self.state)
        self._outcomes = OutcomeHandler(self.state, self._writer)
        self._async_executor = AsyncExecutor(self.state, self._writer, self._outcomes)
        self._thread_executor = ThreadExecutor(self.state, self._writer, self._outcomes)
        self._flow_control = FlowControl(
            self.state, self._async_executor, self._thread_executor, self._writer, self._outcomes
        )
        # No retries in the client: after a lost connection the reader needs its new client id.
        self._reader_client = queue.new_client(retries=0)
        self._reader = StreamReader(
            self.state,
            handlers,
            self._async_executor,
            self._thread_executor,
            self._writer,
            self._outcomes,
            self._flow_control,
            self._reader_client,
        )
        self._counter = OutcomeCounter(self.state)
        self._leader_services: list[Promoter | Scheduler] = []
        if config.promoter:
            self._leader_services.append(Promoter(self.state, self._writer, config.promoter))
        if config.scheduler:
            self._leader_services.append(Scheduler(self.state, config.scheduler))

    async def run(self) -> None:
        """Run until `state.stop` is called, then stop the components in order."""
        try:
            async with asyncio.TaskGroup() as group:
                leader_tasks = [
                    group.create_task(service.run(), name="chasqui-leader")
                    for service in self._leader_services
                ]
                writer_task = group.create_task(self._writer.run(), name="chasqui-outcome-writer")
                heartbeat = Heartbeat(
                    self.state,
                    self._requeue_unstarted,
                    self._on_heartbeat,
                    self._apply_flow_control,
                )
                heartbeat_task = group.create_task(heartbeat.run(), name="chasqui-claim-heartbeat")
                counter_task = group.create_task(
                    self._counter.run(), name="chasqui-outcome-counter"
                )
                executor_task = group.create_task(
                    self._async_executor.run(), name="chasqui-executor"
                )
                reader_task = group.create_task(self._reader.run(), name="chasqui-reader")
                await self.state.stopping.wait()
                await self._stop_reader(reader_task)
                await self._stop_executors(executor_task)
                await self._stop_writer(writer_task)
                # Let them release their locks; otherwise the next leader waits for the TTL.
                if leader_tasks:
                    await asyncio.wait(leader_tasks, timeout=_LEADER_RELEASE_TIMEOUT_S)
                for task in (*leader_tasks, heartbeat_task, counter_task):
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise _unwrap_single(failures) from None
        finally:
            await self._cleanup()

    def _on_heartbeat(self) -> None:
        self._thread_executor.check_threads()
        self._outcomes.failures.flush()

    def _requeue_unstarted(self) -> int:
        """Requeue the entries that were read and not started; return how many there were."""
        entries = self._flow_control.take_unstarted()
        for entry, _ in entries:
            self._outcomes.entry_not_started(entry)
        return len(entries)

    async def _apply_flow_control(self) -> None:
        """Read and apply what is paused."""
        if await self._flow_control.refresh(self.state.queue.client):
            await self._reader.unblock()

    async def _stop_reader(self, reader_task: asyncio.Task[None]) -> None:
        # Repeated, because the read may start to block after the first CLIENT UNBLOCK.
        deadline = asyncio.get_running_loop().time() + _READER_STOP_TIMEOUT_S
        while not reader_task.done() and asyncio.get_running_loop().time() < deadline:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._reader.unblock()
            await asyncio.wait({reader_task}, timeout=0.1)
        reader_task.cancel()  # if the server does not reply
        await asyncio.wait({reader_task})

    async def _stop_executors(self, executor_task: asyncio.Task[None]) -> None:
        state = self.state
        self._requeue_unstarted()
        self._async_executor.buffer.close()
        self._thread_executor.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_timeout.total_seconds()):
                await state.wait_idle()
        if state.running:
            log.warning(
                "consumer: shutdown timeout expired; cancelling %d running jobs and requeueing "
                "them",
                len(state.running),
            )
        self._thread_executor.interrupt_all()
        executor_task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
                await state.wait_idle()
        self._requeue_running()

    def _requeue_running(self) -> None:
        """Requeue the jobs whose handlers ignore cancellation, such as a thread in a long call."""
        runs = list(self.state.running.values())
        if runs:
            log.warning(
                "consumer: %d handlers ignored cancellation; their jobs are requeued and may run "
                "twice",
                len(runs),
            )
        for run in runs:
            self._outcomes.run_interrupted(run)

    async def _stop_writer(self, writer_task: asyncio.Task[None]) -> None:
        """Write the remaining outcomes, but do not wait for a server that is unreachable."""
        self._writer.close()
        await asyncio.wait({writer_task}, timeout=_FINAL_FLUSH_TIMEOUT_S)
        writer_task.cancel()

    async def _cleanup(self) -> None:
        """Write pending outcomes and remove this consumer from the group, after errors too."""
        state, writer = self.state, self._writer
        orderly = state.stopping.is_set()
        if not orderly:
            self._requeue_unstarted()
            self._thread_executor.close()
            self._thread_executor.interrupt_all()
            self._requeue_running()
        try:
            async with asyncio.timeout(_FINAL_FLUSH_TIMEOUT_S):
                if not orderly:
                    await writer.flush()
                await self._counter.flush()
                if not writer.unwritten:
                    await state.queue.client.execute(
                        consumer_group.remove_idle_consumers(
                            state.keys, state.group, 0, state.consumer_id
                        )
                    )
        except (ChasquiError, TimeoutError):
            pass
        if writer.unwritten:
            log.warning(
                "consumer: could not write %d outcomes before the shutdown; these jobs will be "
                "recovered by other workers and run again",
                writer.unwritten,
            )
        self._outcomes.failures.flush(final=True)
        await self._reader_client.close()


def _unwrap_single(error_group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only error of a group, or the group if it has several."""
    error: BaseException = error_group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
