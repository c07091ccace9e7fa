"""add_batch_part: add each index of a part exactly once, in any order of chunks."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def add_part(script_runner, first, jobs, part=0, max_len=0, run_at=0, batch="b"):
    args = [max_len, part, first, run_at, 60_000, 123, "dag"]
    for job in jobs:
        args += [job, "" if run_at else "n"]
    keys = [script_runner.keys.stream, script_runner.keys.delayed, script_runner.keys.batch(batch)]
    return script_runner.call("add_batch_part", keys, *args)


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
    script_runner.call("finalize_batch", [script_runner.keys.batch("b")], 2, 1, 5, "dag", 60_000)
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
