"""cancel_batch and attach_batch: cancel a batch by one field, fenced by its owner."""

from __future__ import annotations

import pytest
import redis

TTL_MS = 60_000


def cancel(script_runner, owner=None, token="t", parts=1, batch="b"):
    keys = script_runner.keys
    names = [keys.batch(batch), keys.cancelled_batches]
    names += [keys.batch_done(batch, part) for part in range(parts)]
    names += [keys.batch_dead(batch, part) for part in range(parts)]
    args = (batch, int(owner is not None), owner or "", token, 1000)
    status, stored_parts = script_runner.call("cancel_batch", names, *args)
    return status.decode(), stored_parts


def attach(script_runner, owner):
    keys = script_runner.keys
    names = [keys.batch("b"), keys.batch_done("b", 0), keys.batch_dead("b", 0)]
    return script_runner.call("attach_batch", names, owner)


def seed(script_runner, batch="b", ttl_ms=TTL_MS, **fields):
    key = script_runner.keys.batch(batch)
    fields = {"sent:0": 3, "total": 3, "parts": 1, "owner": "first"} | fields
    script_runner.client.hset(
        key, mapping={name: value for name, value in fields.items() if value is not None}
    )
    if ttl_ms:
        script_runner.client.pexpire(key, ttl_ms)


def test_a_cancel_writes_the_field_and_announces_the_batch_until_it_expires(script_runner):
    seed(script_runner)
    before = script_runner.client.hlen(script_runner.keys.batch("b"))
    assert cancel(script_runner) == ("cancelled", 1)
    batch = script_runner.client.hgetall(script_runner.keys.batch("b"))
    assert len(batch) == before + 2
    [(member, score)] = script_runner.client.zrange(
        script_runner.keys.cancelled_batches, 0, -1, withscores=True
    )
    expiry, batch_id = member.decode().split(":")
    assert batch_id == "b"
    assert score == int(batch[b"cancelled"])
    assert TTL_MS - 1000 < int(expiry) - score <= TTL_MS
    assert TTL_MS - 1000 < script_runner.ttl_ms(script_runner.keys.cancelled_batches) <= TTL_MS


def test_a_second_cancel_changes_nothing_and_a_resend_has_the_first_reply(script_runner):
    seed(script_runner)
    assert cancel(script_runner, token="one") == ("cancelled", 1)
    state = script_runner.dump()
    assert cancel(script_runner, token="one") == ("cancelled", 1)
    assert cancel(script_runner, token="two") == ("already_cancelled", 1)
    assert script_runner.dump() == state


def test_only_the_stored_owner_may_cancel_with_its_name(script_runner):
    seed(script_runner)
    before = script_runner.dump()
    assert cancel(script_runner, owner="second") == ("not_owner", 1)
    assert script_runner.dump() == before
    attach(script_runner, "second")
    assert cancel(script_runner, owner="first") == ("not_owner", 1)
    assert cancel(script_runner, owner="second") == ("cancelled", 1)


def test_a_batch_without_an_owner_does_not_belong_to_a_named_one(script_runner):
    seed(script_runner, owner=None)
    assert cancel(script_runner, owner="first") == ("not_owner", 1)
    assert cancel(script_runner, owner="") == ("cancelled", 1)


def test_a_finished_batch_is_not_cancelled(script_runner):
    seed(script_runner, **{"sent:1": 1, "total": 4, "parts": 2})
    for bit in range(3):
        script_runner.client.setbit(script_runner.keys.batch_done("b", 0), bit, 1)
    assert cancel(script_runner) == ("other_parts", 2)
    script_runner.client.setbit(script_runner.keys.batch_dead("b", 1), 0, 1)
    before = script_runner.dump()
    assert cancel(script_runner, parts=2) == ("finished", 2)
    assert script_runner.dump() == before


def test_a_batch_that_is_still_sent_can_be_cancelled_and_a_missing_one_cannot(script_runner):
    assert cancel(script_runner) == ("missing", 0)
    assert script_runner.dump() == {}
    seed(script_runner, total=None, parts=None, **{"sent:5": 1})
    assert cancel(script_runner) == ("cancelled", 6)


def test_scores_increase_even_if_the_clock_goes_back(script_runner):
    key = script_runner.keys.cancelled_batches
    script_runner.client.zadd(key, {"99999999999999:ahead": 9_999_999_999_999})
    seed(script_runner)
    cancel(script_runner)
    [member] = script_runner.client.zrange(key, -1, -1)
    assert member.endswith(b":b")
    assert script_runner.client.zscore(key, member) == 10_000_000_000_000


def test_expired_batches_are_removed_and_the_longest_ttl_counts(script_runner):
    key = script_runner.keys.cancelled_batches
    script_runner.client.zadd(key, {f"{n}:old-{n}": n + 1 for n in range(5)} | {"bad": 9})
    seed(script_runner, ttl_ms=None)
    cancel(script_runner)
    members = script_runner.client.zrange(key, 0, -1)
    assert len(members) == 1
    assert members[0].endswith(b":b")
    seed(script_runner, "short", 50)
    seed(script_runner, "long", 90_000)
    cancel(script_runner, batch="long")
    cancel(script_runner, batch="short")
    assert 80_000 < script_runner.ttl_ms(key) <= 90_000


@pytest.mark.parametrize("name", ["batch:b", "cancelled_batches", "batch:b:0:done"])
def test_a_key_of_another_type_refuses_the_cancel_before_the_first_write(script_runner, name):
    key = f"{script_runner.keys.hash_tag}:{name}"
    if name != "batch:b":
        seed(script_runner)
    script_runner.client.rpush(key, "other")
    before = script_runner.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        cancel(script_runner)
    assert script_runner.dump() == before


def test_attach_stores_the_owner_and_returns_the_state(script_runner):
    assert attach(script_runner, "me") == [[], [0, 0]]
    assert script_runner.dump() == {}
    seed(script_runner)
    script_runner.client.setbit(script_runner.keys.batch_done("b", 0), 1, 1)
    fields, counts = attach(script_runner, "me")
    assert counts == [1, 0]
    assert dict(zip(fields[::2], fields[1::2], strict=True))[b"owner"] == b"me"


@pytest.mark.parametrize("name", ["batch:b", "batch:b:0:dead"])
def test_attach_refuses_a_key_of_another_type(script_runner, name):
    if name != "batch:b":
        seed(script_runner)
    script_runner.client.rpush(f"{script_runner.keys.hash_tag}:{name}", "other")
    before = script_runner.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        attach(script_runner, "me")
    assert script_runner.dump() == before
