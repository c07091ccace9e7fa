"""Runs coroutine handlers: long-lived workers that await one job after another."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.channel import Channel
from airflow_provider_chasqui.engine.context import Context, Run
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.verdict import Verdict

# A worker whose handlers never wait lets the others have the loop this often.
_SLICE_S = 0.01


class Isolated:
    """Awaits a coroutine in a context of its own, without the cost of a task.

    A worker runs thousands of jobs; what one of them puts into a context variable must not be seen
    by the next. `when_waiting` is called once, if the coroutine does not end in one go.
    """

    __slots__ = ("_coroutine", "_when_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], when_waiting: Callable[[], None]):
        self._coroutine = coroutine
        self._when_waiting = when_waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, context = self._coroutine, contextvars.copy_context()
        try:
            waits_for = context.run(coroutine.send, None)
            self._when_waiting()
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
        self.channel: Channel[tuple[Entry, Handler]] = Channel()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for number in range(self._desk.config.concurrency):
                group.create_task(self._work(), name=f"chasqui-worker-{number}")

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        desk, clock = self._desk, time.perf_counter
        while (item := await self.channel.take()) is not None:
            entry, handler = item
            if entry.id in desk.lost or entry.id in desk.cancelled:
                self._verdict.dropped(entry)
                continue
            run = Run(entry, handler.timeout_s)
            run.interrupt = task.cancel
            await self._run_one(task, run, handler)
            if clock() > self._yield_at:
                await asyncio.sleep(0)
                self._yield_at = clock() + _SLICE_S

    async def _run_one(self, task: asyncio.Task[Any], run: Run, handler: Handler) -> None:
        verdict, job = self._verdict, run.entry.job
        verdict.begins(run)
        try:
            if handler.wants_context:
                coroutine = handler.call(job, Context(run, self._settler.progress))
            else:
                coroutine = handler.call(job)
            if run.deadline is None:
                value = await Isolated(coroutine, self.channel.call_next)
            else:
                value = await self._in_time(coroutine, run)
        except asyncio.CancelledError as error:
            if run.cancelled:
                verdict.cancelled(run)
            elif self._shut_down:
                verdict.interrupted(run)
                raise
            else:
                verdict.raised(run, error)
        except KeyboardInterrupt:
            verdict.interrupted(run)
            raise
        except BaseException as error:
            verdict.raised(run, error)
        else:
            verdict.returned(run, value)
        if not self._shut_down:
            # Neither our interruption nor one that the handler did to itself is for the next run.
            while task.cancelling():
                task.uncancel()

    @property
    def _shut_down(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    async def _in_time(self, coroutine: Coroutine[Any, Any, Any], run: Run) -> Any:
        loop = asyncio.get_running_loop()

        def moment() -> float:
            return loop.time() + (run.seconds_left or 0.0)

        try:
            async with asyncio.timeout_at(moment()) as limit:
                run.on_extend = lambda: limit.reschedule(moment())
                return await Isolated(coroutine, self.channel.call_next)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise run.too_slow() from error
