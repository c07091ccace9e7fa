"""add_batch_part: add each index of a part exactly once, in any order of chunks."""

from __future__ import annotations

import msgpack
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def add_part(
    script_runner,
    first,
    jobs,
    part=0,
    max_len=0,
    run_at=0,
    batch="b",
    digests=("", ""),
    keys=("", ""),
):
    args = [max_len, part, first, run_at, 60_000, 123, "dag", "", *digests, *keys]
    for job in jobs:
        args += [job, "" if run_at else "n"]
    queue_keys = script_runner.keys
    names = [queue_keys.stream, queue_keys.delayed, queue_keys.batch(batch)]
    names += [queue_keys.batch_done(batch, part), queue_keys.batch_dead(batch, part)]
    names.append(queue_keys.batch_keys(batch, part))
    return script_runner.call("add_batch_part", names, *args)


def jobs(first, last):
    return [f"job-{index}" for index in range(first, last)]


def test_chunks_extend_a_part(script_runner):
    assert add_part(script_runner, 0, jobs(0, 3)) == 3
    assert add_part(script_runner, 3, jobs(3, 5)) == 2
    assert [fields[b"d"] for fields in script_runner.stream()] == [
        f"job-{i}".encode() for i in range(5)
    ]
    assert all(fields[b"n"] == b"n" for fields in script_runner.stream())
    assert script_runner.dump()["batch:b"] == {
        b"sent:0": b"5",
        b"created": b"123",
        b"oldest_job": b"123",
        b"source": b"dag",
    }
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.batch("b")) <= 60_000


def test_indexes_that_were_sent_before_are_skipped(script_runner):
    add_part(script_runner, 0, jobs(0, 4))
    before = script_runner.dump()
    assert add_part(script_runner, 0, jobs(0, 4)) == 0
    assert add_part(script_runner, 1, jobs(1, 3)) == 0
    assert script_runner.dump() == before
    assert add_part(script_runner, 2, jobs(2, 7)) == 3
    assert [fields[b"d"] for fields in script_runner.stream()] == [
        f"job-{i}".encode() for i in range(7)
    ]


def test_a_gap_is_refused(script_runner):
    add_part(script_runner, 0, jobs(0, 2))
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="CHASQUIGAP 2"):
        add_part(script_runner, 3, jobs(3, 5))
    assert script_runner.dump() == before


def test_parts_are_counted_separately(script_runner):
    add_part(script_runner, 0, jobs(0, 2), part=0)
    add_part(script_runner, 0, jobs(0, 3), part=7)
    assert script_runner.dump()["batch:b"][b"sent:0"] == b"2"
    assert script_runner.dump()["batch:b"][b"sent:7"] == b"3"


def test_delayed_jobs_are_added_to_the_delayed_set(script_runner):
    add_part(script_runner, 0, jobs(0, 2), run_at=99)
    assert script_runner.dump()["delayed"] == [(b"job-0", 99.0), (b"job-1", 99.0)]
    assert "stream" not in script_runner.dump()
    assert add_part(script_runner, 0, jobs(0, 3), run_at=100) == 1


def test_a_full_queue_refuses_the_whole_chunk(script_runner):
    add_part(script_runner, 0, jobs(0, 3), max_len=4)
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="CHASQUIFULL 4"):
        add_part(script_runner, 3, jobs(3, 5), max_len=4)
    assert script_runner.dump() == before
    assert add_part(script_runner, 2, jobs(2, 4), max_len=4) == 1


def test_nothing_is_added_to_a_finalized_batch(script_runner):
    add_part(script_runner, 0, jobs(0, 2))
    script_runner.call(
        "finalize_batch", [script_runner.keys.batch("b")], 2, 1, 5, "dag", 60_000, ""
    )
    before = script_runner.dump()
    assert add_part(script_runner, 0, jobs(0, 2)) == 0
    with pytest.raises(redis.ResponseError, match="CHASQUIFINALIZED 2"):
        add_part(script_runner, 0, jobs(0, 3))
    assert script_runner.dump() == before


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=20))
def test_any_order_of_chunks_adds_each_index_once(script_runner, cuts):
    """Chunks overlap, repeat and skip ahead, as those of several producers of one part do."""
    script_runner.client.delete(script_runner.keys.stream, script_runner.keys.batch("b"))
    sent = 0
    for first, size in cuts:
        if first > sent:
            with pytest.raises(redis.ResponseError, match=f"CHASQUIGAP {sent}"):
                add_part(script_runner, first, jobs(first, first + size))
        else:
            add_part(script_runner, first, jobs(first, first + size))
            sent = max(sent, first + size)
    assert add_part(script_runner, 0, jobs(0, 45)) == 45 - sent
    sent = [fields[b"d"] for fields in script_runner.stream()]
    assert sent == [f"job-{i}".encode() for i in range(45)]


def test_the_first_jobs_of_a_part_delete_the_bits_of_an_earlier_batch(script_runner):
    keys, client = script_runner.keys, script_runner.client
    for name in (keys.batch_done("b", 0), keys.batch_dead("b", 0), keys.batch_done("b", 1)):
        client.setbit(name, 0, 1)
    add_part(script_runner, 0, jobs(0, 2))
    assert not client.exists(keys.batch_done("b", 0), keys.batch_dead("b", 0))
    assert client.exists(keys.batch_done("b", 1)), "another part"
    client.setbit(keys.batch_done("b", 0), 0, 1)
    client.pexpire(keys.batch_done("b", 0), 5_000)
    add_part(script_runner, 2, jobs(2, 4))
    assert client.getbit(keys.batch_done("b", 0), 0) == 1
    assert script_runner.ttl_ms(keys.batch_done("b", 0)) > 59_000


def test_the_digest_is_compared_where_the_sent_jobs_end(script_runner):
    def digest():
        return script_runner.client.hget(script_runner.keys.batch("b"), "digest:0")

    assert add_part(script_runner, 0, jobs(0, 2), digests=("d0", "d2")) == 2
    assert add_part(script_runner, 0, jobs(0, 2), digests=("d0", "d2")) == 0
    assert add_part(script_runner, 2, jobs(2, 4), digests=("d2", "d4")) == 2
    assert add_part(script_runner, 0, jobs(0, 2), digests=("x", "x")) == 0, "not comparable"
    assert digest() == b"d4"
    before = script_runner.dump()
    for first, last, digests in ((2, 4, ("d2", "x")), (4, 6, ("x", "d6")), (3, 6, ("d3", "d6"))):
        with pytest.raises(redis.ResponseError, match="CHASQUICHANGED 0 4"):
            add_part(script_runner, first, jobs(first, last), digests=digests)
    assert script_runner.dump() == before
    assert add_part(script_runner, 4, jobs(4, 6)) == 2
    assert digest() is None, "not known after jobs without a digest"
    assert add_part(script_runner, 6, jobs(6, 8), digests=("d6", "d8")) == 2
    assert digest() is None


def encode_keys(*values):
    encoded = [msgpack.packb(value) for value in values]
    return b"".join(encoded), b"".join(len(value).to_bytes(2, "big") for value in encoded)


def test_keys_are_stored_with_the_jobs_of_their_block(script_runner):
    def stored():
        blocks = script_runner.client.hgetall(script_runner.keys.batch_keys("b", 0))
        return {int(index): msgpack.unpackb(block) for index, block in blocks.items()}

    add_part(script_runner, 0, jobs(0, 3), keys=encode_keys("a", 2, None))
    assert stored() == {0: ["a", 2, None]}
    # A second send overlaps the first: only the keys of its new jobs are stored.
    wide = b"x" * 400
    add_part(script_runner, 1, jobs(1, 6), keys=encode_keys(2, None, wide, ["p", 1], 1.5))
    assert stored() == {0: ["a", 2, None], 3: [wide, ["p", 1], 1.5]}
    before = script_runner.dump()
    add_part(script_runner, 0, jobs(0, 6), keys=encode_keys(*"other!"))
    assert script_runner.dump() == before
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.batch_keys("b", 0)) <= 60_000


def test_the_first_jobs_of_a_part_delete_the_keys_of_an_earlier_batch(script_runner):
    script_runner.client.hset(script_runner.keys.batch_keys("b", 0), "5", "old")
    add_part(script_runner, 0, jobs(0, 2))
    assert not script_runner.client.exists(script_runner.keys.batch_keys("b", 0))
