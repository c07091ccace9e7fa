"""reschedule: change the due time of a job that is still delayed."""

from __future__ import annotations


def reschedule(script_runner, run_at, member="", job_id="a"):
    keys = [
        script_runner.keys.delayed,
        script_runner.keys.delayed_index(job_id),
        script_runner.keys.delayed_marker(job_id),
    ]
    return script_runner.call("reschedule", keys, member, run_at, 500)


def test_a_delayed_job_is_found_by_its_index(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5})
    script_runner.client.set(script_runner.keys.delayed_index("a"), "m1", ex=10)
    script_runner.client.set(script_runner.keys.delayed_marker("a"), "1", ex=10)
    assert reschedule(script_runner, 99) == 1
    assert script_runner.dump() == {"delayed": [(b"m1", 99.0)], "didx:a": b"m1", "dlid:a": b"1"}
    assert script_runner.client.ttl(script_runner.keys.delayed_index("a")) in (500, 499)
    assert script_runner.client.ttl(script_runner.keys.delayed_marker("a")) in (500, 499)


def test_a_delayed_job_is_found_by_its_member(script_runner):
    script_runner.client.zadd(script_runner.keys.delayed, {"m1": 5})
    assert reschedule(script_runner, 1, member="m1") == 1
    assert script_runner.dump() == {"delayed": [(b"m1", 1.0)]}


def test_a_job_that_is_not_delayed_any_more_is_not_rescheduled(script_runner):
    script_runner.client.set(script_runner.keys.delayed_index("a"), "m1")
    before = script_runner.dump()
    assert reschedule(script_runner, 99) == 0
    assert reschedule(script_runner, 99, member="m1") == 0
    assert script_runner.dump() == before
