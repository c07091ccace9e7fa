"""release: handed back unrun, once."""

from __future__ import annotations


def test_entries_come_anew_and_are_not_counted_as_delivered(bench):
    first, second = bench.deliver("one", "two")
    args = ["default", "me", first, "one", "n", second, "two", "", "1-0", "three", ""]
    assert bench.call("requeue", [bench.keys.stream], *args) == [1, 1, 0]
    assert bench.stream() == [{b"d": b"one", b"n": b"n"}, {b"d": b"two"}]
    assert bench.pending() == []
    again = bench.deliver()
    assert len(again) == 2
    assert first not in again
    assert bench.call("requeue", [bench.keys.stream], *args[:5]) == [0]


def test_what_another_consumer_took_over_is_left_to_it(bench):
    first, second = bench.deliver("one", "two")
    bench.client.xclaim(bench.keys.stream, "default", "other", 0, [first])
    args = ["default", "me", first, "one", "", second, "two", ""]
    assert bench.call("requeue", [bench.keys.stream], *args) == [0, 1]
    assert bench.stream() == [{b"d": b"one"}, {b"d": b"two"}]
    assert bench.pending() == [first]


def test_where_the_group_is_gone_there_is_nothing_to_hand_back(bench):
    [entry] = bench.deliver("one")
    bench.client.xgroup_destroy(bench.keys.stream, "default")
    assert bench.call("requeue", [bench.keys.stream], "default", "me", entry, "one", "") == [0]
    assert bench.stream() == [{b"d": b"one"}]
