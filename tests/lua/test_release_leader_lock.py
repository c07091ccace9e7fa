"""release_leader_lock: only the holder can release the lock."""

from __future__ import annotations


def test_only_the_leader_releases_the_lock(script_runner):
    script_runner.client.set(script_runner.keys.promoter_lock, "a")
    assert script_runner.call("release_leader_lock", [script_runner.keys.promoter_lock], "b") == 0
    assert script_runner.dump() == {"promoter:lock": b"a"}
    assert script_runner.call("release_leader_lock", [script_runner.keys.promoter_lock], "a") == 1
    assert script_runner.dump() == {}
    assert script_runner.call("release_leader_lock", [script_runner.keys.promoter_lock], "a") == 0
