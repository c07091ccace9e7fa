"""claim: claim idle entries, with a reply like XREADGROUP ... CLAIM."""

from __future__ import annotations


def claim(script_runner, consumer="other", idle=0, limit=10):
    return script_runner.call(
        "claim", [script_runner.keys.stream], "default", consumer, idle, limit
    )


def test_idle_entries_are_claimed_with_their_delivery_count(script_runner):
    first, second = script_runner.deliver("one", "two")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "me", 0, [second])
    claimed = claim(script_runner)
    assert [(row[0].decode(), row[1], row[3]) for row in claimed] == [
        (first, [b"d", b"one"], 1),
        (second, [b"d", b"two"], 2),
    ]
    assert all(row[2] >= 0 for row in claimed)
    assert script_runner.dump()["stream"]["default"] == [(first, "other", 2), (second, "other", 3)]


def test_entries_that_are_not_idle_are_not_claimed(script_runner):
    script_runner.deliver("one")
    before = script_runner.dump()
    assert claim(script_runner, idle=60_000) == []
    assert script_runner.dump() == before


def test_limit_the_limit_is_processed(script_runner):
    entries = script_runner.deliver(*range(5))
    assert [row[0].decode() for row in claim(script_runner, limit=2)] == entries[:2]


def test_a_deleted_entry_is_removed_from_the_pending_list(script_runner):
    first, second = script_runner.deliver("one", "two")
    script_runner.client.xdel(script_runner.keys.stream, first)
    assert [row[0].decode() for row in claim(script_runner)] == [second]
    assert script_runner.pending() == [second]
