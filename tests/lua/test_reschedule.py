"""reschedule: another due time, for a job that is still delayed."""

from __future__ import annotations


def reschedule(bench, run_at, member="", job_id="a"):
    keys = [bench.keys.delayed, bench.keys.delayed_index(job_id), bench.keys.delayed_marker(job_id)]
    return bench.call("reschedule", keys, member, run_at, 500)


def test_by_its_index(bench):
    bench.client.zadd(bench.keys.delayed, {"m1": 5})
    bench.client.set(bench.keys.delayed_index("a"), "m1", ex=10)
    bench.client.set(bench.keys.delayed_marker("a"), "1", ex=10)
    assert reschedule(bench, 99) == 1
    assert bench.all() == {"delayed": [(b"m1", 99.0)], "didx:a": b"m1", "dlid:a": b"1"}
    assert bench.client.ttl(bench.keys.delayed_index("a")) in (500, 499)
    assert bench.client.ttl(bench.keys.delayed_marker("a")) in (500, 499)


def test_by_its_member(bench):
    bench.client.zadd(bench.keys.delayed, {"m1": 5})
    assert reschedule(bench, 1, member="m1") == 1
    assert bench.all() == {"delayed": [(b"m1", 1.0)]}


def test_a_job_that_has_left_is_not_brought_back(bench):
    bench.client.set(bench.keys.delayed_index("a"), "m1")
    before = bench.all()
    assert reschedule(bench, 99) == 0
    assert reschedule(bench, 99, member="m1") == 0
    assert bench.all() == before
