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

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.health import log
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.verdict import Verdict


class Interruption(BaseException):
    """Raised by the engine inside a plain handler, between two of its instructions."""


class Cancelled(Interruption):
    """The handler's job was cancelled."""


class TimedOut(Interruption):
    """The handler ran for too long."""


class CutOff(Interruption):
    """The worker stops and its patience is over."""


class Seat:
    """One thread and the run it is at.

    The lock keeps an interruption from hitting anything but the run it is meant for: none is sent
    to a run that has left, and leaving takes back one that was sent and has not struck yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._sent = False
        self._ident = ctypes.c_ulong(threading.get_ident())

    def enter(self, run: Run) -> None:
        self._run = run

    def interrupt(self, run: Run, error: type[Interruption]) -> None:
        with self._lock:
            if self._run is run:
                self._sent = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._ident, ctypes.py_object(error))

    def leave(self) -> None:
        with self._lock:
            self._run = None
            if self._sent:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._ident, None)
                self._sent = False


class Threads:
    """Threads for plain handlers, started as they are needed."""

    def __init__(self, desk: Desk, settler: Settler, verdict: Verdict):
        self._desk = desk
        self._settler = settler
        self._verdict = verdict
        self._work: queue.SimpleQueue[tuple[Entry, Handler] | None] = queue.SimpleQueue()
        self._mail: deque[Callable[[], None]] = deque()
        self._posted = False
        self._threads: list[threading.Thread] = []
        self._given = 0
        self._seats: dict[str, Seat] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def put(self, items: Sequence[tuple[Entry, Handler]]) -> None:
        self._given += len(items)
        for _ in range(min(self._given, self._desk.config.concurrency) - len(self._threads)):
            thread = threading.Thread(target=self._serve, daemon=True, name="chasqui-handler")
            self._threads.append(thread)
            thread.start()
        for item in items:
            self._work.put(item)

    def drain(self) -> list[Entry]:
        """Take out again what no thread has begun."""
        rest = []
        with suppress(queue.Empty):
            while (item := self._work.get_nowait()) is not None:
                rest.append(item[0])
            self._work.put(None)  # behind the first one there are only others
        self._given -= len(rest)
        return rest

    def close(self) -> None:
        """Let the threads end after the job they are at."""
        for _ in self._threads:
            self._work.put(None)

    def cut_off(self) -> None:
        """Interrupt every handler that still runs."""
        for entry_id, seat in self._seats.items():
            run = self._desk.running.get(entry_id)
            if run is not None:
                seat.interrupt(run, CutOff)

    def _serve(self) -> None:
        seat = Seat()
        while (item := self._work.get()) is not None:
            entry, handler = item
            if entry.id in self._desk.lost or entry.id in self._desk.cancelled:
                self._post(partial(self._drop, entry))
                continue
            run = Run(entry, handler.timeout_s)
            seat.enter(run)
            self._post(partial(self._begin, seat, run))
            self._post(partial(self._end, run, self._run_one(seat, run, handler)))

    def _run_one(self, seat: Seat, run: Run, handler: Handler) -> Callable[[], None]:
        """Run the handler; returns what follows from it, and lets nothing through."""
        args: tuple[Any, ...] = (run.entry.job,)
        value: Any = None
        failure: BaseException | None = None
        try:
            if handler.wants_context:
                args = (*args, Context(run, self._say))
            value = self._context.copy().run(handler.call, *args)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a plain handler returned a coroutine; make it an `async def`")
        except BaseException as error:
            failure = error
        # An interruption may strike until we have left.
        while True:
            try:
                seat.leave()
                break
            except Interruption as error:
                failure = error
        if failure is None:
            return partial(self._verdict.returned, run, value)
        if isinstance(failure, Cancelled):
            return partial(self._verdict.cancelled, run)
        if isinstance(failure, CutOff):
            return partial(self._verdict.interrupted, run)
        if isinstance(failure, TimedOut):
            failure = run.too_slow()
        return partial(self._verdict.raised, run, failure)

    def _say(self, job_id: str, value: bytes) -> None:
        self._post(partial(self._settler.progress, job_id, value))

    def _begin(self, seat: Seat, run: Run) -> None:
        entry_id = run.entry.id
        run.interrupt = partial(seat.interrupt, run, Cancelled)
        self._seats[entry_id] = seat
        self._verdict.begins(run)
        if run.deadline is not None:
            self._watch(seat, run)

    def _watch(self, seat: Seat, run: Run) -> None:
        left = run.seconds_left or 0.0
        if left > 0:
            timer = self._loop.call_later(left, self._watch, seat, run)
            self._timers[run.entry.id] = timer
        else:
            seat.interrupt(run, TimedOut)

    def _end(self, run: Run, follow: Callable[[], None]) -> None:
        entry_id = run.entry.id
        self._given -= 1
        self._seats.pop(entry_id, None)
        timer = self._timers.pop(entry_id, None)
        if timer is not None:
            timer.cancel()
        if entry_id in self._desk.running:  # else it was handed back already
            follow()

    def _drop(self, entry: Entry) -> None:
        self._given -= 1
        self._verdict.dropped(entry)

    def _post(self, news: Callable[[], None]) -> None:
        self._mail.append(news)
        if not self._posted:
            self._posted = True
            try:
                self._loop.call_soon_threadsafe(self._read_mail)
            except RuntimeError:  # the loop has ended without us
                return

    def _read_mail(self) -> None:
        # Cleared first: news that comes in from here on may post once more, and none is left lying.
        self._posted = False
        while self._mail:
            news = self._mail.popleft()
            try:
                news()
            except Exception:
                log.exception("a handler's outcome could not be noted; its job will run again")
