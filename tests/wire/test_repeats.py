"""Repeats: their bytes, the times at which they fire, and the jobs that they add."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.repeat import (
    MisfirePolicy,
    Repeat,
    decode_repeat,
    due_fires,
    encode_repeat,
)
from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import dump, entries
from tests.wire.differences import CRON, REJECTED_REPEATS, WHOLE_SECONDS
from tests.wire.golden import case, fields, value, vectors


def schedule_of(pattern: dict[str, Any]) -> Schedule:
    pattern = pattern.get("RepeatPattern", pattern)
    if pattern["kind"] == "every":
        return Every(pattern["interval_ms"])
    return Cron(pattern["expression"], pattern.get("tz"))


def misfire_policy_of(policy: dict[str, Any] | None) -> MisfirePolicy:
    policy = (policy or {}).get("MissedFiresPolicy", policy)
    return MisfirePolicy(**policy) if policy else MisfirePolicy()


def instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def upsert(queue: Queue, inputs: dict[str, Any]) -> str:
    return queue.repeat(
        value(inputs["data"]),
        schedule_of(inputs["repeat"]),
        job_name=inputs["name"],
        limit=inputs.get("limit"),
        start=instant(inputs.get("start_after_ms")),
        end=instant(inputs.get("end_before_ms")),
        misfire=misfire_policy_of(inputs.get("missed_fires")),
    )


UPSERTS = [v for v in vectors("repeat_spec") if v["inputs"]["api"] == "Queue.upsert_repeatable_job"]


@pytest.mark.parametrize("vector", UPSERTS, ids=case)
def test_a_repeat_has_the_same_bytes(vector, server, client, queue_name):
    # The time at which ChasquiMQ wrote the vector, if it is known.
    now_ms = vector.get("upsert_window_ms", [1794787075166])[0]
    with Queue(queue_name, server.url, dialect=server.dialect, clock=lambda: now_ms) as queue:
        if "error" in vector or vector["case"] in REJECTED_REPEATS:
            with pytest.raises(InvalidArgument) as raised:
                upsert(queue, vector["inputs"])
            assert raised.value.code == "CMQ-004"
            assert dump(client, queue.keys) == {}
            return
        assert upsert(queue, vector["inputs"]) == vector["resolved_key"]
        written = dump(client, queue.keys)
    [(member, score)] = written.pop("repeat")
    assert member.hex() == vector["zset_member_hex"]
    if "RepeatPattern" in vector["inputs"]["repeat"] and "Cron" in str(vector["spec_decoded"][2]):
        assert vector["zset_score"] % 1000 != 0, WHOLE_SECONDS
        assert score == vector["zset_score"] // 1000 * 1000
    else:
        low, high = (ms - now_ms for ms in vector["upsert_window_ms"])
        assert vector["zset_score"] - high <= score <= vector["zset_score"] - low
    assert written == {f"repeat:spec:{vector['resolved_key']}": dict(fields(vector["hash_fields"]))}


WITH_SPEC = [v for v in vectors("repeat_spec") if "spec_hex" in v]


@pytest.mark.parametrize("vector", WITH_SPEC, ids=case)
def test_every_spec_is_decoded_and_encoded_to_the_same_bytes(vector):
    raw = bytes.fromhex(vector["spec_hex"])
    repeat = decode_repeat(raw)
    assert repeat.key == vector["resolved_key"]
    assert encode_repeat(repeat) == raw
    inputs = vector["inputs"]
    assert repeat.job_name == inputs.get("name", inputs.get("job_name"))
    if "payload_hex" in inputs:  # the native producer writes the bytes of the caller
        assert repeat.body == bytes.fromhex(inputs["payload_hex"])


def cron_id(vector: dict[str, Any]) -> str:
    return f"{vector['expression']}|{vector['tz']}|{vector['from_ms']}"


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("vector", vectors("cron_next"), ids=cron_id)
def test_the_next_cron_fire_is_the_same_or_a_listed_difference(vector):
    expression, tz, from_ms = vector["expression"], vector["tz"], vector["from_ms"]
    if "error" in vector:
        with pytest.raises(InvalidArgument):
            Cron(expression, tz).next_after(from_ms)
        return
    expected = vector["next_fire_ms"]
    next_fire = Cron(expression, tz).next_after(from_ms)
    start = vector["from_utc"].partition("+")[0]
    if (expression, tz, start) in CRON:
        intended, reason = CRON[expression, tz, start]
        assert next_fire == utc(intended) != expected, reason
        assert next_fire > from_ms
        return
    assert next_fire == expected // 1000 * 1000, WHOLE_SECONDS
    assert next_fire % 1000 == 0


def test_every_listed_difference_is_in_the_vectors():
    covered = {
        (v["expression"], v["tz"], v["from_utc"].partition("+")[0])
        for v in vectors("cron_next")
        if "from_utc" in v
    }
    assert set(CRON) <= covered
    assert set(REJECTED_REPEATS) <= {v["case"] for v in UPSERTS}


@pytest.mark.parametrize("vector", vectors("scheduler_fires"), ids=case)
def test_due_fires_are_planned_and_written_like_in_chasquimq(vector, server, client, queue_name):
    """The same fires are due, and they leave the same keys as the script of 1.3.0."""
    inputs, script = vector["inputs"], vector["script_args"]
    schedule = Every(inputs["interval_ms"])
    repeat = Repeat(
        schedule.default_key(inputs["name"]),
        inputs["name"],
        schedule,
        bytes.fromhex("81a16101"),
        limit=inputs["limit"],
        misfire=misfire_policy_of(inputs["policy"]),
    )
    plan = due_fires(repeat, inputs["score_ms"], script["now_ms"])
    assert list(plan.fires_ms) == [fire["fire_at_ms"] for fire in vector["fires"]]
    assert plan.next_fire_ms == script["next_fire_ms"]

    ulids = [fire["envelope_decoded"]["id"] for fire in vector["fires"]]
    written_at = {fire["envelope_decoded"]["created_at_ms"] for fire in vector["fires"]}
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        assert queue.keys.repeat.endswith(script["keys"][2].partition("}")[2])
        client.zadd(queue.keys.repeat, {repeat.key: inputs["score_ms"]})
        client.hset(queue.keys.repeat_spec(repeat.key), "spec", encode_repeat(repeat))
        now_ms = written_at.pop() if len(written_at) == 1 else script["now_ms"]
        command = delayed.enqueue_due_repeats(
            queue.keys, repeat, inputs["score_ms"], plan, ulids, now_ms
        )
        fired, removed = queue.client.execute(command)
        # A second fire with the same score is rejected, because the score has changed.
        assert queue.client.execute(command) == (-1, False)
        stream = [written for _, written in entries(client, queue.keys.stream)]
        remaining = client.zrange(queue.keys.repeat, 0, -1, withscores=True)
        body = client.hgetall(queue.keys.repeat_spec(repeat.key))
    assert fired == len(vector["stream_after"])
    assert removed is (not vector["repeat_zset_after"])
    if not written_at:
        assert stream == [fields(pairs) for pairs in vector["stream_after"]]
    else:  # 1.3.0 reads the clock once per fire, so the times differ
        assert len(stream) == len(vector["stream_after"])
    assert remaining == [(key.encode(), score) for key, score in vector["repeat_zset_after"]]
    assert body == dict(fields(vector["hash_after"]))


def test_an_interval_shorter_than_the_tick_fires():
    """1.3.0 skips a fire that is 400 ms late with an interval of 300 ms as missed."""
    repeat = Repeat("k", "", Every(300), b"\xc0")
    plan = due_fires(repeat, 10_000, 10_400)
    assert plan.fires_ms == (10_000,)
    assert plan.next_fire_ms == 10_600
