"""park_jobs and unpark_jobs: move the jobs of a paused name aside and back, each once."""

from __future__ import annotations

from typing import Any

from tests.lua.conftest import ScriptRunner

MEMBERS = [b"\x01\x00\x00\x00n" + envelope for envelope in (b"one", b"two", b"three")]
LOWEST, HIGHEST = 5000, 5999


def park(runner: ScriptRunner, *jobs: Any) -> Any:
    keys = runner.keys
    args = [value for job in jobs for value in job]
    names = [keys.stream, keys.delayed, keys.paused_names]
    return runner.call("park_jobs", names, "default", "me", *args)


def unpark(runner: ScriptRunner) -> Any:
    keys = runner.keys
    names = [keys.delayed, keys.stream, keys.paused_names]
    return runner.call("unpark_jobs", names, "n", LOWEST, HIGHEST)


def test_jobs_are_parked_once_and_return_in_order(script_runner):
    keys, client = script_runner.keys, script_runner.client
    client.hset(keys.paused_names, "n", "paused")
    entries = script_runner.deliver("one", "two", "three")
    jobs = [
        (entry, "n", LOWEST + i, member)
        for i, (entry, member) in enumerate(zip(entries, MEMBERS, strict=True))
    ]
    assert park(script_runner, *jobs) == [1, 1, 1]
    assert park(script_runner, *jobs) == [0, 0, 0]
    assert script_runner.stream() == []
    assert client.zrange(keys.delayed, 0, -1) == MEMBERS
    assert unpark(script_runner) == 0, "the name is still paused"
    assert client.zcard(keys.delayed) == 3
    client.hset(keys.paused_names, "n", "resuming")
    assert unpark(script_runner) == 0
    expected = [{b"d": payload, b"n": b"n"} for payload in (b"one", b"two", b"three")]
    assert script_runner.stream() == expected
    assert not client.exists(keys.delayed, keys.paused_names)
    assert unpark(script_runner) == 0
    assert script_runner.stream() == expected


def test_a_job_whose_name_was_resumed_is_not_changed(script_runner):
    keys, client = script_runner.keys, script_runner.client
    client.hset(keys.paused_names, mapping={"n": "resuming", "other": "paused"})
    first, second, third = script_runner.deliver("one", "two", "three")
    client.xclaim(keys.stream, "default", "another", 0, [third])
    assert park(
        script_runner,
        (first, "n", LOWEST, MEMBERS[0]),
        (second, "other", LOWEST, MEMBERS[1]),
        (third, "other", LOWEST, MEMBERS[2]),
    ) == [2, 1, 0]
    assert script_runner.pending() == [first, third]
    assert client.zrange(keys.delayed, 0, -1) == [MEMBERS[1]]


def test_only_the_scores_of_the_name_are_moved_in_calls_of_bounded_size(script_runner):
    keys, client = script_runner.keys, script_runner.client
    client.hset(keys.paused_names, "n", "resuming")
    large = [b"\x01\x00\x00\x00n" + bytes([i]) * 300_000 for i in range(8)]
    client.zadd(keys.delayed, {member: LOWEST + i for i, member in enumerate(large)})
    client.zadd(keys.delayed, {b"before": LOWEST - 1, b"after": HIGHEST + 1})
    assert unpark(script_runner) == 1
    assert unpark(script_runner) == 0
    assert [entry[b"d"][:1] for entry in script_runner.stream()] == [bytes([i]) for i in range(8)]
    assert client.zrange(keys.delayed, 0, -1) == [b"before", b"after"]


def test_a_malformed_member_is_not_lost(script_runner):
    keys, client = script_runner.keys, script_runner.client
    client.hset(keys.paused_names, "n", "resuming")
    client.zadd(keys.delayed, {b"\x01": LOWEST, MEMBERS[0]: LOWEST + 1})
    assert unpark(script_runner) == 0
    assert script_runner.stream() == [{b"d": b"\x01"}, {b"d": b"one", b"n": b"n"}]
    assert not client.exists(keys.delayed, keys.paused_names)
