"""Jobs that our Queue adds are, byte for byte, those that ChasquiMQ 1.3.0 adds."""

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
    """Add what the vector added; `ulid` is what our own minting is to answer."""
    if ulid:
        queue._flows._ulid_generator.next = lambda _: ulid  # type: ignore[method-assign]
    inputs = vector["inputs"]
    payload, name = value(inputs["data"]), inputs["name"]
    chosen = {"job_id": inputs.get("job_id"), "retry": retry(inputs)} | when(inputs)
    return queue.add(payload, job_name=name, **chosen).job_id


def refused(file: str) -> list[dict[str, Any]]:
    return [vector for vector in vectors(file) if "error" in vector]


def taken(file: str) -> list[dict[str, Any]]:
    return [vector for vector in vectors(file) if "error" not in vector]


IMMEDIATE = taken("immediate") + taken("retry_override")
REFUSED = refused("immediate") + refused("retry_override") + refused("delayed")
DELAYED = [
    v for v in taken("delayed") if v["inputs"]["api"] == "Queue.add" and v["zset_member_hex"]
]
AT_ONCE = [
    v for v in taken("delayed") if v["inputs"]["api"] == "Queue.add" and "stream_fields" in v
]
BULK = [v for v in taken("delayed") if v["inputs"]["api"] == "Producer.add_in_bulk"]


def test_no_vector_is_left_out():
    counted = len(IMMEDIATE) + len(REFUSED) + len(DELAYED) + len(AT_ONCE) + len(BULK)
    assert counted == sum(map(len, map(vectors, ("immediate", "retry_override", "delayed")))) == 93


@pytest.mark.parametrize("vector", IMMEDIATE, ids=case)
def test_immediate(vector, server, client, queue_name):
    decoded = vector["d_decoded"]
    with open_queue(server, queue_name, decoded["created_at_ms"]) as queue:
        minted = "" if "job_id" in vector["inputs"] else decoded["id"]
        assert add(queue, vector, minted) == vector["returned_id"]
        [(_, written)] = entries(client, queue.keys.stream)
    name = [(b"n", bytes.fromhex(vector["n_hex"]))] if vector["n_hex"] else []
    expected = [(b"d", bytes.fromhex(vector["d_hex"])), *name]
    assert written == expected
    assert "stream_fields" not in vector or written == fields(vector["stream_fields"])


@pytest.mark.parametrize("vector", REFUSED, ids=case)
def test_what_chasquimq_refuses_is_refused_and_nothing_is_written(
    vector, server, client, queue_name
):
    with open_queue(server, queue_name) as queue:
        if vector["case"] in NOT_A_BACKOFF:
            with pytest.raises(TypeError):
                Backoff(**NOT_A_BACKOFF[vector["case"]])
            return
        with pytest.raises(InvalidArgument) as told:
            add(queue, vector)
        assert told.value.code == "CMQ-004"
        assert dump(client, queue.keys) == {}


@pytest.mark.parametrize("vector", DELAYED, ids=case)
def test_delayed(vector, server, client, queue_name):
    decoded = vector["envelope_decoded"]
    with open_queue(server, queue_name, decoded["created_at_ms"]) as queue:
        minted = "" if "job_id" in vector["inputs"] else decoded["id"]
        assert add(queue, vector, minted) == vector["returned_id"]
        member = bytes.fromhex(vector["zset_member_hex"])
        found = dump(client, queue.keys)
        assert found.pop("delayed") == [(member, vector["zset_score"])]
        # Ours alone, gone after 100 s: it makes a repeated send harmless.
        assert [name for name in found if name.startswith("idempotency:")]
        side = {name: kept for name, kept in found.items() if not name.startswith("idempotency:")}
        expected = {key.partition("}:")[2]: kept for key, kept in vector["side_keys"].items()}
        assert side == {name: bytes.fromhex(kept["value_hex"]) for name, kept in expected.items()}
        for name, kept in expected.items():
            life_s = client.ttl(f"{queue.keys.hash_tag}:{name}")
            assert kept["ttl_s"] - 5 <= life_s <= kept["ttl_s"] + 1


@pytest.mark.parametrize("vector", AT_ONCE, ids=case)
def test_a_due_time_that_has_passed_is_no_delay(vector, server, client, queue_name):
    [expected] = vector["stream_fields"]
    created_at_ms = decode_envelope(bytes.fromhex(expected[0][1])).created_at_ms
    with open_queue(server, queue_name, created_at_ms) as queue:
        add(queue, vector)
        [(_, written)] = entries(client, queue.keys.stream)
        assert written == fields(expected)
        assert "delayed" not in dump(client, queue.keys)


def test_delayed_in_bulk(server, client, queue_name):
    inputs, minted = BULK[0]["inputs"], iter(BULK[0]["returned_ids"])
    created_at_ms = BULK[0]["envelope_decoded"]["created_at_ms"]
    with open_queue(server, queue_name, created_at_ms) as queue:
        queue._flows._ulid_generator.next = lambda _: next(minted)  # type: ignore[method-assign]
        delay = timedelta(milliseconds=inputs["delay_ms"])
        payloads = [int(text, 16) for text in inputs["payloads_hex"]]
        queue.add_many({"payload": payload, "delay": delay} for payload in payloads)
        written = client.zrange(queue.keys.delayed, 0, -1, withscores=True)
    expected = [(bytes.fromhex(v["zset_member_hex"]), v["zset_score"]) for v in BULK]
    assert sorted(written) == sorted(expected)


@pytest.mark.parametrize("vector", IMMEDIATE + DELAYED, ids=case)
def test_every_written_envelope_is_read_and_written_again_unchanged(vector):
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
    assert job.payload == expected or expected != expected  # not a number is not itself


def test_nothing_unread_is_trimmed(server, client, queue_name):
    """The difference that no byte of a job shows: see NO_TRIMMING."""
    with open_queue(server, queue_name) as queue, client.monitor() as monitor:
        queue.add(1)
        queue.add_many({"payload": i} for i in range(3))
        client.echo("that is all")
        seen = []
        while "that is all" not in (command := monitor.next_command()["command"]):
            seen.append(command)
    adds = [command for command in seen if command.startswith("XADD") and queue_name in command]
    assert len(adds) == 4
    assert not [command for command in seen if "MAXLEN" in command or "XTRIM" in command], (
        NO_TRIMMING
    )
