"""cancel: remove a job from the delayed set."""

from __future__ import annotations


def cancel(script_runner, job_id="a", member="", bit=-1):
    keys = script_runner.keys
    names = [
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
    ]
    names.append(keys.batch_dead("b", 0) if bit >= 0 else keys.cancelled)
    return script_runner.call("cancel", names, member, bit, 60_000)


def seed(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5, "m2": 6})
    script_runner.client.set(script_runner.keys.delayed_index("a"), "m1")
    script_runner.client.set(script_runner.keys.delayed_marker("a"), "1")
    script_runner.client.set(script_runner.keys.dedup_marker("a"), "delayed")


def test_a_delayed_job_is_found_by_its_index(script_runner):
    seed(script_runner)
    assert cancel(script_runner) == 1
    assert script_runner.dump() == {"delayed": [(b"m2", 6.0)]}
    assert cancel(script_runner) == 0


def test_a_delayed_job_is_found_by_its_member(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5, "m2": 6})
    assert cancel(script_runner, member="m2") == 1
    assert script_runner.dump() == {"delayed": [(b"m1", 5.0)]}


def test_a_job_that_is_not_delayed_any_more_keeps_its_markers(script_runner):
    seed(script_runner)
    script_runner.client.zrem(script_runner.keys.delayed, "m1")
    before = script_runner.dump()
    assert cancel(script_runner) == 0
    assert cancel(script_runner, member="m9", bit=3) == 0
    assert script_runner.dump() == before


def test_a_cancelled_job_of_a_batch_counts_as_dead(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5})
    assert cancel(script_runner, member="m1", bit=3) == 1
    dead = script_runner.keys.batch_dead("b", 0)
    assert script_runner.client.getbit(dead, 3) == 1
    assert 59_000 < script_runner.ttl_ms(dead) <= 60_000
