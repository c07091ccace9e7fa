"""move_to_dlq: acknowledge entries and write their dead dead_letters in one step."""

from __future__ import annotations

import pytest
import redis


def move_to_dlq(script_runner, *entries, max_dead_letters=0):
    """Each entry is (id, position of its dead bitmap, bit, fields and values)."""
    keys = [
        script_runner.keys.stream,
        script_runner.keys.dlq,
        script_runner.keys.batch_dead("b", 0),
    ]
    args = ["default", max_dead_letters, 60_000]
    for entry_id, position, bit, fields in entries:
        args += [entry_id, position, bit, len(fields), *fields]
    return script_runner.call("move_to_dlq", keys, *args)


def test_each_entry_becomes_one_dead_letter(script_runner):
    first, second = script_runner.deliver("one", "two")
    dead_letters = ((first, 3, 4, ["d", "one", "reason", "r"]), (second, 0, 0, ["d", "two"]))
    assert move_to_dlq(script_runner, *dead_letters, ("1-0", 3, 5, ["d", "three"])) == [1, 1, 0]
    assert script_runner.stream("dlq") == [{b"d": b"one", b"reason": b"r"}, {b"d": b"two"}]
    assert script_runner.stream() == []
    assert script_runner.pending() == []
    dead = script_runner.keys.batch_dead("b", 0)
    assert script_runner.client.getbit(dead, 4) == 1
    assert script_runner.client.bitcount(dead) == 1
    assert 59_000 < script_runner.ttl_ms(dead) <= 60_000
    before = script_runner.dump()
    assert move_to_dlq(script_runner, *dead_letters) == [0, 0]
    assert script_runner.dump() == before


def test_dead_letters_are_trimmed_only_if_a_limit_is_given(script_runner):
    entries = script_runner.deliver(*range(1000))
    move_to_dlq(script_runner, *((entry, 0, 0, ["d", "x"]) for entry in entries[:500]))
    assert len(script_runner.stream("dlq")) == 500
    move_to_dlq(
        script_runner, *((entry, 0, 0, ["d", "x"]) for entry in entries[500:]), max_dead_letters=100
    )
    assert 100 <= len(script_runner.stream("dlq")) < 300


def test_no_job_is_lost_if_the_dlq_has_the_wrong_type(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.set(script_runner.keys.dlq, "another type")
    before = script_runner.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        move_to_dlq(script_runner, (entry, 3, 4, ["d", "one"]))
    assert script_runner.dump() == before
