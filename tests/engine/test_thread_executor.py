"""Tests of the threads of plain handlers: interrupts at any point, dead threads, progress."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine import thread_executor
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.engine.thread_executor import ThreadSlot, TimeoutInterrupt
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, working
from tests.support.waiting import wait_until_async

ONE_ATTEMPT = RetryPolicy(1)


async def test_timeouts_at_the_start_of_runs_lose_no_job_and_no_thread(queue: AsyncQueue) -> None:
    """The timeout expires while the thread still reports the start of the run."""
    handlers = Handlers()

    @handlers.on("quick", timeout=timedelta(milliseconds=1))
    def quick(job) -> None:
        end = time.perf_counter() + 0.0015
        while time.perf_counter() < end:
            pass

    done = threading.Event()

    @handlers.on("last")
    def last(job) -> None:
        done.set()

    await queue.add_many(
        [{"payload": n, "job_name": "quick", "retry": ONE_ATTEMPT} for n in range(1500)]
    )
    async with working(queue, handlers, concurrency=4) as consumer:
        await wait_until_async(lambda: empty(queue), 30)
        await queue.add(1, job_name="last")
        await wait_until_async(done.is_set)
        await wait_until_async(lambda: empty(queue))
    dead = await queue.dead_letters(limit=2000)
    assert consumer.metrics.completed["quick"] + len(dead) == 1500
    assert all(dead_letter.error.startswith("TimeoutError") for dead_letter in dead)


class InterruptAtInstruction:
    """Interrupts the n-th run of plain handlers at its n-th bytecode instruction.

    Only instructions of the thread executor count. Each run gets `count` interrupts, at successive
    instructions. The exception is raised exactly there, because CPython delivers it within the
    trace function.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._slot: ThreadSlot | None = None
        self._run: Run | None = None
        self.runs = 0
        self.sent = 0
        self._instruction = 0
        self._sent_to_run = 0

    def begin(self, slot: ThreadSlot, run: Run) -> None:
        self.runs += 1
        self._instruction = self._sent_to_run = 0
        self._slot, self._run = slot, run
        sys.settrace(self.trace)
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename == thread_executor.__file__:
            frame.f_trace, frame.f_trace_opcodes = self.trace, True
            frame = frame.f_back

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != thread_executor.__file__:
            return None
        frame.f_trace_opcodes = True
        slot, run = self._slot, self._run
        # The event loop could not send an interrupt while the thread holds the lock.
        if event == "opcode" and slot is not None and not slot._lock.locked():
            self._instruction += 1
            if self._instruction >= self.runs and self._sent_to_run < self._count:
                self._sent_to_run += 1
                self.sent += 1
                slot.interrupt(run, TimeoutInterrupt)
        return self.trace


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_an_interrupt_at_any_instruction_loses_no_run(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    interrupts = InterruptAtInstruction(count)
    original_begin = ThreadSlot.begin

    def begin(slot: ThreadSlot, run: Run) -> None:
        original_begin(slot, run)
        interrupts.begin(slot, run)

    monkeypatch.setattr(ThreadSlot, "begin", begin)
    jobs = 400
    await queue.add_many([{"payload": n, "retry": ONE_ATTEMPT} for n in range(jobs)])

    def handle(job, context) -> None:
        context.progress(job.payload)

    async with working(queue, handle, concurrency=1) as consumer:
        # After a thread died, the heartbeat starts another one within a second.
        await wait_until_async(lambda: empty(queue), 60)
        finished = consumer.metrics.completed[""] + consumer.metrics.failed[""]
    assert finished == jobs == interrupts.runs
    assert interrupts.sent > 100
    assert consumer.running_jobs == 0


async def test_plain_handlers_that_report_progress_without_pause_do_not_block_the_event_loop(
    queue: AsyncQueue,
) -> None:
    go_on = threading.Event()

    def floods(job, context) -> None:
        number = 0
        while not go_on.is_set():
            context.progress(number := number + 1)

    await queue.add_many([{"payload": n, "job_id": f"job-{n}"} for n in range(4)])
    try:
        async with working(queue, floods, concurrency=4) as consumer:
            await wait_until_async(lambda: consumer.running_jobs == 4)
            longest, end = 0.0, time.monotonic() + 3
            while time.monotonic() < end:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)
            assert await queue.progress("job-2") > 1
            go_on.set()
            await wait_until_async(lambda: empty(queue))
    finally:
        go_on.set()
    assert longest < 2


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_only_the_last_progress_of_a_job_is_kept_until_it_is_written(
    queue: AsyncQueue, kind: str
) -> None:
    written = threading.Event()

    def report(job: Any, context: Any) -> None:
        for number in range(50_000):
            context.progress(1000 + number)

    async def report_and_wait(job, context) -> None:
        report(job, context)
        while not written.is_set():
            await asyncio.sleep(0.01)

    def report_and_wait_sync(job, context) -> None:
        report(job, context)
        written.wait(30)

    await queue.add(1, job_id="job")
    async with working(queue, report_and_wait if kind == "async" else report_and_wait_sync) as (
        consumer
    ):
        most, end = 0, time.monotonic() + 20
        while await queue.progress("job") != 50_999:
            assert time.monotonic() < end
            most = max(most, len(consumer._runtime._writer._progress.items))
        written.set()
        await wait_until_async(lambda: empty(queue))
    assert most <= 1


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([42], b"42", 42),
        ([0], b"0", 0),
        ([100], b"100", 100),
        ([101], None, 101),
        ([True], None, True),
        ([{"rows": 7}], None, {"rows": 7}),
        ([{"rows": 7}, 50], b"50", 50),
        ([50, "nearly"], b"50", "nearly"),
    ],
)
async def test_progress_is_stored_as_chasquimq_does_if_it_is_a_percentage(
    queue: AsyncQueue, client: Any, values: list[Any], percent: bytes | None, expected: Any
) -> None:
    async def handle(job, context) -> None:
        for value in values:
            context.progress(value)
            await asyncio.sleep(0.1)

    await queue.add(1, job_id="job")
    async with working(queue, handle):
        await wait_until_async(lambda: empty(queue))
    assert client.get(queue.keys.progress("job")) == percent
    assert await queue.progress("job") == expected


async def test_the_progress_of_a_newer_chasquimq_worker_is_read(queue: AsyncQueue, client) -> None:
    client.set(queue.keys.progress("job"), "42")
    assert await queue.progress("job") == 42
