"""retry: settled and parked in one step."""

from __future__ import annotations

import pytest
import redis


def retry(bench, *entries):
    flat = [part for entry in entries for part in entry]
    return bench.call(
        "schedule_retries", [bench.keys.stream, bench.keys.delayed], "default", "me", *flat
    )


def test_each_entry_is_parked_once(bench):
    first, second = bench.deliver("one", "two")
    assert retry(bench, (first, 5, "m1"), (second, 6, "m2"), ("1-0", 7, "m3")) == [1, 1, 0]
    assert bench.all()["delayed"] == [(b"m1", 5.0), (b"m2", 6.0)]
    assert bench.stream() == []
    assert bench.pending() == []
    assert retry(bench, (first, 9, "m1")) == [0]
    assert bench.all()["delayed"][0] == (b"m1", 5.0)


def test_what_another_consumer_took_over_is_left_to_it(bench):
    first, second = bench.deliver("one", "two")
    bench.client.xclaim(bench.keys.stream, "default", "other", 0, [first])
    assert retry(bench, (first, 5, "m1"), (second, 6, "m2")) == [0, 1]
    assert bench.all()["delayed"] == [(b"m2", 6.0)]
    assert bench.pending() == [first]


def test_where_the_group_is_gone_there_is_nothing_to_park(bench):
    [entry] = bench.deliver("one")
    bench.client.delete(bench.keys.stream)
    assert retry(bench, (entry, 5, "m1")) == [0]
    assert bench.all() == {}


def test_no_job_is_lost_where_the_delayed_set_is_something_else(bench):
    [entry] = bench.deliver("one")
    bench.client.set(bench.keys.delayed, "mine")
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        retry(bench, (entry, 5, "m1"))
    assert bench.all() == before
