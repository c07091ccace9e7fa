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

# The event loop runs at most this many callbacks before it continues with other work.
_MAX_CALLBACKS_PER_TURN = 1000

_set_async_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class HandlerInterrupt(BaseException):
    """Base of the exceptions that the engine raises in the thread of a plain handler."""


class CancelInterrupt(HandlerInterrupt):
    """Raised in a handler thread when its job is cancelled."""


class TimeoutInterrupt(HandlerInterrupt):
    """Raised in a handler thread when its timeout expires."""


class ShutdownInterrupt(HandlerInterrupt):
    """Raised in a handler thread when the shutdown timeout expires."""


class _DiscardedInterrupt(BaseException):
    """Replaces an interrupt that was not delivered in time."""


class ThreadSlot:
    """A handler thread and its current run.

    A run can be interrupted from `begin` on, but the exception is raised in the thread only
    between `arm` and `disarm`, where the thread is prepared to catch it. `arm` raises an interrupt
    that arrived earlier. An interrupt that arrives after `disarm` has no effect, because the
    handler has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = False
        self._sent = False
        self._thread_id = ctypes.c_ulong(0)
        self.run: Run | None = None
        self.interrupted_by: type[HandlerInterrupt] | None = None

    def attach(self) -> None:
        """Make the calling thread the one that is interrupted."""
        self._thread_id = ctypes.c_ulong(threading.get_ident())

    def begin(self, run: Run) -> None:
        """Record the run that the thread starts."""
        with self._lock:
            self.run = run
            self.interrupted_by = None
            self._sent = False

    def interrupt(self, run: Run, error: type[HandlerInterrupt]) -> None:
        """Raise an exception in the thread if it is still at this run."""
        with self._lock:
            if self.run is run:
                self.interrupted_by = error
                if self._armed:
                    self._sent = True
                    _set_async_exception(self._thread_id, ctypes.py_object(error))

    def arm(self) -> None:
        """Allow interrupts.

        :raises HandlerInterrupt: if the run was interrupted before.
        """
        with self._lock:
            self._armed = True
            error = self.interrupted_by
        if error is not None:
            raise error

    def disarm(self) -> None:
        """Refuse interrupts and discard one that was sent and not delivered yet.

        :raises HandlerInterrupt: if one is delivered during the call; call it again then.
        """
        with self._lock:
            self._armed = False
            sent = self._sent
        if sent:
            # A thread has at most one undelivered exception, so this one replaces it. CPython can
            # also clear it (`None`), but before 3.13 that leaves the interpreter's flag for pending
            # work set, which slows down all threads and blocks a traced one.
            try:
                _set_async_exception(self._thread_id, ctypes.py_object(_DiscardedInterrupt))
                while True:
                    pass
            except _DiscardedInterrupt:
                pass


class ThreadExecutor:
    """Runs plain handlers in at most `concurrency` threads, started when they are needed."""

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, outcomes: OutcomeHandler):
        self._state = state
        self._writer = writer
        self._outcomes = outcomes
        self._entries: queue.SimpleQueue[tuple[StreamEntry, Handler] | None] = queue.SimpleQueue()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._callbacks_scheduled = False
        self._latest_progress: dict[str, bytes] = {}
        self._threads: dict[threading.Thread, ThreadSlot] = {}
        self._closed = False
        self._outstanding = 0
        self._slots: dict[str, ThreadSlot] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def submit(self, items: Sequence[tuple[StreamEntry, Handler]]) -> None:
        """Run entries with their handlers."""
        self._outstanding += len(items)
        self._start_threads()
        for item in items:
            self._entries.put(item)

    def check_threads(self) -> None:
        """Run waiting callbacks and replace threads that ended unexpectedly.

        The heartbeat calls this. Without it, a callback whose wake-up was interrupted would wait
        for the next one, and the run of a dead thread would never end.
        """
        self._run_callbacks()
        if self._callbacks or self._closed:
            return
        for thread, slot in list(self._threads.items()):
            if not thread.is_alive():
                log.error("thread executor: a handler thread ended unexpectedly; replaced")
                del self._threads[thread]
                if slot.run is not None:
                    self._run_finished(slot.run, self._dead_thread_outcome(slot))
        self._start_threads()

    def _start_threads(self) -> None:
        missing = min(self._outstanding, self._state.config.concurrency) - len(self._threads)
        for _ in range(missing):
            slot = ThreadSlot()
            thread = threading.Thread(
                target=self._thread_loop, args=(slot,), daemon=True, name="chasqui-handler"
            )
            self._threads[thread] = slot
            thread.start()

    def take_unstarted(self) -> list[tuple[StreamEntry, Handler]]:
        """Remove and return the entries that no thread has started, with their handlers."""
        unstarted = []
        with suppress(queue.Empty):
            while (item := self._entries.get_nowait()) is not None:
                unstarted.append(item)
            # That was a close marker for a thread: put it back. Only markers follow it.
            self._entries.put(None)
        self._outstanding -= len(unstarted)
        return unstarted

    def close(self) -> None:
        """Let each thread end after its current job."""
        self._closed = True
        for _ in self._threads:
            self._entries.put(None)

    def interrupt_all(self) -> None:
        """Interrupt every running handler."""
        for entry_id, slot in self._slots.items():
            run = self._state.running.get(entry_id)
            if run is not None:
                slot.interrupt(run, ShutdownInterrupt)

    def _thread_loop(self, slot: ThreadSlot) -> None:
        slot.attach()
        while (item := self._entries.get()) is not None:
            entry, handler = item
            if entry.id in self._state.lost_claims or entry.id in self._state.cancelled_ids:
                self._call_in_loop(partial(self._discard, entry))
                continue
            run = Run(entry, handler.timeout_s)
            slot.begin(run)
            self._call_in_loop(partial(self._run_started, slot, run))
            try:
                outcome = self._run_handler(slot, run, handler)
            except HandlerInterrupt as interrupt:
                # It arrived after the handler had ended, or while an earlier one was caught.
                slot.disarm()
                outcome = self._failure_outcome(run, interrupt)
            self._call_in_loop(partial(self._run_finished, run, outcome))

    def _run_handler(self, slot: ThreadSlot, run: Run, handler: Handler) -> Callable[[], None]:
        """Run the handler; return the callback that records its outcome.

        :raises HandlerInterrupt: if an interrupt arrives outside of the handler; call
            `ThreadSlot.disarm` then.
        """
        args: tuple[Any, ...] = (run.entry.job,)
        if handler.accepts_context:
            args = (*args, Context(run, self._report_progress))
        context = self._context.copy()
        failure: BaseException | None = None
        value: Any = None
        try:
            slot.arm()
            value = context.run(handler.call, *args)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a plain handler returned a coroutine; define it with `async def`")
        except BaseException as error:
            failure = error
        slot.disarm()
        if failure is not None:
            return self._failure_outcome(run, failure)
        return partial(self._outcomes.run_returned, run, value)

    def _failure_outcome(self, run: Run, failure: BaseException) -> Callable[[], None]:
        if isinstance(failure, CancelInterrupt):
            return partial(self._outcomes.run_cancelled, run)
        if isinstance(failure, ShutdownInterrupt):
            return partial(self._outcomes.run_interrupted, run)
        if isinstance(failure, TimeoutInterrupt):
            failure = run.timeout_error()
        return partial(self._outcomes.run_raised, run, failure)

    def _dead_thread_outcome(self, slot: ThreadSlot) -> Callable[[], None]:
        assert slot.run is not None
        if slot.interrupted_by is not None:
            return self._failure_outcome(slot.run, slot.interrupted_by())
        return self._failure_outcome(slot.run, RuntimeError("the thread of the handler ended"))

    def _report_progress(self, job_id: str, value: bytes) -> None:
        self._latest_progress[job_id] = value
        self._wake_loop()

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
        if self._slots.pop(entry_id, None) is None:
            return  # recorded already
        self._outstanding -= 1
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
        self._wake_loop()

    def _wake_loop(self) -> None:
        if not self._callbacks_scheduled:
            self._callbacks_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_callbacks)
            except RuntimeError:  # the event loop is closed
                return
            except HandlerInterrupt:  # the handler was interrupted while it reported progress
                self._callbacks_scheduled = False
                raise

    def _run_callbacks(self) -> None:
        # Cleared first, so that a callback that is added from now on schedules another call.
        self._callbacks_scheduled = False
        for _ in range(len(self._latest_progress)):
            self._writer.report_progress(*self._latest_progress.popitem())
        for _ in range(min(len(self._callbacks), _MAX_CALLBACKS_PER_TURN)):
            callback = self._callbacks.popleft()
            try:
                callback()
            except Exception:
                log.exception(
                    "thread executor: could not record the outcome of a run; the job will run again"
                )
        if self._callbacks and not self._callbacks_scheduled:
            self._callbacks_scheduled = True
            self._loop.call_soon(self._run_callbacks)
