"""Schedules of repeatable jobs: a fixed interval, or a cron expression in a time zone.

This module only computes times. `due_fires` in core/repeat.py returns the fires that are due, and
engine/scheduler.py enqueues them.

ChasquiMQ 1.3.0 adds the milliseconds of the current time to cron fires, skips the repeated hour in
autumn and can return a time in the past. Here cron fires on full seconds and always in the future.
Over a change of the UTC offset it follows the rule of Debian's cron: a fixed local time fires once
(at the end of the gap if it does not exist on that day, at its first occurrence if it exists
twice), and a pattern that matches every hour follows elapsed time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterBadDateError, CroniterError, croniter

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import require_int

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UTC_OFFSET_PATTERN = re.compile(r"([+-])(\d{2}):?(\d{2})\Z")
_LAST_WEEKDAY_PATTERN = re.compile(r"\b([0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)L\b")
_RANGE_PATTERN = re.compile(r"\b(\d+)-(\d+)\b")
_DAY = timedelta(days=1)
# No time zone changes its offset twice within this time.
_SEARCH_STEP = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from the first fire.

    :param interval_ms: the interval in milliseconds.
    """

    interval_ms: int

    @classmethod
    def from_timedelta(cls, interval: timedelta) -> Every:
        """Return a schedule with this interval.

        :raises InvalidArgument: if it is shorter than a millisecond.
        """
        return cls(to_ms(interval) or 0)

    def __post_init__(self) -> None:
        require_int("interval_ms", self.interval_ms, 1, 2**53 - 1)

    def default_key(self, job_name: str) -> str:
        """Return the key of a repeatable job for which the caller passes none."""
        return f"{job_name}::every:{self.interval_ms}"

    def next_after(self, after_ms: int) -> int:
        """Return the fire after the one at `after_ms`."""
        return after_ms + self.interval_ms

    def next_aligned(self, previous_fire_ms: int, now_ms: int) -> int:
        """Return the first fire after `now_ms` that is a multiple of the interval away."""
        steps = max(0, now_ms - previous_fire_ms) // self.interval_ms + 1
        return previous_fire_ms + steps * self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone.

    :param expression: five to seven fields (with six, the first are the seconds; with seven, the
        last is the year) or one of the macros @yearly, @monthly, @weekly, @daily, @hourly.
    :param tz: UTC (the default), an offset such as +05:30, or an IANA name.
    :raises InvalidArgument: if either is invalid.
    """

    expression: str
    tz: str | None = None
    _pattern: _CronPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidArgument(
                f"a cron expression must be a string, not {type(self.expression).__name__}"
            )
        if not isinstance(self.tz, str | None):
            raise InvalidArgument(f"a time zone must be a name, not {type(self.tz).__name__}")
        object.__setattr__(self, "_pattern", _parse_cron(self.expression, self.tz))

    def default_key(self, job_name: str) -> str:
        """Return the key of a repeatable job for which the caller passes none."""
        return f"{job_name}::cron:{self.expression}:{self.tz or 'UTC'}"

    def next_after(self, after_ms: int) -> int:
        """Return the first fire after `after_ms`.

        :raises InvalidArgument: if there is none.
        """
        return self._pattern.next_after(after_ms)

    def next_aligned(self, previous_fire_ms: int, now_ms: int) -> int:
        """Return the first fire after both times."""
        return self._pattern.next_after(max(previous_fire_ms, now_ms))


Schedule = Every | Cron


def parse_timezone(name: str | None) -> tzinfo:
    """Return the time zone of a name: UTC, an offset such as +05:30, or an IANA name.

    :raises InvalidArgument: if there is no such time zone.
    """
    text = (name or "").strip()
    if text.upper() in ("", "UTC") or text == "Z":
        return UTC
    if match := _UTC_OFFSET_PATTERN.match(text):
        hours, minutes = int(match[2]), int(match[3])
        if hours > 23 or minutes > 59:
            raise InvalidArgument(
                f"the time zone offset {text!r} is out of range; use -23:59 to +23:59"
            )
        offset = timedelta(hours=hours, minutes=minutes)
        return timezone(offset if match[1] == "+" else -offset)
    if text not in _timezone_names():
        raise InvalidArgument(
            f"unknown time zone {name!r}; use UTC, an offset such as +05:30, or an IANA name "
            "such as Europe/Paris"
        )
    return ZoneInfo(text)


@lru_cache(maxsize=1)
def _timezone_names() -> frozenset[str]:
    return frozenset(available_timezones())


@lru_cache(maxsize=10_000)
def _parse_cron(expression: str, tz: str | None) -> _CronPattern:
    return _CronPattern(expression, parse_timezone(tz))


class _CronPattern:
    """A parsed expression in its time zone.

    croniter iterates local wall-clock times. This class converts each candidate to UTC and handles
    the hours that do not exist or exist twice.
    """

    def __init__(self, expression: str, tz: tzinfo):
        self._tz = tz
        self._expression, self._day_or, hour = _to_croniter(expression)
        try:
            expanded = croniter.expand(self._expression, second_at_beginning=True)[0]
        except CroniterError as cause:
            raise InvalidArgument(f"bad cron expression {expression!r}: {cause}") from cause
        except Exception as cause:
            raise InvalidArgument(
                f"bad cron expression {expression!r}: it cannot be parsed"
            ) from cause
        self._every_hour = expanded[1] == ["*"] or hour == "*" or len(expanded[1]) == 24

    def next_after(self, after_ms: int) -> int:
        step = self._next_elapsed if self._every_hour else self._next_wall_clock
        try:
            fire = step(datetime.fromtimestamp(after_ms // 1000, UTC))
        except (OverflowError, OSError, ValueError) as cause:  # after the year 9999
            raise InvalidArgument(
                f"the cron expression {self._expression!r} never fires again"
            ) from cause
        return int(fire.timestamp()) * 1000

    def _to_local(self, utc_time: datetime) -> datetime:
        return utc_time.astimezone(self._tz).replace(tzinfo=None, fold=0)

    def _next_local_match(self, local: datetime) -> datetime:
        """Return the first match after a local time, ignoring changes of the UTC offset."""
        try:
            iterator = croniter(
                self._expression,
                local.replace(tzinfo=UTC),
                day_or=self._day_or,
                second_at_beginning=True,
            )
            match: datetime = iterator.get_next(datetime)
        except (CroniterBadDateError, OverflowError, ValueError) as cause:
            raise InvalidArgument(
                f"the cron expression {self._expression!r} never fires again"
            ) from cause
        return match.replace(tzinfo=None)

    def _next_wall_clock(self, after: datetime) -> datetime:
        local = self._to_local(after)
        while True:
            local = self._next_local_match(local)
            fire = local.replace(tzinfo=self._tz).astimezone(UTC)
            if self._to_local(fire) != local:  # this local time does not exist: use the gap's end
                fire = self._find_transition(fire - _DAY, fire)
            if fire > after:
                return fire

    def _next_elapsed(self, after: datetime) -> datetime:
        inclusive = timedelta(0)
        while True:
            offset = self._utc_offset(after)
            local = (after + offset).replace(tzinfo=None) - inclusive
            fire = (self._next_local_match(local) - offset).replace(tzinfo=UTC)
            transition = self._first_transition(after, fire)
            if transition is None:
                return fire
            after, inclusive = transition, timedelta(seconds=1)

    def _first_transition(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first second in (start, end] with another UTC offset, or None."""
        offset = self._utc_offset(start)
        while start < end:
            step_end = min(end, start + _SEARCH_STEP)
            if self._utc_offset(step_end) != offset:
                return self._find_transition(start, step_end)
            start = step_end
        return None

    def _utc_offset(self, utc_time: datetime) -> timedelta:
        return utc_time.astimezone(self._tz).utcoffset() or timedelta(0)

    def _find_transition(self, start: datetime, end: datetime) -> datetime:
        """Bisect for the first second whose UTC offset differs from the one at `start`."""
        before = self._utc_offset(start)
        while end - start > timedelta(seconds=1):
            middle = (start + (end - start) / 2).replace(microsecond=0)
            if self._utc_offset(middle) == before:
                start = middle
            else:
                end = middle
        return end


def _to_croniter(expression: str) -> tuple[str, bool, str]:
    """Translate an expression to croniter's syntax.

    Returns the expression, whether the day of the month and the weekday are alternatives, and the
    hour field. Rejects what ChasquiMQ rejects and croniter would accept.
    """
    text = expression.strip()
    if text.startswith("@"):
        if text not in MACROS:
            raise InvalidArgument(
                f"unknown cron macro {text!r}; the macros are {', '.join(MACROS)}"
            )
        text = MACROS[text]
    fields = text.upper().split()
    if not 5 <= len(fields) <= 7:
        raise InvalidArgument(f"bad cron expression {expression!r}: it needs five to seven fields")
    has_seconds = len(fields) > 5
    day, weekday = (3, 5) if has_seconds else (2, 4)
    day_or = True
    if fields[weekday].startswith("+"):
        day_or, fields[weekday] = False, fields[weekday][1:]
    fields[weekday] = _LAST_WEEKDAY_PATTERN.sub(r"L\1", fields[weekday])
    for index, part in enumerate(fields):
        for low, high in _RANGE_PATTERN.findall(part):
            if int(low) > int(high):
                raise InvalidArgument(
                    f"bad cron expression {expression!r}: the range {part} is descending"
                )
        if re.search(r"[HR+]", re.sub(r"THU|FRI|MAR|APR", "", part)) or part in ("LW", "WL"):
            raise InvalidArgument(f"bad cron expression {expression!r}: cannot parse {part!r}")
        if part == "L" and index != day:
            raise InvalidArgument(
                f"bad cron expression {expression!r}: L without a weekday is only allowed as the "
                "day of the month"
            )
    return " ".join(fields), day_or, fields[2 if has_seconds else 1]
