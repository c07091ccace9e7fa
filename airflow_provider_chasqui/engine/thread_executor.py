"""The executor of plain handlers: threads that run one job after another.

A thread reports to the event loop through one list of callbacks, which the loop runs in bulk. This
is cheaper than one executor call per job; see docs/performance.md.

A handler that must end (timeout, cancellation, shutdown) is interrupted by an exception that
CPython raises in its thread between two bytecode instructions (`PyThreadState_SetAsyncExc`), as
dramatiq does in its TimeLimit middleware. A thread inside a long C call ends only after the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler


class HandlerInterrupt(BaseException):
    """Base of the exceptions that the engine raises in the thread of a plain handler."""


class CancelInterrupt(HandlerInterrupt):
    """Raised in a handler thread when its job is cancelled."""


class TimeoutInterrupt(HandlerInterrupt):
    """Raised in a handler thread when its timeout expires."""


class ShutdownInterrupt(HandlerInterrupt):
    """Raised in a handler thread when the shutdown timeout expires."""


class ThreadSlot:
    """A thread and its current run.

    The lock guarantees that an interrupt reaches only the run it is meant for. A run that has
    ended gets none, and `end` clears an interrupt that was set and not delivered yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._interrupt_sent = False
        self._thread_id = ctypes.c_ulong(threading.get_ident())

    def begin(self, run: Run) -> None:
        """Record the run that the thread starts."""
        self._run = run

    def interrupt(self, run: Run, error: type[HandlerInterrupt]) -> None:
        """Raise an exception in the thread if it is still at this run."""
        with self._lock:
            if self._run is run:
                self._interrupt_sent = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, ctypes.py_object(error))

    def end(self) -> None:
        """Record the end of the run; from now on it cannot be interrupted."""
        with self._lock:
            self._run = None
            if self._interrupt_sent:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, None)
                self._interrupt_sent = False


class ThreadExecutor:
    """Runs plain handlers in at most `concurrency` threads, started when they are needed."""

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, outcomes: OutcomeHandler):
        self._state = state
        self._writer = writer
        self._outcomes = outcomes
        self._entries: queue.SimpleQueue[tuple[StreamEntry, Handler] | None] = queue.SimpleQueue()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._callbacks_scheduled = False
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._slots: dict[str, ThreadSlot] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def submit(self, items: Sequence[tuple[StreamEntry, Handler]]) -> None:
        """Run entries with their handlers."""
        self._outstanding += len(items)
        for _ in range(min(self._outstanding, self._state.config.concurrency) - len(self._threads)):
            thread = threading.Thread(target=self._thread_loop, daemon=True, name="chasqui-handler")
            self._threads.append(thread)
            thread.start()
        for item in items:
            self._entries.put(item)

    def take_unstarted(self) -> list[StreamEntry]:
        """Remove and return the entries that no thread has started."""
        unstarted = []
        with suppress(queue.Empty):
            while (item := self._entries.get_nowait()) is not None:
                unstarted.append(item[0])
            # That was a close marker for a thread: put it back. Only markers follow it.
            self._entries.put(None)
        self._outstanding -= len(unstarted)
        return unstarted

    def close(self) -> None:
        """Let each thread end after its current job."""
        for _ in self._threads:
            self._entries.put(None)

    def interrupt_all(self) -> None:
        """Interrupt every running handler."""
        for entry_id, slot in self._slots.items():
            run = self._state.running.get(entry_id)
            if run is not None:
                slot.interrupt(run, ShutdownInterrupt)

    def _thread_loop(self) -> None:
        slot = ThreadSlot()
        while (item := self._entries.get()) is not None:
            entry, handler = item
            if entry.id in self._state.lost_claims or entry.id in self._state.cancelled_ids:
                self._call_in_loop(partial(self._discard, entry))
                continue
            run = Run(entry, handler.timeout_s)
            slot.begin(run)
            self._call_in_loop(partial(self._run_started, slot, run))
            self._call_in_loop(
                partial(self._run_finished, run, self._run_handler(slot, run, handler))
            )

    def _run_handler(self, slot: ThreadSlot, run: Run, handler: Handler) -> Callable[[], None]:
        """Run the handler; return the callback that records its outcome. Never raises."""
        args: tuple[Any, ...] = (run.entry.job,)
        value: Any = None
        failure: BaseException | None = None
        try:
            if handler.accepts_context:
                args = (*args, Context(run, self._report_progress))
            value = self._context.copy().run(handler.call, *args)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a plain handler returned a coroutine; define it with `async def`")
        except BaseException as error:
            failure = error
        # An interrupt may arrive until `end` has returned.
        while True:
            try:
                slot.end()
                break
            except HandlerInterrupt as error:
                failure = error
        if failure is None:
            return partial(self._outcomes.run_returned, run, value)
        if isinstance(failure, CancelInterrupt):
            return partial(self._outcomes.run_cancelled, run)
        if isinstance(failure, ShutdownInterrupt):
            return partial(self._outcomes.run_interrupted, run)
        if isinstance(failure, TimeoutInterrupt):
            failure = run.timeout_error()
        return partial(self._outcomes.run_raised, run, failure)

    def _report_progress(self, job_id: str, value: bytes) -> None:
        self._call_in_loop(partial(self._writer.report_progress, job_id, value))

    def _run_started(self, slot: ThreadSlot, run: Run) -> None:
        entry_id = run.entry.id
        run.interrupt = partial(slot.interrupt, run, CancelInterrupt)
        self._slots[entry_id] = slot
        self._outcomes.run_started(run)
        if run.deadline is not None:
            self._check_timeout(slot, run)

    def _check_timeout(self, slot: ThreadSlot, run: Run) -> None:
        remaining_s = run.remaining_s or 0.0
        if remaining_s > 0:
            timer = self._loop.call_later(remaining_s, self._check_timeout, slot, run)
            self._timers[run.entry.id] = timer
        else:
            slot.interrupt(run, TimeoutInterrupt)

    def _run_finished(self, run: Run, report_outcome: Callable[[], None]) -> None:
        entry_id = run.entry.id
        self._outstanding -= 1
        self._slots.pop(entry_id, None)
        timer = self._timers.pop(entry_id, None)
        if timer is not None:
            timer.cancel()
        if entry_id in self._state.running:  # otherwise the shutdown has requeued it
            report_outcome()

    def _discard(self, entry: StreamEntry) -> None:
        self._outstanding -= 1
        self._outcomes.entry_discarded(entry)

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if not self._callbacks_scheduled:
            self._callbacks_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_callbacks)
            except RuntimeError:  # the event loop is closed
                return

    def _run_callbacks(self) -> None:
        # Cleared first, so that a callback that is added from now on schedules another call.
        self._callbacks_scheduled = False
        while self._callbacks:
            callback = self._callbacks.popleft()
            try:
                callback()
            except Exception:
                log.exception(
                    "thread executor: could not record the outcome of a run; the job will run again"
                )
