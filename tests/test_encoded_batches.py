"""Batches of encoded chunks, and the keys of their inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgpack
import pytest

from airflow_provider_chasqui.core.batch import EncodedChunk
from airflow_provider_chasqui.core.codec import decode_envelope
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import (
    BatchChanged,
    EncodeError,
    InvalidArgument,
    PayloadTooLarge,
    QueueFull,
)
from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import dump, entries


def chunks(
    payloads: list[Any], keys: list[Any] | None = None, sizes: tuple[int, ...] = (100,)
) -> Iterator[EncodedChunk]:
    """Cut payloads into encoded chunks of the given sizes, one after the other."""
    start, turn = 0, 0
    while start < len(payloads):
        end = start + sizes[turn % len(sizes)]
        chunk_keys = None if keys is None else keys[start:end]
        yield EncodedChunk([msgpack.packb(value) for value in payloads[start:end]], chunk_keys)
        start, turn = end, turn + 1


def jobs_on(client: Any, queue: Queue) -> list[tuple[str, Any, bytes]]:
    """Return id, payload and name of every waiting job."""
    found = []
    for _, fields in entries(client, queue.keys.stream):
        fields = dict(fields)
        job = decode_envelope(fields[b"d"])
        found.append((job.id, job.payload, fields.get(b"n", b"")))
    return found


def stored_keys(client: Any, queue: Queue, batch_id: str = "b", part: int = 0) -> list[Any]:
    """Return the keys of a part in order. Fail if a block is missing or overlaps another."""
    blocks = client.hgetall(queue.keys.batch_keys(batch_id, part))
    found: list[Any] = []
    for index in sorted(map(int, blocks)):
        assert index == len(found)
        found += msgpack.unpackb(blocks[str(index).encode()])
    return found


@pytest.mark.parametrize("sizes", [(1,), (7, 0, 300), (5000,)])
def test_encoded_chunks_are_the_same_batch_as_their_payloads(queue, client, sizes):
    payloads = [{"n": n} for n in range(1000)]
    keys = [f"key-{n}" for n in range(1000)]
    queue.add_encoded_batch(chunks(payloads, keys, sizes), batch_id="b", job_name="x")
    sent = jobs_on(client, queue)
    assert sent == [(f"batch:b:0:{n}", {"n": n}, b"x") for n in range(1000)]
    assert stored_keys(client, queue) == keys
    before = dump(client, queue.keys)
    assert queue.add_batch(payloads, keys=iter(keys), batch_id="b").total == 1000
    assert dump(client, queue.keys) == before
    # Few calls, whatever the sizes of the chunks are.
    assert client.hlen(queue.keys.batch_keys("b", 0)) == 4


def test_a_batch_without_keys_stores_none(queue, client):
    queue.add_batch(range(600), batch_id="b")
    assert not client.exists(queue.keys.batch_keys("b", 0))


class Broken(Exception):
    pass


@pytest.mark.parametrize("cut", [33_333, 39_000])
def test_a_retry_inside_a_block_leaves_correct_keys(queue, client, cut):
    """The first send breaks, the second one has other chunk boundaries."""
    count = 40_000
    payloads, keys = list(range(count)), [[n, f"k{n}"] for n in range(count)]

    def broken() -> Iterator[EncodedChunk]:
        yield from chunks(payloads[:cut], keys[:cut], (33, 1000))
        raise Broken

    with pytest.raises(Broken):
        queue.add_encoded_batch(broken(), batch_id="b")
    assert 0 < queue.batch_progress("b").enqueued < count
    queue.add_encoded_batch(chunks(payloads, keys, (999,)), batch_id="b")
    assert stored_keys(client, queue) == keys
    assert client.xlen(queue.keys.stream) == count
    assert queue.batch_progress("b").finished is False


def test_a_full_queue_leaves_jobs_and_keys_together(queue, client, server):
    keys = [f"k{n}" for n in range(1000)]
    config = QueueConfig(max_len=600)
    with (
        Queue(queue.name, server.url, config=config, dialect=server.dialect) as bounded,
        pytest.raises(QueueFull),
    ):
        bounded.add_batch(range(1000), keys=keys, batch_id="b")
    sent = queue.batch_progress("b").enqueued
    assert 0 < sent < 1000
    assert stored_keys(client, queue) == keys[:sent]
    # Slices of a part without a digest: the second starts inside the last block.
    assert (
        queue.add_batch_part(
            "b", 0, range(sent - 10, 1000), start_index=sent - 10, keys=keys[sent - 10 :]
        )
        == 1000
    )
    assert stored_keys(client, queue) == keys


def test_other_keys_are_other_data(queue, client):
    queue.add_batch([1, 2], keys=["a", "b"], batch_id="b")
    before = dump(client, queue.keys)
    for keys in (["a", "c"], None):
        with pytest.raises(BatchChanged):
            queue.add_batch([1, 2], keys=keys, batch_id="b")
    assert dump(client, queue.keys) == before


def test_every_job_can_have_its_own_name(queue, client):
    queue.add_encoded_batch(
        [
            EncodedChunk([b"\x01", b"\x02"], job_names=["one", ""]),
            EncodedChunk([b"\x03"]),
        ],
        batch_id="b",
        job_name="default",
    )
    assert [name for _, _, name in jobs_on(client, queue)] == [b"one", b"", b"default"]


def test_delayed_jobs_have_names_and_keys(queue, client):
    queue.add_encoded_batch(
        [EncodedChunk([b"\x01", b"\x02"], ["a", "b"], ["one", "two"])],
        batch_id="b",
        delay=timedelta(hours=1),
    )
    names = sorted(member[4:7] for member in client.zrange(queue.keys.delayed, 0, -1))
    assert names == [b"one", b"two"]
    assert stored_keys(client, queue) == ["a", "b"]


def test_large_payloads_are_cut_by_size(queue, client):
    randomness = random.Random(5)
    payloads = [randomness.randbytes(randomness.choice((10, 300_000))) for _ in range(60)]
    keys = list(range(60))
    queue.add_batch(payloads, keys=keys, batch_id="b")
    assert [payload for _, payload, _ in jobs_on(client, queue)] == payloads
    assert stored_keys(client, queue) == keys
    assert client.hlen(queue.keys.batch_keys("b", 0)) > 5


@pytest.mark.parametrize(
    ("sent_chunks", "error", "message"),
    [
        ([[b"\x01"]], InvalidArgument, "must be an EncodedChunk, not list"),
        ([EncodedChunk([b"\x01", "x"])], InvalidArgument, "must be MessagePack bytes"),
        ([EncodedChunk([b""])], InvalidArgument, "must be MessagePack bytes"),
        ([EncodedChunk([b"\x01"], [1]), EncodedChunk([b"\x01"])], InvalidArgument, "some chunks"),
        ([EncodedChunk([b"\x01"], [object()])], EncodeError, "cannot be encoded"),
        ([EncodedChunk([b"\x01"], ["k" * 5000])], PayloadTooLarge, "the limit is 4096"),
        ([EncodedChunk([b"\x01" * 2_000_000])], PayloadTooLarge, "the limit is"),
    ],
)
def test_invalid_chunks_are_refused_before_any_write(queue, client, sent_chunks, error, message):
    with pytest.raises(error, match=message):
        queue.add_encoded_batch(sent_chunks, batch_id="b")
    assert dump(client, queue.keys) == {}


@pytest.mark.unit
def test_a_chunk_has_one_key_and_one_name_per_payload():
    with pytest.raises(InvalidArgument, match="2 payloads and 1 keys"):
        EncodedChunk([b"\x01", b"\x02"], ["a"])
    with pytest.raises(InvalidArgument, match="1 payloads and 2 job_names"):
        EncodedChunk([b"\x01"], None, ["a", "b"])


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_keys_must_be_that_of_the_payloads(queue, client, count):
    with pytest.raises(InvalidArgument, match="one key per payload"):
        queue.add_batch([1, 2], keys=range(count), batch_id="b")
    assert dump(client, queue.keys) == {}
