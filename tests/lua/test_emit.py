"""emit: events in order, and not too many."""

from __future__ import annotations


def emit(bench, kept, *events):
    args = [part for event in events for part in (len(event), *event)]
    return bench.call("emit", [bench.keys.events], kept, *args)


def test_events_are_written_in_order(bench):
    assert emit(bench, 1000, ["e", "active", "id", "a"], ["e", "drained"]) == 2
    assert bench.stream("events") == [{b"e": b"active", b"id": b"a"}, {b"e": b"drained"}]
    assert sorted(bench.all()) == ["events"]


def test_old_ones_go(bench):
    for _ in range(5):
        emit(bench, 100, *(["e", "active"] for _ in range(200)))
    assert 100 <= len(bench.stream("events")) < 300
