"""release: handed back unrun, once."""

from __future__ import annotations


def test_entries_come_anew_and_are_not_counted_as_delivered(bench):
    first, second = bench.deliver("one", "two")
    args = ["default", first, "one", "n", second, "two", "", "1-0", "three", ""]
    assert bench.call("release", [bench.keys.stream], *args) == [1, 1, 0]
    assert bench.stream() == [{b"d": b"one", b"n": b"n"}, {b"d": b"two"}]
    assert bench.pending() == []
    again = bench.deliver()
    assert len(again) == 2
    assert first not in again
    assert bench.call("release", [bench.keys.stream], *args[:4]) == [0]
