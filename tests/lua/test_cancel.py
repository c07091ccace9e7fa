"""cancel: remove a job from the delayed set, or write a cancel request."""

from __future__ import annotations

import time

DAY_MS = 24 * 3600 * 1000


def cancel(script_runner, job_id="a", member="", bit=-1, request_ttl=0, token="t"):
    keys = script_runner.keys
    names = [
        keys.idempotency_marker(token),
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
        keys.stream,
        keys.cancel_requests,
    ]
    args = [100_000, member, job_id, request_ttl]
    if bit < 0:
        return script_runner.call("cancel", names, *args, 0, 0, 0)
    names += [keys.batch("b"), keys.batch_done("b", 0), keys.batch_dead("b", 0)]
    return script_runner.call("cancel", names, *args, 8, 0, bit)


def seed(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5, "m2": 6})
    script_runner.client.set(script_runner.keys.delayed_index("a"), "m1")
    script_runner.client.set(script_runner.keys.delayed_marker("a"), "1")
    script_runner.client.set(script_runner.keys.dedup_marker("a"), "delayed")


def dump(script_runner):
    """Return the keys of the queue without idempotency markers."""
    return {k: v for k, v in script_runner.dump().items() if not k.startswith("idempotency:")}


def requests(script_runner):
    """Return the fields of each cancel request."""
    raw = script_runner.client.hgetall(script_runner.keys.cancel_requests)
    return {job_id.decode(): value.decode().split(" ") for job_id, value in raw.items()}


def test_a_delayed_job_is_found_by_its_index(script_runner):
    seed(script_runner)
    assert cancel(script_runner, request_ttl=DAY_MS) == 1
    assert dump(script_runner) == {"delayed": [(b"m2", 6.0)]}
    assert cancel(script_runner, token="u") == 0


def test_a_delayed_job_is_found_by_its_member(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5, "m2": 6})
    assert cancel(script_runner, member="m2") == 1
    assert dump(script_runner) == {"delayed": [(b"m1", 5.0)]}


def test_a_repeated_call_returns_the_same_reply_and_keeps_a_new_job(script_runner):
    seed(script_runner)
    assert cancel(script_runner) == 1
    seed(script_runner)
    before = script_runner.dump()
    assert cancel(script_runner) == 1
    assert script_runner.dump() == before
    marker = script_runner.keys.idempotency_marker("t")
    assert 99_000 < script_runner.ttl_ms(marker) <= 100_000


def test_a_job_that_is_not_delayed_any_more_keeps_its_markers(script_runner):
    seed(script_runner)
    script_runner.client.zrem(script_runner.keys.delayed, "m1")
    before = dump(script_runner)
    assert cancel(script_runner) == 0
    assert cancel(script_runner, member="m9", bit=3, token="u") == 0
    assert dump(script_runner) == before


def test_a_request_names_the_last_entry_and_frees_the_id(script_runner):
    seed(script_runner)
    script_runner.client.zrem(script_runner.keys.delayed, "m1")
    entry_id = script_runner.client.xadd(script_runner.keys.stream, {"d": "x"}).decode()
    start_ms = time.time_ns() // 1_000_000
    assert cancel(script_runner, request_ttl=DAY_MS) == 2
    assert cancel(script_runner, request_ttl=DAY_MS) == 2  # the same call
    ((requested_at, last_entry, expires_at, superseded),) = requests(script_runner).values()
    assert 0 <= int(requested_at) - start_ms < 60_000
    assert (last_entry, superseded) == (entry_id, "0")
    assert int(expires_at) - DAY_MS <= int(requested_at)
    assert sorted(dump(script_runner)) == ["cancel_requests", "delayed", "stream"]
    ttl_ms = script_runner.ttl_ms(script_runner.keys.cancel_requests)
    assert DAY_MS - 60_000 < ttl_ms <= DAY_MS


def test_a_later_request_has_a_later_time_and_keeps_the_longest_ttl(script_runner):
    future_ms = time.time_ns() // 1_000_000 + DAY_MS
    key = script_runner.keys.cancel_requests
    script_runner.client.hset(key, "a", f"{future_ms} 5-1 {future_ms} 1")
    script_runner.client.pexpire(key, 3 * DAY_MS)
    assert cancel(script_runner, request_ttl=DAY_MS) == 2
    fields = requests(script_runner)["a"]
    assert (fields[0], fields[1], fields[3]) == (str(future_ms + 1), "0-0", "0")
    assert script_runner.ttl_ms(key) > 2 * DAY_MS


def test_expired_and_unreadable_requests_are_deleted(script_runner):
    future_ms = time.time_ns() // 1_000_000 + DAY_MS
    stored = {"old": "5 1-1 6 0", "junk": "x", "new": f"5 1-1 {future_ms} 1"}
    script_runner.client.hset(script_runner.keys.cancel_requests, mapping=stored)
    assert cancel(script_runner, request_ttl=DAY_MS) == 2
    assert sorted(requests(script_runner)) == ["a", "new"]


def test_a_cancelled_job_of_a_batch_counts_as_dead(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5})
    script_runner.client.hset(script_runner.keys.batch("b"), "sent:0", 4)
    script_runner.client.pexpire(script_runner.keys.batch("b"), 60_000)
    assert cancel(script_runner, member="m1", bit=3) == 1
    dead = script_runner.keys.batch_dead("b", 0)
    assert script_runner.client.getbit(dead, 3) == 1
    assert 59_000 < script_runner.ttl_ms(dead) <= 60_000
