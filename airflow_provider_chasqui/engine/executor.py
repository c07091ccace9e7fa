"""The executor of coroutine handlers: long-lived worker tasks that run one job after another.

How a handler is run, and why not with `asyncio.create_task`:

A worker task takes an entry from the buffer and calls the handler, which creates a coroutine but
runs none of its code. A new task per job would cost more than a short handler does, and
`await coroutine` would run all jobs of a worker in one `contextvars` context. So the worker steps
the coroutine by hand (`AsyncExecutor._worker_loop`):

1. `context.run(coroutine.send, None)` runs the handler until it first suspends, that is until it
   awaits something that is not ready. The copied `contextvars` context keeps the variables that
   one job sets invisible to the next job of the same worker.
2. `StopIteration` means that the handler returned without suspending. Many handlers do. Its
   result is appended to a list, and the outcomes of all such runs are recorded together before
   the event loop continues (`_flush_inline_runs`). No future, no task switch and no `Run` object
   is needed.
3. Any other exception means that the handler raised without suspending; it is recorded
   the same way.
4. If `send` returns a value, the handler suspended, and the value is what it waits for (a future).
   The worker records the run as running, wakes another worker for the rest of the buffer, and
   awaits `IsolatedAwaitable`. That object passes the future up to the event loop, and results and
   exceptions back into the coroutine, always within the job's own context.
5. A worker that runs only handlers of the second kind would never let the event loop continue, so
   it yields after `_YIELD_INTERVAL_S`.

For the handler this is the same as `await handler(job)` in a separate context;
`asyncio.current_task()` is the worker's task. docs/performance.md has the benchmarks, and
tests/benchmarks counts the function calls per job.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import RESCHEDULE_TYPES, InlineRun, OutcomeHandler

T = TypeVar("T")

# A worker whose handlers never suspend yields to the event loop after this time.
_YIELD_INTERVAL_S = 0.002


class EntryBuffer(Generic[T]):
    """Buffer between the reader and the worker tasks.

    A worker takes items without awaiting while there are any. `put` wakes one worker. A worker
    whose handler suspends wakes the next one (`wake_one`), so handlers that never suspend are run
    one after another by one task, without a wake-up per item. This is cheaper than asyncio.Queue;
    see docs/performance.md. The buffer has no limit, because `ConsumerState` counts the capacity.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self.items)

    def put(self, items: Sequence[T]) -> None:
        """Append items and wake a worker."""
        self.items.extend(items)
        self._wake(1)

    def wake_one(self) -> None:
        """Wake another worker if there are items."""
        if self.items:
            self._wake(1)

    async def wait_nonempty(self) -> bool:
        """Wait until there are items; return False if the buffer is closed and empty."""
        while not self.items:
            if self._closed:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return True

    def take_all(self) -> list[T]:
        """Remove and return all items."""
        items = list(self.items)
        self.items.clear()
        return items

    def close(self) -> None:
        """Close the buffer and wake all workers."""
        self._closed = True
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1


class IsolatedAwaitable:
    """Awaitable for the rest of a coroutine that was started by hand, in its own context.

    :param coroutine: the coroutine, after its first `send`.
    :param context: the context that it was started in.
    :param awaited: the value that the first `send` returned.
    """

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, awaited: Any
    ):
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, context, awaited = self._coroutine, self._context, self._awaited
        try:
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    context.run(coroutine.close)
                    raise
                except BaseException as error:
                    awaited = context.run(coroutine.throw, error)
                else:
                    awaited = context.run(coroutine.send, value)
        except StopIteration as done:
            return done.value


class AsyncExecutor:
    """Runs coroutine handlers in `concurrency` worker tasks, each one job at a time."""

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, outcomes: OutcomeHandler):
        self._state = state
        self._writer = writer
        self._outcomes = outcomes
        self._task: asyncio.Task[Any] | None = None
        self._failed = False
        self._yield_at = 0.0
        # Runs that finished without suspending and are not recorded yet.
        self._inline_results: list[InlineRun] = []
        self._inline_errors: list[InlineRun] = []
        self.buffer: EntryBuffer[tuple[StreamEntry, Handler]] = EntryBuffer()

    async def run(self) -> None:
        """Run jobs until the buffer is closed and empty, or until cancelled."""
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for number in range(self._state.config.concurrency):
                group.create_task(self._run_worker(), name=f"chasqui-worker-{number}")

    async def _run_worker(self) -> None:
        """Run a worker; start it again if a handler cancelled its task."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                return await self._worker_loop(task)
            except asyncio.CancelledError:
                if self._is_shutting_down:
                    raise
                # A handler cancelled the task after its own run had ended.
                while task.cancelling():
                    task.uncancel()
                log.warning("executor: a handler cancelled the task of its worker; restarted")
            except BaseException:
                self._failed = True
                raise

    async def _worker_loop(self, task: asyncio.Task[Any]) -> None:
        """Run entries of the buffer one after another; the module docstring explains how."""
        # Locals, because attribute lookups are a noticeable part of the cost of a short job.
        state, outcomes, buffer, clock = self._state, self._outcomes, self.buffer, time.perf_counter
        items, copy_context = buffer.items, contextvars.copy_context
        inline_results, inline_errors = self._inline_results, self._inline_errors
        lost_claims, cancelled_ids = state.lost_claims, state.cancelled_ids
        while items or await self._wait_for_entry():
            entry, handler = items.popleft()
            if (lost_claims or cancelled_ids) and (
                entry.id in lost_claims or entry.id in cancelled_ids
            ):
                outcomes.entry_discarded(entry)
                continue
            run, context, started = None, copy_context(), clock()
            try:
                if handler.accepts_context:
                    run = Run(entry, handler.timeout_s, started)
                    coroutine = handler.call(entry.job, Context(run, self._writer.report_progress))
                else:
                    coroutine = handler.call(entry.job)
                awaited = context.run(coroutine.send, None)
            except StopIteration as stop:
                # The handler returned without suspending.
                now = clock()
                if stop.value is None or not isinstance(stop.value, RESCHEDULE_TYPES):
                    inline_results.append((entry, stop.value, started, now))
                else:
                    run = run or Run(entry, handler.timeout_s, started)
                    outcomes.run_started(run)
                    outcomes.run_returned(run, stop.value)
            except Exception as error:
                now = clock()
                inline_errors.append((entry, error, started, now))
            except BaseException as error:
                self._flush_inline_runs()
                run = run or Run(entry, handler.timeout_s, started)
                outcomes.run_started(run)
                self._handle_error(run, error)
                now = clock()
            else:
                # The handler suspended.
                self._flush_inline_runs()
                run = run or Run(entry, handler.timeout_s, started)
                run.interrupt = task.cancel
                outcomes.run_started(run)
                buffer.wake_one()
                await self._await_rest(run, IsolatedAwaitable(coroutine, context, awaited))
                now = clock()
            if task.cancelling() and not self._is_shutting_down:
                await self._absorb_cancellation(task)
            if now > self._yield_at:
                self._flush_inline_runs()
                await asyncio.sleep(0)
                # The outcome of a job with one attempt is written as soon as possible.
                self._yield_at = 0.0 if state.single_attempt else clock() + _YIELD_INTERVAL_S

    async def _absorb_cancellation(self, task: asyncio.Task[Any]) -> None:
        """Continue after a cancellation that the engine or a handler meant for one job only."""
        while task.cancelling():
            task.uncancel()
        # Before Python 3.13 `uncancel` does not revoke a cancellation that is not delivered yet, so
        # let it be delivered here.
        self._flush_inline_runs()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_shutting_down:
                raise

    async def _wait_for_entry(self) -> bool:
        self._flush_inline_runs()
        return await self.buffer.wait_nonempty()

    def _flush_inline_runs(self) -> None:
        """Record the runs that finished without suspending.

        Called before the event loop continues, so that other tasks see a consistent state.
        """
        if self._inline_results:
            self._outcomes.inline_runs_returned(self._inline_results)
            self._inline_results.clear()
        if self._inline_errors:
            self._outcomes.inline_runs_raised(self._inline_errors)
            self._inline_errors.clear()

    async def _await_rest(self, run: Run, awaitable: IsolatedAwaitable) -> None:
        """Await the rest of a run that suspended, and record its outcome."""
        try:
            value = await (
                awaitable if run.deadline is None else self._with_timeout(awaitable, run)
            )
        except BaseException as error:
            self._handle_error(run, error)
        else:
            self._outcomes.run_returned(run, value)

    def _handle_error(self, run: Run, error: BaseException) -> None:
        """Record an error that a handler raised; raise it again if it ends the worker too."""
        outcomes = self._outcomes
        if isinstance(error, KeyboardInterrupt):
            outcomes.run_interrupted(run)
            raise error
        if isinstance(error, asyncio.CancelledError):
            if run.cancelled:
                outcomes.run_cancelled(run)
                return
            if self._is_shutting_down:
                outcomes.run_interrupted(run)
                raise error
        outcomes.run_raised(run, error)

    @property
    def _is_shutting_down(self) -> bool:
        # If a worker fails, the task group cancels the other workers but not this task.
        return self._failed or (self._task is not None and self._task.cancelling() > 0)

    async def _with_timeout(self, awaitable: IsolatedAwaitable, run: Run) -> Any:
        loop = asyncio.get_running_loop()

        def deadline() -> float:
            return loop.time() + (run.remaining_s or 0.0)

        try:
            async with asyncio.timeout_at(deadline()) as timeout:
                run.on_extend = lambda: timeout.reschedule(deadline())
                return await awaitable
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise run.timeout_error() from error
