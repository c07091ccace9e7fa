"""What ChasquiMQ 1.3.0 wrote, we read; what it takes or rejects, we take or reject."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import (
    decode_delayed_member,
    decode_envelope,
    encode_delayed_member,
    encode_job,
)
from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.commands.consumer_group import (
    Completion,
    NewDeadLetter,
    ack_with_results,
    create,
    move_to_dlq,
    parse_entry,
    read,
    schedule_retries,
)
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import event_fields, parse_event
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.core.payload import decode_payload, encode_payload
from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import entries
from tests.wire.differences import EXTRA_LETTER_FIELDS, LETTER_KEEPS_NAME
from tests.wire.golden import case, fields, value, vectors

PATHS = {vector["case"]: vector for vector in vectors("worker_paths")}
VERDICTS = [vector for name, vector in PATHS.items() if name.startswith("decode_")]
LETTERS = [vector for name, vector in PATHS.items() if name.startswith("dlq_")]


@pytest.fixture
def queue(server: Any, queue_name: str) -> Any:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        queue.client.execute(create(queue.keys, "default"))
        yield queue


def deliver(queue: Queue, client: Any, written: dict[bytes, bytes]) -> StreamEntry | InvalidEntry:
    client.xadd(queue.keys.stream, written)
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0, 60_000))
    return parse_entry(raw, 1024 * 1024)


@pytest.mark.parametrize("vector", VERDICTS, ids=case)
def test_verdict(vector, queue, client):
    d = bytes.fromhex(vector["inputs"]["d_hex"])
    got = deliver(queue, client, {b"d": d, b"n": vector["inputs"]["n"].encode()})
    if vector["dlq_fields"] is not None:
        assert isinstance(got, InvalidEntry)
        assert (got.reason, got.raw) == ("decode_failed", d)
        assert got.job_name == vector["inputs"]["n"], LETTER_KEEPS_NAME
        return
    assert isinstance(got, StreamEntry)
    for job_id, payload, attempt, created_at_ms, name in vector["handler_saw"]:
        job = got.job
        assert (job.id, job.payload, job.attempt) == (job_id, payload, attempt)
        assert (job.created_at_ms, job.name) == (created_at_ms, name)


def test_no_verdict_is_left_out():
    assert len(VERDICTS) + len(LETTERS) + 1 == len(PATHS) == 21


@pytest.mark.parametrize("vector", LETTERS, ids=case)
def test_letter(vector, queue, client):
    """Our letter has 1.3.0's fields in its order, and ours behind them."""
    theirs = fields(vector["dlq_fields"])
    said = dict(theirs)
    client.xadd(queue.keys.stream, {b"d": said[b"d"], b"n": said.get(b"n", b"")})
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0, 60_000))
    burial = NewDeadLetter(
        raw[0].decode(),
        said[b"d"],
        said.get(b"n", b"").decode(),
        said[b"reason"].decode(),
        detail=said[b"detail"].decode() if b"detail" in said else None,
        error="boom",
        attempts=2,
        failed_at_ms=7,
    )
    assert queue.client.execute(move_to_dlq(queue.keys, "default", [burial])) == [True]
    [(_, written)] = entries(client, queue.keys.dlq)
    ours = [(b"source_id", raw[0]) if name == b"source_id" else (name, v) for name, v in theirs]
    assert written[: len(ours)] == ours
    assert tuple(name for name, _ in written[len(ours) :]) == EXTRA_LETTER_FIELDS


def test_malformed_and_oversize_are_told_as_1_3_0_tells_them(queue, client):
    got = deliver(queue, client, {b"zz": b"1"})
    assert isinstance(got, InvalidEntry)
    said = dict(fields(PATHS["dlq_malformed"]["dlq_fields"]))
    assert (got.reason.encode(), (got.detail or "").encode()) == (said[b"reason"], said[b"detail"])
    said = dict(fields(PATHS["dlq_oversize"]["dlq_fields"]))
    raw = [b"1-0", [b"d", said[b"d"], b"n", said[b"n"]]]
    for most, kind in ((len(said[b"d"]) - 1, InvalidEntry), (len(said[b"d"]), StreamEntry)):
        assert isinstance(parse_entry(raw, most), kind)
    big = parse_entry(raw, 100)
    assert isinstance(big, InvalidEntry)
    assert (big.reason.encode(), big.raw, big.job_name) == (said[b"reason"], said[b"d"], "big")


def test_a_retry_parks_the_bytes_that_1_3_0_parks(queue, client):
    vector = PATHS["retry_member"]
    member = bytes.fromhex(vector["zset_member_hex"])
    parked = decode_delayed_member(member)
    client.xadd(queue.keys.stream, {b"d": encode_job(parked, attempt=0), b"n": parked.name})
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0, 60_000))
    entry = parse_entry(raw, 1024)
    assert isinstance(entry, StreamEntry)
    again = encode_delayed_member(entry.job.name.encode(), encode_job(entry.job, attempt=1))
    op = schedule_retries(queue.keys, "default", "me", [(entry.id, vector["zset_score"], again)])
    assert queue.client.execute(op) == [True]
    written = client.zrange(queue.keys.delayed, 0, -1, withscores=True)
    assert written == [(member, vector["zset_score"])]


@pytest.mark.parametrize("vector", vectors("promote"), ids=case)
def test_promote(vector, queue, client):
    member = bytes.fromhex(vector["zset_member_hex"])
    args = [bytes.fromhex(text) for text in vector["xadd_args_hex"]]
    client.zadd(queue.keys.delayed, {member: time.time_ns() // 1_000_000 - 5})
    done = queue.client.execute(delayed.promote(queue.keys, 100))
    assert (done.moved, done.remaining, done.job_ids) == (1, 0, (decode_delayed_member(member).id,))
    [(_, written)] = entries(client, queue.keys.stream)
    theirs = args[args.index(b"*") + 1 :]
    assert written == list(zip(theirs[::2], theirs[1::2], strict=True))
    assert args[2] == b"MAXLEN"  # which ours leaves out: NO_TRIMMING
    assert client.exists(queue.keys.delayed) == 0


@pytest.mark.parametrize("vector", vectors("results"), ids=case)
def test_result(vector, queue, client):
    job_id = vector["key"].rpartition(":")[2]
    if vector["value_hex"] is None:
        assert queue.result(job_id, "nothing") == "nothing"
        return
    raw = bytes.fromhex(vector["value_hex"])
    expected = value(vector["get_job_result"]) if "get_job_result" in vector else {"ok": True}
    assert encode_payload(expected) == raw
    assert decode_payload(raw) == expected
    client.xadd(queue.keys.stream, {"d": "x"})
    [entry] = queue.client.execute(read(queue.keys, "default", "me", 10, 0, 60_000))
    settled = Completion(entry[0].decode(), job_id, raw, vector["ttl_observed"])
    assert queue.client.execute(ack_with_results(queue.keys, "default", [settled])) == [True]
    assert client.get(queue.keys.result(job_id)) == raw
    assert client.ttl(queue.keys.result(job_id)) in (3600, 3599)
    assert queue.result(job_id) == expected
    assert queue.results([job_id, "another"]) == {job_id: expected}


@pytest.mark.parametrize("vector", vectors("events"), ids=lambda v: f"{v['case']}-{v['event']}")
def test_event(vector):
    given = dict(vector["fields_in_order"])
    event = parse_event(vector["entry_id"], given)
    assert (event.name, event.job_id, event.ts_ms) == (given["e"], given["id"], int(given["ts"]))
    extras = {
        name: getattr(event, name)
        for name, _ in vector["fields_in_order"]
        if name not in ("e", "id", "ts", "n")
    }
    ours = event_fields(event.name, event.job_id, event.ts_ms, event.job_name, **extras)
    flat = [text for pair in vector["fields_in_order"] for text in pair]
    assert [str(part) for part in ours] == flat


def test_what_no_vector_says_but_the_page_does():
    """Trailing bytes, a nil retry and five elements are taken; six are not."""
    assert decode_envelope(bytes.fromhex("94a161c401010500") + b"rest").id == "a"
    assert decode_envelope(bytes.fromhex("95a161c401010500c0")).retry is None
    with pytest.raises(DecodeError):
        decode_envelope(bytes.fromhex("96a161c401010500c0c0"))
