"""take_rate_limit and pause_rate_limit: reservations by the clock of the server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.conftest import ScriptRunner

SECOND_US = 1_000_000
# The server needs some time between two calls.
CALL_US = 100_000


def take(runner: ScriptRunner, *rates: tuple[int, int, int, int], count: int = 1, wait: int = -1):
    args: list[Any] = [wait, count, *(value for rate in rates for value in rate)]
    refused, *waits = runner.call("take_rate_limit", [runner.keys.rate_limit("r")], *args)
    return refused, waits


def test_reservations_are_spaced_evenly_over_calls(script_runner):
    rate = (10, 1000, 1, 1)  # ten per second
    refused, waits = take(script_runner, rate, count=5)
    assert (refused, waits) == (-1, [0, 100_000, 200_000, 300_000, 400_000])
    _, later = take(script_runner, rate, count=2)
    assert 500_000 - CALL_US <= later[0] <= 500_000
    assert later[1] - later[0] in (99_999, 100_000, 100_001)


def test_a_burst_precedes_the_regular_times(script_runner):
    _, waits = take(script_runner, (10, 1000, 4, 1), count=6)
    assert waits == [0, 0, 0, 0, 100_000, 200_000]


def test_every_rate_must_allow_a_reservation_and_costs_its_weight(script_runner):
    # 100 requests per second and 1000 tokens per second; a request costs 200 tokens.
    _, waits = take(script_runner, (100, 1000, 1, 1), (1000, 1000, 1, 200), count=3)
    assert waits == [0, 200_000, 400_000]


def test_a_reservation_after_the_longest_wait_is_refused_and_costs_nothing(script_runner):
    rate = (2, 1000, 1, 1)
    assert take(script_runner, rate, count=3, wait=600) == (SECOND_US, [0, 500_000])
    before = script_runner.dump()
    refused, waits = take(script_runner, rate, wait=0)
    assert not waits
    assert SECOND_US - CALL_US <= refused <= SECOND_US
    assert script_runner.dump() == before


def test_a_changed_limit_continues_after_the_reserved_times(script_runner):
    take(script_runner, (2, 1000, 1, 1), count=2)
    _, waits = take(script_runner, (1000, 1000, 1, 1), count=2)
    assert SECOND_US - CALL_US <= waits[0] <= SECOND_US
    assert waits[1] - waits[0] in (999, 1000, 1001)


def test_the_state_expires_and_a_deleted_state_starts_again(script_runner):
    key = script_runner.keys.rate_limit("r")
    take(script_runner, (2, 1000, 1, 1), count=3)
    assert 2000 < script_runner.ttl_ms(key) <= 2500
    script_runner.client.delete(key)
    assert take(script_runner, (2, 1000, 1, 1)) == (-1, [0])


def test_a_pause_delays_all_reservations_and_a_shorter_one_does_not_end_it(script_runner):
    key = script_runner.keys.rate_limit("r")
    for duration_ms in (5000, 10, 5000):
        assert script_runner.call("pause_rate_limit", [key], duration_ms) == 1
    assert 5000 < script_runner.ttl_ms(key) <= 6000
    _, waits = take(script_runner, (10, 1000, 1, 1), count=2)
    assert 5 * SECOND_US - CALL_US <= waits[0] <= 5 * SECOND_US
    assert waits[1] - waits[0] in (99_999, 100_000, 100_001)


@pytest.mark.parametrize("limit", [3, 7, 999, 123_457])
def test_no_window_has_more_than_the_limit(script_runner, limit):
    period_us = 1000 * 1000
    _, waits = take(script_runner, (limit, 1000, 1, 1), count=min(2 * limit + 1, 4000))
    for first, after_limit in zip(waits, waits[limit:], strict=False):
        assert after_limit - first >= period_us - 1
