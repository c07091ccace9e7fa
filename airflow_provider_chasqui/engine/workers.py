"""Runs coroutine handlers: long-lived workers that await one job after another."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Coroutine, Generator
from typing import Any

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.channel import Channel
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.verdict import LATER, QuickRun, Verdict

# A worker whose handlers never wait lets the others have the loop this often.
_SLICE_S = 0.002


class Isolated:
    """Awaits a coroutine that has begun, in a context of its own, without the cost of a task.

    A worker runs thousands of jobs; what one of them puts into a context variable must not be seen
    by the next.
    """

    __slots__ = ("_context", "_coroutine", "_waits_for")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, waits_for: Any
    ):
        self._coroutine = coroutine
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, context, waits_for = self._coroutine, self._context, self._waits_for
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


class Workers:
    """As many coroutines as the concurrency allows, each running one job at a time."""

    def __init__(self, desk: Desk, settler: Settler, verdict: Verdict):
        self._desk = desk
        self._settler = settler
        self._verdict = verdict
        self._task: asyncio.Task[Any] | None = None
        self._yield_at = 0.0
        # What ended without ever waiting and is not judged yet.
        self._returned: list[QuickRun] = []
        self._raised: list[QuickRun] = []
        self.channel: Channel[tuple[Entry, Handler]] = Channel()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for number in range(self._desk.config.concurrency):
                group.create_task(self._work(), name=f"chasqui-worker-{number}")

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        desk, verdict, channel, clock = self._desk, self._verdict, self.channel, time.perf_counter
        items, new_context = channel.items, contextvars.copy_context
        returned, raised, lost, cancelled = self._returned, self._raised, desk.lost, desk.cancelled
        while items or await self._filled():
            entry, handler = items.popleft()
            if (lost or cancelled) and (entry.id in lost or entry.id in cancelled):
                verdict.dropped(entry)
                continue
            run, context, started = None, new_context(), clock()
            try:
                if handler.wants_context:
                    run = Run(entry, handler.timeout_s, started)
                    coroutine = handler.call(entry.job, Context(run, self._settler.progress))
                else:
                    coroutine = handler.call(entry.job)
                # Until its first wait it runs right here: a handler that never waits costs no
                # awaitable, no place among the running, and half the calls.
                waits_for = context.run(coroutine.send, None)
            except StopIteration as done:
                now = clock()
                if done.value is None or not isinstance(done.value, LATER):
                    returned.append((entry, done.value, started, now))
                else:
                    run = run or Run(entry, handler.timeout_s, started)
                    verdict.begins(run)
                    verdict.returned(run, done.value)
            except Exception as error:
                now = clock()
                raised.append((entry, error, started, now))
            except BaseException as error:
                self._judge_quick()
                run = run or Run(entry, handler.timeout_s, started)
                verdict.begins(run)
                self._failed(run, error)
                now = clock()
            else:
                self._judge_quick()
                run = run or Run(entry, handler.timeout_s, started)
                run.interrupt = task.cancel
                verdict.begins(run)
                channel.call_next()
                await self._run_on(run, Isolated(coroutine, context, waits_for))
                now = clock()
            if task.cancelling() and not self._shut_down:
                # Neither our interruption nor one that the handler did to itself is for the next.
                while task.cancelling():
                    task.uncancel()
            if now > self._yield_at:
                self._judge_quick()
                await asyncio.sleep(0)
                self._yield_at = clock() + _SLICE_S

    async def _filled(self) -> bool:
        self._judge_quick()
        return await self.channel.filled()

    def _judge_quick(self) -> None:
        """Before the loop goes on: nobody else may find an ended run that is not judged."""
        if self._returned:
            self._verdict.returned_at_once(self._returned)
            self._returned.clear()
        if self._raised:
            self._verdict.raised_at_once(self._raised)
            self._raised.clear()

    async def _run_on(self, run: Run, rest: Isolated) -> None:
        """Await the rest of a run that has begun."""
        try:
            value = await (rest if run.deadline is None else self._in_time(rest, run))
        except BaseException as error:
            self._failed(run, error)
        else:
            self._verdict.returned(run, value)

    def _failed(self, run: Run, error: BaseException) -> None:
        """Judge what came out of a handler; raises again what is not for it alone."""
        verdict = self._verdict
        if isinstance(error, KeyboardInterrupt):
            verdict.interrupted(run)
            raise error
        if isinstance(error, asyncio.CancelledError):
            if run.cancelled:
                verdict.cancelled(run)
                return
            if self._shut_down:
                verdict.interrupted(run)
                raise error
        verdict.raised(run, error)

    @property
    def _shut_down(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    async def _in_time(self, rest: Isolated, run: Run) -> Any:
        loop = asyncio.get_running_loop()

        def moment() -> float:
            return loop.time() + (run.seconds_left or 0.0)

        try:
            async with asyncio.timeout_at(moment()) as limit:
                run.on_extend = lambda: limit.reschedule(moment())
                return await rest
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise run.too_slow() from error
