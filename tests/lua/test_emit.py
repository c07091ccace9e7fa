"""emit: append events in order and trim the stream."""

from __future__ import annotations


def emit(script_runner, max_events, *events):
    args = [part for event in events for part in (len(event), *event)]
    return script_runner.call("emit", [script_runner.keys.events], max_events, *args)


def test_events_are_written_in_order(script_runner):
    assert emit(script_runner, 1000, ["e", "active", "id", "a"], ["e", "drained"]) == 2
    assert script_runner.stream("events") == [{b"e": b"active", b"id": b"a"}, {b"e": b"drained"}]
    assert sorted(script_runner.dump()) == ["events"]


def test_old_events_are_trimmed(script_runner):
    for _ in range(5):
        emit(script_runner, 100, *(["e", "active"] for _ in range(200)))
    assert 100 <= len(script_runner.stream("events")) < 300


def test_a_successful_run_writes_two_events(script_runner):
    runs = [0, "a", "", 1, 1000, 1003, 3456, 0, "b", "mail", 2, 2000, 2000, 7]
    assert (
        script_runner.call("emit", [script_runner.keys.events], 1000, *runs, 2, "e", "drained") == 5
    )
    events = [list(fields.items()) for fields in script_runner.stream("events")]
    run = [(b"id", b"a"), (b"ts", b"1000"), (b"attempt", b"1")]
    assert events[0] == [(b"e", b"active"), *run]
    run[1] = (b"ts", b"1003")
    assert events[1] == [(b"e", b"completed"), *run, (b"duration_us", b"3456")]
    run = [(b"id", b"b"), (b"ts", b"2000"), (b"n", b"mail"), (b"attempt", b"2")]
    assert events[2] == [(b"e", b"active"), *run]
    assert events[3] == [(b"e", b"completed"), *run, (b"duration_us", b"7")]
    assert events[4] == [(b"e", b"drained")]
