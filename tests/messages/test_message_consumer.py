"""A message stays pending until its outcome is decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.triggers._message_consumer import MessageConsumer
from tests.conftest import Server
from tests.support.waiting import wait_until_async

CLAIM_AFTER = timedelta(seconds=1)
CONFIG = ConsumerConfig(claim_after=CLAIM_AFTER)


@pytest.fixture
async def queue(server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


@pytest.fixture
async def consumer(queue: AsyncQueue) -> AsyncIterator[MessageConsumer]:
    consumer = MessageConsumer(queue, CONFIG, max_in_flight=10)
    yield consumer
    await consumer.close()


async def test_a_window_ends_when_it_is_full_or_max_wait_has_passed(queue, consumer):
    await queue.add_many([{"payload": n} for n in range(5)])
    full = await consumer.read_window(3, max_wait=5, idle_timeout=5)
    timed_out = await consumer.read_window(3, max_wait=0.2, idle_timeout=5)
    assert [message.job.payload for message in full + timed_out] == [0, 1, 2, 3, 4]
    assert await consumer.read_window(3, max_wait=1, idle_timeout=0.1) == []


async def test_messages_can_be_acked_dead_lettered_or_retried(queue, consumer):
    await queue.add_many([{"payload": n, "job_name": "m"} for n in range(3)])
    acked, rejected, retried = await consumer.read_window(3, max_wait=5, idle_timeout=5)
    acked.ack()
    rejected.dead_letter("not for us")
    retried.retry("the database is away")
    (second_delivery,) = await consumer.read_window(1, max_wait=5, idle_timeout=5)
    assert (second_delivery.job.payload, second_delivery.job.attempt) == (2, 1)
    second_delivery.ack()
    await wait_until_async(lambda: _is_empty(queue), message="the queue is empty")
    (dead_letter,) = await queue.dead_letters()
    assert (dead_letter.job.payload, dead_letter.reason) == (1, "unrecoverable")
    assert "not for us" in dead_letter.error


async def test_no_more_than_max_in_flight_messages_are_pending(queue, consumer):
    await queue.add_many([{"payload": n} for n in range(100)])
    messages = await consumer.read_window(100, max_wait=0.5, idle_timeout=5)
    assert len(messages) == 10
    for message in messages:
        message.ack()
    assert len(await consumer.read_window(100, max_wait=0.5, idle_timeout=5)) == 10


async def test_the_claim_of_a_pending_message_is_renewed(queue, consumer):
    await queue.add("slow")
    (message,) = await consumer.read_window(1, max_wait=0, idle_timeout=5)
    other = MessageConsumer(queue, CONFIG, max_in_flight=1)
    idle_timeout = 2.5 * CLAIM_AFTER.total_seconds()
    assert await other.read_window(1, max_wait=0, idle_timeout=idle_timeout) == []
    message.ack()
    await other.close()


async def test_close_releases_pending_messages_without_counting_an_attempt(queue):
    consumer = MessageConsumer(queue, CONFIG, max_in_flight=10)
    await queue.add_many([{"payload": n} for n in range(4)])
    assert len(await consumer.read_window(4, max_wait=5, idle_timeout=5)) == 4
    await consumer.close()
    other = MessageConsumer(queue, CONFIG, max_in_flight=10)
    messages = await other.read_window(4, max_wait=2, idle_timeout=5)
    assert sorted(message.job.payload for message in messages) == [0, 1, 2, 3]
    assert {message.job.attempt for message in messages} == {0}
    await other.close()


async def test_a_delayed_message_arrives_when_it_is_due(queue, consumer):
    await queue.add("later", delay=timedelta(milliseconds=300))
    (message,) = await consumer.read_window(1, max_wait=0, idle_timeout=5)
    assert message.as_json()["payload"] == "later"
    message.ack()


async def test_values_that_json_lacks_are_converted(queue, consumer):
    await queue.add({"raw": b"\xff\x00", 1: float("nan")})
    (message,) = await consumer.read_window(1, max_wait=0, idle_timeout=5)
    assert message.as_json()["payload"] == {"raw": {"base64": "/wA="}, "1": "nan"}
    message.ack()


async def _is_empty(queue: AsyncQueue) -> bool:
    depth = await queue.depth()
    return depth.waiting == depth.running == depth.delayed == 0
