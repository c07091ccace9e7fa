"""A real consumer writes what ChasquiMQ 1.3.0 wrote: letters, parked jobs, events, results, fires.

The vectors were captured from the wheel; where ours differs on purpose, the difference is asserted
and its reason stands in tests/wire/differences.py or here.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import decode_delayed_member, decode_envelope
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, SKIP, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryDefaults, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import PUNCTUAL, empty, until, working
from tests.support.redis_state import entries
from tests.wire.differences import EXTRA_LETTER_FIELDS, LETTER_KEEPS_NAME
from tests.wire.golden import case, fields, value, vectors

PATHS = {vector["case"]: vector for vector in vectors("worker_paths")}
VERDICTS = [vector for name, vector in PATHS.items() if name.startswith("decode_")]
EVENTS = vectors("events")

# 1.3.0 keeps no reason for a letter that it cannot decode; ours says it, in 1.3.0's own field.
DECODE_DETAIL = b"detail"
# 1.3.0 forgets crashed runs: its letter says attempt 0 after three of them. Ours counts them.
CRASHES_COUNT = "the envelope of a letter counts crashed runs too"
# 1.3.0 may tell `waiting` after `active`, because the worker is faster; so do we.
UNORDERED = {b"waiting", b"drained"}


async def boom(job: Any) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize("vector", VERDICTS, ids=case)
async def test_what_1_3_0_takes_or_rejects(vector, queue: AsyncQueue, client) -> None:
    d, name = bytes.fromhex(vector["inputs"]["d_hex"]), vector["inputs"]["n"].encode()
    entry_id = client.xadd(queue.keys.stream, {b"d": d, b"n": name})
    saw: list[Any] = []

    async def handle(job) -> None:
        saw.append([job.id, job.payload, job.attempt, job.created_at_ms, job.name])

    async with working(queue, handle, retry=RetryDefaults(max_attempts=1)):
        await until(lambda: _handled(queue, saw))
    if vector["dlq_fields"] is None:
        # A payload of two integers has no meaning as MessagePack; 1.3.0 retries it 25 times.
        assert saw == vector["handler_saw"] or vector["case"] == "decode_array_payload"
        return
    assert saw == []
    [(_, written)] = entries(client, queue.keys.dlq)
    theirs = [
        (key, entry_id if key == b"source_id" else raw) for key, raw in fields(vector["dlq_fields"])
    ]
    theirs.insert(1, (b"n", name))  # LETTER_KEEPS_NAME
    assert written[: len(theirs)] == theirs, LETTER_KEEPS_NAME
    assert tuple(key for key, _ in written[len(theirs) :]) == (DECODE_DETAIL, *EXTRA_LETTER_FIELDS)


async def _handled(queue: AsyncQueue, saw: list[Any]) -> bool:
    return bool((saw or (await queue.depth()).dead) and await empty(queue))


async def test_the_retry_that_is_parked_and_the_letter_after_it(queue: AsyncQueue, client) -> None:
    vector, letter = PATHS["retry_member"], PATHS["dlq_retries_exhausted"]
    parked = decode_delayed_member(bytes.fromhex(vector["zset_member_hex"]))
    first = bytes.fromhex(vector["envelope_hex"]).replace(b"\x01\x92\x02", b"\x00\x92\x02")
    assert decode_envelope(first).attempt == 0
    client.xadd(queue.keys.stream, {b"d": first, b"n": parked.name})
    async with working(queue, boom, promoter=None):
        [(member, score)] = await until(
            lambda: client.zrange(queue.keys.delayed, 0, -1, withscores=True)
        )
    assert member.hex() == vector["zset_member_hex"]
    assert 0 < score - (time.time() * 1000 - 5000) < 6000
    async with working(queue, boom):
        await until(lambda: client.xlen(queue.keys.dlq))
        await until(lambda: empty(queue))
    [(_, written)] = entries(client, queue.keys.dlq)
    theirs = fields(letter["dlq_fields"])
    assert [key for key, _ in written] == [key for key, _ in theirs] + list(EXTRA_LETTER_FIELDS)
    ours, expected = dict(written), dict(theirs)
    for key in (b"d", b"n", b"reason"):
        assert ours[key] == expected[key]
    assert (ours[b"error"], ours[b"attempts"]) == (b"ValueError: boom", b"2")


@pytest.mark.parametrize("name", ["dlq_malformed", "dlq_oversize", "dlq_unnamed"])
async def test_letters_of_other_reasons(name: str, queue: AsyncQueue, client) -> None:
    theirs = fields(PATHS[name]["dlq_fields"])
    said = dict(theirs)
    written: dict[bytes, Any] = {b"d": said[b"d"]}
    if b"n" in said:
        written[b"n"] = said[b"n"]
    if name == "dlq_malformed":
        written = {b"zz": b"1"}
    entry_id = client.xadd(queue.keys.stream, written)
    async with working(queue, boom, max_payload_bytes=100):
        await until(lambda: client.xlen(queue.keys.dlq))
    [(_, letter)] = entries(client, queue.keys.dlq)
    expected = [(key, entry_id if key == b"source_id" else raw) for key, raw in theirs]
    assert letter[: len(expected)] == expected
    rest = [key for key, _ in letter[len(expected) :]]
    # A reason that 1.3.0 states in `detail` needs no error of ours beside it.
    assert rest in ([*EXTRA_LETTER_FIELDS], [*EXTRA_LETTER_FIELDS[1:]])


async def test_a_letter_of_a_job_that_crashed_too_often(queue: AsyncQueue, client) -> None:
    vector = PATHS["dlq_exhausted_on_arrival"]
    theirs = dict(fields(vector["dlq_fields"]))
    client.xadd(queue.keys.stream, {b"d": theirs[b"d"], b"n": theirs[b"n"]})
    keys, drive = queue.keys, queue.client
    await drive.execute(consumer_group.create(keys, "default"))
    await drive.execute(consumer_group.read(keys, "default", "dead", 10, 0, 60_000))
    await drive.execute(consumer_group.claim(keys, "default", "dead", 0, 10))
    async with working(queue, boom, claim_after=timedelta(milliseconds=20)):
        await until(lambda: client.xlen(queue.keys.dlq))
        await until(lambda: empty(queue))
    [(_, letter)] = entries(client, queue.keys.dlq)
    ours = dict(letter)
    assert [key for key, _ in letter][:4] == [key for key, _ in fields(vector["dlq_fields"])]
    # Two runs are allowed and two crashed: dead on arrival, where 1.3.0 lets a third one begin.
    assert ours[b"attempts"] == b"2"
    mine, given = decode_envelope(ours[b"d"]), decode_envelope(theirs[b"d"])
    assert (mine.id, mine.body, mine.retry) == (given.id, given.body, given.retry)
    assert (mine.attempt, given.attempt) == (2, 0), CRASHES_COUNT
    [event] = [e for e in _events(client, queue) if dict(e)[b"e"] == b"dlq"]
    assert [key for key, _ in event] == [b"e", b"id", b"ts", b"n", b"attempt", b"reason"]
    assert dict(event)[b"attempt"] == b"2"


def _events(client: Any, queue: AsyncQueue) -> list[list[tuple[bytes, bytes]]]:
    return [fields for _, fields in entries(client, queue.keys.events)]


STORIES = {
    "ok_with_result": {"id": "w-ok", "name": "ok"},
    "ok_unnamed": {"id": "w-unnamed"},
    "retry": {"id": "w-rt", "name": "rt", "retry": RetryPolicy(2, Backoff("fixed", 100))},
    "unrecoverable": {"id": "w-un", "name": "un"},
    "malformed": {b"zz": b"1"},
    "oversize": {b"d": b"x" * 201, b"n": b"big"},
    "delayed_promoted": {"id": "w-d", "name": "dl", "delay": timedelta(milliseconds=50)},
    "repeat_fire": {"name": "rp"},
}


@pytest.mark.parametrize("story", STORIES)
async def test_events_as_1_3_0_tells_them(story: str, queue: AsyncQueue, client) -> None:
    """The same events with the same fields in the same order."""

    async def play(job) -> None:
        if job.name == "rt":
            raise ValueError("boom")
        if job.name == "un":
            raise Unrecoverable("terminal")

    given = STORIES[story]
    if story == "repeat_fire":
        await queue.repeat({"a": 1}, Every(50), job_name="rp", limit=1)
    elif b"zz" in given or b"d" in given:
        client.xadd(queue.keys.stream, given)
    else:
        await queue.add({"a": 1}, **given)
    wanted = [vector for vector in EVENTS if vector["case"].startswith(story)]
    last = "drained" if story == "retry" else wanted[-1]["event"]
    async with working(
        queue,
        play,
        block_timeout=timedelta(milliseconds=50),
        max_payload_bytes=200,
        scheduler=PUNCTUAL,
    ):
        await until(lambda: _told(client, queue, last))
    ours = [_bare(event) for event in _events(client, queue)]
    theirs = [
        _bare([(key.encode(), text.encode()) for key, text in vector["fields_in_order"]])
        for vector in wanted
    ]
    if story in ("repeat_fire", "delayed_promoted"):  # minted or run-specific ids
        ours, theirs = [[_nameless(e) for e in each] for each in (ours, theirs)]
    for event in theirs:
        assert event in ours
    steps = [event for event in theirs if event[0][1] not in UNORDERED]
    told = iter(ours)
    assert all(event in told for event in steps), "in the same order"


async def _told(client: Any, queue: AsyncQueue, last: str) -> bool:
    names = [dict(event)[b"e"].decode() for event in _events(client, queue)]
    return last in names and bool(set(names) & {"completed", "dlq"}) and await empty(queue)


def _bare(event: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """An event without what depends on the moment."""
    changing = (b"ts", b"duration_us", b"backoff_ms")
    return [(key, b"" if key in changing else raw) for key, raw in event]


def _nameless(event: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(key, b"" if key in (b"id", b"n") else raw) for key, raw in event]


def test_no_story_is_left_out() -> None:
    rest = {v["case"] for v in EVENTS if not v["case"].startswith(tuple(STORIES))}
    assert rest == {"exhausted_on_arrival"}  # which has a test of its own above


@pytest.mark.parametrize("vector", vectors("results"), ids=case)
async def test_results_as_1_3_0_keeps_them(vector, queue: AsyncQueue, client) -> None:
    job_id = vector["key"].rpartition(":")[2]
    wanted = value(vector["get_job_result"]) if "get_job_result" in vector else {"ok": True}

    async def handle(job) -> Any:
        return wanted

    await queue.add(1, job_id=job_id)
    async with working(queue, handle, store_results=True):
        await until(lambda: empty(queue))
    key = queue.keys.result(job_id)
    if vector["value_hex"] is None:
        assert client.exists(key) == 0
    else:
        assert client.get(key).hex() == vector["value_hex"]
        assert client.ttl(key) in (3600, 3599)


@pytest.mark.parametrize("vector", vectors("promote"), ids=case)
async def test_a_promoted_job_is_written_as_1_3_0_writes_it(
    vector, queue: AsyncQueue, client
) -> None:
    member = bytes.fromhex(vector["zset_member_hex"])
    job_id = decode_delayed_member(member).id
    client.set(queue.keys.delayed_index(job_id), member)
    client.zadd(queue.keys.delayed, {member: 1})
    args = [bytes.fromhex(text) for text in vector["xadd_args_hex"]]
    release = asyncio.Event()

    async def handle(job) -> None:
        await release.wait()

    async with working(queue, handle):
        [(_, written)] = await until(lambda: entries(client, queue.keys.stream))
        theirs = args[args.index(b"*") + 1 :]
        assert written == list(zip(theirs[::2], theirs[1::2], strict=True))
        await until(lambda: not client.exists(queue.keys.delayed_index(job_id)))
        waiting = await until(
            lambda: [e for e in _events(client, queue) if dict(e)[b"e"] == b"waiting"]
        )
        assert [key for key, _ in waiting[0]] == [b"e", b"id", b"ts"]
        release.set()
        await until(lambda: empty(queue))


@pytest.mark.parametrize("vector", vectors("scheduler_fires"), ids=case)
async def test_fires_as_1_3_0_fires(vector, queue: AsyncQueue, client) -> None:
    given = vector["inputs"]
    policy = given["policy"]
    missed = {"skip": SKIP, "fire-once": FIRE_ONCE}.get(policy["kind"]) or fire_all(
        policy["max_catchup"]
    )
    key = await queue.repeat(
        {"a": 1}, Every(given["interval_ms"]), job_name=given["name"], limit=given["limit"],
        misfire=missed,
    )  # fmt: skip
    assert key == vector["script_args"]["spec_key"]
    late_ms = vector["script_args"]["now_ms"] - given["score_ms"]
    score = int(time.time() * 1000) - late_ms
    client.zadd(queue.keys.repeat, {key: score})
    fired: list[Any] = []

    async def handle(job) -> None:
        fired.append(job)

    async with working(queue, handle, scheduler=PUNCTUAL, concurrency=1):
        await until(lambda: client.zscore(queue.keys.repeat, key) != score)
        await until(lambda: empty(queue))
    stream = vector["stream_after"]
    assert len(fired) == len(stream)
    for job, written in zip(fired, stream, strict=True):
        theirs = decode_envelope(bytes.fromhex(dict(written)["d"]))
        assert (job.name, job.body, job.attempt, job.retry) == (
            bytes.fromhex(dict(written).get("n", "")).decode(), theirs.body, 0, None,
        )  # fmt: skip
        assert len(job.id) == len(theirs.id) == 26
    after = vector["repeat_zset_after"]
    if after:
        step = vector["script_args"]["next_fire_ms"] - given["score_ms"]
        assert client.zscore(queue.keys.repeat, key) == score + step
        hash_after = client.hgetall(queue.keys.repeat_spec(key))
        assert {name.decode(): raw.hex() for name, raw in hash_after.items()} == dict(
            vector["hash_after"]
        )
    else:
        assert client.zscore(queue.keys.repeat, key) is None
        assert client.exists(queue.keys.repeat_spec(key)) == 0
