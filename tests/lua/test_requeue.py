"""requeue: return entries that were read but not run, once."""

from __future__ import annotations


def test_entries_are_added_again_without_counting_a_delivery(script_runner):
    first, second = script_runner.deliver("one", "two")
    args = ["default", "me", first, "one", "n", second, "two", "", "1-0", "three", ""]
    assert script_runner.call("requeue", [script_runner.keys.stream], *args) == [1, 1, 0]
    assert script_runner.stream() == [{b"d": b"one", b"n": b"n"}, {b"d": b"two"}]
    assert script_runner.pending() == []
    again = script_runner.deliver()
    assert len(again) == 2
    assert first not in again
    assert script_runner.call("requeue", [script_runner.keys.stream], *args[:5]) == [0]


def test_an_entry_claimed_by_another_consumer_is_not_changed(script_runner):
    first, second = script_runner.deliver("one", "two")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "other", 0, [first])
    args = ["default", "me", first, "one", "", second, "two", ""]
    assert script_runner.call("requeue", [script_runner.keys.stream], *args) == [0, 1]
    assert script_runner.stream() == [{b"d": b"one"}, {b"d": b"two"}]
    assert script_runner.pending() == [first]


def test_nothing_is_requeued_if_the_group_does_not_exist(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.xgroup_destroy(script_runner.keys.stream, "default")
    assert script_runner.call(
        "requeue", [script_runner.keys.stream], "default", "me", entry, "one", ""
    ) == [0]
    assert script_runner.stream() == [{b"d": b"one"}]
