"""ack_with_results: acknowledge entries; set bit and result only for those acknowledged."""

from __future__ import annotations

import time

BIT = 9


def ack_with_results(script_runner, *entries):
    """Each entry: id, position of its batch, part, index, dead, position of its result, result."""
    keys = [
        script_runner.keys.stream,
        script_runner.keys.batch("b"),
        script_runner.keys.batch_done("b", 0),
        script_runner.keys.batch_dead("b", 0),
        script_runner.keys.result("r"),
        script_runner.keys.batch_results("b", 0, 0),
    ]
    args = ["default"]
    for entry in entries:
        args += [*entry, 30]
    return script_runner.call("ack_with_results", keys, *args)


def without_batch(entry_id):
    return (entry_id, 0, 0, 0, 0, 0, "")


def create_batch(script_runner, sent=100, ttl_ms=60_000):
    script_runner.client.hset(script_runner.keys.batch("b"), "sent:0", sent)
    script_runner.client.pexpire(script_runner.keys.batch("b"), ttl_ms)


def test_entries_leave_the_stream_and_the_group(script_runner):
    first, second = script_runner.deliver("one", "two")
    assert ack_with_results(script_runner, without_batch(first)) == [1]
    assert [fields[b"d"] for fields in script_runner.stream()] == [b"two"]
    assert script_runner.pending() == [second]


def test_bit_and_result_are_stored_once(script_runner):
    create_batch(script_runner)
    [entry] = script_runner.deliver("one")
    assert ack_with_results(script_runner, (entry, 2, 0, BIT, 0, 6, "value")) == [1]
    assert script_runner.client.getbit(script_runner.keys.batch_done("b", 0), BIT) == 1
    assert script_runner.client.bitcount(script_runner.keys.batch_done("b", 0)) == 1
    assert script_runner.client.exists(script_runner.keys.batch_dead("b", 0)) == 0
    bucket = script_runner.keys.batch_results("b", 0, 0)
    assert script_runner.client.hgetall(bucket) == {b"%d" % BIT: b"value"}
    assert script_runner.client.exists(script_runner.keys.result("r")) == 0
    assert 59_000 < script_runner.ttl_ms(script_runner.keys.batch_done("b", 0)) <= 60_000
    script_runner.client.delete(bucket, script_runner.keys.batch_done("b", 0))
    assert ack_with_results(script_runner, (entry, 2, 0, BIT, 0, 6, "value")) == [0]
    assert sorted(script_runner.dump()) == ["batch:b", "stream"]


def test_a_result_without_a_batch_has_its_own_key_and_ttl(script_runner):
    [entry] = script_runner.deliver("one")
    assert ack_with_results(script_runner, (entry, 0, 0, 0, 0, 5, "value")) == [1]
    assert script_runner.client.get(script_runner.keys.result("r")) == b"value"
    assert script_runner.client.ttl(script_runner.keys.result("r")) in (30, 29)
    assert sorted(script_runner.dump()) == ["result:r", "stream"]


def test_an_entry_acked_by_another_consumer_sets_no_bit_and_no_result(script_runner):
    create_batch(script_runner)
    before = script_runner.dump()
    assert ack_with_results(script_runner, ("1-0", 2, 0, BIT, 0, 6, "value")) == [0]
    assert script_runner.dump() == before


def test_a_bucket_of_another_type_loses_only_its_results(script_runner):
    create_batch(script_runner)
    script_runner.client.set(script_runner.keys.batch_results("b", 0, 0), "another type")
    first, second = script_runner.deliver("one", "two")
    reply = ack_with_results(
        script_runner, (first, 2, 0, BIT, 0, 6, "value"), (second, 0, 0, 0, 0, 5, "value")
    )
    assert reply == [1, 1]
    assert script_runner.client.getbit(script_runner.keys.batch_done("b", 0), BIT) == 1
    assert script_runner.client.get(script_runner.keys.result("r")) == b"value"


def test_an_ack_without_a_group_writes_nothing(script_runner):
    assert ack_with_results(script_runner, ("1-0", 2, 0, BIT, 0, 6, "value")) == [0]
    assert script_runner.dump() == {}


def test_a_claimed_entry_can_be_acked_once_by_its_first_owner(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.xclaim(script_runner.keys.stream, "default", "other", 0, [entry])
    assert ack_with_results(script_runner, without_batch(entry)) == [1]
    assert ack_with_results(script_runner, without_batch(entry)) == [0]


def test_an_entry_that_is_not_pending_is_not_deleted(script_runner):
    script_runner.deliver("one")
    entry = script_runner.client.xadd(script_runner.keys.stream, {"d": "unread"}).decode()
    assert ack_with_results(script_runner, without_batch(entry)) == [0]
    assert len(script_runner.stream()) == 2


def test_an_entry_deleted_while_pending_is_acked(script_runner):
    [entry] = script_runner.deliver("one")
    script_runner.client.xdel(script_runner.keys.stream, entry)
    assert ack_with_results(script_runner, without_batch(entry)) == [1]
    assert script_runner.pending() == []


def test_a_job_that_succeeds_after_a_chasquimq_replay_counts_once(script_runner):
    """ChasquiMQ replays a dead letter without clearing the dead bit."""
    create_batch(script_runner)
    script_runner.client.setbit(script_runner.keys.batch_dead("b", 0), BIT, 1)
    script_runner.client.setbit(script_runner.keys.batch_dead("b", 0), BIT + 1, 1)
    [entry] = script_runner.deliver("one")
    ack_with_results(script_runner, (entry, 2, 0, BIT, 0, 0, ""))
    assert script_runner.client.bitcount(script_runner.keys.batch_done("b", 0)) == 1
    assert script_runner.client.getbit(script_runner.keys.batch_dead("b", 0), BIT) == 0
    assert script_runner.client.getbit(script_runner.keys.batch_dead("b", 0), BIT + 1) == 1


def test_ten_thousand_entries_can_be_acked_in_one_call(script_runner):
    """More arguments than unpack() can pass in one call."""
    entries = script_runner.deliver(*range(10_000))
    began = time.monotonic()
    reply = ack_with_results(script_runner, *map(without_batch, [*entries, "1-0"]))
    assert reply == [1] * 10_000 + [0]
    assert script_runner.stream() == []
    assert time.monotonic() - began < 10


def test_bits_expire_exactly_with_their_batch(script_runner):
    keys = script_runner.keys
    create_batch(script_runner, ttl_ms=12_345_678)
    first, second = script_runner.deliver("one", "two")
    ack_with_results(script_runner, (first, 2, 0, 1, 0, 0, ""), (second, 2, 0, 2, 1, 0, ""))
    expires_at = script_runner.client.execute_command("PEXPIRETIME", keys.batch("b"))
    for key in (keys.batch_done("b", 0), keys.batch_dead("b", 0)):
        assert script_runner.client.execute_command("PEXPIRETIME", key) == expires_at


def test_an_index_that_was_not_sent_sets_no_bit(script_runner):
    """The id of a job from another program could name any index."""
    create_batch(script_runner, sent=3)
    entries = script_runner.deliver("one", "two", "three")
    rows = zip(entries, (2, 3, 1_600_000_000), strict=True)
    reply = ack_with_results(script_runner, *((entry, 2, 0, i, 0, 0, "") for entry, i in rows))
    assert reply == [1, 1, 1]
    assert script_runner.client.get(script_runner.keys.batch_done("b", 0)) == b"\x20"


def test_without_a_batch_no_bit_is_set(script_runner):
    [entry] = script_runner.deliver("one")
    assert ack_with_results(script_runner, (entry, 2, 0, 1_600_000_000, 0, 0, "")) == [1]
    assert sorted(script_runner.dump()) == ["stream"]


def test_a_bitmap_of_another_type_affects_only_its_own_bits(script_runner):
    create_batch(script_runner)
    script_runner.client.rpush(script_runner.keys.batch_done("b", 0), "another type")
    first, second = script_runner.deliver("one", "two")
    reply = ack_with_results(
        script_runner, (first, 2, 0, 1, 0, 6, "value"), (second, 2, 0, 2, 1, 0, "")
    )
    assert reply == [1, 1]
    bucket = script_runner.keys.batch_results("b", 0, 0)
    assert script_runner.client.hgetall(bucket) == {b"1": b"value"}
    assert script_runner.client.getbit(script_runner.keys.batch_dead("b", 0), 2) == 1
