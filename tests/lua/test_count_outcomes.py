"""count_outcomes: counters of a minute, counted once, with a limited number of names."""

from __future__ import annotations


def call(runner, token: str, *counters: str | int) -> int:
    keys = [runner.keys.idempotency_marker(token), runner.keys.outcome_counts(7)]
    return runner.call("count_outcomes", keys, 60_000, 90_000, 3, *counters)


def test_a_repeated_call_counts_once(script_runner):
    for expected in (1, 0):
        assert call(script_runner, "a", "completed", "completed", 5) == expected
    assert call(script_runner, "b", "completed", "completed", 2) == 1
    key = script_runner.keys.outcome_counts(7)
    assert script_runner.client.hgetall(key) == {b"completed": b"7"}
    assert 80_000 < script_runner.client.pttl(key) <= 90_000


def test_further_names_share_one_counter(script_runner):
    for number in range(5):
        call(script_runner, str(number), "dead", "dead", 1, f"dead:{number}", "dead:(other)", 1)
    counts = script_runner.client.hgetall(script_runner.keys.outcome_counts(7))
    assert counts == {b"dead": b"5", b"dead:0": b"1", b"dead:1": b"1", b"dead:(other)": b"3"}
