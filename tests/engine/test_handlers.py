"""What a handler may be, what it may say, and what may happen to it."""

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
from tests.engine.conftest import empty, told, until, working

AT_ONCE = Backoff.fixed(timedelta(milliseconds=1))
ONE_RUN = RetryPolicy(1)
TWO_RUNS = RetryPolicy(2, AT_ONCE)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


class Called:
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
        (Called(), True, False),
        (functools.partial(_coroutine), True, False),
        (functools.partial(_with_context), False, True),
        (lambda job, retries=3: None, False, False),
        (lambda *args: None, False, False),
        (print, False, False),
    ],
)
def test_what_is_a_handler(function, is_async, accepts_context) -> None:
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
def test_what_is_no_handler(function) -> None:
    with pytest.raises(InvalidArgument):
        Handler.from_callable(function)


async def test_a_registry_picks_by_name_and_falls_back(queue: AsyncQueue) -> None:
    seen: list[tuple[str, str]] = []
    handlers = Handlers()

    @handlers.on("mail", "letter")
    async def post(job) -> None:
        seen.append(("post", job.name))

    @handlers.on("resize")
    def resize(job) -> None:
        seen.append(("resize", job.name))

    @handlers.on()
    async def rest(job) -> None:
        seen.append(("rest", job.name))

    with pytest.raises(InvalidArgument, match="two handlers"):
        handlers.on("mail")(resize)
    for name in ("mail", "letter", "resize", "other", ""):
        await queue.add(1, job_name=name)
    async with working(queue, handlers):
        await until(lambda: len(seen) == 5)
    expected = [("post", "mail"), ("post", "letter"), ("resize", "resize"), ("rest", "other")]
    assert sorted(seen) == sorted([*expected, ("rest", "")])


async def test_a_name_without_a_handler_fails_and_says_so(queue: AsyncQueue) -> None:
    await queue.add(1, job_name="nobody", retry=ONE_RUN)
    async with working(queue, Handlers()):
        [letter] = await until(queue.dead_letters)
    assert "no handler for the job name 'nobody'" in letter.error


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_snooze_costs_no_attempt(queue: AsyncQueue, kind: str) -> None:
    attempts: list[int] = []

    def answer(job: Any) -> Any:
        attempts.append(job.attempt)
        return Snooze(ms(10)) if len(attempts) < 4 else None

    await queue.add(1, retry=ONE_RUN)
    async with working(queue, _as(kind, answer)):
        await until(lambda: len(attempts) == 4)
        await until(lambda: empty(queue))
    assert attempts == [0, 0, 0, 0]
    assert "failed" not in await told(queue)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_retry_waits_as_long_as_it_says_and_costs_an_attempt(
    queue: AsyncQueue, kind: str
) -> None:
    at: list[float] = []

    def answer(job: Any) -> Any:
        at.append(time.monotonic())
        return Retry(ms(400), "not yet")

    await queue.add(1, retry=TWO_RUNS)
    async with working(queue, _as(kind, answer)):
        [letter] = await until(queue.dead_letters)
    assert len(at) == 2
    assert 0.4 <= at[1] - at[0] < 5
    assert (letter.reason, letter.error, letter.attempts) == ("retries_exhausted", "not yet", 2)
    [waited] = [e.backoff_ms for e in await queue.events() if e.name == "retry-scheduled"]
    assert waited == 400


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_unrecoverable_is_dead_at_once(queue: AsyncQueue, kind: str) -> None:
    def answer(job: Any) -> None:
        raise Unrecoverable("no such address")

    await queue.add(1, job_name="mail")
    async with working(queue, _as(kind, answer)):
        [letter] = await until(queue.dead_letters)
    assert (letter.reason, letter.attempts) == ("unrecoverable", 1)
    assert letter.error == "Unrecoverable: no such address"


@pytest.mark.parametrize("wrong", [Snooze, Retry])
@pytest.mark.parametrize("wait", [5, ms(-1), None])
def test_a_wait_is_a_timedelta(wrong, wait) -> None:
    with pytest.raises(InvalidArgument):
        wrong(wait)


async def test_an_async_handler_that_is_too_slow_is_interrupted(queue: AsyncQueue) -> None:
    ended: list[str] = []
    handlers = Handlers()

    @handlers.on(timeout=ms(100))
    async def slow(job) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    await queue.add(1, retry=ONE_RUN)
    async with working(queue, handlers):
        [letter] = await until(queue.dead_letters)
    assert ended == ["cancelled"]
    assert letter.error.startswith("TimeoutError: the handler ran for 0.1")


async def test_a_timeout_of_the_handlers_own_is_its_own_failure(queue: AsyncQueue) -> None:
    handlers = Handlers()

    @handlers.on(timeout=timedelta(seconds=30))
    async def calls(job) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    await queue.add(1, retry=ONE_RUN)
    async with working(queue, handlers):
        [letter] = await until(queue.dead_letters)
    assert letter.error == "TimeoutError: "


async def test_a_plain_handler_that_is_too_slow_is_interrupted(queue: AsyncQueue) -> None:
    handlers = Handlers()

    @handlers.on("slow", timeout=ms(150))
    def slow(job) -> None:
        while True:
            time.sleep(0.01)

    after: list[int] = []

    @handlers.on("next", timeout=timedelta(seconds=20))
    def next_one(job) -> None:
        time.sleep(0.05)
        after.append(threading.get_ident())

    await queue.add(1, job_name="slow", retry=ONE_RUN)
    async with working(queue, handlers, concurrency=1):
        [letter] = await until(queue.dead_letters)
        for _ in range(3):  # the thread goes on, and nothing strikes the runs behind
            await queue.add(1, job_name="next", retry=ONE_RUN)
        await until(lambda: len(after) == 3)
        await until(lambda: empty(queue))
    assert letter.error.startswith("TimeoutError: the handler ran for 0.")
    assert len(set(after)) == 1
    assert len(await queue.dead_letters()) == 1


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_may_give_itself_more_time(queue: AsyncQueue, kind: str) -> None:
    left: list[float] = []
    handlers = Handlers()

    @handlers.on("async", timeout=ms(150))
    async def patient(job, context) -> None:
        context.extend(timedelta(seconds=30))
        await asyncio.sleep(0.3)
        left.append(context.time_remaining)

    @handlers.on("plain", timeout=ms(150))
    def patient_too(job, context) -> None:
        context.extend(timedelta(seconds=30))
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            time.sleep(0.01)
        left.append(context.time_remaining)

    await queue.add(1, job_name=kind, retry=ONE_RUN)
    async with working(queue, handlers):
        await until(lambda: left)
        await until(lambda: empty(queue))
    assert 29 < left[0] < 30
    assert await queue.dead_letters() == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_progress_is_seen_from_outside(queue: AsyncQueue, kind: str) -> None:
    go_on = threading.Event()

    def say(job: Any, context: Any) -> None:
        assert context.job is job
        assert context.time_remaining is None
        context.progress({"done": 7})
        with pytest.raises(EncodeError):
            context.progress(object())

    async def talkative(job, context) -> None:
        say(job, context)
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    def talkative_too(job, context) -> None:
        say(job, context)
        go_on.wait(20)

    job_id = (await queue.add(1)).job_id
    async with working(queue, talkative if kind == "async" else talkative_too):
        await until(lambda: _progress(queue, job_id))
        go_on.set()
        await until(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def _progress(queue: AsyncQueue, job_id: str) -> bool:
    return await queue.progress(job_id) == {"done": 7}


async def test_a_cancelled_job_that_waits_never_begins(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    for job_id in ("stay", "go"):
        await queue.add(1, job_id=job_id)
    await queue.add_batch([1, 2], batch_id="b")
    assert await queue.cancel("go") == "asked"
    assert await queue.cancel("batch:b:0:1") == "asked"
    async with working(queue, handle):
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=10))
        await until(lambda: empty(queue))
    assert sorted(ran) == ["batch:b:0:0", "stay"]
    assert (progress.done, progress.dead) == (1, 1)
    assert await told(queue, "go") == ["failed", "dlq"]


async def test_a_cancelled_job_is_dropped_and_its_id_is_free_again(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    async with working(queue, handle, concurrency=1) as consumer:
        await queue.cancel("nobody")  # from the next look on, every read asks for marks
        desk = consumer._runtime.state
        await until(lambda: desk.has_cancel_requests)
        await queue.cancel("go")
        await asyncio.sleep(0.01)
        await queue.add(1, job_id="go")  # created after the asking: this one is not meant
        await until(lambda: ran == ["go"])
        await queue.client.execute(_ask(queue, "batch:b:0:1"))
        batch = await queue.add_batch([1, 2], batch_id="b", delay=ms(1))
        progress = await queue.wait_batch(batch.batch_id, timeout=timedelta(seconds=10))
        assert (progress.done, progress.dead) == (1, 1)
        await until(lambda: empty(queue))
        await until(lambda: _marks(queue, "batch:b:0:1"))
    assert ran == ["go", "batch:b:0:0"]
    assert sorted(await told(queue, "batch:b:0:1")) == ["dlq", "failed", "waiting"]
    assert await queue.dead_letters() == []


def _ask(queue: AsyncQueue, job_id: str) -> Any:
    from airflow_provider_chasqui.core.command import as_int, redis_command

    later = time.time_ns() // 1_000_000 + 60_000
    return redis_command("ZADD", queue.keys.cancelled, later, job_id, parse=as_int)


async def _marks(queue: AsyncQueue, job_id: str) -> bool:
    from airflow_provider_chasqui.core.commands import consumer_group

    return await queue.client.execute(consumer_group.cancel_requested_at(queue.keys, [job_id])) == [
        -1
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_running_job_is_cancelled(queue: AsyncQueue, kind: str) -> None:
    begun = threading.Event()
    seen: list[bool] = []

    async def endless(job, context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(context.cancelled)

    def endless_too(job, context) -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            seen.append(context.cancelled)

    batch = await queue.add_batch([1], batch_id="b")
    [job_id] = batch.job_ids()
    async with working(queue, endless if kind == "async" else endless_too):
        await until(begun.is_set)
        assert await queue.cancel(job_id) == "asked"
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=10))
        assert (progress.done, progress.dead) == (0, 1)
    assert seen == [True]
    assert await queue.dead_letters() == []
    assert await told(queue, job_id) == ["active", "failed", "dlq"]


async def test_a_handler_that_ignores_its_cancelling_harms_no_later_job(queue: AsyncQueue) -> None:
    begun = asyncio.Event()
    done: list[str] = []

    async def stubborn(job) -> None:
        if job.id == "first":
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        else:
            assert asyncio.current_task().cancelling() == 0
        if job.id == "second":
            # Nobody cancelled this one: it is a failure like any other.
            raise asyncio.CancelledError("mine")
        done.append(job.id)

    await queue.add(1, job_id="first")
    async with working(queue, stubborn, concurrency=1):
        await begun.wait()
        await queue.cancel("first")
        await until(lambda: done == ["first"])
        await queue.add(1, job_id="second", retry=ONE_RUN)
        [letter] = await until(queue.dead_letters)
        await queue.add(1, job_id="third")
        await until(lambda: done == ["first", "third"])
    assert letter.error == "CancelledError: mine"
    assert await told(queue, "first") == ["active", "completed"]


async def test_a_handler_that_cancels_its_own_task_fails_and_the_worker_goes_on(
    queue: AsyncQueue,
) -> None:
    done: list[str] = []

    async def handle(job) -> None:
        if job.id == "odd":
            asyncio.current_task().cancel()
            await asyncio.sleep(1)
        done.append(job.id)

    await queue.add(1, job_id="odd", retry=ONE_RUN)
    async with working(queue, handle, concurrency=1):
        await until(queue.dead_letters)
        await queue.add(1, job_id="even")
        await until(lambda: done == ["even"])


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_job_does_not_see_the_context_of_another(queue: AsyncQueue, kind: str) -> None:
    outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer")
    outer.set("seen everywhere")
    seen: list[tuple[str, str]] = []

    def look(job: Any) -> None:
        seen.append((VARIABLE.get(), outer.get()))
        VARIABLE.set(f"dirty {job.id}")

    async def awaits(job) -> None:
        look(job)
        await asyncio.sleep(0)
        assert VARIABLE.get() == f"dirty {job.id}"

    await queue.add_many([{"payload": 1} for _ in range(20)])
    async with working(queue, awaits if kind == "async" else look, concurrency=2):
        await until(lambda: len(seen) == 20)
        await until(lambda: empty(queue))
    assert set(seen) == {("clean", "seen everywhere")}
    assert await queue.dead_letters() == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_results_are_kept_before_the_event_is_told(queue: AsyncQueue, kind: str) -> None:
    def answer(job: Any) -> Any:
        return {"twice": job.payload * 2}

    async with working(queue, _as(kind, answer), store_results=True):
        job_id = (await queue.add(21)).job_id
        result = await queue.wait(job_id, timeout=timedelta(seconds=10))
    assert result == {"twice": 42}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, BaseException, BaseExceptionGroup])
async def test_whatever_a_handler_raises_the_worker_survives(
    queue: AsyncQueue, kind: str, error: type[BaseException]
) -> None:
    done: list[str] = []

    def handle(job: Any) -> None:
        if job.id == "bad":
            raise BaseExceptionGroup("g", [ValueError()]) if error is BaseExceptionGroup else error
        done.append(job.id)

    await queue.add(1, job_id="bad", retry=ONE_RUN)
    async with working(queue, _as(kind, handle), concurrency=1):
        [letter] = await until(queue.dead_letters)
        await queue.add(1, job_id="good")
        await until(lambda: done == ["good"])
    assert letter.error.split(":")[0] == {BaseExceptionGroup: "ExceptionGroup"}.get(
        error, error.__name__
    )


async def test_an_error_that_cannot_say_itself_is_still_a_failure(queue: AsyncQueue) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def handle(job) -> None:
        raise Mute

    await queue.add(1, retry=ONE_RUN)
    async with working(queue, handle):
        [letter] = await until(queue.dead_letters)
    assert letter.error.startswith("Mute: ")


async def test_a_payload_that_is_no_messagepack_fails_like_any_job(
    queue: AsyncQueue, client
) -> None:
    async def handle(job) -> None:
        assert job.payload

    from airflow_provider_chasqui.core.codec import encode_envelope

    client.xadd(queue.keys.stream, {"d": encode_envelope("j", b"\xc1", 1, retry=TWO_RUNS)})
    async with working(queue, handle):
        [letter] = await until(queue.dead_letters)
    assert (letter.reason, letter.attempts) == ("retries_exhausted", 2)
    assert "not MessagePack" in letter.error


async def test_a_plain_function_that_returns_a_coroutine_is_not_taken_for_done(
    queue: AsyncQueue,
) -> None:
    await queue.add(1, retry=ONE_RUN)
    async with working(queue, lambda job: _coroutine(job)):
        [letter] = await until(queue.dead_letters)
    assert "make it an `async def`" in letter.error


async def test_a_handler_that_blocks_the_loop_delays_but_loses_nothing(
    queue: AsyncQueue, caplog
) -> None:
    ran: list[int] = []

    async def rude(job) -> None:
        if job.payload == 0:
            time.sleep(2.5)  # noqa: ASYNC251
        ran.append(job.payload)

    await queue.add_many([{"payload": number} for number in range(50)])
    async with working(queue, rude, claim_after=timedelta(milliseconds=1500)):
        await until(lambda: set(ran) == set(range(50)))
        await until(lambda: empty(queue))
    assert sorted(ran) == list(range(50))
    assert "blocked the event loop" in caplog.text


async def test_plain_handlers_run_at_the_same_time(queue: AsyncQueue) -> None:
    """Each waits for the other seven, so that fewer than eight threads would never end."""
    barrier = threading.Barrier(8, timeout=20)

    def together(job) -> None:
        barrier.wait()

    async with working(queue, together, concurrency=8):
        for _ in range(8):  # one by one: an idle thread must not be counted twice
            await queue.add(1, retry=ONE_RUN)
        await until(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def test_async_handlers_run_at_the_same_time(queue: AsyncQueue) -> None:
    barrier = asyncio.Barrier(30)

    async def together(job) -> None:
        async with asyncio.timeout(20):
            await barrier.wait()

    await queue.add_many([{"payload": 1, "retry": ONE_RUN} for _ in range(30)])
    async with working(queue, together, concurrency=30):
        await until(lambda: empty(queue))
    assert await queue.dead_letters() == []


async def test_an_interruption_after_the_last_instruction_is_not_lost(
    queue: AsyncQueue, monkeypatch
) -> None:
    """It strikes when the handler has returned and its thread is about to say so."""
    leave = ThreadSlot.end
    struck: list[str] = []

    def struck_while_leaving(seat: ThreadSlot) -> None:
        if seat._run is not None and not struck:
            struck.append(seat._run.entry.id)
            seat.interrupt(seat._run, CancelInterrupt)
            for _ in range(100_000):  # somewhere in here
                pass
        leave(seat)

    monkeypatch.setattr(ThreadSlot, "leave", struck_while_leaving)
    await queue.add(1, job_id="struck")
    await queue.add(1, job_id="next")
    done: list[str] = []
    async with working(queue, lambda job: done.append(job.id), concurrency=1):
        await until(lambda: empty(queue))
    assert done == ["struck", "next"]
    assert len(struck) == 1
    assert "completed" in await told(queue, "next")


async def test_a_flood_of_timeouts_and_cancels_loses_no_plain_job(queue: AsyncQueue) -> None:
    """Interruptions that come at the very end of a run must neither be lost nor hit the next."""
    done: set[int] = set()
    handlers = Handlers()
    # A handler of about its own timeout: half of the runs are struck, anywhere near their end.
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
        forever = RetryPolicy(10_000, AT_ONCE)
        await queue.add_many([{"payload": n, "retry": forever} for n in range(150)])
        async with working(queue, handlers, concurrency=4) as consumer:
            await until(lambda: empty(queue) if len(done) > 100 else None, 50)
            counts = consumer.metrics
            assert counts.completed[""] == 150
    finally:
        sys.setswitchinterval(interval)
    assert await queue.dead_letters() == []


def _as(kind: str, function: Any) -> Any:
    if kind == "plain":
        return function

    async def awaited(job: Any) -> Any:
        return function(job)

    return awaited
