"""What a producer sees: finding, waiting, replaying, and errors that say what to do."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_envelope
from airflow_provider_chasqui.core.commands import dead_letters, delayed
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.commands.enqueue import emit
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import (
    BatchNotFound,
    ChasquiError,
    DecodeError,
    JobFailed,
    KeyTypeMismatch,
    WaitTimeout,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.support.redis_state import dump

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def walk(queue: Queue, flow: Any, between: Any) -> Any:
    """Run a flow step by step and do something after each step."""
    try:
        step = next(flow)
        while True:
            answer = (
                queue.client.pipeline(step)
                if isinstance(step, list)
                else queue.client.execute(step)
            )
            between(step)
            step = flow.send(answer)
    except StopIteration as done:
        return done.value


def test_an_id_that_only_looks_like_a_ulid_is_found(queue):
    """Its first ten characters would be a time in the far future."""
    future = "7ZZZZZZZZZABCDEFGHJKMNPQRS"
    ahead = UlidGenerator().next(2**47)
    for job_id in (future, ahead):
        queue.add(1, job_id=job_id)
        assert queue.job_status(job_id).state == "waiting"


def test_a_delayed_job_is_found_while_those_before_it_are_promoted(queue, client):
    """Pages by rank would skip it: what is behind a page moves up into the page just read."""
    due = {
        encode_delayed_member(b"", encode_envelope(f"due-{i}", b"\xc0", 1)): i for i in range(6000)
    }
    client.zadd(queue.keys.delayed, due)
    waits = queue.add("the one", delay=HOUR).id

    def promote(step: Any) -> None:
        if "ZSCAN" in step.args or "ZRANGE" in step.args:
            queue.client.execute(delayed.promote(queue.keys, 1500))

    found = walk(queue, delayed.find_member(queue.keys, waits), promote)
    assert found[2].payload == "the one"
    assert queue.cancel(waits) == "cancelled"


def test_a_job_that_dies_again_while_letters_are_replayed_is_not_replayed_again(queue, client):
    for i in range(3):
        client.xadd(queue.keys.dlq, {"d": encode_envelope(f"j{i}", b"\xc0", 1), "reason": "r"})

    def die_again(step: Any) -> None:
        if step.script == "replay":
            client.xadd(queue.keys.dlq, {"d": encode_envelope("j0", b"\xc0", 1), "reason": "r"})

    report = walk(
        queue, dead_letters.replay(queue.keys, DeadLetterFilter(), None, None, False), die_again
    )
    assert (report.matched, report.affected) == (3, 3)
    assert client.xlen(queue.keys.stream) == 3
    assert client.xlen(queue.keys.dlq) == 1


def test_letters_that_cannot_be_read_never_stand_in_the_way(queue, client):
    """ChasquiMQ reads the oldest hundred and skips these, so it would never get past them."""
    for _ in range(700):
        client.xadd(queue.keys.dlq, {"d": b"\xc1", "reason": "decode_failed"})
    client.xadd(queue.keys.dlq, {"d": encode_envelope("good", b"\xc0", 1), "reason": "r"})
    report = queue.replay_dead_letters()
    assert (report.matched, report.affected, report.unreadable) == (701, 1, 700)
    assert queue.purge_dead_letters(reason="decode_failed").affected == 700
    assert queue.dead_letters() == []


def test_letters_are_paged_in_both_directions(queue, client):
    ids = [client.xadd(queue.keys.dlq, {"d": b"", "reason": "r"}).decode() for _ in range(7)]
    forward = queue.dead_letters(limit=3)
    assert [letter.id for letter in forward] == ids[:3]
    assert [letter.id for letter in queue.dead_letters(limit=3, after=ids[2])] == ids[3:6]
    back = queue.dead_letters(limit=3, newest_first=True)
    assert [letter.id for letter in back] == ids[:3:-1]
    more = queue.dead_letters(limit=9, newest_first=True, after=back[-1].id)
    assert [letter.id for letter in more] == ids[3::-1]
    assert queue.dead_letters(limit=0) == []


def test_a_result_that_cannot_be_read_names_its_job(queue, client):
    client.set(queue.keys.result("j"), b"\xc1")
    with pytest.raises(DecodeError) as told:
        queue.results(["j"])
    assert (told.value.job_id, told.value.queue_name) == ("j", queue.name)


def test_waiting_ends_with_the_job(queue, client):
    queue.add(1, job_id="j")
    client.xgroup_create(queue.keys.stream, "default", "0")
    client.xreadgroup("default", "me", {queue.keys.stream: ">"})

    def finish() -> None:
        client.set(queue.keys.result("j"), encode_payload({"r": 5}))
        queue.client.execute(emit(queue.keys, [event_fields("completed", "j", 1)]))

    timer = threading.Timer(0.2, finish)
    timer.start()
    assert queue.wait("j", timeout=timedelta(seconds=20)) == {"r": 5}
    timer.join()


def test_waiting_for_a_job_that_dies(queue):
    queue.add(1, job_id="j")
    dies = lambda: queue.client.execute(  # noqa: E731
        emit(queue.keys, [event_fields("dlq", "j", 1, reason="bad")])
    )
    timer = threading.Timer(0.2, dies)
    timer.start()
    with pytest.raises(JobFailed, match="bad") as told:
        queue.wait("j", timeout=timedelta(seconds=20))
    timer.join()
    assert (told.value.code, told.value.job_id) == ("CMQ-305", "j")


def test_waiting_in_vain(queue):
    queue.add(1, job_id="j")
    with pytest.raises(WaitTimeout, match="waiting") as told:
        queue.wait("j", timeout=timedelta(milliseconds=100))
    assert told.value.code == "CMQ-102"
    queue.add_batch([1], batch_id="b")
    with pytest.raises(WaitTimeout, match="0 done and 0 dead of 1"):
        queue.wait_batch("b", timeout=timedelta(milliseconds=100))
    with pytest.raises(BatchNotFound):
        queue.wait_batch("nobody")
    assert queue.add_batch([], batch_id="empty").total == 0
    assert queue.wait_batch("empty", timeout=SECOND).finished


@pytest.mark.parametrize(
    ("key", "ask"),
    [
        ("stream", lambda queue: queue.add(1)),
        ("stream", lambda queue: queue.add_many([{"payload": i} for i in range(3)])),
        ("stream", lambda queue: queue.add_batch([1], batch_id="b")),
        ("delayed", lambda queue: queue.add(1, delay=HOUR)),
        ("delayed", lambda queue: queue.add(1, job_id="x", delay=HOUR, dedup_ttl=HOUR)),
        ("batch:b", lambda queue: queue.add_batch([1], batch_id="b")),
        ("repeat", lambda queue: queue.repeats()),
        ("dlq", lambda queue: queue.dead_letters()),
        ("stream", lambda queue: queue.depth()),
    ],
)
def test_a_key_that_is_not_ours_is_a_clear_error_and_stays_as_it_was(queue, client, key, ask):
    client.set(f"{queue.keys.hash_tag}:{key}", "mine")
    before = dump(client, queue.keys)
    with pytest.raises(KeyTypeMismatch) as told:
        ask(queue)
    assert (told.value.code, told.value.queue_name) == ("CMQ-301", queue.name)
    assert dump(client, queue.keys) == before


def test_announced_adds_are_told(server, client, queue_name):
    config = QueueConfig(emit_enqueue_events=True)
    with Queue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        tail = queue.last_event_id()
        queue.add(1, job_id="a", job_name="n")
        queue.add(2, job_id="b", delay=HOUR)
        queue.add(2, job_id="b", delay=HOUR)
        told = [(e.name, e.job_id, e.job_name, e.delay_ms) for e in queue.events(after=tail)]
        assert told == [("waiting", "a", "n", None), ("delayed", "b", "", 3_600_000)]
        client.delete(queue.keys.events)
        client.set(queue.keys.events, "mine")
        assert queue.add(3, job_id="c").created
        assert queue.job_status("c").state == "waiting"


async def test_the_awaited_colour(server, queue_name):
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        added = await queue.add({"a": 1}, job_name="x")
        assert added.created
        assert (await queue.job_status(added.job_id)).state == "waiting"
        assert len(await queue.add_many({"payload": i} for i in range(1000))) == 1000
        assert (await queue.add_batch(range(600), batch_id="b")).total == 600
        assert (await queue.depth()).waiting == 1601
        with pytest.raises(ChasquiError):
            await queue.wait_batch("b", timeout=timedelta(milliseconds=50))
        several = [queue.add(i, job_id=f"u{i % 3}", dedup_ttl=HOUR) for i in range(9)]
        assert sum(each.created for each in await asyncio.gather(*several)) == 3
        assert await queue.dialect() == server.dialect
