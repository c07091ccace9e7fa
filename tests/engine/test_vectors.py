"""Tests that a consumer writes the same bytes as ChasquiMQ 1.3.0.

The vectors were captured from its wheel: dead letters, delayed retries, events, results and
scheduled runs. Intended differences are asserted; their reasons are here or in
tests/wire/differences.py.
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
from tests.engine.conftest import PUNCTUAL, empty, working
from tests.support.redis_state import entries
from tests.support.waiting import wait_until_async
from tests.wire.differences import DEAD_LETTER_KEEPS_NAME, EXTRA_DEAD_LETTER_FIELDS
from tests.wire.golden import case, fields, value, vectors

PATHS = {vector["case"]: vector for vector in vectors("worker_paths")}
DECODE_VECTORS = [vector for name, vector in PATHS.items() if name.startswith("decode_")]
EVENTS = vectors("events")

# 1.3.0 leaves its field `detail` out if it cannot decode an entry or if the handler failed. This
# engine stores the cause and the traceback there.
DETAIL = b"detail"
# 1.3.0 does not count crashed runs: its dead letter has attempt 0 after three of them.
CRASHES_COUNT = "the envelope of a dead letter counts crashed runs"
# `waiting` may follow `active`, because the worker can be faster, as with 1.3.0.
UNORDERED = {b"waiting", b"drained"}


async def boom(job: Any) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize("vector", DECODE_VECTORS, ids=case)
async def test_entries_are_accepted_or_rejected_as_by_1_3_0(
    vector, queue: AsyncQueue, client
) -> None:
    d, name = bytes.fromhex(vector["inputs"]["d_hex"]), vector["inputs"]["n"].encode()
    entry_id = client.xadd(queue.keys.stream, {b"d": d, b"n": name})
    seen: list[Any] = []

    async def handle(job) -> None:
        seen.append([job.id, job.payload, job.attempt, job.created_at_ms, job.name])

    async with working(queue, handle, retry=RetryDefaults(max_attempts=1)):
        await wait_until_async(lambda: _handled(queue, seen))
    if vector["dlq_fields"] is None:
        # A payload of two integers is not one MessagePack value; 1.3.0 retries it 25 times.
        assert seen == vector["handler_saw"] or vector["case"] == "decode_array_payload"
        return
    assert seen == []
    [(_, written)] = entries(client, queue.keys.dlq)
    upstream = [
        (key, entry_id if key == b"source_id" else raw) for key, raw in fields(vector["dlq_fields"])
    ]
    upstream.insert(1, (b"n", name))  # DEAD_LETTER_KEEPS_NAME
    assert written[: len(upstream)] == upstream, DEAD_LETTER_KEEPS_NAME
    assert tuple(key for key, _ in written[len(upstream) :]) == (
        DETAIL,
        *EXTRA_DEAD_LETTER_FIELDS,
    )


async def _handled(queue: AsyncQueue, seen: list[Any]) -> bool:
    return bool((seen or (await queue.depth()).dead) and await empty(queue))


async def test_a_retry_and_its_dead_letter_are_written_as_by_1_3_0(
    queue: AsyncQueue, client
) -> None:
    vector, dead_letter = PATHS["retry_member"], PATHS["dlq_retries_exhausted"]
    delayed = decode_delayed_member(bytes.fromhex(vector["zset_member_hex"]))
    first = bytes.fromhex(vector["envelope_hex"]).replace(b"\x01\x92\x02", b"\x00\x92\x02")
    assert decode_envelope(first).attempt == 0
    client.xadd(queue.keys.stream, {b"d": first, b"n": delayed.name})
    async with working(queue, boom, promoter=None):
        [(member, score)] = await wait_until_async(
            lambda: client.zrange(queue.keys.delayed, 0, -1, withscores=True)
        )
    assert member.hex() == vector["zset_member_hex"]
    assert 0 < score - (time.time() * 1000 - 5000) < 6000
    async with working(queue, boom):
        await wait_until_async(lambda: client.xlen(queue.keys.dlq))
        await wait_until_async(lambda: empty(queue))
    [(_, written)] = entries(client, queue.keys.dlq)
    upstream = fields(dead_letter["dlq_fields"])
    assert [key for key, _ in written] == [
        *(key for key, _ in upstream),
        DETAIL,
        *EXTRA_DEAD_LETTER_FIELDS,
    ]
    produced, expected = dict(written), dict(upstream)
    for key in (b"d", b"n", b"reason"):
        assert produced[key] == expected[key]
    assert (produced[b"error"], produced[b"attempts"]) == (b"ValueError: boom", b"2")


@pytest.mark.parametrize("name", ["dlq_malformed", "dlq_oversize", "dlq_unnamed"])
async def test_dead_letters_of_other_reasons_are_written_as_by_1_3_0(
    name: str, queue: AsyncQueue, client
) -> None:
    upstream = fields(PATHS[name]["dlq_fields"])
    expected_fields = dict(upstream)
    written: dict[bytes, Any] = {b"d": expected_fields[b"d"]}
    if b"n" in expected_fields:
        written[b"n"] = expected_fields[b"n"]
    if name == "dlq_malformed":
        written = {b"zz": b"1"}
    entry_id = client.xadd(queue.keys.stream, written)
    async with working(queue, boom, max_payload_bytes=100):
        await wait_until_async(lambda: client.xlen(queue.keys.dlq))
    [(_, dead_letter)] = entries(client, queue.keys.dlq)
    expected = [(key, entry_id if key == b"source_id" else raw) for key, raw in upstream]
    assert dead_letter[: len(expected)] == expected
    extra = [key for key, _ in dead_letter[len(expected) :]]
    if name == "dlq_unnamed":  # the handler ran and failed
        assert extra == [DETAIL, *EXTRA_DEAD_LETTER_FIELDS]
    else:
        # If 1.3.0 writes the reason to `detail`, the field `error` is left out.
        assert extra in ([*EXTRA_DEAD_LETTER_FIELDS], [*EXTRA_DEAD_LETTER_FIELDS[1:]])


async def test_the_dead_letter_of_a_job_that_crashed_too_often(queue: AsyncQueue, client) -> None:
    vector = PATHS["dlq_exhausted_on_arrival"]
    upstream = dict(fields(vector["dlq_fields"]))
    client.xadd(queue.keys.stream, {b"d": upstream[b"d"], b"n": upstream[b"n"]})
    keys, redis_client = queue.keys, queue.client
    await redis_client.execute(consumer_group.create(keys, "default"))
    await redis_client.execute(consumer_group.read(keys, "default", "dead", 10, 0))
    await redis_client.execute(consumer_group.claim_and_read(keys, "default", "dead", 0, 10))
    async with working(queue, boom, claim_after=timedelta(milliseconds=20)):
        await wait_until_async(lambda: client.xlen(queue.keys.dlq))
        await wait_until_async(lambda: empty(queue))
    [(_, dead_letter)] = entries(client, queue.keys.dlq)
    produced = dict(dead_letter)
    assert [key for key, _ in dead_letter][:4] == [key for key, _ in fields(vector["dlq_fields"])]
    # Two attempts are allowed and two crashed: dead at once, but 1.3.0 starts a third run.
    assert produced[b"attempts"] == b"2"
    actual, original = decode_envelope(produced[b"d"]), decode_envelope(upstream[b"d"])
    assert (actual.id, actual.body, actual.retry) == (
        original.id,
        original.body,
        original.retry,
    )
    assert (actual.attempt, original.attempt) == (2, 0), CRASHES_COUNT
    [event] = [e for e in _events(client, queue) if dict(e)[b"e"] == b"dlq"]
    assert [key for key, _ in event] == [b"e", b"id", b"ts", b"n", b"attempt", b"reason"]
    assert dict(event)[b"attempt"] == b"2"


def _events(client: Any, queue: AsyncQueue) -> list[list[tuple[bytes, bytes]]]:
    return [fields for _, fields in entries(client, queue.keys.events)]


SCENARIOS = {
    "ok_with_result": {"job_id": "w-ok", "job_name": "ok"},
    "ok_unnamed": {"job_id": "w-unnamed"},
    "retry": {"job_id": "w-rt", "job_name": "rt", "retry": RetryPolicy(2, Backoff("fixed", 100))},
    "unrecoverable": {"job_id": "w-un", "job_name": "un"},
    "malformed": {b"zz": b"1"},
    "oversize": {b"d": b"x" * 201, b"n": b"big"},
    "delayed_promoted": {"job_id": "w-d", "job_name": "dl", "delay": timedelta(milliseconds=50)},
    "repeat_fire": {"job_name": "rp"},
}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_events_are_written_as_by_1_3_0(scenario: str, queue: AsyncQueue, client) -> None:
    """The events, their fields and the order of both are the same."""

    async def handle(job) -> None:
        if job.name == "rt":
            raise ValueError("boom")
        if job.name == "un":
            raise Unrecoverable("terminal")

    given = SCENARIOS[scenario]
    if scenario == "repeat_fire":
        await queue.repeat({"a": 1}, Every(50), job_name="rp", limit=1)
    elif b"zz" in given or b"d" in given:
        client.xadd(queue.keys.stream, given)
    else:
        await queue.add({"a": 1}, **given)
    vectors_of_scenario = [vector for vector in EVENTS if vector["case"].startswith(scenario)]
    last = "drained" if scenario == "retry" else vectors_of_scenario[-1]["event"]
    async with working(
        queue,
        handle,
        block_timeout=timedelta(milliseconds=50),
        max_payload_bytes=200,
        scheduler=PUNCTUAL,
    ):
        await wait_until_async(lambda: _has_event(client, queue, last))
    produced = [_without_times(event) for event in _events(client, queue)]
    upstream = [
        _without_times([(key.encode(), text.encode()) for key, text in vector["fields_in_order"]])
        for vector in vectors_of_scenario
    ]
    if scenario in ("repeat_fire", "delayed_promoted"):  # ids differ between runs
        produced, upstream = [[_without_ids(e) for e in events] for events in (produced, upstream)]
    for event in upstream:
        assert event in produced
    steps = [event for event in upstream if event[0][1] not in UNORDERED]
    remaining = iter(produced)
    assert all(event in remaining for event in steps), "the order differs"


async def _has_event(client: Any, queue: AsyncQueue, last: str) -> bool:
    names = [dict(event)[b"e"].decode() for event in _events(client, queue)]
    return last in names and bool(set(names) & {"completed", "dlq"}) and await empty(queue)


def _without_times(event: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return an event with empty times and durations."""
    time_fields = (b"ts", b"duration_us", b"backoff_ms")
    return [(key, b"" if key in time_fields else raw) for key, raw in event]


def _without_ids(event: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(key, b"" if key in (b"id", b"n") else raw) for key, raw in event]


def test_every_event_vector_has_a_scenario() -> None:
    untested = {v["case"] for v in EVENTS if not v["case"].startswith(tuple(SCENARIOS))}
    assert untested == {"exhausted_on_arrival"}  # has its own test above


@pytest.mark.parametrize("vector", vectors("results"), ids=case)
async def test_results_are_stored_as_by_1_3_0(vector, queue: AsyncQueue, client) -> None:
    job_id = vector["key"].rpartition(":")[2]
    result = value(vector["get_job_result"]) if "get_job_result" in vector else {"ok": True}

    async def handle(job) -> Any:
        return result

    await queue.add(1, job_id=job_id)
    async with working(queue, handle, store_results=True):
        await wait_until_async(lambda: empty(queue))
    key = queue.keys.result(job_id)
    if vector["value_hex"] is None:
        assert client.exists(key) == 0
    else:
        assert client.get(key).hex() == vector["value_hex"]
        assert client.ttl(key) in (3600, 3599)


@pytest.mark.parametrize("vector", vectors("promote"), ids=case)
async def test_a_promoted_job_is_written_as_by_1_3_0(vector, queue: AsyncQueue, client) -> None:
    member = bytes.fromhex(vector["zset_member_hex"])
    job_id = decode_delayed_member(member).id
    client.set(queue.keys.delayed_index(job_id), member)
    client.zadd(queue.keys.delayed, {member: 1})
    args = [bytes.fromhex(text) for text in vector["xadd_args_hex"]]
    release = asyncio.Event()

    async def handle(job) -> None:
        await release.wait()

    async with working(queue, handle):
        [(_, written)] = await wait_until_async(lambda: entries(client, queue.keys.stream))
        upstream = args[args.index(b"*") + 1 :]
        assert written == list(zip(upstream[::2], upstream[1::2], strict=True))
        await wait_until_async(lambda: not client.exists(queue.keys.delayed_index(job_id)))
        waiting = await wait_until_async(
            lambda: [e for e in _events(client, queue) if dict(e)[b"e"] == b"waiting"]
        )
        assert [key for key, _ in waiting[0]] == [b"e", b"id", b"ts"]
        release.set()
        await wait_until_async(lambda: empty(queue))


@pytest.mark.parametrize("vector", vectors("scheduler_fires"), ids=case)
async def test_repeats_fire_as_by_1_3_0(vector, queue: AsyncQueue, client) -> None:
    given = vector["inputs"]
    policy = given["policy"]
    misfire = {"skip": SKIP, "fire-once": FIRE_ONCE}.get(policy["kind"]) or fire_all(
        policy["max_catchup"]
    )
    key = await queue.repeat(
        {"a": 1},
        Every(given["interval_ms"]),
        job_name=given["name"],
        limit=given["limit"],
        misfire=misfire,
    )
    assert key == vector["script_args"]["spec_key"]
    lag_ms = vector["script_args"]["now_ms"] - given["score_ms"]
    score = int(time.time() * 1000) - lag_ms
    client.zadd(queue.keys.repeat, {key: score})
    fired: list[Any] = []

    async def handle(job) -> None:
        fired.append(job)

    async with working(queue, handle, scheduler=PUNCTUAL, concurrency=1):
        await wait_until_async(lambda: client.zscore(queue.keys.repeat, key) != score)
        await wait_until_async(lambda: empty(queue))
    stream = vector["stream_after"]
    assert len(fired) == len(stream)
    for job, written in zip(fired, stream, strict=True):
        upstream = decode_envelope(bytes.fromhex(dict(written)["d"]))
        assert (job.name, job.body, job.attempt, job.retry) == (
            bytes.fromhex(dict(written).get("n", "")).decode(),
            upstream.body,
            0,
            None,
        )
        assert len(job.id) == len(upstream.id) == 26
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
