"""settle: off the stream; then the bit and the result, gated on that."""

from __future__ import annotations

import time

BIT = 9


def settle(bench, *entries):
    """Each entry: id, number of its bits, of the opposite, bit, number of its result, result."""
    keys = [
        bench.keys.stream,
        bench.keys.batch_done("b", 0),
        bench.keys.batch_dead("b", 0),
        bench.keys.result("r"),
    ]
    args = ["default", 60_000]
    for entry in entries:
        args += [*entry, 30]
    return bench.call("ack_with_results", keys, *args)


def plain(entry_id):
    return (entry_id, 0, 0, 0, 0, "")


def test_entries_leave_the_stream_and_the_group(bench):
    first, second = bench.deliver("one", "two")
    assert settle(bench, plain(first)) == [1]
    assert [fields[b"d"] for fields in bench.stream()] == [b"two"]
    assert bench.pending() == [second]


def test_bit_and_result_are_kept_once(bench):
    [entry] = bench.deliver("one")
    assert settle(bench, (entry, 2, 3, BIT, 4, "value")) == [1]
    assert bench.client.getbit(bench.keys.batch_done("b", 0), BIT) == 1
    assert bench.client.bitcount(bench.keys.batch_done("b", 0)) == 1
    assert bench.client.exists(bench.keys.batch_dead("b", 0)) == 0
    assert bench.client.get(bench.keys.result("r")) == b"value"
    assert bench.client.ttl(bench.keys.result("r")) in (30, 29)
    assert 59_000 < bench.life_ms(bench.keys.batch_done("b", 0)) <= 60_000
    bench.client.delete(bench.keys.result("r"), bench.keys.batch_done("b", 0))
    assert settle(bench, (entry, 2, 3, BIT, 4, "value")) == [0]
    assert sorted(bench.all()) == ["stream"]


def test_what_someone_else_settled_leaves_no_bit_and_no_result(bench):
    assert settle(bench, ("1-0", 2, 3, BIT, 4, "value")) == [0]
    assert bench.all() == {}


def test_an_entry_that_was_taken_over_may_still_be_settled_by_its_first_owner_once(bench):
    [entry] = bench.deliver("one")
    bench.client.xclaim(bench.keys.stream, "default", "other", 0, [entry])
    assert settle(bench, plain(entry)) == [1]
    assert settle(bench, plain(entry)) == [0]


def test_an_entry_that_is_not_pending_stays(bench):
    bench.deliver("one")
    entry = bench.client.xadd(bench.keys.stream, {"d": "unread"}).decode()
    assert settle(bench, plain(entry)) == [0]
    assert len(bench.stream()) == 2


def test_an_entry_that_was_deleted_while_pending_is_settled(bench):
    [entry] = bench.deliver("one")
    bench.client.xdel(bench.keys.stream, entry)
    assert settle(bench, plain(entry)) == [1]
    assert bench.pending() == []


def test_a_job_that_ends_well_after_a_foreign_replay_counts_once(bench):
    """ChasquiMQ replays a letter without clearing our dead bit."""
    bench.client.setbit(bench.keys.batch_dead("b", 0), BIT, 1)
    bench.client.setbit(bench.keys.batch_dead("b", 0), BIT + 1, 1)
    [entry] = bench.deliver("one")
    settle(bench, (entry, 2, 3, BIT, 0, ""))
    assert bench.client.bitcount(bench.keys.batch_done("b", 0)) == 1
    assert bench.client.getbit(bench.keys.batch_dead("b", 0), BIT) == 0
    assert bench.client.getbit(bench.keys.batch_dead("b", 0), BIT + 1) == 1


def test_ten_thousand_at_once(bench):
    """More than Lua hands on in one call."""
    entries = bench.deliver(*range(10_000))
    began = time.monotonic()
    answers = settle(bench, *map(plain, [*entries, "1-0"]))
    assert answers == [1] * 10_000 + [0]
    assert bench.stream() == []
    assert time.monotonic() - began < 10
