"""Queue of a producer: find jobs, wait for them, replay dead letters, and errors with advice."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_envelope
from airflow_provider_chasqui.core.commands import dead_letters, delayed
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.commands.events import emit
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
from tests.support.manual_worker import move_to_dlq, take
from tests.support.redis_state import dump

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def run_with_hook(queue: Queue, flow: Any, after_step: Any) -> Any:
    """Run a flow and call a function after each step."""
    try:
        step = next(flow)
        while True:
            result = (
                queue.client.pipeline(step)
                if isinstance(step, list)
                else queue.client.execute(step)
            )
            after_step(step)
            step = flow.send(result)
    except StopIteration as stop:
        return stop.value


def test_an_id_that_only_looks_like_a_ulid_is_found(queue):
    """The first ten characters would be a time in the far future."""
    future = "7ZZZZZZZZZABCDEFGHJKMNPQRS"
    ahead = UlidGenerator().next(2**47)
    for job_id in (future, ahead):
        queue.add(1, job_id=job_id)
        assert queue.job_status(job_id).state == "waiting"


def test_a_delayed_job_is_found_while_those_before_it_are_promoted(queue, client):
    """Pages by rank would skip it, because later members move up into the page just read."""
    due = {
        encode_delayed_member(b"", encode_envelope(f"due-{i}", b"\xc0", 1)): i for i in range(6000)
    }
    client.zadd(queue.keys.delayed, due)
    job_id = queue.add("target", delay=HOUR).job_id

    def promote(step: Any) -> None:
        if "ZSCAN" in step.args or "ZRANGE" in step.args:
            queue.client.execute(delayed.promote(queue.keys, 1500))

    member = run_with_hook(queue, delayed.find_member(queue.keys, job_id), promote)
    assert member[2].payload == "target"
    assert queue.cancel(job_id) == "cancelled"


def test_a_job_that_dies_again_during_a_replay_is_not_replayed_again(queue, client):
    for i in range(3):
        client.xadd(queue.keys.dlq, {"d": encode_envelope(f"j{i}", b"\xc0", 1), "reason": "r"})

    def die_again(step: Any) -> None:
        if step.script == "replay":
            client.xadd(queue.keys.dlq, {"d": encode_envelope("j0", b"\xc0", 1), "reason": "r"})

    report = run_with_hook(
        queue, dead_letters.replay(queue.keys, DeadLetterFilter(), None, None, False), die_again
    )
    assert (report.matched, report.affected) == (3, 3)
    assert client.xlen(queue.keys.stream) == 3
    assert client.xlen(queue.keys.dlq) == 1


def test_unreadable_dead_letters_do_not_block_a_replay(queue, client):
    """ChasquiMQ reads the oldest hundred and skips unreadable ones, so it would stop there."""
    for _ in range(700):
        client.xadd(queue.keys.dlq, {"d": b"\xc1", "reason": "decode_failed"})
    client.xadd(queue.keys.dlq, {"d": encode_envelope("good", b"\xc0", 1), "reason": "r"})
    report = queue.replay_dead_letters()
    assert (report.matched, report.affected, report.unreadable) == (701, 1, 700)
    assert queue.purge_dead_letters(reason="decode_failed").affected == 700
    assert queue.dead_letters() == []


def test_dead_letters_are_paged_in_both_directions(queue, client):
    ids = [client.xadd(queue.keys.dlq, {"d": b"", "reason": "r"}).decode() for _ in range(7)]
    forward = queue.dead_letters(limit=3)
    assert [dead_letter.id for dead_letter in forward] == ids[:3]
    page = queue.dead_letters(limit=3, after=ids[2])
    assert [dead_letter.id for dead_letter in page] == ids[3:6]
    backward = queue.dead_letters(limit=3, newest_first=True)
    assert [dead_letter.id for dead_letter in backward] == ids[:3:-1]
    page = queue.dead_letters(limit=9, newest_first=True, after=backward[-1].id)
    assert [dead_letter.id for dead_letter in page] == ids[3::-1]
    assert queue.dead_letters(limit=0) == []


def test_the_error_of_an_unreadable_result_names_the_job(queue, client):
    client.set(queue.keys.result("j"), b"\xc1")
    with pytest.raises(DecodeError) as info:
        queue.results(["j"])
    assert (info.value.job_id, info.value.queue_name) == ("j", queue.name)


def test_wait_returns_the_result_when_the_job_completes(queue, client):
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


def test_wait_raises_when_the_job_dies(queue):
    queue.add(1, job_id="j")

    timer = threading.Timer(0.2, lambda: move_to_dlq(queue, take(queue)[0]))
    timer.start()
    with pytest.raises(JobFailed, match=r"unrecoverable\): boom") as info:
        queue.wait("j", timeout=timedelta(seconds=20))
    timer.join()
    assert (info.value.code, info.value.job_id) == ("CMQ-305", "j")


def test_waits_time_out_with_the_state_and_a_missing_batch_is_an_error(queue):
    queue.add(1, job_id="j")
    with pytest.raises(WaitTimeout, match="waiting") as info:
        queue.wait("j", timeout=timedelta(milliseconds=100))
    assert info.value.code == "CMQ-102"
    queue.add_batch([1], batch_id="b")
    with pytest.raises(WaitTimeout, match="0 done and 0 dead of 1"):
        queue.wait_batch("b", timeout=timedelta(milliseconds=100))
    with pytest.raises(BatchNotFound):
        queue.wait_batch("unknown")
    assert queue.add_batch([], batch_id="empty").total == 0
    assert queue.wait_batch("empty", timeout=SECOND).finished


@pytest.mark.parametrize(
    ("key", "call"),
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
def test_a_key_of_another_type_is_a_clear_error_and_is_not_changed(queue, client, key, call):
    client.set(f"{queue.keys.hash_tag}:{key}", "foreign")
    before = dump(client, queue.keys)
    with pytest.raises(KeyTypeMismatch) as info:
        call(queue)
    assert (info.value.code, info.value.queue_name) == ("CMQ-301", queue.name)
    assert dump(client, queue.keys) == before


def test_enqueue_events_are_emitted_if_configured(server, client, queue_name):
    config = QueueConfig(emit_enqueue_events=True)
    with Queue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        tail = queue.last_event_id()
        queue.add(1, job_id="a", job_name="n")
        queue.add(2, job_id="b", delay=HOUR)
        queue.add(2, job_id="b", delay=HOUR)
        events = queue.events(after=tail)
        assert [(e.name, e.job_id, e.job_name, e.delay_ms) for e in events] == [
            ("waiting", "a", "n", None),
            ("delayed", "b", "", 3_600_000),
        ]
        client.delete(queue.keys.events)
        client.set(queue.keys.events, "foreign")
        assert queue.add(3, job_id="c").created
        assert queue.job_status("c").state == "waiting"


async def test_the_async_queue_has_the_same_behaviour(server, queue_name):
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        added = await queue.add({"a": 1}, job_name="x")
        assert added.created
        assert (await queue.job_status(added.job_id)).state == "waiting"
        assert len(await queue.add_many({"payload": i} for i in range(1000))) == 1000
        assert (await queue.add_batch(range(600), batch_id="b")).total == 600
        assert (await queue.depth()).waiting == 1601
        with pytest.raises(ChasquiError):
            await queue.wait_batch("b", timeout=timedelta(milliseconds=50))
        calls = [queue.add(i, job_id=f"u{i % 3}", dedup_ttl=HOUR) for i in range(9)]
        assert sum(result.created for result in await asyncio.gather(*calls)) == 3
        assert await queue.dialect() == server.dialect
