"""claim: idle entries change hands, in the shape of XREADGROUP ... CLAIM."""

from __future__ import annotations


def claim(bench, consumer="other", idle=0, at_most=10):
    return bench.call("claim", [bench.keys.stream], "default", consumer, idle, at_most)


def test_idle_entries_are_taken_over_with_their_count(bench):
    first, second = bench.deliver("one", "two")
    bench.client.xclaim(bench.keys.stream, "default", "me", 0, [second])
    got = claim(bench)
    assert [(row[0].decode(), row[1], row[3]) for row in got] == [
        (first, [b"d", b"one"], 1),
        (second, [b"d", b"two"], 2),
    ]
    assert all(row[2] >= 0 for row in got)
    assert bench.all()["stream"]["default"] == [(first, "other", 2), (second, "other", 3)]


def test_entries_that_are_not_idle_stay(bench):
    bench.deliver("one")
    before = bench.all()
    assert claim(bench, idle=60_000) == []
    assert bench.all() == before


def test_at_most_so_many(bench):
    entries = bench.deliver(*range(5))
    assert [row[0].decode() for row in claim(bench, at_most=2)] == entries[:2]


def test_an_entry_that_was_deleted_meanwhile_is_cleared_away(bench):
    first, second = bench.deliver("one", "two")
    bench.client.xdel(bench.keys.stream, first)
    assert [row[0].decode() for row in claim(bench)] == [second]
    assert bench.pending() == [second]
