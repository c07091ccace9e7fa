"""bury: settled and written as a letter in one step."""

from __future__ import annotations

import pytest
import redis


def bury(bench, *entries, keep=0):
    """Each entry is (id, number of its dead key, bit, fields and values)."""
    keys = [bench.keys.stream, bench.keys.dlq, bench.keys.batch_dead("b", 0)]
    args = ["default", keep, 60_000]
    for entry_id, number, bit, fields in entries:
        args += [entry_id, number, bit, len(fields), *fields]
    return bench.call("move_to_dlq", keys, *args)


def test_each_entry_becomes_one_letter(bench):
    first, second = bench.deliver("one", "two")
    letters = ((first, 3, 4, ["d", "one", "reason", "r"]), (second, 0, 0, ["d", "two"]))
    assert bury(bench, *letters, ("1-0", 3, 5, ["d", "three"])) == [1, 1, 0]
    assert bench.stream("dlq") == [{b"d": b"one", b"reason": b"r"}, {b"d": b"two"}]
    assert bench.stream() == []
    assert bench.pending() == []
    dead = bench.keys.batch_dead("b", 0)
    assert bench.client.getbit(dead, 4) == 1
    assert bench.client.bitcount(dead) == 1
    assert 59_000 < bench.life_ms(dead) <= 60_000
    before = bench.all()
    assert bury(bench, *letters) == [0, 0]
    assert bench.all() == before


def test_letters_are_kept_unless_a_bound_is_given(bench):
    entries = bench.deliver(*range(1000))
    bury(bench, *((entry, 0, 0, ["d", "x"]) for entry in entries[:500]))
    assert len(bench.stream("dlq")) == 500
    bury(bench, *((entry, 0, 0, ["d", "x"]) for entry in entries[500:]), keep=100)
    assert 100 <= len(bench.stream("dlq")) < 300


def test_no_job_is_lost_where_the_dlq_is_something_else(bench):
    [entry] = bench.deliver("one")
    bench.client.set(bench.keys.dlq, "mine")
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bury(bench, (entry, 3, 4, ["d", "one"]))
    assert bench.all() == before
