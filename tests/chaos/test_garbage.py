"""Garbage under the keys of a queue causes a clear error or a dead letter, and no busy loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server
from tests.engine.conftest import PUNCTUAL, working
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

SHORT_DELAY = timedelta(milliseconds=50)
# Commands per second: far more than a waiting worker sends, far fewer than a busy loop sends.
MAX_COMMAND_RATE = 3000
JUNK = [b"", b"\x00", b"\xff" * 40, b"\x05\x00\x00\x00ab", b"\x93\xc1", b"{}", b"a" * 5000]
SCORES = ["-inf", "-1e300", "0", "1", "0.5"]


@pytest.fixture(scope="module", params=["native", "portable"])
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Start a server for this module alone, because the tests count its commands."""
    native = request.param == "native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as server:
        yield Server(server.url, request.param)


@pytest.fixture
async def queue(own_server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, own_server.url, dialect=own_server.dialect) as opened:
        yield opened


@pytest.fixture
def client(own_server: Server) -> Iterator[Any]:
    with plain_client(own_server.url) as client:
        yield client


def handler(ran: list[Any]) -> Any:
    async def handle(job: Any) -> None:
        ran.append(job.payload)

    return handle


def is_calm(client: Any, seconds: float = 1.0) -> bool:
    """Return whether the server receives few commands."""
    before = client.info("stats")["total_commands_processed"]
    began = time.monotonic()
    time.sleep(seconds)
    commands = client.info("stats")["total_commands_processed"] - before
    return bool(commands / (time.monotonic() - began) < MAX_COMMAND_RATE)


KEY_NAMES = (
    "delayed",
    "dlq",
    "events",
    "repeat",
    "cancel_requests",
    "cancelled_batches",
    "paused_names",
    "promoter_lock",
    "scheduler_lock",
)


@pytest.mark.parametrize("name", KEY_NAMES)
async def test_a_key_of_the_wrong_type_stops_only_the_components_that_need_it(
    queue: AsyncQueue, client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    key, ran = getattr(queue.keys, name), list[Any]()
    client.rpush(key, "other data")
    async with working(queue, handler(ran), scheduler=PUNCTUAL):
        await queue.add("now")
        await wait_until_async(lambda: ran == ["now"])
        # The reader does not need the key. A component that needs it logs the error code and waits.
        await wait_until_async(lambda: "CMQ-301" in caplog.text)
        assert await asyncio.to_thread(is_calm, client)
        assert client.lrange(key, 0, -1) == [b"other data"]
        client.delete(key)
        await queue.add("later", delay=SHORT_DELAY)
        await queue.repeat("tick", Every(100), key="r", limit=2)
        await wait_until_async(lambda: sorted(ran) == ["later", "now", "tick", "tick"], 60)


async def test_garbage_in_every_collection_stops_no_component(
    queue: AsyncQueue, client: Any
) -> None:
    keys, ran = queue.keys, list[Any]()
    for number, junk in enumerate(JUNK):
        client.zadd(keys.delayed, {junk + b"%d" % number: SCORES[number % len(SCORES)]})
        client.zadd(keys.delayed, {b"\x00" + junk + b"%d" % number: 2.0})
        client.xadd(keys.stream, {"d": junk, "n": junk})
        client.xadd(keys.stream, {"x": junk})
        client.xadd(keys.events, {"e": junk, "id": junk, "ts": junk})
        client.xadd(keys.events, {"x": junk})
        client.xadd(keys.dlq, {"d": junk, "reason": junk, "attempts": junk, "failed_at": junk})
        client.xadd(keys.dlq, {"x": junk})
        client.zadd(keys.repeat, {junk + b"%d" % number: SCORES[number % len(SCORES)]})
        client.hset(keys.repeat_spec(f"junk-{number}"), mapping={"spec": junk, "fired": junk})
        client.zadd(keys.repeat, {f"junk-{number}": 1})
        client.hset(keys.cancel_requests, junk, junk)
    async with working(queue, handler(ran), scheduler=PUNCTUAL):
        await queue.add("now")
        await queue.add("later", delay=SHORT_DELAY)
        await queue.repeat("tick", Every(100), key="good", limit=2)
        await wait_until_async(lambda: sorted(ran) == ["later", "now", "tick", "tick"], 60)
        await wait_until_async(
            lambda: client.zcard(keys.delayed) == 0 and client.xlen(keys.stream) == 0, 60
        )
        assert await asyncio.to_thread(is_calm, client)
    # Entries that are no jobs were not dropped: they became dead letters.
    dead_letters = await queue.dead_letters(limit=1000)
    reasons = {dead_letter.reason for dead_letter in dead_letters}
    assert {"malformed", "decode_failed"} <= reasons
    assert len(dead_letters) >= 4 * len(JUNK)
    await queue.depth()
    await queue.events(limit=1000)
    await queue.repeats(limit=1000)
    await queue.replay_dead_letters(limit=1000)
    await queue.purge_dead_letters()
    assert (await queue.depth()).dead == 0


async def test_garbage_in_a_single_value_is_an_error_or_no_value(
    queue: AsyncQueue, client: Any
) -> None:
    keys = queue.keys
    for junk in JUNK:
        client.set(keys.result("j"), junk)
        client.set(keys.progress("j"), junk)
        client.set(keys.watcher_state("default"), junk)
        client.delete(keys.batch("b"))
        client.hset(keys.batch("b"), mapping={"total": junk, "parts": junk, "sent:x": junk})
        for read in (
            lambda: queue.result("j"),
            lambda: queue.progress("j"),
            lambda: queue.batch_progress("b"),
            lambda: queue.watcher_status(),
            lambda: queue.job_status("j"),
            lambda: queue.dead_job_ids("b"),
        ):
            with suppress(ChasquiError):
                await read()


@pytest.mark.parametrize("name", ["promoter_lock", "scheduler_lock"])
async def test_a_lock_without_a_ttl_does_not_block_the_leader_election(
    queue: AsyncQueue, client: Any, name: str
) -> None:
    client.set(getattr(queue.keys, name), "unknown")
    ran: list[Any] = []
    async with working(queue, handler(ran), scheduler=PUNCTUAL):
        await queue.add("later", delay=SHORT_DELAY)
        await queue.repeat("tick", Every(100), key="r", limit=1)
        await wait_until_async(lambda: sorted(ran) == ["later", "tick"], 60)
