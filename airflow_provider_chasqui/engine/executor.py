"""Runs coroutine handlers: long-lived workers that await one job after another.

Entries on their way from the reader to the workers.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import RESCHEDULE_TYPES, InlineRun, OutcomeHandler

# A worker whose handlers never wait lets the others have the loop this often.
_YIELD_INTERVAL_S = 0.002


class IsolatedAwaitable:
    """Awaits a coroutine that has begun, in a context of its own, without the cost of a task.

    A worker runs thousands of jobs; what one of them puts into a context variable must not be seen
    by the next.
    """

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, awaited: Any
    ):
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, context, waits_for = self._coroutine, self._context, self._awaited
        try:
            while True:
                try:
                    value = yield waits_for
                except GeneratorExit:
                    context.run(coroutine.close)
                    raise
                except BaseException as error:
                    waits_for = context.run(coroutine.throw, error)
                else:
                    waits_for = context.run(coroutine.send, value)
        except StopIteration as done:
            return done.value


class AsyncExecutor:
    """As many coroutines as the concurrency allows, each running one job at a time."""

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, outcomes: OutcomeHandler):
        self._state = state
        self._writer = writer
        self._outcomes = outcomes
        self._task: asyncio.Task[Any] | None = None
        self._yield_at = 0.0
        # What ended without ever waiting and is not judged yet.
        self._inline_results: list[InlineRun] = []
        self._inline_errors: list[InlineRun] = []
        self.buffer: EntryBuffer[tuple[StreamEntry, Handler]] = EntryBuffer()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for number in range(self._state.config.concurrency):
                group.create_task(self._worker_loop(), name=f"chasqui-worker-{number}")

    async def _worker_loop(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        desk, verdict, channel, clock = self._state, self._outcomes, self.buffer, time.perf_counter
        items, new_context = channel.items, contextvars.copy_context
        returned, raised, lost, cancelled = (
            self._inline_results,
            self._inline_errors,
            desk.lost_claims,
            desk.cancelled_ids,
        )
        while items or await self._wait_for_entry():
            entry, handler = items.popleft()
            if (lost or cancelled) and (entry.id in lost or entry.id in cancelled):
                verdict.entry_discarded(entry)
                continue
            run, context, started = None, new_context(), clock()
            try:
                if handler.accepts_context:
                    run = Run(entry, handler.timeout_s, started)
                    coroutine = handler.call(entry.job, Context(run, self._writer.report_progress))
                else:
                    coroutine = handler.call(entry.job)
                # Until its first wait it runs right here: a handler that never waits costs no
                # awaitable, no place among the running, and half the calls.
                waits_for = context.run(coroutine.send, None)
            except StopIteration as done:
                now = clock()
                if done.value is None or not isinstance(done.value, RESCHEDULE_TYPES):
                    returned.append((entry, done.value, started, now))
                else:
                    run = run or Run(entry, handler.timeout_s, started)
                    verdict.run_started(run)
                    verdict.run_returned(run, done.value)
            except Exception as error:
                now = clock()
                raised.append((entry, error, started, now))
            except BaseException as error:
                self._flush_inline_runs()
                run = run or Run(entry, handler.timeout_s, started)
                verdict.run_started(run)
                self._handle_error(run, error)
                now = clock()
            else:
                self._flush_inline_runs()
                run = run or Run(entry, handler.timeout_s, started)
                run.interrupt = task.cancel
                verdict.run_started(run)
                channel.wake_one()
                await self._await_rest(run, IsolatedAwaitable(coroutine, context, waits_for))
                now = clock()
            if task.cancelling() and not self._is_shutting_down:
                # Neither our interruption nor one that the handler did to itself is for the next.
                while task.cancelling():
                    task.uncancel()
            if now > self._yield_at:
                self._flush_inline_runs()
                await asyncio.sleep(0)
                self._yield_at = clock() + _YIELD_INTERVAL_S

    async def _wait_for_entry(self) -> bool:
        self._flush_inline_runs()
        return await self.buffer.wait_nonempty()

    def _flush_inline_runs(self) -> None:
        """Before the loop goes on: nobody else may find an ended run that is not judged."""
        if self._inline_results:
            self._outcomes.inline_runs_returned(self._inline_results)
            self._inline_results.clear()
        if self._inline_errors:
            self._outcomes.inline_runs_raised(self._inline_errors)
            self._inline_errors.clear()

    async def _await_rest(self, run: Run, awaitable: IsolatedAwaitable) -> None:
        """Await the rest of a run that has begun."""
        try:
            value = await (
                awaitable if run.deadline is None else self._with_timeout(awaitable, run)
            )
        except BaseException as error:
            self._handle_error(run, error)
        else:
            self._outcomes.run_returned(run, value)

    def _handle_error(self, run: Run, error: BaseException) -> None:
        """Judge what came out of a handler; raises again what is not for it alone."""
        verdict = self._outcomes
        if isinstance(error, KeyboardInterrupt):
            verdict.run_interrupted(run)
            raise error
        if isinstance(error, asyncio.CancelledError):
            if run.cancelled:
                verdict.run_cancelled(run)
                return
            if self._is_shutting_down:
                verdict.run_interrupted(run)
                raise error
        verdict.run_raised(run, error)

    @property
    def _is_shutting_down(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    async def _with_timeout(self, awaitable: IsolatedAwaitable, run: Run) -> Any:
        loop = asyncio.get_running_loop()

        def moment() -> float:
            return loop.time() + (run.time_remaining or 0.0)

        try:
            async with asyncio.timeout_at(moment()) as limit:
                run.on_extend = lambda: limit.reschedule(moment())
                return await awaitable
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise run.timeout_error() from error


T = TypeVar("T")


class EntryBuffer(Generic[T]):
    """A buffer whose items workers take without awaiting while it holds some.

    What is put wakes one worker; a worker that has to wait with more in the buffer calls the next
    (`call_next`). So handlers that never wait are run by one worker in a row, without a wake-up
    each. asyncio.Queue costs ten times as much per item, and capacity is counted elsewhere.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self.items)

    def put(self, items: Sequence[T]) -> None:
        self.items.extend(items)
        self._wake(1)

    def wake_one(self) -> None:
        """Let another worker go on, if there is something to do."""
        if self.items:
            self._wake(1)

    async def wait_nonempty(self) -> bool:
        """Wait until `items` holds something; False once the channel is closed."""
        while not self.items:
            if self._closed:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return True

    def take_all(self) -> list[T]:
        """Take everything out again."""
        rest = list(self.items)
        self.items.clear()
        return rest

    def close(self) -> None:
        """Let no one wait any more."""
        self._closed = True
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
