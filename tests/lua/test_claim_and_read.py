"""claim_and_read: claim idle entries and read new ones, with a reply like XREADGROUP ... CLAIM."""

from __future__ import annotations

import time

LATER = 2**53


def claim_and_read(script_runner, consumer="other", idle=0, limit=10, until=LATER):
    now, entries = script_runner.call(
        "claim_and_read", [script_runner.keys.stream], "default", consumer, idle, limit, until
    )
    assert abs(now / 1000 - time.time()) < 60
    return entries


def test_idle_entries_are_claimed_with_their_delivery_count(script_runner):
    first, second = script_runner.deliver("one", "two")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "me", 0, [second])
    claimed = claim_and_read(script_runner)
    assert [(row[0].decode(), row[1], row[3]) for row in claimed] == [
        (first, [b"d", b"one"], 1),
        (second, [b"d", b"two"], 2),
    ]
    assert all(row[2] >= 0 for row in claimed)
    assert script_runner.dump()["stream"]["default"] == [(first, "other", 2), (second, "other", 3)]


def test_entries_that_are_not_idle_are_not_claimed(script_runner):
    script_runner.deliver("one")
    before = script_runner.dump()
    assert claim_and_read(script_runner, idle=60_000) == []
    assert script_runner.dump() == before


def test_new_entries_follow_the_claimed_ones(script_runner):
    claimed = script_runner.deliver("one", "two")
    new = script_runner.client.xadd(script_runner.keys.stream, {"d": "three"}).decode()
    rows = claim_and_read(script_runner)
    assert [(row[0].decode(), row[3]) for row in rows] == [
        *((entry, 1) for entry in claimed),
        (new, 0),
    ]


def test_after_a_jump_of_the_clock_only_new_entries_are_read(script_runner):
    [pending] = script_runner.deliver("one")
    new = script_runner.client.xadd(script_runner.keys.stream, {"d": "two"}).decode()
    rows = claim_and_read(script_runner, until=int(time.time() * 1000) - 60_000)
    assert [row[0].decode() for row in rows] == [new]
    assert script_runner.dump()["stream"]["default"] == [(pending, "me", 1), (new, "other", 1)]


def test_the_limit_is_respected(script_runner):
    entries = script_runner.deliver(*range(5))
    assert [row[0].decode() for row in claim_and_read(script_runner, limit=2)] == entries[:2]


def test_a_deleted_entry_is_left_to_its_consumer_and_hides_no_other(script_runner):
    """The consumer may still run the job, and its outcome requires the pending entry."""
    *deleted, last = script_runner.deliver(*range(6))
    script_runner.client.xdel(script_runner.keys.stream, *deleted)
    assert [row[0].decode() for row in claim_and_read(script_runner, limit=2)] == [last]
    assert script_runner.dump()["stream"]["default"] == [
        *((entry, "me", 1) for entry in deleted),
        (last, "other", 2),
    ]
