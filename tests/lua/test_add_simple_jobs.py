"""add_plain: many jobs in order, once however often the call is sent."""

from __future__ import annotations

import pytest
import redis


def add_plain(bench, *runs, token="t", life=100_000):
    """Each run is a name and the jobs that have it."""
    args = [part for name, *jobs in runs for part in (name, len(jobs), *jobs)]
    keys = [bench.keys.stream, bench.keys.idempotency_marker(token)]
    return bench.call("add_simple_jobs", keys, life, *args)


def test_jobs_go_on_the_stream_in_order(bench):
    assert add_plain(bench, ("", "one", "two"), ("name", "three"), ("", "four")) == 1
    assert bench.stream() == [
        {b"d": b"one"}, {b"d": b"two"}, {b"d": b"three", b"n": b"name"}, {b"d": b"four"},
    ]  # fmt: skip
    assert sorted(bench.all()) == ["once:t", "stream"]
    assert 99_000 < bench.life_ms(bench.keys.idempotency_marker("t")) <= 100_000


def test_the_same_call_again_adds_nothing_and_says_the_same(bench):
    first = add_plain(bench, ("", "one"))
    before = bench.all()
    assert add_plain(bench, ("", "one")) == first
    assert bench.all() == before


def test_another_call_adds_again(bench):
    add_plain(bench, ("", "one"))
    add_plain(bench, ("", "one"), token="u")
    assert bench.stream() == [{b"d": b"one"}, {b"d": b"one"}]


def test_a_key_of_another_type_is_refused_before_anything_is_written(bench):
    bench.client.set(bench.keys.stream, "mine")
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        add_plain(bench, ("", "one"))
    assert bench.all() == before
