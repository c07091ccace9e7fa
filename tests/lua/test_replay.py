"""replay: back on the stream, each letter once and no job over its budget."""

from __future__ import annotations

import pytest
import redis


def replay(bench, *letters, budget=0):
    """Each letter is (letter id, d, n, job, bit)."""
    keys, args = [bench.keys.dlq, bench.keys.stream], [budget, 60_000]
    for letter_id, d, n, job, bit in letters:
        keys += [bench.keys.replay_count(job), bench.keys.batch_dead("b", 0)]
        args += [letter_id, d, n, bit]
    return bench.call("replay", keys, *args)


def bury(bench, d="old"):
    return bench.client.xadd(bench.keys.dlq, {"d": d}).decode()


def test_letters_go_back_once(bench):
    first, second = bury(bench), bury(bench)
    letters = ((first, "new1", "n", "a", -1), (second, "new2", "", "b", -1))
    assert replay(bench, *letters) == b"11"
    assert bench.stream() == [{b"d": b"new1", b"n": b"n"}, {b"d": b"new2"}]
    assert bench.stream("dlq") == []
    assert bench.all()["replays:a"] == b"1"
    assert 59_000 < bench.life_ms(bench.keys.replay_count("a")) <= 60_000
    before = bench.all()
    assert replay(bench, *letters) == b"00"
    assert bench.all() == before


def test_the_budget_counts_across_calls(bench):
    signs = [replay(bench, (bury(bench), "d", "", "a", -1), budget=2) for _ in range(3)]
    assert signs == [b"1", b"1", b"x"]
    assert len(bench.stream("dlq")) == 1
    assert len(bench.stream()) == 2
    assert bench.all()["replays:a"] == b"2"


def test_the_dead_bit_is_cleared_and_its_neighbours_are_not(bench):
    dead = bench.keys.batch_dead("b", 0)
    bench.client.setbit(dead, 4, 1)
    bench.client.setbit(dead, 5, 1)
    replay(bench, (bury(bench), "d", "", "a", 4))
    assert (bench.client.getbit(dead, 4), bench.client.getbit(dead, 5)) == (0, 1)


def test_bits_that_have_expired_are_not_made_anew(bench):
    """A key that SETBIT makes would have no life, and stay for ever."""
    replay(bench, (bury(bench), "d", "", "a", 4_000_000))
    assert bench.client.exists(bench.keys.batch_dead("b", 0)) == 0


def test_no_letter_is_lost_where_the_stream_is_something_else(bench):
    letter = bury(bench)
    bench.client.set(bench.keys.stream, "mine")
    before = bench.all()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        replay(bench, (letter, "d", "", "a", -1))
    assert bench.all() == before
