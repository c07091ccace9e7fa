"""fire: each score once; limit, end, and what comes next."""

from __future__ import annotations

import pytest

KEY = "k"


def member(name: bytes, envelope: bytes) -> bytes:
    return len(name).to_bytes(4, "little") + name + envelope


def seed(bench, score=100, **fields):
    bench.client.zadd(bench.keys.repeat, {KEY: score})
    bench.client.hset(bench.keys.repeat_spec(KEY), mapping={"spec": "body"} | fields)


def fire(bench, *fires, score=100, following=200, limit=0, end=0, now=150):
    keys = bench.keys
    names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec(KEY)]
    flat = [part for each in fires for part in each]
    return bench.call("repeat_enqueue_due", names, KEY, score, following, limit, end, now, *flat)


def test_a_due_fire_goes_on_the_stream_and_a_later_one_waits(bench):
    seed(bench)
    assert fire(bench, (100, member(b"n", b"one")), (160, member(b"", b"two"))) == [2, 0]
    assert bench.stream() == [{b"d": b"one", b"n": b"n"}]
    assert bench.all()["delayed"] == [(member(b"", b"two"), 160.0)]
    assert bench.all()["repeat"] == [(b"k", 200.0)]
    assert bench.all()["repeat:spec:k"] == {b"spec": b"body", b"fired": b"2"}


def test_a_score_fires_once_whoever_asks(bench):
    seed(bench)
    one = (100, member(b"", b"one"))
    assert fire(bench, one) == [1, 0]
    before = bench.all()
    assert fire(bench, one) == [-1, 0]
    assert bench.all() == before


def test_a_repeat_that_was_dropped_or_moved_does_not_fire(bench):
    assert fire(bench, (100, member(b"", b"one"))) == [-1, 0]
    assert bench.all() == {}
    seed(bench, score=101)
    assert fire(bench, (100, member(b"", b"one"))) == [-1, 0]
    assert "stream" not in bench.all()


def test_skipped_fires_only_move_the_score(bench):
    seed(bench)
    assert fire(bench) == [0, 0]
    assert bench.all() == {"repeat": [(b"k", 200.0)], "repeat:spec:k": {b"spec": b"body"}}


def test_the_limit_stops_in_the_middle_and_ends_the_repeat(bench):
    seed(bench, fired=2)
    fires = [(100 + i, member(b"", b"%d" % i)) for i in range(5)]
    assert fire(bench, *fires, limit=4) == [2, 1]
    assert [fields[b"d"] for fields in bench.stream()] == [b"0", b"1"]
    assert sorted(bench.all()) == ["stream"]


@pytest.mark.parametrize(
    ("following", "end", "removed"), [(200, 200, 0), (200, 199, 1), (0, 0, 1), (200, 0, 0)]
)
def test_the_end(bench, following, end, removed):
    seed(bench)
    assert fire(bench, (100, member(b"", b"x")), following=following, end=end) == [1, removed]
    assert ("repeat" in bench.all()) is (removed == 0)
    assert ("repeat:spec:k" in bench.all()) is (removed == 0)


def test_a_counter_that_is_no_number_does_not_fire_for_ever(bench):
    """An error after the push would leave the score where it was, to be fired again at once."""
    seed(bench, fired="many")
    assert fire(bench, (100, member(b"", b"x"))) == [1, 0]
    assert bench.all()["repeat:spec:k"][b"fired"] == b"1"
    assert bench.all()["repeat"] == [(b"k", 200.0)]
