"""repeat_delete: the repeat and its body."""

from __future__ import annotations


def test_both_go_and_the_others_stay(bench):
    for key in ("k", "l"):
        bench.client.zadd(bench.keys.repeat, {key: 5})
        bench.client.hset(bench.keys.repeat_spec(key), "spec", "body")
    keys = [bench.keys.repeat, bench.keys.repeat_spec("k")]
    assert bench.call("repeat_delete", keys, "k") == 1
    assert bench.call("repeat_delete", keys, "k") == 0
    assert bench.all() == {"repeat": [(b"l", 5.0)], "repeat:spec:l": {b"spec": b"body"}}
