"""Retry policies: the number of attempts and the delays between them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import (
    U32_MAX,
    U64_MAX,
    Backoff,
    RetryDefaults,
    RetryPolicy,
)

DEFAULTS = RetryDefaults()


def delays(backoff: Backoff | None, count: int, draw: float = 0.0) -> list[int]:
    policy = RetryPolicy(None, backoff)
    return [DEFAULTS.backoff_ms(policy, retry, draw) for retry in range(1, count + 1)]


def test_the_default_delay_doubles_from_100_ms_to_30_s():
    assert delays(None, 11) == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
    assert DEFAULTS.backoff_ms(None, 1, 0.5) == 150


def test_a_fixed_delay_is_used_unchanged():
    """ChasquiMQ 1.3.0 limits it to 30 s and adds up to 99 ms."""
    assert delays(Backoff.fixed(timedelta(minutes=5)), 3, 0.99) == [300_000] * 3
    assert delays(Backoff("fixed", 1000, jitter_ms=100), 1, 0.5) == [1050]
    assert delays(Backoff("fixed", 1000, max_delay_ms=10), 1) == [10]


def test_an_exponential_delay_grows_by_its_multiplier_to_its_maximum():
    slow = Backoff.exponential(
        timedelta(seconds=1), multiplier=3, max_delay=timedelta(seconds=20), jitter=timedelta(0)
    )
    assert delays(slow, 5) == [1000, 3000, 9000, 20_000, 20_000]


def test_jitter_does_not_exceed_the_maximum_delay():
    backoff = Backoff("exponential", 1000, 1500, 2.0, 1000)
    assert delays(backoff, 3, 0.999) == [1500, 1500, 1500]


def test_an_unknown_kind_of_backoff_is_exponential():
    assert delays(Backoff("linear", 100, jitter_ms=0), 3) == [100, 200, 400]


numbers = st.none() | st.integers(0, U64_MAX)


@given(
    st.builds(
        Backoff,
        st.sampled_from(["fixed", "exponential", "odd"]),
        st.integers(0, U64_MAX),
        numbers,
        st.none() | st.floats() | st.integers(-(2**63), U64_MAX),
        numbers,
    ),
    st.integers(1, U32_MAX),
    st.floats(0, 1, exclude_max=True),
)
def test_every_backoff_gives_a_valid_delay(backoff, retry, draw):
    delay = DEFAULTS.backoff_ms(RetryPolicy(None, backoff), retry, draw)
    assert isinstance(delay, int)
    assert delay >= 0
    if backoff.kind != "fixed":
        cap = DEFAULTS.max_delay_ms if backoff.max_delay_ms is None else backoff.max_delay_ms
        jitter = DEFAULTS.jitter_ms if backoff.jitter_ms is None else backoff.jitter_ms
        assert delay <= max(cap, jitter)


def test_the_attempt_limit_of_a_job_overrides_the_default():
    assert DEFAULTS.max_attempts_for(None) == 25
    assert DEFAULTS.max_attempts_for(RetryPolicy(None)) == 25
    assert DEFAULTS.max_attempts_for(RetryPolicy(0)) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryPolicy(-1),
        lambda: RetryPolicy(U32_MAX + 1),
        lambda: RetryPolicy(True),
        lambda: RetryPolicy("3"),
        lambda: RetryPolicy(2.5),
        lambda: RetryPolicy(3, 250),
        lambda: RetryPolicy(3, {"kind": "fixed"}),
        lambda: Backoff("fixed", -1),
        lambda: Backoff("fixed", None),
        lambda: Backoff("fixed", True),
        lambda: Backoff("fixed", 1.5),
        lambda: Backoff("fixed", U64_MAX + 1),
        lambda: Backoff("fixed", 1, -1),
        lambda: Backoff("fixed", 1, None, "2"),
        lambda: Backoff("fixed", 1, None, True),
        lambda: Backoff("fixed", 1, None, None, "0"),
        lambda: Backoff.fixed(5),
        lambda: Backoff.fixed(timedelta(seconds=-1)),
        lambda: to_ms(5),
    ],
)
def test_invalid_policies_are_rejected(make):
    with pytest.raises(InvalidArgument):
        make()


def test_durations_are_rounded_down_to_milliseconds():
    assert to_ms(timedelta(microseconds=1999)) == 1
    assert to_ms(None) is None
