"""cancel: taken back, or already gone."""

from __future__ import annotations


def cancel(bench, job_id="a", member="", bit=-1):
    keys = bench.keys
    names = [
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
    ]
    names.append(keys.batch_dead("b", 0) if bit >= 0 else keys.cancelled)
    return bench.call("cancel", names, member, bit, 60_000)


def seed(bench):
    bench.client.zadd(bench.keys.delayed, {"m1": 5, "m2": 6})
    bench.client.set(bench.keys.delayed_index("a"), "m1")
    bench.client.set(bench.keys.delayed_marker("a"), "1")
    bench.client.set(bench.keys.dedup_marker("a"), "delayed")


def test_by_its_index(bench):
    seed(bench)
    assert cancel(bench) == 1
    assert bench.all() == {"delayed": [(b"m2", 6.0)]}
    assert cancel(bench) == 0


def test_by_its_member(bench):
    bench.client.zadd(bench.keys.delayed, {"m1": 5, "m2": 6})
    assert cancel(bench, member="m2") == 1
    assert bench.all() == {"delayed": [(b"m1", 5.0)]}


def test_a_job_that_has_left_keeps_its_markers(bench):
    seed(bench)
    bench.client.zrem(bench.keys.delayed, "m1")
    before = bench.all()
    assert cancel(bench) == 0
    assert cancel(bench, member="m9", bit=3) == 0
    assert bench.all() == before


def test_a_cancelled_job_of_a_batch_counts_as_dead(bench):
    bench.client.zadd(bench.keys.delayed, {"m1": 5})
    assert cancel(bench, member="m1", bit=3) == 1
    dead = bench.keys.batch_dead("b", 0)
    assert bench.client.getbit(dead, 3) == 1
    assert 59_000 < bench.life_ms(dead) <= 60_000
