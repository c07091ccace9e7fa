"""resign: only what is ours."""

from __future__ import annotations


def test_only_the_leader_resigns(bench):
    bench.client.set(bench.keys.promoter_lock, "a")
    assert bench.call("release_leader_lock", [bench.keys.promoter_lock], "b") == 0
    assert bench.all() == {"promoter:lock": b"a"}
    assert bench.call("release_leader_lock", [bench.keys.promoter_lock], "a") == 1
    assert bench.all() == {}
    assert bench.call("release_leader_lock", [bench.keys.promoter_lock], "a") == 0
