"""move_to_dlq: acknowledge entries and write their dead letters in one step."""

from __future__ import annotations

import pytest
import redis


def move_to_dlq(script_runner, *entries, max_dead_letters=0, consumer="me"):
    """Each entry is (id, position of its batch, index, fields and values)."""
    keys = [
        script_runner.keys.stream,
        script_runner.keys.dlq,
        script_runner.keys.batch("b"),
        script_runner.keys.batch_done("b", 0),
        script_runner.keys.batch_dead("b", 0),
    ]
    args = ["default", consumer, max_dead_letters]
    for entry_id, position, index, fields in entries:
        args += [entry_id, position, 0, index, len(fields), *fields]
    return script_runner.call("move_to_dlq", keys, *args)


def test_each_entry_becomes_one_dead_letter(script_runner):
    script_runner.client.hset(script_runner.keys.batch("b"), "sent:0", 10)
    script_runner.client.pexpire(script_runner.keys.batch("b"), 60_000)
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


def test_an_entry_that_another_consumer_has_claimed_is_not_moved(script_runner):
    """Consumer A stalls, B claims the entry and runs it, A resumes with Unrecoverable."""
    [entry] = script_runner.deliver("one", consumer="a")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "b", 0, [entry])
    before = script_runner.dump()
    dead_letter = (entry, 3, 4, ["d", "one"])
    assert move_to_dlq(script_runner, dead_letter, consumer="a") == [0]
    assert script_runner.dump() == before
    assert move_to_dlq(script_runner, dead_letter, consumer="b") == [1]


def test_an_entry_trimmed_while_pending_becomes_a_dead_letter(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.xtrim(script_runner.keys.stream, maxlen=0)
    assert move_to_dlq(script_runner, (entry, 0, 0, ["d", "one"])) == [1]
    assert script_runner.stream("dlq") == [{b"d": b"one"}]
    assert script_runner.pending() == []
