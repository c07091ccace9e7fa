"""Runs plain functions: threads that take one job after another.

A thread hands its news back through one mailbox that the loop empties in bulk; an executor call
for each job costs a hundred times as much.
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
    """Raised by the engine inside a plain handler, between two of its instructions."""


class CancelInterrupt(HandlerInterrupt):
    """The handler's job was cancelled."""


class TimeoutInterrupt(HandlerInterrupt):
    """The handler ran for too long."""


class ShutdownInterrupt(HandlerInterrupt):
    """The worker stops and its patience is over."""


class ThreadSlot:
    """One thread and the run it is at.

    The lock keeps an interruption from hitting anything but the run it is meant for: none is sent
    to a run that has left, and leaving takes back one that was sent and has not struck yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._interrupt_sent = False
        self._thread_id = ctypes.c_ulong(threading.get_ident())

    def begin(self, run: Run) -> None:
        self._run = run

    def interrupt(self, run: Run, error: type[HandlerInterrupt]) -> None:
        with self._lock:
            if self._run is run:
                self._interrupt_sent = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, ctypes.py_object(error))

    def end(self) -> None:
        with self._lock:
            self._run = None
            if self._interrupt_sent:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, None)
                self._interrupt_sent = False


class ThreadExecutor:
    """Threads for plain handlers, started as they are needed."""

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
        self._outstanding += len(items)
        for _ in range(min(self._outstanding, self._state.config.concurrency) - len(self._threads)):
            thread = threading.Thread(target=self._thread_loop, daemon=True, name="chasqui-handler")
            self._threads.append(thread)
            thread.start()
        for item in items:
            self._entries.put(item)

    def take_unstarted(self) -> list[StreamEntry]:
        """Take out again what no thread has begun."""
        rest = []
        with suppress(queue.Empty):
            while (item := self._entries.get_nowait()) is not None:
                rest.append(item[0])
            self._entries.put(None)  # behind the first one there are only others
        self._outstanding -= len(rest)
        return rest

    def close(self) -> None:
        """Let the threads end after the job they are at."""
        for _ in self._threads:
            self._entries.put(None)

    def interrupt_all(self) -> None:
        """Interrupt every handler that still runs."""
        for entry_id, seat in self._slots.items():
            run = self._state.running.get(entry_id)
            if run is not None:
                seat.interrupt(run, ShutdownInterrupt)

    def _thread_loop(self) -> None:
        seat = ThreadSlot()
        while (item := self._entries.get()) is not None:
            entry, handler = item
            if entry.id in self._state.lost_claims or entry.id in self._state.cancelled_ids:
                self._call_in_loop(partial(self._discard, entry))
                continue
            run = Run(entry, handler.timeout_s)
            seat.begin(run)
            self._call_in_loop(partial(self._run_started, seat, run))
            self._call_in_loop(
                partial(self._run_finished, run, self._run_handler(seat, run, handler))
            )

    def _run_handler(self, slot: ThreadSlot, run: Run, handler: Handler) -> Callable[[], None]:
        """Run the handler; returns what follows from it, and lets nothing through."""
        args: tuple[Any, ...] = (run.entry.job,)
        value: Any = None
        failure: BaseException | None = None
        try:
            if handler.accepts_context:
                args = (*args, Context(run, self._report_progress))
            value = self._context.copy().run(handler.call, *args)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a plain handler returned a coroutine; make it an `async def`")
        except BaseException as error:
            failure = error
        # An interruption may strike until we have left.
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
        left = run.time_remaining or 0.0
        if left > 0:
            timer = self._loop.call_later(left, self._check_timeout, slot, run)
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
        if entry_id in self._state.running:  # else it was handed back already
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
            except RuntimeError:  # the loop has ended without us
                return

    def _run_callbacks(self) -> None:
        # Cleared first: news that comes in from here on may post once more, and none is left lying.
        self._callbacks_scheduled = False
        while self._callbacks:
            news = self._callbacks.popleft()
            try:
                news()
            except Exception:
                log.exception("a handler's outcome could not be noted; its job will run again")
