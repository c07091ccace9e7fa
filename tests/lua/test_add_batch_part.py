"""add_part: each index of a part exactly once, in whatever pieces it comes."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def add_part(bench, first, jobs, part=0, max_len=0, run_at=0, batch="b"):
    args = [max_len, part, first, run_at, 60_000, 123, "dag"]
    for job in jobs:
        args += [job, "" if run_at else "n"]
    keys = [bench.keys.stream, bench.keys.delayed, bench.keys.batch(batch)]
    return bench.call("add_batch_part", keys, *args)


def jobs(first, last):
    return [f"job-{index}" for index in range(first, last)]


def test_a_part_grows(bench):
    assert add_part(bench, 0, jobs(0, 3)) == 3
    assert add_part(bench, 3, jobs(3, 5)) == 2
    assert [fields[b"d"] for fields in bench.stream()] == [f"job-{i}".encode() for i in range(5)]
    assert all(fields[b"n"] == b"n" for fields in bench.stream())
    assert bench.all()["batch:b"] == {b"sent:0": b"5", b"created": b"123", b"source": b"dag"}
    assert 59_000 < bench.life_ms(bench.keys.batch("b")) <= 60_000


def test_what_arrived_before_is_passed_over(bench):
    add_part(bench, 0, jobs(0, 4))
    before = bench.all()
    assert add_part(bench, 0, jobs(0, 4)) == 0
    assert add_part(bench, 1, jobs(1, 3)) == 0
    assert bench.all() == before
    assert add_part(bench, 2, jobs(2, 7)) == 3
    assert [fields[b"d"] for fields in bench.stream()] == [f"job-{i}".encode() for i in range(7)]


def test_a_gap_is_refused(bench):
    add_part(bench, 0, jobs(0, 2))
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="CHASQUIGAP 2"):
        add_part(bench, 3, jobs(3, 5))
    assert bench.all() == before


def test_parts_are_counted_apart(bench):
    add_part(bench, 0, jobs(0, 2), part=0)
    add_part(bench, 0, jobs(0, 3), part=7)
    assert bench.all()["batch:b"][b"sent:0"] == b"2"
    assert bench.all()["batch:b"][b"sent:7"] == b"3"


def test_later_jobs_go_into_the_delayed_set(bench):
    add_part(bench, 0, jobs(0, 2), run_at=99)
    assert bench.all()["delayed"] == [(b"job-0", 99.0), (b"job-1", 99.0)]
    assert "stream" not in bench.all()
    assert add_part(bench, 0, jobs(0, 3), run_at=100) == 1


def test_a_full_queue_takes_none_of_the_chunk(bench):
    add_part(bench, 0, jobs(0, 3), max_len=4)
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="CHASQUIFULL 4"):
        add_part(bench, 3, jobs(3, 5), max_len=4)
    assert bench.all() == before
    assert add_part(bench, 2, jobs(2, 4), max_len=4) == 1


def test_nothing_is_added_to_a_batch_that_was_sealed(bench):
    add_part(bench, 0, jobs(0, 2))
    bench.call("finalize_batch", [bench.keys.batch("b")], 2, 1, 5, "dag", 60_000)
    before = bench.all()
    assert add_part(bench, 0, jobs(0, 2)) == 0
    with pytest.raises(redis.ResponseError, match="CHASQUIFINALIZED 2"):
        add_part(bench, 0, jobs(0, 3))
    assert bench.all() == before


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=20))
def test_any_order_of_pieces_sends_each_index_once(bench, cuts):
    """Pieces overlap, repeat and jump ahead, as those of several producers of one part do."""
    bench.client.delete(bench.keys.stream, bench.keys.batch("b"))
    reached = 0
    for first, size in cuts:
        if first > reached:
            with pytest.raises(redis.ResponseError, match=f"CHASQUIGAP {reached}"):
                add_part(bench, first, jobs(first, first + size))
        else:
            add_part(bench, first, jobs(first, first + size))
            reached = max(reached, first + size)
    assert add_part(bench, 0, jobs(0, 45)) == 45 - reached
    sent = [fields[b"d"] for fields in bench.stream()]
    assert sent == [f"job-{i}".encode() for i in range(45)]
