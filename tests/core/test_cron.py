"""Cron and intervals: always in the future, on the second, and right on both days of the year."""

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

# Zones with the day on which their clocks change: by an hour, by half an hour, at midnight, twice
# within five weeks, and the other way round of the year; and one that never changes.
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
    """Every minute of some days around a change: UTC, local, first of its kind, what it skips."""
    walked = []
    before = None
    for step in range(5 * 24 * 60):
        instant = day - timedelta(days=1) + step * MINUTE
        aware = instant.astimezone(ZoneInfo(tz))
        local = aware.replace(tzinfo=None, fold=0)
        skipped = []
        while before and before + (len(skipped) + 1) * MINUTE < local:
            skipped.append(before + (len(skipped) + 1) * MINUTE)
        walked.append((instant, local, aware.fold == 0, skipped))
        before = local
    return walked


def brute_force(tz: str, day: datetime, base: datetime, hour: int | None, minute: int) -> datetime:
    """The next fire, found by looking at every minute."""

    def fits(local: datetime) -> bool:
        return local.minute == minute and hour in (None, local.hour)

    for instant, local, first, skipped in minutes(tz, day):
        swallowed = hour is not None and any(map(fits, skipped))
        if instant > base and ((fits(local) and (first or hour is None)) or swallowed):
            return instant
    raise AssertionError("no fire within the days that were looked at")


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


bases = st.integers(0, 3 * 24 * 3600 * 1000 - 1)


@given(st.sampled_from(CHANGES), bases, st.integers(0, 23), st.integers(0, 59))
def test_a_fixed_local_time_fires_where_every_minute_was_looked_at(change, after, hour, minute):
    tz, day = change
    base = day - timedelta(days=1) + timedelta(milliseconds=after)
    found = Cron(f"{minute} {hour} * * *", tz).next_after(ms(base))
    assert found == ms(brute_force(tz, day, base, hour, minute))


@given(st.sampled_from(CHANGES), bases, st.integers(0, 59))
def test_a_minute_of_every_hour_fires_in_real_time(change, after, minute):
    tz, day = change
    base = day - timedelta(days=1) + timedelta(milliseconds=after)
    found = Cron(f"{minute} * * * *", tz).next_after(ms(base))
    assert found == ms(brute_force(tz, day, base, None, minute))


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
def test_fires_are_in_the_future_on_the_second_and_go_on(pattern, change, after):
    tz, day = change
    at_ms = ms(day - timedelta(days=1)) + after
    cron = Cron(pattern, tz)
    fires = [at_ms]
    for _ in range(12):
        fires.append(cron.next_after(fires[-1]))
    assert fires == sorted(set(fires))
    assert all(fire % 1000 == 0 for fire in fires[1:])
    # Asked from anywhere before the next fire, the answer is the same.
    assert cron.next_after((at_ms + fires[1]) // 2) == fires[1] or fires[1] - at_ms < 2
    assert cron.next_after(fires[1] - 1) == fires[1]
    assert cron.next_aligned(at_ms, fires[5]) == fires[6]


@given(st.integers(-(2**70), 2**70))
def test_times_beyond_the_calendar_are_our_error(at_ms):
    for pattern in ("* * * * *", "0 5 * * *"):
        try:
            found = Cron(pattern, "Europe/Paris").next_after(at_ms)
        except InvalidArgument:
            continue
        assert found > at_ms


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
def test_zones(tz, offset):
    moment = datetime(2027, 1, 1, tzinfo=parse_timezone(tz))
    assert moment.utcoffset() == timedelta(seconds=offset)


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
def test_what_never_fires_is_refused(make):
    with pytest.raises(InvalidArgument) as told:
        make()
    assert told.value.code == "CMQ-004"


@given(st.text(st.sampled_from("0123456789*/,-LW#?+HRSUNMONJAN @\x00é "), max_size=30))
def test_arbitrary_expressions_do_no_harm(expression):
    try:
        found = Cron(expression).next_after(1_800_000_000_000)
    except InvalidArgument:
        return
    assert found > 1_800_000_000_000


@given(st.integers(1, 10**7), st.integers(0, 10**12), st.integers(0, 10**9))
def test_an_interval_stays_on_its_grid(interval, first, late):
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
def test_what_is_due_was_due_and_what_comes_is_to_come(schedule, missed, late, end_after):
    score = schedule.next_after(1_800_000_000_000)
    now_ms = score + late
    end_ms = None if end_after is None else score + end_after
    plan = due_fires(Repeat("k", "", schedule, b"", end_ms=end_ms, misfire=missed), score, now_ms)
    assert all(score <= fire <= now_ms for fire in plan.fires_ms)
    assert list(plan.fires_ms) == sorted(set(plan.fires_ms))
    assert plan.next_fire_ms >= now_ms
    assert len(plan.fires_ms) <= max(1, min(missed.max_catchup or 1, MAX_CATCHUP_FIRES))
    if end_ms is not None:
        assert all(fire <= end_ms for fire in plan.fires_ms), "fired after its end"
    if missed is FIRE_ONCE or late < 700:
        assert plan.fires_ms == (score,)


def test_a_schedule_that_ends_fires_its_last_time():
    cron = Cron("0 0 0 1 1 * 2027")
    last = ms(datetime(2027, 1, 1, tzinfo=UTC))
    assert due_fires(Repeat("k", "", cron, b""), last, last + 50).fires_ms == (last,)
    assert due_fires(Repeat("k", "", cron, b""), last, last + 50).next_fire_ms == 0


def test_a_repeat_that_would_end_before_it_begins_is_refused():
    with pytest.raises(InvalidArgument):
        Repeat("k", "", Every(1000), b"", end_ms=5999).first_fire(5000)
    assert Repeat("k", "", Every(1000), b"", end_ms=6000).first_fire(5000) == 6000
    assert Repeat("k", "", Every(1000), b"", start_ms=9000).first_fire(5000) == 10_000


def test_an_interval_may_be_given_as_a_span_of_time():
    assert Every.from_timedelta(timedelta(minutes=1, milliseconds=5)) == Every(60_005)
    with pytest.raises(InvalidArgument):
        Every.from_timedelta(timedelta(0))
    with pytest.raises(InvalidArgument):
        Every.from_timedelta(60)
