"""note_progress: the last word of running handlers."""

from __future__ import annotations


def test_the_last_word_is_kept_for_a_while(bench):
    keys = [bench.keys.progress("a"), bench.keys.progress("b")]
    bench.call("save_progress", keys, 60, "old", "x")
    bench.call("save_progress", keys[:1], 60, "new")
    assert bench.all() == {"progress:a": b"new", "progress:b": b"x"}
    assert bench.client.ttl(keys[0]) in (60, 59)
