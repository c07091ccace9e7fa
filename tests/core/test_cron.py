"""Cron and intervals: fires are in the future, on the second, and correct at clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.cron import Cron, Every, parse_timezone
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.repeat import (
    FIRE_ONCE,
    MAX_CATCHUP_FIRES,
    SKIP,
    Repeat,
    due_fires,
    fire_all,
)

MINUTE = timedelta(minutes=1)

# Time zones and the days of their clock changes: by an hour, by half an hour, at midnight, twice
# within five weeks, in the southern hemisphere. The last zone has no clock changes.
CHANGES = [
    ("America/New_York", datetime(2027, 3, 14, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 11, 7, tzinfo=UTC)),
    ("Europe/London", datetime(2027, 3, 28, tzinfo=UTC)),
    ("Europe/London", datetime(2027, 10, 31, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 4, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 10, 2, tzinfo=UTC)),
    ("America/Havana", datetime(2027, 3, 14, tzinfo=UTC)),
    ("America/Havana", datetime(2027, 11, 7, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2027, 2, 7, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2027, 3, 14, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2027, 6, 1, tzinfo=UTC)),
]


@cache
def minutes(tz: str, day: datetime) -> list[tuple[datetime, datetime, bool, list[datetime]]]:
    """Return every minute around a change: UTC, local, whether it is the first, skipped ones."""
    result = []
    previous = None
    for step in range(5 * 24 * 60):
        instant = day - timedelta(days=1) + step * MINUTE
        aware = instant.astimezone(ZoneInfo(tz))
        local = aware.replace(tzinfo=None, fold=0)
        skipped = []
        while previous and previous + (len(skipped) + 1) * MINUTE < local:
            skipped.append(previous + (len(skipped) + 1) * MINUTE)
        result.append((instant, local, aware.fold == 0, skipped))
        previous = local
    return result


def brute_force(tz: str, day: datetime, base: datetime, hour: int | None, minute: int) -> datetime:
    """Return the next fire by checking every minute."""

    def matches(local: datetime) -> bool:
        return local.minute == minute and hour in (None, local.hour)

    for instant, local, first, skipped in minutes(tz, day):
        skipped_match = hour is not None and any(map(matches, skipped))
        if instant > base and ((matches(local) and (first or hour is None)) or skipped_match):
            return instant
    raise AssertionError("no fire within five days")


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


bases = st.integers(0, 3 * 24 * 3600 * 1000 - 1)


@given(st.sampled_from(CHANGES), bases, st.integers(0, 23), st.integers(0, 59))
def test_a_fixed_local_time_fires_like_the_brute_force_search(change, after, hour, minute):
    tz, day = change
    base = day - timedelta(days=1) + timedelta(milliseconds=after)
    next_fire = Cron(f"{minute} {hour} * * *", tz).next_after(ms(base))
    assert next_fire == ms(brute_force(tz, day, base, hour, minute))


@given(st.sampled_from(CHANGES), bases, st.integers(0, 59))
def test_an_hourly_pattern_fires_like_the_brute_force_search(change, after, minute):
    tz, day = change
    base = day - timedelta(days=1) + timedelta(milliseconds=after)
    next_fire = Cron(f"{minute} * * * *", tz).next_after(ms(base))
    assert next_fire == ms(brute_force(tz, day, base, None, minute))


PATTERNS = [
    "* * * * *",
    "*/7 * * * *",
    "0 */5 * * *",
    "15,45 1-3 * * *",
    "30 2 * * 0",
    "0 0 1 * *",
    "0 12 L * *",
    "*/20 30 1 * * *",
    "0 3 29 2 *",
    "@hourly",
    "@weekly",
    "0 0 * * 5L",
    "0 0 13 * +5",
]


@given(st.sampled_from(PATTERNS), st.sampled_from(CHANGES), bases)
def test_fires_are_increasing_and_on_the_second(pattern, change, after):
    tz, day = change
    at_ms = ms(day - timedelta(days=1)) + after
    cron = Cron(pattern, tz)
    fires = [at_ms]
    for _ in range(12):
        fires.append(cron.next_after(fires[-1]))
    assert fires == sorted(set(fires))
    assert all(fire % 1000 == 0 for fire in fires[1:])
    # The result is the same from any time before the next fire.
    assert cron.next_after((at_ms + fires[1]) // 2) == fires[1] or fires[1] - at_ms < 2
    assert cron.next_after(fires[1] - 1) == fires[1]
    assert cron.next_aligned(at_ms, fires[5]) == fires[6]


@given(st.integers(-(2**70), 2**70))
def test_times_beyond_the_calendar_are_rejected(at_ms):
    for pattern in ("* * * * *", "0 5 * * *"):
        try:
            next_fire = Cron(pattern, "Europe/Paris").next_after(at_ms)
        except InvalidArgument:
            continue
        assert next_fire > at_ms


@pytest.mark.parametrize(
    ("tz", "offset"),
    [
        (None, 0),
        ("", 0),
        (" utc ", 0),
        ("Z", 0),
        ("+05:30", 19800),
        ("-0800", -28800),
        ("Asia/Kolkata", 19800),
    ],
)
def test_time_zones_are_parsed(tz, offset):
    instant = datetime(2027, 1, 1, tzinfo=parse_timezone(tz))
    assert instant.utcoffset() == timedelta(seconds=offset)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cron("* * * *"),
        lambda: Cron(""),
        lambda: Cron("nope nope nope nope nope"),
        lambda: Cron("99 * * * *"),
        lambda: Cron("* * * * *", "Mars/X"),
        lambda: Cron("* * * * *", "+25:00"),
        lambda: Cron("* * * * *", 5),
        lambda: Cron(None),
        lambda: Cron(["*"]),
        lambda: Cron("@reboot"),
        lambda: Cron("0 0 30 2 *").next_after(0),
        lambda: Every(0),
        lambda: Every(-5),
        lambda: Every(True),
        lambda: Every(1.5),
        lambda: Every(2**60),
    ],
)
def test_a_schedule_that_never_fires_is_rejected(make):
    with pytest.raises(InvalidArgument) as raised:
        make()
    assert raised.value.code == "CMQ-004"


@given(st.text(st.sampled_from("0123456789*/,-LW#?+HRSUNMONJAN @\x00é "), max_size=30))
def test_arbitrary_expressions_do_no_harm(expression):
    try:
        next_fire = Cron(expression).next_after(1_800_000_000_000)
    except InvalidArgument:
        return
    assert next_fire > 1_800_000_000_000


@given(st.integers(1, 10**7), st.integers(0, 10**12), st.integers(0, 10**9))
def test_the_fires_of_an_interval_are_multiples_of_it(interval, first, late):
    every = Every(interval)
    upcoming = every.next_aligned(first, first + late)
    assert upcoming > first + late
    assert upcoming - interval <= first + late
    assert (upcoming - first) % interval == 0


policies = st.sampled_from([SKIP, FIRE_ONCE, fire_all(1), fire_all(5), fire_all(10**6)])


@given(
    st.sampled_from([Every(60_000), Cron("*/5 * * * *", "Europe/London"), Every(700)]),
    policies,
    st.integers(0, 3_600_000),
    st.none() | st.integers(0, 3_600_000),
)
def test_due_fires_are_in_the_past_and_the_next_fire_is_not(schedule, missed, late, end_after):
    score = schedule.next_after(1_800_000_000_000)
    now_ms = score + late
    end_ms = None if end_after is None else score + end_after
    plan = due_fires(Repeat("k", "", schedule, b"", end_ms=end_ms, misfire=missed), score, now_ms)
    assert all(score <= fire <= now_ms for fire in plan.fires_ms)
    assert list(plan.fires_ms) == sorted(set(plan.fires_ms))
    assert plan.next_fire_ms >= now_ms
    assert len(plan.fires_ms) <= max(1, min(missed.max_catchup or 1, MAX_CATCHUP_FIRES))
    if end_ms is not None:
        assert all(fire <= end_ms for fire in plan.fires_ms), "fired after the end of the repeat"
    if missed is FIRE_ONCE or late < 700:
        assert plan.fires_ms == (score,)


def test_a_schedule_with_an_end_fires_its_last_time():
    cron = Cron("0 0 0 1 1 * 2027")
    last = ms(datetime(2027, 1, 1, tzinfo=UTC))
    assert due_fires(Repeat("k", "", cron, b""), last, last + 50).fires_ms == (last,)
    assert due_fires(Repeat("k", "", cron, b""), last, last + 50).next_fire_ms == 0


def test_a_repeat_that_ends_before_its_first_fire_is_rejected():
    with pytest.raises(InvalidArgument):
        Repeat("k", "", Every(1000), b"", end_ms=5999).first_fire(5000)
    assert Repeat("k", "", Every(1000), b"", end_ms=6000).first_fire(5000) == 6000
    assert Repeat("k", "", Every(1000), b"", start_ms=9000).first_fire(5000) == 10_000


def test_an_interval_can_be_a_timedelta():
    assert Every.from_timedelta(timedelta(minutes=1, milliseconds=5)) == Every(60_005)
    with pytest.raises(InvalidArgument):
        Every.from_timedelta(timedelta(0))
    with pytest.raises(InvalidArgument):
        Every.from_timedelta(60)
