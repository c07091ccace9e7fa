"""repeat_upsert: new, changed, or as it was."""

from __future__ import annotations


def put(bench, body="body", following=100):
    keys = [bench.keys.repeat, bench.keys.repeat_spec("k")]
    return bench.call("repeat_upsert", keys, following, "k", body)


def test_new(bench):
    assert put(bench) == 1
    assert bench.all() == {"repeat": [(b"k", 100.0)], "repeat:spec:k": {b"spec": b"body"}}


def test_the_same_again_moves_nothing(bench):
    """A DAG that puts its repeat on every run must not push the next fire away."""
    put(bench)
    bench.client.hset(bench.keys.repeat_spec("k"), "fired", 3)
    before = bench.all()
    assert put(bench, following=999) == 0
    assert bench.all() == before


def test_a_changed_one_counts_anew(bench):
    """ChasquiMQ counts the fires of the old definition against the new one's limit."""
    put(bench)
    bench.client.hset(bench.keys.repeat_spec("k"), "fired", 3)
    assert put(bench, body="other", following=200) == 2
    assert bench.all() == {"repeat": [(b"k", 200.0)], "repeat:spec:k": {b"spec": b"other"}}


def test_one_that_has_lost_its_time_gets_one(bench):
    bench.client.hset(bench.keys.repeat_spec("k"), "spec", "body")
    assert put(bench) == 2
    assert bench.all()["repeat"] == [(b"k", 100.0)]
