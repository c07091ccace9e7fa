"""Entries of ChasquiMQ 1.3.0 are read, and the same entries are accepted or rejected."""

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
from tests.wire.differences import DEAD_LETTER_KEEPS_NAME, EXTRA_DEAD_LETTER_FIELDS
from tests.wire.golden import case, fields, value, vectors

PATHS = {vector["case"]: vector for vector in vectors("worker_paths")}
DECODE_CASES = [vector for name, vector in PATHS.items() if name.startswith("decode_")]
DLQ_CASES = [vector for name, vector in PATHS.items() if name.startswith("dlq_")]


@pytest.fixture
def queue(server: Any, queue_name: str) -> Any:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        queue.client.execute(create(queue.keys, "default"))
        yield queue


def deliver(queue: Queue, client: Any, written: dict[bytes, bytes]) -> StreamEntry | InvalidEntry:
    client.xadd(queue.keys.stream, written)
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0))
    return parse_entry(raw, 1024 * 1024)


@pytest.mark.parametrize("vector", DECODE_CASES, ids=case)
def test_an_entry_is_decoded_or_rejected_like_in_chasquimq(vector, queue, client):
    d = bytes.fromhex(vector["inputs"]["d_hex"])
    entry = deliver(queue, client, {b"d": d, b"n": vector["inputs"]["n"].encode()})
    if vector["dlq_fields"] is not None:
        assert isinstance(entry, InvalidEntry)
        assert (entry.reason, entry.raw) == ("decode_failed", d)
        assert entry.job_name == vector["inputs"]["n"], DEAD_LETTER_KEEPS_NAME
        return
    assert isinstance(entry, StreamEntry)
    for job_id, payload, attempt, created_at_ms, name in vector["handler_saw"]:
        job = entry.job
        assert (job.id, job.payload, job.attempt) == (job_id, payload, attempt)
        assert (job.created_at_ms, job.name) == (created_at_ms, name)


@pytest.mark.parametrize(
    "d_hex",
    [
        "94a161a1010500",
        "94a161d901010500",
        "93a161a10105",
        "95a161a1010500c0",
        "83a26964a161a77061796c6f6164a101ad637265617465645f61745f6d7305",
    ],
)
def test_a_payload_that_is_text_is_rejected_like_in_chasquimq(d_hex, queue, client):
    """tests/interop/test_reads_chasquimq.py compares these envelopes with the real 1.3.0."""
    d = bytes.fromhex(d_hex)
    entry = deliver(queue, client, {b"d": d, b"n": b"nm"})
    assert isinstance(entry, InvalidEntry)
    assert (entry.reason, entry.raw, entry.job_name) == ("decode_failed", d, "nm")


def test_every_worker_vector_is_used():
    assert len(DECODE_CASES) + len(DLQ_CASES) + 1 == len(PATHS) == 21


@pytest.mark.parametrize("vector", DLQ_CASES, ids=case)
def test_a_dead_letter_has_the_same_fields(vector, queue, client):
    """A dead letter has the fields of 1.3.0 in the same order, and then the additional ones."""
    expected = fields(vector["dlq_fields"])
    values = dict(expected)
    client.xadd(queue.keys.stream, {b"d": values[b"d"], b"n": values.get(b"n", b"")})
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0))
    dead_letter = NewDeadLetter(
        raw[0].decode(),
        values[b"d"],
        values.get(b"n", b"").decode(),
        values[b"reason"].decode(),
        detail=values[b"detail"].decode() if b"detail" in values else None,
        error="boom",
        attempts=2,
        failed_at_ms=7,
    )
    assert queue.client.execute(move_to_dlq(queue.keys, "default", "me", [dead_letter])) == [True]
    [(_, written)] = entries(client, queue.keys.dlq)
    expected = [(n, raw[0] if n == b"source_id" else field) for n, field in expected]
    assert written[: len(expected)] == expected
    assert tuple(name for name, _ in written[len(expected) :]) == EXTRA_DEAD_LETTER_FIELDS


def test_malformed_and_oversize_entries_have_the_same_reason_and_detail(queue, client):
    entry = deliver(queue, client, {b"zz": b"1"})
    assert isinstance(entry, InvalidEntry)
    expected = dict(fields(PATHS["dlq_malformed"]["dlq_fields"]))
    assert entry.reason.encode() == expected[b"reason"]
    assert (entry.detail or "").encode() == expected[b"detail"]
    expected = dict(fields(PATHS["dlq_oversize"]["dlq_fields"]))
    raw = [b"1-0", [b"d", expected[b"d"], b"n", expected[b"n"]]]
    for max_bytes, kind in (
        (len(expected[b"d"]) - 1, InvalidEntry),
        (len(expected[b"d"]), StreamEntry),
    ):
        assert isinstance(parse_entry(raw, max_bytes), kind)
    big = parse_entry(raw, 100)
    assert isinstance(big, InvalidEntry)
    assert (big.reason.encode(), big.raw, big.job_name) == (
        expected[b"reason"],
        expected[b"d"],
        "big",
    )


def test_a_scheduled_retry_has_the_same_bytes(queue, client):
    vector = PATHS["retry_member"]
    member = bytes.fromhex(vector["zset_member_hex"])
    delayed_job = decode_delayed_member(member)
    client.xadd(
        queue.keys.stream, {b"d": encode_job(delayed_job, attempt=0), b"n": delayed_job.name}
    )
    [raw] = queue.client.execute(read(queue.keys, "default", "me", 10, 0))
    entry = parse_entry(raw, 1024)
    assert isinstance(entry, StreamEntry)
    retry_member = encode_delayed_member(entry.job.name.encode(), encode_job(entry.job, attempt=1))
    retry = (entry.id, vector["zset_score"], retry_member)
    command = schedule_retries(queue.keys, "default", "me", [retry])
    assert queue.client.execute(command) == [True]
    written = client.zrange(queue.keys.delayed, 0, -1, withscores=True)
    assert written == [(member, vector["zset_score"])]


@pytest.mark.parametrize("vector", vectors("promote"), ids=case)
def test_a_promoted_job_has_the_same_bytes(vector, queue, client):
    member = bytes.fromhex(vector["zset_member_hex"])
    args = [bytes.fromhex(text) for text in vector["xadd_args_hex"]]
    client.zadd(queue.keys.delayed, {member: time.time_ns() // 1_000_000 - 5})
    promoted = queue.client.execute(delayed.promote(queue.keys, 100))
    assert (promoted.moved, promoted.remaining) == (1, 0)
    assert promoted.job_ids == (decode_delayed_member(member).id,)
    [(_, written)] = entries(client, queue.keys.stream)
    expected = args[args.index(b"*") + 1 :]
    assert written == list(zip(expected[::2], expected[1::2], strict=True))
    assert args[2] == b"MAXLEN"  # not used by this package: NO_TRIMMING
    assert client.exists(queue.keys.delayed) == 0


@pytest.mark.parametrize("vector", vectors("results"), ids=case)
def test_a_result_has_the_same_bytes(vector, queue, client):
    job_id = vector["key"].rpartition(":")[2]
    if vector["value_hex"] is None:
        assert queue.result(job_id, "nothing") == "nothing"
        return
    raw = bytes.fromhex(vector["value_hex"])
    expected = value(vector["get_job_result"]) if "get_job_result" in vector else {"ok": True}
    assert encode_payload(expected) == raw
    assert decode_payload(raw) == expected
    client.xadd(queue.keys.stream, {"d": "x"})
    [entry] = queue.client.execute(read(queue.keys, "default", "me", 10, 0))
    completion = Completion(entry[0].decode(), job_id, raw, vector["ttl_observed"])
    assert queue.client.execute(ack_with_results(queue.keys, "default", [completion])) == [True]
    assert client.get(queue.keys.result(job_id)) == raw
    assert client.ttl(queue.keys.result(job_id)) in (3600, 3599)
    assert queue.result(job_id) == expected
    assert queue.results([job_id, "another"]) == {job_id: expected}


@pytest.mark.parametrize("vector", vectors("events"), ids=lambda v: f"{v['case']}-{v['event']}")
def test_an_event_has_the_same_fields(vector):
    raw_fields = dict(vector["fields_in_order"])
    event = parse_event(vector["entry_id"], raw_fields)
    assert (event.name, event.job_id, event.ts_ms) == (
        raw_fields["e"],
        raw_fields["id"],
        int(raw_fields["ts"]),
    )
    extras = {
        name: getattr(event, name)
        for name, _ in vector["fields_in_order"]
        if name not in ("e", "id", "ts", "n")
    }
    written = event_fields(event.name, event.job_id, event.ts_ms, event.job_name, **extras)
    flat = [text for pair in vector["fields_in_order"] for text in pair]
    assert [str(part) for part in written] == flat


def test_rules_of_the_wire_format_that_no_vector_covers():
    """Trailing bytes, a nil retry and five elements are accepted; six elements are rejected."""
    assert decode_envelope(bytes.fromhex("94a161c401010500") + b"rest").id == "a"
    assert decode_envelope(bytes.fromhex("95a161c401010500c0")).retry is None
    with pytest.raises(DecodeError):
        decode_envelope(bytes.fromhex("96a161c401010500c0c0"))
