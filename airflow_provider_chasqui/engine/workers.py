"""Runs coroutine handlers: long-lived workers that await one job after another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from typing import Any

from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.channel import Channel
from airflow_provider_chasqui.engine.context import Context
from airflow_provider_chasqui.engine.desk import Desk, Run
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.engine.verdict import Verdict


class Isolated:
    """Awaits a coroutine in a context of its own, without the cost of a task.

    A worker runs thousands of jobs; what one of them puts into a context variable must not be seen
    by the next.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, context = self._coroutine, contextvars.copy_context()
        try:
            waits_for = context.run(coroutine.send, None)
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
        self.channel: Channel[tuple[Entry, Handler]] = Channel()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._desk.config.concurrency):
                group.create_task(self._work(), name=f"chasqui-worker-{number}")

    async def _work(self) -> None:
        while (item := await self.channel.take()) is not None:
            await self._run_one(*item)

    async def _run_one(self, entry: Entry, handler: Handler) -> None:
        desk, verdict = self._desk, self._verdict
        if entry.id in desk.lost:  # taken over while it waited here: it runs elsewhere
            desk.finished(entry.id)
            desk.settled(entry.id)
            return
        context = Context(entry, handler.timeout_s, self._settler.progress)
        run = Run(entry, context)
        if entry.job.id in desk.cancelled:
            verdict.cancelled(run)
            return
        task = asyncio.current_task()
        assert task is not None
        run.interrupt = task.cancel
        verdict.begins(run)
        try:
            call = handler.call
            coroutine = call(entry.job, context) if handler.wants_context else call(entry.job)
            if handler.timeout_s is None:
                value = await Isolated(coroutine)
            else:
                value = await self._in_time(coroutine, context, handler.timeout_s)
        except asyncio.CancelledError as error:
            if run.asked_to_stop:
                task.uncancel()
                verdict.cancelled(run)
            elif task.cancelling():
                verdict.interrupted(run)
                raise
            else:
                verdict.raised(run, error)
        except Exception as error:
            verdict.raised(run, error)
        else:
            verdict.returned(run, value)

    async def _in_time(self, coroutine: Any, context: Context, timeout_s: float) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + timeout_s) as limit:
                context._reschedule = limit.reschedule
                return await Isolated(coroutine)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"the handler ran for more than {timeout_s:g} s") from error
