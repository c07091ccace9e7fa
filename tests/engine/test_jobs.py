"""Declared jobs (`@job`): sent and run on real servers, validated at both ends."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import threading
import warnings
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from airflow_provider_chasqui import Context, Handlers, Snooze, job
from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidPayload
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.engine.context import worker_queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server
from tests.engine.conftest import empty, working
from tests.support.waiting import wait_until_async


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Order(pydantic.BaseModel):
    id: int
    items: list[str]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_declared_job_is_sent_and_run_with_types(queue: AsyncQueue, kind: str) -> None:
    seen: list[Any] = []

    @job(queue_name=queue.name, name="norm", server=queue.target)
    async def norm_async(point: Point, context: Context) -> Point:
        seen.append((point, context.job.name))
        return Point(point.x * 2)

    @job(queue_name=queue.name, name="norm", server=queue.target)
    def norm_plain(point: Point, context: Context) -> Point:
        seen.append((point, context.job.name))
        return Point(point.x * 2)

    norm = norm_async if kind == "async" else norm_plain
    async with working(queue, norm, store_results=True):
        sent = await norm.enqueue_async(Point(3))
        result = await queue.wait(sent.job_id)
    assert seen == [(Point(3), "norm")]
    assert result == {"x": 6, "y": 0}
    assert (await queue.job_status(sent.job_id)).state == "done"


async def test_a_pydantic_payload_is_a_plain_map_on_the_wire(queue: AsyncQueue) -> None:
    @job(queue_name=queue.name, server=queue.target)
    async def ship(order: Order) -> int:
        return order.id

    seen: list[Any] = []

    async def read(job: Any) -> None:
        seen.append((job.id, job.name, job.payload))

    sent = await asyncio.to_thread(ship.enqueue, Order(id=1, items=["a"]))
    async with working(queue, read):
        await wait_until_async(lambda: seen)
    assert seen == [(sent.job_id, "ship", {"id": 1, "items": ["a"]})]


def test_a_call_runs_the_function_here() -> None:
    @job(queue_name="q")
    async def double(n: int) -> int:
        """Return twice the number."""
        return n * 2

    @job(queue_name="q")
    def half(n: int) -> float:
        return n / 2

    assert asyncio.run(double(4)) == 8
    assert half(4) == 2
    assert double.__doc__ == "Return twice the number."
    assert copy.deepcopy(double) is double


async def test_nothing_is_sent_if_the_arguments_do_not_fit(queue: AsyncQueue) -> None:
    @job(queue_name=queue.name, server=queue.target)
    async def double(n: int) -> int:
        return n * 2

    with pytest.raises(InvalidPayload, match="n: expected an integer, not 'x'") as caught:
        await double.enqueue_async("x")  # type: ignore[arg-type]
    assert caught.value.code == "CMQ-313"
    assert await empty(queue)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_invalid_payload_is_a_dead_letter_at_once(queue: AsyncQueue, kind: str) -> None:
    ran: list[Any] = []

    @job(queue_name=queue.name, name="double", retry=5)
    async def double_async(n: int) -> None:
        ran.append(n)

    @job(queue_name=queue.name, name="double", retry=5)
    def double_plain(n: int) -> None:
        ran.append(n)

    await queue.add({"n": "seven"}, job_name="double")
    await queue.add({"m": 7}, job_name="double")
    async with working(queue, double_async if kind == "async" else double_plain):
        await wait_until_async(lambda: _has_dead_letters(queue, 2))
    dead_letters = sorted(await queue.dead_letters(), key=lambda dead: dead.error or "")
    assert [(dead.reason, dead.attempts) for dead in dead_letters] == [
        ("invalid_payload", 1),
        ("invalid_payload", 1),
    ]
    assert "n: expected an integer, not 'seven'" in dead_letters[0].error
    assert "n: is missing" in dead_letters[1].error
    assert ran == []


async def _has_dead_letters(queue: AsyncQueue, count: int) -> bool:
    return len(await queue.dead_letters()) == count


async def test_an_invalid_payload_that_a_handler_sends_is_an_ordinary_failure(
    queue: AsyncQueue,
) -> None:
    @job(queue_name=queue.name)
    async def inner(n: int) -> None: ...

    @job(queue_name=queue.name, retry=1)
    async def outer(n: str) -> None:
        await inner.enqueue_async(n)  # type: ignore[arg-type]

    async with working(queue, Handlers().add(inner, outer)):
        await outer.with_options(server=queue.target).enqueue_async("x")
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert (dead_letter.reason, dead_letter.job_name) == ("retries_exhausted", "outer")


async def test_the_declared_policy_applies_to_jobs_of_any_producer(queue: AsyncQueue) -> None:
    runs: list[str] = []

    @job(queue_name=queue.name, retry=RetryPolicy(3, Backoff.fixed(timedelta(milliseconds=1))))
    async def fail(source: str) -> None:
        runs.append(source)
        raise RuntimeError("no")

    await queue.add({"source": "other"}, job_name="fail")  # as a producer in another language
    await fail.with_options(server=queue.target).enqueue_async("own")
    changed = fail.with_options(retry=1, server=queue.target)
    await changed.enqueue_async("changed")
    async with working(queue, fail):
        await wait_until_async(lambda: _has_dead_letters(queue, 3))
    assert sorted(runs) == ["changed"] + ["other"] * 3 + ["own"] * 3


async def test_the_declared_timeout_and_outcomes_apply(queue: AsyncQueue) -> None:
    runs: list[int] = []

    @job(queue_name=queue.name, timeout=timedelta(milliseconds=50), retry=1)
    async def slow(n: int) -> Any:
        runs.append(n)
        if len(runs) == 1:
            return Snooze(timedelta(0))
        await asyncio.sleep(60)
        return None

    await slow.with_options(server=queue.target, delay=timedelta(milliseconds=1)).enqueue_async(1)
    async with working(queue, slow):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert runs == [1, 1]
    assert "timed out" in dead_letter.error


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_enqueues_on_the_server_of_its_worker(
    queue: AsyncQueue, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASQUI_URL", "redis://127.0.0.1:1")
    done = threading.Event()

    @job(queue_name=queue.name)
    async def second(n: int) -> None:
        done.set()

    @job(queue_name=queue.name, name="first")
    async def first_async(n: int) -> None:
        await second.enqueue_async(n)

    @job(queue_name=queue.name, name="first")
    def first_plain(n: int) -> None:
        second.enqueue(n)

    first = first_async if kind == "async" else first_plain
    await queue.add({"n": 1}, job_name="first")
    async with working(queue, Handlers().add(first, second)):
        await wait_until_async(done.is_set)
    assert worker_queue.get() is None


def test_the_environment_names_the_server(
    server: Server, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job(queue_name=queue_name)
    async def double(n: int) -> int:
        return n * 2

    monkeypatch.delenv("CHASQUI_URL", raising=False)
    with pytest.raises(InvalidArgument, match=r"no server for the job 'double': set the env.*URL"):
        double.enqueue(1)
    monkeypatch.setenv("CHASQUI_URL", server.url)
    first = double.with_options(job_id="a", dedup_ttl=timedelta(minutes=1))
    assert first.enqueue(1) == ("a", True)
    assert first.enqueue(1) == ("a", False)
    assert double.enqueue(1).created  # the options belong to the copy

    async def enqueue() -> None:
        assert await first.enqueue_async(1) == ("a", False)
        assert (await double.enqueue_async(1)).created

    with warnings.catch_warnings():  # the connection is closed with the event loop
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(enqueue())
        gc.collect()


def test_invalid_declarations() -> None:
    def generator(n: int) -> Any:
        yield n

    for arguments, function, problem in (
        ({"queue_name": ""}, print, "queue"),
        ({"queue_name": "q"}, generator, "generator function"),
        ({"queue_name": "q", "timeout": 5}, lambda n: n, "must be a timedelta"),
        ({"queue_name": "q", "timeout": timedelta(0)}, lambda n: n, "must be at least"),
        ({"queue_name": "q", "retry": "often"}, lambda n: n, "retry must be a RetryPolicy"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            job(**arguments)(function)  # type: ignore[arg-type]

    @job(queue_name="q")
    def double(n: int) -> int:
        return n * 2

    with pytest.raises(InvalidArgument, match="with_options has no option dely"):
        double.with_options(dely=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="two handlers"):
        Handlers().add(double, double)
