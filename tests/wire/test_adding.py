"""The Queue adds jobs with exactly the bytes that ChasquiMQ 1.3.0 writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import decode_delayed_member, decode_envelope, encode_job
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import Backoff
from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import dump, entries
from tests.wire.differences import NO_TRIMMING, NOT_A_BACKOFF
from tests.wire.golden import case, fields, retry, value, vectors, when

NOW = vectors("immediate")[0]["d_decoded"]["created_at_ms"]


@contextmanager
def open_queue(server: Any, name: str, clock_ms: int = NOW) -> Iterator[Queue]:
    with Queue(name, server.url, dialect=server.dialect, clock=lambda: clock_ms) as queue:
        yield queue


def add(queue: Queue, vector: dict[str, Any], ulid: str = "") -> str:
    """Add the job of a vector. If `ulid` is given, the queue generates it as the job id."""
    if ulid:
        queue._flows._ulid_generator.next = lambda _: ulid  # type: ignore[method-assign]
    inputs = vector["inputs"]
    payload, name = value(inputs["data"]), inputs["name"]
    options = {"job_id": inputs.get("job_id"), "retry": retry(inputs)} | when(inputs)
    return queue.add(payload, job_name=name, **options).job_id


def rejected(file: str) -> list[dict[str, Any]]:
    return [vector for vector in vectors(file) if "error" in vector]


def accepted(file: str) -> list[dict[str, Any]]:
    return [vector for vector in vectors(file) if "error" not in vector]


IMMEDIATE = accepted("immediate") + accepted("retry_override")
REJECTED = rejected("immediate") + rejected("retry_override") + rejected("delayed")
DELAYED = [
    v for v in accepted("delayed") if v["inputs"]["api"] == "Queue.add" and v["zset_member_hex"]
]
IMMEDIATELY_DUE = [
    v for v in accepted("delayed") if v["inputs"]["api"] == "Queue.add" and "stream_fields" in v
]
BULK = [v for v in accepted("delayed") if v["inputs"]["api"] == "Producer.add_in_bulk"]


def test_every_vector_is_used():
    used = len(IMMEDIATE) + len(REJECTED) + len(DELAYED) + len(IMMEDIATELY_DUE) + len(BULK)
    assert used == sum(map(len, map(vectors, ("immediate", "retry_override", "delayed")))) == 93


@pytest.mark.parametrize("vector", IMMEDIATE, ids=case)
def test_an_immediate_job_has_the_same_bytes(vector, server, client, queue_name):
    decoded = vector["d_decoded"]
    with open_queue(server, queue_name, decoded["created_at_ms"]) as queue:
        ulid = "" if "job_id" in vector["inputs"] else decoded["id"]
        assert add(queue, vector, ulid) == vector["returned_id"]
        [(_, written)] = entries(client, queue.keys.stream)
    name = [(b"n", bytes.fromhex(vector["n_hex"]))] if vector["n_hex"] else []
    expected = [(b"d", bytes.fromhex(vector["d_hex"])), *name]
    assert written == expected
    assert "stream_fields" not in vector or written == fields(vector["stream_fields"])


@pytest.mark.parametrize("vector", REJECTED, ids=case)
def test_jobs_that_chasquimq_rejects_are_rejected_before_anything_is_written(
    vector, server, client, queue_name
):
    with open_queue(server, queue_name) as queue:
        if vector["case"] in NOT_A_BACKOFF:
            with pytest.raises(TypeError):
                Backoff(**NOT_A_BACKOFF[vector["case"]])
            return
        with pytest.raises(InvalidArgument) as raised:
            add(queue, vector)
        assert raised.value.code == "CMQ-004"
        assert dump(client, queue.keys) == {}


@pytest.mark.parametrize("vector", DELAYED, ids=case)
def test_a_delayed_job_has_the_same_bytes(vector, server, client, queue_name):
    decoded = vector["envelope_decoded"]
    with open_queue(server, queue_name, decoded["created_at_ms"]) as queue:
        ulid = "" if "job_id" in vector["inputs"] else decoded["id"]
        assert add(queue, vector, ulid) == vector["returned_id"]
        member = bytes.fromhex(vector["zset_member_hex"])
        written = dump(client, queue.keys)
        assert written.pop("delayed") == [(member, vector["zset_score"])]
        # Only this package writes the idempotency marker, which expires after 100 s.
        prefix = "idempotency:"
        assert [name for name in written if name.startswith(prefix)]
        side_keys = {name: raw for name, raw in written.items() if not name.startswith(prefix)}
        expected = {key.partition("}:")[2]: side for key, side in vector["side_keys"].items()}
        values = {name: bytes.fromhex(side["value_hex"]) for name, side in expected.items()}
        assert side_keys == values
        for name, side in expected.items():
            ttl_s = client.ttl(f"{queue.keys.hash_tag}:{name}")
            assert side["ttl_s"] - 5 <= ttl_s <= side["ttl_s"] + 1


@pytest.mark.parametrize("vector", IMMEDIATELY_DUE, ids=case)
def test_a_job_with_a_due_time_in_the_past_is_not_delayed(vector, server, client, queue_name):
    [expected] = vector["stream_fields"]
    created_at_ms = decode_envelope(bytes.fromhex(expected[0][1])).created_at_ms
    with open_queue(server, queue_name, created_at_ms) as queue:
        add(queue, vector)
        [(_, written)] = entries(client, queue.keys.stream)
        assert written == fields(expected)
        assert "delayed" not in dump(client, queue.keys)


def test_delayed_jobs_of_a_bulk_have_the_same_bytes(server, client, queue_name):
    inputs, ulids = BULK[0]["inputs"], iter(BULK[0]["returned_ids"])
    created_at_ms = BULK[0]["envelope_decoded"]["created_at_ms"]
    with open_queue(server, queue_name, created_at_ms) as queue:
        queue._flows._ulid_generator.next = lambda _: next(ulids)  # type: ignore[method-assign]
        delay = timedelta(milliseconds=inputs["delay_ms"])
        payloads = [int(text, 16) for text in inputs["payloads_hex"]]
        queue.add_many({"payload": payload, "delay": delay} for payload in payloads)
        written = client.zrange(queue.keys.delayed, 0, -1, withscores=True)
    expected = [(bytes.fromhex(v["zset_member_hex"]), v["zset_score"]) for v in BULK]
    assert sorted(written) == sorted(expected)


@pytest.mark.parametrize("vector", IMMEDIATE + DELAYED, ids=case)
def test_every_envelope_is_decoded_and_encoded_to_the_same_bytes(vector):
    if "d_hex" in vector:
        raw = bytes.fromhex(vector["d_hex"])
        decoded, job = vector["d_decoded"], decode_envelope(raw)
    else:
        raw = bytes.fromhex(vector["envelope_hex"])
        decoded, job = (
            vector["envelope_decoded"],
            decode_delayed_member(bytes.fromhex(vector["zset_member_hex"])),
        )
        assert job.name.encode().hex() == vector["name_hex"]
    assert (job.id, job.created_at_ms, job.attempt) == (
        decoded["id"],
        decoded["created_at_ms"],
        decoded["attempt"],
    )
    assert encode_job(job) == raw
    expected = value(vector["inputs"]["data"])
    expected = list(expected) if isinstance(expected, tuple) else expected
    assert job.payload == expected or expected != expected  # NaN is not equal to itself


def test_adds_do_not_trim_the_stream(server, client, queue_name):
    """The bytes of a job do not show this difference, see NO_TRIMMING."""
    with open_queue(server, queue_name) as queue, client.monitor() as monitor:
        queue.add(1)
        queue.add_many({"payload": i} for i in range(3))
        client.echo("end of the test")
        commands = []
        while "end of the test" not in (command := monitor.next_command()["command"]):
            commands.append(command)
    adds = [command for command in commands if command.startswith("XADD") and queue_name in command]
    assert len(adds) == 4
    assert not [command for command in commands if "MAXLEN" in command or "XTRIM" in command], (
        NO_TRIMMING
    )
