"""clear_cancel_requests: delete the requests of dropped jobs, unless they are newer."""

from __future__ import annotations


def test_only_the_request_that_was_applied_is_deleted(script_runner):
    key, stream = script_runner.keys.cancel_requests, script_runner.keys.stream
    stored = {"a": "5 1-1 9 0", "b": "6 1-1 9 1", "c": "5 1-1 9 0"}
    script_runner.client.hset(key, mapping=stored)
    args = ["a", 5, "b", 5, "missing", 5]
    assert script_runner.call("clear_cancel_requests", [key, stream], *args) == 1
    assert sorted(script_runner.client.hgetall(key)) == [b"b", b"c"]
    assert script_runner.call("clear_cancel_requests", [key, stream], "b", 6, "c", 5) == 2
    assert script_runner.dump() == {}


def test_a_request_stays_while_the_stream_has_an_entry_from_before_it(script_runner):
    key, stream = script_runner.keys.cancel_requests, script_runner.keys.stream
    script_runner.client.hset(key, mapping={"before": "5 4-9 9 0", "after": "5 5-0 9 0"})
    script_runner.client.xadd(stream, {"d": "x"}, id="5-0")
    args = ["before", 5, "after", 5]
    assert script_runner.call("clear_cancel_requests", [key, stream], *args) == 1
    assert script_runner.client.hgetall(key) == {b"after": b"5 5-0 9 0"}
