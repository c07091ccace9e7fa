"""Data of ChasquiMQ after 1.3.0 is passed through or left alone, never deleted or changed."""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, working
from tests.support.redis_state import dump
from tests.support.waiting import wait_until_async


async def _finish(job: Any) -> None:
    pass


async def test_keys_of_a_newer_version_are_not_changed(queue: AsyncQueue, client: Any) -> None:
    tag = queue.keys.hash_tag
    client.set(f"{tag}:stalled:lock", "a worker", px=60_000)
    client.set(f"{tag}:stalls:job", 1)
    client.hset(f"{tag}:limiter", mapping={"tokens": 3, "last_refill": 1})
    client.xadd(f"{tag}:log:job", {"line": "half of it is done"})
    client.hset(f"{tag}:something_new", mapping={"a": 1})
    names = ("stalled:lock", "stalls:job", "limiter", "log:job", "something_new")
    before = dump(client, queue.keys)
    async with working(queue, _finish):
        await queue.add(1, job_id="job")
        await wait_until_async(lambda: empty(queue))
        assert (await queue.depth()).waiting == 0
    after = dump(client, queue.keys)
    assert [after[name] for name in names] == [before[name] for name in names]


async def test_a_dead_letter_with_an_unknown_reason_is_listed_and_replayed(
    queue: AsyncQueue, client: Any
) -> None:
    """The stalled detector of newer workers writes such dead letters."""
    envelope = encode_job(Job("job", b"\x01", 1))
    fields = {"d": envelope, "source_id": "1-0", "reason": "stalled", "stalls": "2"}
    client.xadd(queue.keys.dlq, fields)
    [dead_letter] = await queue.dead_letters(reason="stalled")
    assert (dead_letter.job.id, dead_letter.reason) == ("job", "stalled")
    ran: list[str] = []

    async def handle(job: Any) -> None:
        ran.append(job.id)

    async with working(queue, handle):
        await queue.replay_dead_letters(reason="stalled")
        await wait_until_async(lambda: ran == ["job"])


async def test_unknown_events_are_returned_and_end_no_wait(queue: AsyncQueue, client: Any) -> None:
    await queue.add(1, job_id="job")
    for name in ("progress", "stalled", "rate-limited", "something-new"):
        client.xadd(queue.keys.events, {"e": name, "id": "job", "ts": 5, "new_field": "value"})
    events = await queue.events()
    assert [(event.name, event.job_id, event.ts_ms) for event in events] == [
        (name, "job", 5) for name in ("progress", "stalled", "rate-limited", "something-new")
    ]
    assert (await queue.job_status("job")).state == "waiting"

    async def handle(job: Any) -> str:
        return "done"

    async with working(queue, handle, store_results=True):
        assert await queue.wait("job") == "done"
