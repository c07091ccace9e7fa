"""add_simple_jobs: add many jobs in order, once even if the call is repeated."""

from __future__ import annotations

import pytest
import redis


def add_simple_jobs(script_runner, *groups, token="t", ttl_ms=100_000):
    """Each group is a name and the jobs with that name."""
    args = [part for name, *jobs in groups for part in (name, len(jobs), *jobs)]
    keys = [script_runner.keys.stream, script_runner.keys.idempotency_marker(token)]
    return script_runner.call("add_simple_jobs", keys, ttl_ms, *args)


def test_jobs_are_added_to_the_stream_in_order(script_runner):
    assert add_simple_jobs(script_runner, ("", "one", "two"), ("name", "three"), ("", "four")) == 1
    assert script_runner.stream() == [
        {b"d": b"one"},
        {b"d": b"two"},
        {b"d": b"three", b"n": b"name"},
        {b"d": b"four"},
    ]
    assert sorted(script_runner.dump()) == ["idempotency:t", "stream"]
    assert 99_000 < script_runner.ttl_ms(script_runner.keys.idempotency_marker("t")) <= 100_000


def test_a_repeated_call_adds_nothing_and_returns_the_same_reply(script_runner):
    first = add_simple_jobs(script_runner, ("", "one"))
    before = script_runner.dump()
    assert add_simple_jobs(script_runner, ("", "one")) == first
    assert script_runner.dump() == before


def test_another_call_adds_again(script_runner):
    add_simple_jobs(script_runner, ("", "one"))
    add_simple_jobs(script_runner, ("", "one"), token="u")
    assert script_runner.stream() == [{b"d": b"one"}, {b"d": b"one"}]


def test_a_key_of_another_type_is_refused_before_anything_is_written(script_runner):
    script_runner.client.set(script_runner.keys.stream, "another type")
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        add_simple_jobs(script_runner, ("", "one"))
    assert script_runner.dump() == before
