"""add: all or none, each once."""

from __future__ import annotations

import pytest
import redis


def add(bench, *jobs, max_len=0, token="t", life=100_000):
    """Each job is (d, n, marker or None)."""
    keys = [bench.keys.stream, bench.keys.idempotency_marker(token)]
    args = [max_len, life]
    for d, n, marker in jobs:
        args += [d, n, 60_000 if marker else 0]
        keys += [bench.keys.dedup_marker(marker)] if marker else []
    return bench.call("add", keys, *args)


def test_jobs_go_on_the_stream_in_order(bench):
    assert add(bench, ("one", "", None), ("two", "name", None)) == b"11"
    assert bench.stream() == [{b"d": b"one"}, {b"d": b"two", b"n": b"name"}]
    assert sorted(bench.all()) == ["once:t", "stream"]
    assert 99_000 < bench.life_ms(bench.keys.idempotency_marker("t")) <= 100_000


def test_the_same_call_again_adds_nothing_and_says_the_same(bench):
    first = add(bench, ("one", "", "a"), ("two", "", "a"))
    before = bench.all()
    assert add(bench, ("one", "", "a"), ("two", "", "a")) == first == b"10"
    assert bench.all() == before


def test_another_call_adds_again(bench):
    add(bench, ("one", "", None))
    assert add(bench, ("one", "", None), token="u") == b"1"
    assert len(bench.stream()) == 2


def test_a_marker_that_stands_keeps_its_job_out(bench):
    assert add(bench, ("one", "", "a")) == b"1"
    assert add(bench, ("two", "", "a"), ("three", "", None), token="u") == b"01"
    assert bench.stream() == [{b"d": b"one"}, {b"d": b"three"}]
    [(entry_id, _), _] = bench.all()["stream"]["entries"]
    assert bench.all()["unique:a"] == entry_id.encode()
    assert 59_000 < bench.life_ms(bench.keys.dedup_marker("a")) <= 60_000


def test_a_full_queue_takes_none_and_leaves_no_trace(bench):
    add(bench, ("one", "", None), max_len=3)
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="CHASQUIFULL 3"):
        add(bench, ("two", "", "a"), ("three", "", None), ("four", "", None), max_len=3, token="u")
    assert bench.all() == before
    # The same call may succeed later: its refusal was not remembered.
    assert add(bench, ("two", "", "a"), ("three", "", None), max_len=3, token="u") == b"11"


def test_what_is_kept_out_needs_no_room(bench):
    add(bench, ("one", "", "a"), max_len=2)
    assert (
        add(bench, ("x", "", "a"), ("two", "", "b"), ("y", "", "b"), max_len=2, token="u") == b"010"
    )
    assert len(bench.stream()) == 2


def test_a_key_of_another_type_is_refused_before_anything_is_written(bench):
    bench.client.set(bench.keys.stream, "mine")
    before = bench.all()
    for max_len in (0, 5):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            add(bench, ("one", "", "a"), max_len=max_len)
    assert bench.all() == before
