"""save_progress: store the latest progress of running jobs."""

from __future__ import annotations


def test_the_latest_progress_is_stored_with_a_ttl(script_runner):
    keys = [script_runner.keys.progress("a"), script_runner.keys.progress("b")]
    script_runner.call("save_progress", keys, 60, "old", "x")
    script_runner.call("save_progress", keys[:1], 60, "new")
    assert script_runner.dump() == {"progress:a": b"new", "progress:b": b"x"}
    assert script_runner.client.ttl(keys[0]) in (60, 59)
