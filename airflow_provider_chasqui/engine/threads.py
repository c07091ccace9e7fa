"""Runs plain functions: threads that take one job after another.

A thread hands its news back through one mailbox that the loop empties in bulk; an executor call
for each job costs a hundred times as much.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.context import Context
from airflow_provider_chasqui.engine.desk import Desk, Run
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.verdict import Verdict

log = logging.getLogger("chasqui")


class Cancelled(BaseException):
    """Raised inside a plain handler whose job was cancelled."""


class TimedOut(BaseException):
    """Raised inside a plain handler that ran for too long."""


class _Seat:
    """One thread and the run it is at; the lock keeps an interruption from hitting the next run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run: Run | None = None
        self.ident = 0

    def interrupt(self, run: Run, error: type[BaseException]) -> None:
        with self.lock:
            if self.run is run:
                ident = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


class Threads:
    """Threads for plain handlers, started as they are needed."""

    def __init__(self, desk: Desk, settler: Settler, verdict: Verdict):
        self._desk = desk
        self._settler = settler
        self._verdict = verdict
        self._work: queue.SimpleQueue[tuple[Entry, Handler] | None] = queue.SimpleQueue()
        self._mail: deque[Callable[[], None]] = deque()
        self._posted = False
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()

    def put(self, items: Sequence[tuple[Entry, Handler]]) -> None:
        wanted = min(len(items) - self._idle, self._desk.config.concurrency - len(self._threads))
        for _ in range(max(0, wanted)):
            thread = threading.Thread(target=self._serve, daemon=True, name="chasqui-handler")
            self._threads.append(thread)
            thread.start()
        for item in items:
            self._work.put(item)

    def close(self) -> list[Entry]:
        """Let the threads end after the job they are at; returns what none of them took."""
        rest = []
        try:
            while True:
                item = self._work.get_nowait()
                if item is not None:
                    rest.append(item[0])
        except queue.Empty:
            pass
        for _ in self._threads:
            self._work.put(None)
        return rest

    def _serve(self) -> None:
        seat = _Seat()
        seat.ident = threading.get_ident()
        while True:
            try:
                self._idle += 1
                item = self._work.get()
                self._idle -= 1
                if item is None:
                    return
                self._run_one(seat, *item)
            except (Cancelled, TimedOut):  # it came after the handler had already ended
                continue

    def _run_one(self, seat: _Seat, entry: Entry, handler: Handler) -> None:
        context = Context(entry, handler.timeout_s, self._post_progress)
        run = Run(entry, context)
        run.interrupt = lambda: seat.interrupt(run, Cancelled)
        if entry.id in self._desk.lost:
            self._post(lambda: self._drop(entry))
            return
        if entry.job.id in self._desk.cancelled:
            self._post(lambda: self._verdict.cancelled(run))
            return
        self._post(lambda: self._begin(seat, run, handler))
        with seat.lock:
            seat.run = run
        try:
            args = (entry.job, context) if handler.wants_context else (entry.job,)
            value = contextvars.copy_context().run(handler.call, *args)
            seat.run = None
        except Cancelled:
            self._post(lambda: self._verdict.cancelled(run))
        except TimedOut:
            slow = TimeoutError(f"the handler ran for more than {handler.timeout_s:g} s")
            self._post(lambda: self._verdict.raised(run, slow))
        except BaseException as error:
            failure = error
            self._post(lambda: self._verdict.raised(run, failure))
        else:
            self._post(lambda: self._verdict.returned(run, value))
        finally:
            with seat.lock:
                seat.run = None

    def _begin(self, seat: _Seat, run: Run, handler: Handler) -> None:
        self._verdict.begins(run)
        if handler.timeout_s is not None:
            self._watch(seat, run, handler.timeout_s)

    def _watch(self, seat: _Seat, run: Run, seconds: float) -> None:
        def look() -> None:
            left = run.context.seconds_left or 0
            if left > 0:
                self._loop.call_later(left, look)
            else:
                seat.interrupt(run, TimedOut)

        self._loop.call_later(seconds, look)

    def _drop(self, entry: Entry) -> None:
        self._desk.finished(entry.id)
        self._desk.settled(entry.id)

    def _post_progress(self, job_id: str, value: Any) -> None:
        self._post(lambda: self._settler.progress(job_id, value))

    def _post(self, news: Callable[[], None]) -> None:
        self._mail.append(news)
        if not self._posted:
            self._posted = True
            self._loop.call_soon_threadsafe(self._read_mail)

    def _read_mail(self) -> None:
        # Cleared first: news that comes in from here on may post once more, and none is left lying.
        self._posted = False
        while self._mail:
            self._mail.popleft()()
