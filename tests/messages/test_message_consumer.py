"""An inbox holds messages until somebody says what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.triggers._message_consumer import MessageConsumer
from tests.conftest import Server

QUICK = ConsumerConfig(claim_after=timedelta(milliseconds=1000))


@pytest.fixture
async def queue(server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


@pytest.fixture
async def inbox(queue: AsyncQueue) -> AsyncIterator[MessageConsumer]:
    inbox = MessageConsumer(queue, QUICK, max_in_flight=10)
    yield inbox
    await inbox.close()


async def test_a_window_closes_when_it_is_full_or_its_time_is_over(queue, inbox):
    await queue.add_many([{"payload": n} for n in range(5)])
    full = await inbox.window(3, wait=5, idle=5)
    late = await inbox.window(3, wait=0.2, idle=5)
    assert [m.job.payload for m in full + late] == [0, 1, 2, 3, 4]
    assert await inbox.window(3, wait=1, idle=0.1) == []


async def test_accepted_leave_rejected_die_failed_come_again(queue, inbox):
    await queue.add_many([{"payload": n, "job_name": "m"} for n in range(3)])
    taken, refused, failed = await inbox.window(3, wait=5, idle=5)
    taken.accept()
    refused.reject("not for us")
    failed.fail("the database is away")
    (again,) = await inbox.window(1, wait=5, idle=5)
    assert (again.job.payload, again.job.attempt) == (2, 1)
    again.accept()
    await _until(lambda: _settled(queue))
    (letter,) = await queue.dead_letters()
    assert (letter.job.payload, letter.reason) == (1, "unrecoverable")
    assert "not for us" in letter.error


async def test_no_more_is_taken_than_may_be_held(queue, inbox):
    await queue.add_many([{"payload": n} for n in range(100)])
    held = await inbox.window(100, wait=0.5, idle=5)
    assert len(held) == 10
    for message in held:
        message.accept()
    assert len(await inbox.window(100, wait=0.5, idle=5)) == 10


async def test_a_held_message_is_renewed_and_not_taken_by_another(queue, inbox):
    await queue.add("slow")
    (message,) = await inbox.window(1, wait=0, idle=5)
    other = MessageConsumer(queue, QUICK, max_in_flight=1)
    assert (
        await other.read_window(1, max_wait=0, idle_timeout=2.5) == []
    )  # more than twice the time to claim
    message.accept()
    await other.close()


async def test_closing_hands_back_what_nobody_judged_at_no_cost(queue):
    inbox = MessageConsumer(queue, QUICK, max_in_flight=10)
    await queue.add_many([{"payload": n} for n in range(4)])
    assert len(await inbox.read_window(4, max_wait=5, idle_timeout=5)) == 4
    await inbox.close()
    other = MessageConsumer(queue, QUICK, max_in_flight=10)
    again = await other.read_window(4, max_wait=2, idle_timeout=5)
    assert sorted(m.job.payload for m in again) == [0, 1, 2, 3]
    assert {m.job.attempt for m in again} == {0}
    await other.close()


async def test_delayed_messages_arrive_when_they_are_due(queue, inbox):
    await queue.add("later", delay=timedelta(milliseconds=300))
    (message,) = await inbox.window(1, wait=0, idle=5)
    assert message.as_json()["payload"] == "later"
    message.accept()


async def test_bytes_that_json_has_no_word_for_are_still_json(queue, inbox):
    await queue.add({"raw": b"\xff\x00", 1: float("nan")})
    (message,) = await inbox.window(1, wait=0, idle=5)
    assert message.as_json()["payload"] == {"raw": {"base64": "/wA="}, "1": "nan"}
    message.accept()


async def _settled(queue: AsyncQueue) -> bool:
    depth = await queue.depth()
    return depth.waiting == depth.running == depth.delayed == 0


async def _until(condition, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
