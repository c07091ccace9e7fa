"""Tests of handlers: valid functions, outcomes, timeouts, cancellation and wrapping."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument
from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.engine.handlers import Handler, Handlers
from airflow_provider_chasqui.engine.thread_executor import CancelInterrupt, ThreadSlot
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, event_names, working
from tests.support.waiting import wait_until_async

NO_DELAY = Backoff.fixed(timedelta(milliseconds=1))
ONE_ATTEMPT = RetryPolicy(1)
TWO_ATTEMPTS = RetryPolicy(2, NO_DELAY)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


class CallableObject:
    async def __call__(self, job: Any) -> None: ...


async def _coroutine(job: Any) -> None: ...


def _plain(job: Any) -> None: ...


def _with_context(job: Any, context: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async", "accepts_context"),
    [
        (_coroutine, True, False),
        (_plain, False, False),
        (_with_context, False, True),
        (CallableObject(), True, False),
        (functools.partial(_coroutine), True, False),
        (functools.partial(_with_context), False, True),
        (lambda job, retries=3: None, False, False),
        (lambda *args: None, False, False),
        (print, False, False),
    ],
)
def test_valid_handlers_are_recognized(function, is_async, accepts_context) -> None:
    handler = Handler.from_callable(function)
    assert (handler.is_async, handler.accepts_context) == (is_async, accepts_context)


def _generator(job: Any) -> Any:
    yield job


async def _stream(job: Any) -> Any:
    yield job


@pytest.mark.parametrize(
    "function",
    [7, lambda: None, lambda a, b, c: None, _generator, _stream],
    ids=["number", "no-argument", "three", "generator", "async-generator"],
)
def test_invalid_handlers_are_rejected(function) -> None:
    with pytest.raises(InvalidArgument):
        Handler.from_callable(function)


async def test_handlers_are_chosen_by_job_name_with_a_default(queue: AsyncQueue) -> None:
    seen: list[tuple[str, str]] = []
    handlers = Handlers()

    @handlers.on("mail", "sms")
    async def send(job) -> None:
        seen.append(("send", job.name))

    @handlers.on("resize")
    def resize(job) -> None:
        seen.append(("resize", job.name))

    @handlers.on()
    async def default(job) -> None:
        seen.append(("default", job.name))

    with pytest.raises(InvalidArgument, match="two handlers"):
        handlers.on("mail")(resize)
    for name in ("mail", "sms", "resize", "other", ""):
        await queue.add(1, job_name=name)
    async with working(queue, handlers):
        await wait_until_async(lambda: len(seen) == 5)
    expected = [("send", "mail"), ("send", "sms"), ("resize", "resize"), ("default", "other")]
    assert sorted(seen) == sorted([*expected, ("default", "")])


async def test_wrap_runs_code_around_every_handler(queue: AsyncQueue) -> None:
    calls: list[tuple[str, str]] = []
    handlers = Handlers()

    @handlers.on("async")
    async def async_handler(job) -> None:
        calls.append(("async handler", job.name))

    @handlers.on("sync")
    def sync_handler(job) -> None:
        calls.append(("sync handler", job.name))

    @handlers.on()
    async def default_handler(job, context) -> None:
        assert context.job is job
        calls.append(("default handler", job.name))

    def record(handler: Handler) -> Any:
        async def run(job: Any, context: Any) -> Any:
            calls.append(("wrapper", job.name))
            return await handler.invoke(job, context)

        def run_sync(job: Any, context: Any) -> Any:
            calls.append(("sync wrapper", job.name))
            return handler.invoke(job, context)

        return run if handler.is_async else run_sync

    for name in ("async", "sync", "other"):
        await queue.add(1, job_name=name, retry=ONE_ATTEMPT)
    async with working(queue, handlers.wrap(record)):
        await wait_until_async(lambda: len(calls) == 6)
        await wait_until_async(lambda: empty(queue))
    by_job = {name: [call for call, job_name in calls if job_name == name] for _, name in calls}
    assert by_job == {
        "async": ["wrapper", "async handler"],
        "sync": ["sync wrapper", "sync handler"],
        "other": ["wrapper", "default handler"],
    }
    assert await queue.dead_letters() == []


def test_wrap_keeps_timeouts_and_settings_and_does_not_change_the_original() -> None:
    handlers = Handlers(_coroutine)
    handlers.on("slow", timeout=timedelta(seconds=7))(_plain)
    handlers.tracing_enabled = False
    original = handlers.get("slow")
    wrapped = handlers.wrap(lambda handler: lambda job: handler.invoke(job, None))
    assert wrapped.job_names == ["slow"]
    assert wrapped.get("slow").timeout_s == 7
    assert wrapped.get("other").timeout_s is None
    assert not wrapped.tracing_enabled
    assert handlers.get("slow") is original
    assert Handlers().wrap(lambda handler: handler.call).get("other") is None


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_snooze_costs_no_attempt(queue: AsyncQueue, kind: str) -> None:
    attempts: list[int] = []

    def handle(job: Any) -> Any:
        attempts.append(job.attempt)
        return Snooze(ms(10)) if len(attempts) < 4 else None

    await queue.add(1, retry=ONE_ATTEMPT)
    async with working(queue, _as(kind, handle)):
        await wait_until_async(lambda: len(attempts) == 4)
        await wait_until_async(lambda: empty(queue))
    assert attempts == [0, 0, 0, 0]
    assert "failed" not in await event_names(queue)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_returned_retry_waits_its_delay_and_costs_an_attempt(
    queue: AsyncQueue, kind: str
) -> None:
    started: list[float] = []

    def handle(job: Any) -> Any:
        started.append(time.monotonic())
        return Retry(ms(400), "not yet")

    await queue.add(1, retry=TWO_ATTEMPTS)
    async with working(queue, _as(kind, handle)):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert len(started) == 2
    assert 0.4 <= started[1] - started[0] < 5
    assert (dead_letter.reason, dead_letter.error, dead_letter.attempts) == (
        "retries_exhausted",
        "not yet",
        2,
    )
    [backoff_ms] = [e.backoff_ms for e in await queue.events() if e.name == "retry-scheduled"]
    assert backoff_ms == 400


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_unrecoverable_error_is_dead_lettered_at_once(
    queue: AsyncQueue, kind: str
) -> None:
    def handle(job: Any) -> None:
        raise Unrecoverable("no such address")

    await queue.add(1, job_name="mail")
    async with working(queue, _as(kind, handle)):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert (dead_letter.reason, dead_letter.attempts) == ("unrecoverable", 1)
    assert dead_letter.error == "Unrecoverable: no such address"


@pytest.mark.parametrize("outcome", [Snooze, Retry])
@pytest.mark.parametrize("delay", [5, ms(-1), None])
def test_the_delay_of_an_outcome_must_be_a_timedelta(outcome, delay) -> None:
    with pytest.raises(InvalidArgument, match="delay must be"):
        outcome(delay)


async def test_an_async_handler_is_interrupted_at_its_timeout(queue: AsyncQueue) -> None:
    ended: list[str] = []
    handlers = Handlers()

    @handlers.on(timeout=ms(100))
    async def slow(job) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    await queue.add(1, retry=ONE_ATTEMPT)
    async with working(queue, handlers):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert ended == ["cancelled"]
    assert dead_letter.error.startswith("TimeoutError: the handler timed out after 0.1")


async def test_a_timeout_inside_a_handler_is_an_ordinary_failure(queue: AsyncQueue) -> None:
    handlers = Handlers()

    @handlers.on(timeout=timedelta(seconds=30))
    async def calls(job) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    await queue.add(1, retry=ONE_ATTEMPT)
    async with working(queue, handlers):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert dead_letter.error == "TimeoutError: "


async def test_a_plain_handler_is_interrupted_at_its_timeout(queue: AsyncQueue) -> None:
    handlers = Handlers()

    @handlers.on("slow", timeout=ms(150))
    def slow(job) -> None:
        while True:
            time.sleep(0.01)

    thread_ids: list[int] = []

    @handlers.on("next", timeout=timedelta(seconds=20))
    def fast(job) -> None:
        time.sleep(0.05)
        thread_ids.append(threading.get_ident())

    await queue.add(1, job_name="slow", retry=ONE_ATTEMPT)
    async with working(queue, handlers, concurrency=1):
        [dead_letter] = await wait_until_async(queue.dead_letters)
        for _ in range(3):  # the thread continues, and no later run is interrupted
            await queue.add(1, job_name="next", retry=ONE_ATTEMPT)
        await wait_until_async(lambda: len(thread_ids) == 3)
        await wait_until_async(lambda: empty(queue))
    assert dead_letter.error.startswith("TimeoutError: the handler timed out after 0.")
    assert len(set(thread_ids)) == 1
    assert len(await queue.dead_letters()) == 1


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_can_extend_its_timeout(queue: AsyncQueue, kind: str) -> None:
    remaining: list[timedelta] = []
    handlers = Handlers()

    @handlers.on("async", timeout=ms(150))
    async def extends(job, context) -> None:
        context.extend(timedelta(seconds=30))
        await asyncio.sleep(0.3)
        remaining.append(context.time_remaining)

    @handlers.on("plain", timeout=ms(150))
    def extends_sync(job, context) -> None:
        context.extend(timedelta(seconds=30))
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            time.sleep(0.01)
        remaining.append(context.time_remaining)

    await queue.add(1, job_name=kind, retry=ONE_ATTEMPT)
    async with working(queue, handlers):
        await wait_until_async(lambda: remaining)
        await wait_until_async(lambda: empty(queue))
    assert timedelta(seconds=29) < remaining[0] < timedelta(seconds=30)
    assert await queue.dead_letters() == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_progress_can_be_read_while_the_job_runs(queue: AsyncQueue, kind: str) -> None:
    go_on = threading.Event()

    def report(job: Any, context: Any) -> None:
        assert context.job is job
        assert context.time_remaining is None
        context.progress({"done": 7})
        with pytest.raises(EncodeError):
            context.progress(object())

    async def reports(job, context) -> None:
        report(job, context)
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    def reports_sync(job, context) -> None:
        report(job, context)
        go_on.wait(20)

    job_id = (await queue.add(1)).job_id
    async with working(queue, reports if kind == "async" else reports_sync):
        await wait_until_async(lambda: _progress(queue, job_id))
        go_on.set()
        await wait_until_async(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def _progress(queue: AsyncQueue, job_id: str) -> bool:
    return await queue.progress(job_id) == {"done": 7}


async def test_a_waiting_job_that_is_cancelled_never_starts(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    for job_id in ("normal", "cancelled"):
        await queue.add(1, job_id=job_id)
    await queue.add_batch([1, 2], batch_id="b")
    assert await queue.cancel("cancelled") == "requested"
    assert await queue.cancel("batch:b:0:1") == "requested"
    async with working(queue, handle):
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=10))
        await wait_until_async(lambda: empty(queue))
    assert sorted(ran) == ["batch:b:0:0", "normal"]
    assert (progress.done, progress.dead) == (1, 1)
    assert await event_names(queue, "cancelled") == ["failed", "dlq"]


async def test_a_cancelled_job_is_dropped_and_its_id_can_be_used_again(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    async with working(queue, handle, concurrency=1) as consumer:
        await queue.cancel("unknown")  # from the next heartbeat on, reads check for cancellation
        state = consumer._runtime.state
        await wait_until_async(lambda: state.cancellations.has_requests)
        await queue.cancel("go")
        await queue.add(1, job_id="go")  # added after the cancel request, so it runs
        await wait_until_async(lambda: ran == ["go"])
        await queue.client.execute(_request_cancel_later(queue, "batch:b:0:1"))
        batch = await queue.add_batch([1, 2], batch_id="b", delay=ms(1))
        progress = await queue.wait_batch(batch.batch_id, timeout=timedelta(seconds=10))
        assert (progress.done, progress.dead) == (1, 1)
        await wait_until_async(lambda: empty(queue))
        await wait_until_async(lambda: _cancel_request_cleared(queue, "batch:b:0:1"))
    assert ran == ["go", "batch:b:0:0"]
    assert sorted(await event_names(queue, "batch:b:0:1")) == ["dlq", "failed", "waiting"]
    assert await queue.dead_letters() == []


async def test_a_dead_job_that_was_cancelled_runs_after_its_replay(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)
        if len(ran) == 1:
            raise Unrecoverable("the first run fails")

    async with working(queue, handle):
        await queue.add(1, job_id="j")
        await wait_until_async(lambda: ran == ["j"])
        await wait_until_async(queue.dead_letters)
    assert await queue.cancel("j") == "requested"
    assert (await queue.replay_dead_letters()).affected == 1
    async with working(queue, handle):
        await wait_until_async(lambda: empty(queue))
    assert ran == ["j", "j"]
    assert await queue.dead_letters() == []


def _request_cancel_later(queue: AsyncQueue, job_id: str) -> Any:
    from airflow_provider_chasqui.core.command import as_int, redis_command

    in_a_minute = time.time_ns() // 1_000_000 + 60_000
    request = f"{in_a_minute} 0-0 {in_a_minute} 0"
    return redis_command("HSET", queue.keys.cancel_requests, job_id, request, parse=as_int)


async def _cancel_request_cleared(queue: AsyncQueue, job_id: str) -> bool:
    from airflow_provider_chasqui.core.commands import cancellation

    return await queue.client.execute(cancellation.get_requests(queue.keys, [job_id])) == [None]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_running_job_is_cancelled(queue: AsyncQueue, kind: str) -> None:
    started = threading.Event()
    seen: list[bool] = []

    async def endless(job, context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(context.cancelled)

    def endless_sync(job, context) -> None:
        started.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            seen.append(context.cancelled)

    batch = await queue.add_batch([1], batch_id="b")
    [job_id] = batch.job_ids()
    async with working(queue, endless if kind == "async" else endless_sync):
        await wait_until_async(started.is_set)
        assert await queue.cancel(job_id) == "requested"
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=10))
        assert (progress.done, progress.dead) == (0, 1)
    assert seen == [True]
    assert await queue.dead_letters() == []
    assert await event_names(queue, job_id) == ["active", "failed", "dlq"]


async def test_a_handler_that_ignores_cancellation_does_not_affect_later_jobs(
    queue: AsyncQueue,
) -> None:
    started = asyncio.Event()
    done: list[str] = []

    async def ignores_cancellation(job) -> None:
        if job.id == "first":
            started.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        else:
            assert asyncio.current_task().cancelling() == 0
        if job.id == "second":
            # This job was not cancelled, so the error is an ordinary failure.
            raise asyncio.CancelledError("raised by the handler")
        done.append(job.id)

    await queue.add(1, job_id="first")
    async with working(queue, ignores_cancellation, concurrency=1):
        await started.wait()
        await queue.cancel("first")
        await wait_until_async(lambda: done == ["first"])
        await queue.add(1, job_id="second", retry=ONE_ATTEMPT)
        [dead_letter] = await wait_until_async(queue.dead_letters)
        await queue.add(1, job_id="third")
        await wait_until_async(lambda: done == ["first", "third"])
    assert dead_letter.error == "CancelledError: raised by the handler"
    assert await event_names(queue, "first") == ["active", "completed"]


async def test_a_handler_that_cancels_its_own_task_fails_and_the_worker_continues(
    queue: AsyncQueue,
) -> None:
    done: list[str] = []

    async def handle(job) -> None:
        if job.id == "cancels itself":
            asyncio.current_task().cancel()
            await asyncio.sleep(1)
        done.append(job.id)

    await queue.add(1, job_id="cancels itself", retry=ONE_ATTEMPT)
    async with working(queue, handle, concurrency=1):
        await wait_until_async(queue.dead_letters)
        await queue.add(1, job_id="next")
        await wait_until_async(lambda: done == ["next"])


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_worker_task_that_a_handler_cancels_runs_the_next_job(
    queue: AsyncQueue, when: str
) -> None:
    """The handler returns, and its cancellation is delivered after the run has ended."""
    done: list[str] = []

    async def handle(job) -> None:
        task = asyncio.current_task()
        if job.id.startswith("cancels") and when == "at once":
            task.cancel()
        elif job.id.startswith("cancels"):
            asyncio.get_running_loop().call_later(0.05, task.cancel)
        done.append(job.id)

    async with working(queue, handle, concurrency=2):
        for number in range(4):
            await queue.add(1, job_id=f"cancels-{number}")
            await wait_until_async(lambda: empty(queue))
            await asyncio.sleep(0.1)
        await queue.add(1, job_id="next")
        await wait_until_async(lambda: len(done) == 5)
        await wait_until_async(lambda: empty(queue))


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_job_does_not_see_context_variables_of_another_job(
    queue: AsyncQueue, kind: str
) -> None:
    outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer")
    outer.set("inherited")
    seen: list[tuple[str, str]] = []

    def read_and_set(job: Any) -> None:
        seen.append((VARIABLE.get(), outer.get()))
        VARIABLE.set(f"set by {job.id}")

    async def awaits(job) -> None:
        read_and_set(job)
        await asyncio.sleep(0)
        assert VARIABLE.get() == f"set by {job.id}"

    await queue.add_many([{"payload": 1} for _ in range(20)])
    async with working(queue, awaits if kind == "async" else read_and_set, concurrency=2):
        await wait_until_async(lambda: len(seen) == 20)
        await wait_until_async(lambda: empty(queue))
    assert set(seen) == {("unset", "inherited")}
    assert await queue.dead_letters() == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_result_is_stored_before_the_event_is_emitted(
    queue: AsyncQueue, kind: str
) -> None:
    def handle(job: Any) -> Any:
        return {"twice": job.payload * 2}

    async with working(queue, _as(kind, handle), store_results=True):
        job_id = (await queue.add(21)).job_id
        result = await queue.wait(job_id, timeout=timedelta(seconds=10))
    assert result == {"twice": 42}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, BaseException, BaseExceptionGroup])
async def test_the_worker_survives_any_exception_of_a_handler(
    queue: AsyncQueue, kind: str, error: type[BaseException]
) -> None:
    done: list[str] = []

    def handle(job: Any) -> None:
        if job.id == "bad":
            raise BaseExceptionGroup("g", [ValueError()]) if error is BaseExceptionGroup else error
        done.append(job.id)

    await queue.add(1, job_id="bad", retry=ONE_ATTEMPT)
    async with working(queue, _as(kind, handle), concurrency=1):
        [dead_letter] = await wait_until_async(queue.dead_letters)
        await queue.add(1, job_id="good")
        await wait_until_async(lambda: done == ["good"])
    assert dead_letter.error.split(":")[0] == {BaseExceptionGroup: "ExceptionGroup"}.get(
        error, error.__name__
    )


async def test_an_error_with_a_broken_str_is_an_ordinary_failure(queue: AsyncQueue) -> None:
    class BrokenStr(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def handle(job) -> None:
        raise BrokenStr

    await queue.add(1, retry=ONE_ATTEMPT)
    async with working(queue, handle):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert dead_letter.error.startswith("BrokenStr: ")


async def test_a_payload_that_is_not_messagepack_is_an_ordinary_failure(
    queue: AsyncQueue, client
) -> None:
    async def handle(job) -> None:
        assert job.payload

    from airflow_provider_chasqui.core.codec import encode_envelope

    client.xadd(queue.keys.stream, {"d": encode_envelope("j", b"\xc1", 1, retry=TWO_ATTEMPTS)})
    async with working(queue, handle):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert (dead_letter.reason, dead_letter.attempts) == ("retries_exhausted", 2)
    assert "not MessagePack" in dead_letter.error


async def test_a_plain_handler_that_returns_a_coroutine_fails(
    queue: AsyncQueue,
) -> None:
    await queue.add(1, retry=ONE_ATTEMPT)
    async with working(queue, lambda job: _coroutine(job)):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert "define it with `async def`" in dead_letter.error


async def test_a_handler_that_blocks_the_event_loop_delays_but_loses_no_job(
    queue: AsyncQueue, caplog
) -> None:
    ran: list[int] = []

    async def blocks_the_loop(job) -> None:
        if job.payload == 0:
            time.sleep(2.5)  # noqa: ASYNC251
        ran.append(job.payload)

    await queue.add_many([{"payload": number} for number in range(50)])
    async with working(queue, blocks_the_loop, claim_after=timedelta(milliseconds=1500)):
        await wait_until_async(lambda: set(ran) == set(range(50)))
        await wait_until_async(lambda: empty(queue))
    assert sorted(ran) == list(range(50))
    assert "blocked the event loop" in caplog.text


async def test_plain_handlers_run_concurrently(queue: AsyncQueue) -> None:
    """Each job waits for the other seven, so fewer than eight threads would never finish."""
    barrier = threading.Barrier(8, timeout=20)

    def together(job) -> None:
        barrier.wait()

    async with working(queue, together, concurrency=8):
        for _ in range(8):  # one by one, because an idle thread must not be counted twice
            await queue.add(1, retry=ONE_ATTEMPT)
        await wait_until_async(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def test_async_handlers_run_concurrently(queue: AsyncQueue) -> None:
    barrier = asyncio.Barrier(30)

    async def together(job) -> None:
        async with asyncio.timeout(20):
            await barrier.wait()

    await queue.add_many([{"payload": 1, "retry": ONE_ATTEMPT} for _ in range(30)])
    async with working(queue, together, concurrency=30):
        await wait_until_async(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def test_an_interrupt_after_the_handler_returned_does_not_lose_the_outcome(
    queue: AsyncQueue, monkeypatch
) -> None:
    """The interrupt arrives after the handler returned and before its thread reports that."""
    original_disarm = ThreadSlot.disarm
    interrupted: list[str] = []

    def disarm_with_interrupt(slot: ThreadSlot) -> None:
        if not interrupted:
            interrupted.append(slot.run.entry.id)
            slot.interrupt(slot.run, CancelInterrupt)
            for _ in range(100_000):  # the interrupt is raised somewhere in this loop
                pass
        original_disarm(slot)

    monkeypatch.setattr(ThreadSlot, "disarm", disarm_with_interrupt)
    await queue.add(1, job_id="interrupted")
    await queue.add(1, job_id="next")
    done: list[str] = []
    async with working(queue, lambda job: done.append(job.id), concurrency=1):
        await wait_until_async(lambda: empty(queue))
    assert done == ["interrupted", "next"]
    assert len(interrupted) == 1
    assert "completed" in await event_names(queue, "next")


async def test_many_timeouts_near_the_end_of_runs_lose_no_job(queue: AsyncQueue) -> None:
    """An interrupt at the very end of a run is not lost and does not reach the next run."""
    done: set[int] = set()
    handlers = Handlers()
    # The run time is close to the timeout: about half of the runs are interrupted near their end.
    limit = 0.02

    @handlers.on(timeout=timedelta(seconds=limit))
    def close_call(job) -> None:
        end = time.perf_counter() + limit - 0.002 + 0.004 * (job.payload % 10) / 10
        while time.perf_counter() < end:
            pass
        done.add(job.payload)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        many_attempts = RetryPolicy(10_000, NO_DELAY)
        await queue.add_many([{"payload": n, "retry": many_attempts} for n in range(150)])
        async with working(queue, handlers, concurrency=4) as consumer:
            await wait_until_async(lambda: empty(queue) if len(done) > 100 else None, 50)
            assert consumer.metrics.completed[""] == 150
    finally:
        sys.setswitchinterval(interval)
    assert await queue.dead_letters() == []


def _as(kind: str, function: Any) -> Any:
    if kind == "plain":
        return function

    async def awaited(job: Any) -> Any:
        return function(job)

    return awaited
