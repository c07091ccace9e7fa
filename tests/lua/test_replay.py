"""replay: move each dead letter back once, and no job more often than the limit."""

from __future__ import annotations

import pytest
import redis


def replay(script_runner, *dead_letters, max_replays=0):
    """Each dead letter is (dead letter id, d, n, job, bit)."""
    keys = [script_runner.keys.dlq, script_runner.keys.stream, script_runner.keys.cancel_requests]
    args = [max_replays, 60_000]
    for dead_letter_id, d, n, job, bit in dead_letters:
        keys += [script_runner.keys.replay_count(job), script_runner.keys.batch_dead("b", 0)]
        args += [dead_letter_id, d, n, bit, job]
    return script_runner.call("replay", keys, *args)


def add_dead_letter(script_runner, d="old"):
    return script_runner.client.xadd(script_runner.keys.dlq, {"d": d}).decode()


def test_dead_letters_are_replayed_once(script_runner):
    first, second = add_dead_letter(script_runner), add_dead_letter(script_runner)
    dead_letters = ((first, "new1", "n", "a", -1), (second, "new2", "", "b", -1))
    assert replay(script_runner, *dead_letters) == b"11"
    assert script_runner.stream() == [{b"d": b"new1", b"n": b"n"}, {b"d": b"new2"}]
    assert script_runner.stream("dlq") == []
    assert script_runner.dump()["replays:a"] == b"1"
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.replay_count("a")) <= 60_000
    before = script_runner.dump()
    assert replay(script_runner, *dead_letters) == b"00"
    assert script_runner.dump() == before


def test_the_replay_limit_counts_across_calls(script_runner):
    signs = [
        replay(script_runner, (add_dead_letter(script_runner), "d", "", "a", -1), max_replays=2)
        for _ in range(3)
    ]
    assert signs == [b"1", b"1", b"x"]
    assert len(script_runner.stream("dlq")) == 1
    assert len(script_runner.stream()) == 2
    assert script_runner.dump()["replays:a"] == b"2"


def test_only_the_dead_bit_of_the_job_is_cleared(script_runner):
    dead = script_runner.keys.batch_dead("b", 0)
    script_runner.client.setbit(dead, 4, 1)
    script_runner.client.setbit(dead, 5, 1)
    replay(script_runner, (add_dead_letter(script_runner), "d", "", "a", 4))
    assert (script_runner.client.getbit(dead, 4), script_runner.client.getbit(dead, 5)) == (0, 1)


def test_the_cancel_request_of_a_replayed_job_is_deleted(script_runner):
    """Otherwise the first worker would drop the replayed job."""
    cancelled = script_runner.keys.cancel_requests
    script_runner.client.hset(cancelled, mapping={"a": 5, "b": 6, "c": 7})
    script_runner.client.set(script_runner.keys.replay_count("b"), 2)
    dead_letters = [(add_dead_letter(script_runner), "d", "", job, -1) for job in ("a", "b")]
    dead_letters.append(("1-1", "d", "", "c", -1))  # another caller has replayed it
    assert replay(script_runner, *dead_letters, max_replays=2) == b"1x0"
    assert script_runner.dump()["cancel_requests"] == {b"b": b"6", b"c": b"7"}


def test_an_expired_bitmap_is_not_created_again(script_runner):
    """A key created by SETBIT would have no TTL and would never be deleted."""
    replay(script_runner, (add_dead_letter(script_runner), "d", "", "a", 4_000_000))
    assert script_runner.client.exists(script_runner.keys.batch_dead("b", 0)) == 0


def test_no_dead_letter_is_lost_if_the_stream_has_the_wrong_type(script_runner):
    dead_letter = add_dead_letter(script_runner)
    script_runner.client.set(script_runner.keys.stream, "another type")
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        replay(script_runner, (dead_letter, "d", "", "a", -1))
    assert script_runner.dump() == before
