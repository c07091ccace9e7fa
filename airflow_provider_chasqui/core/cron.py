"""When a repeat fires: every so often, or by cron in a timezone, always in the future.

ChasquiMQ lets the milliseconds of the asking leak into cron times, skips the repeated autumn hour
and can answer in the past. Here cron fires on the whole second, and over a change of the clocks
follows the old cron rule: a fixed local time fires once (at the end of the gap if the gap swallows
it, at its first occurrence if it comes twice); a pattern of every hour follows real time.
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
# Shorter than any zone keeps an offset.
_SEARCH_STEP = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Every:
    """Fire at a fixed interval, counted from the first fire."""

    interval_ms: int

    @classmethod
    def from_timedelta(cls, interval: timedelta) -> Every:
        return cls(to_ms(interval) or 0)

    def __post_init__(self) -> None:
        if isinstance(self.interval_ms, bool) or not isinstance(self.interval_ms, int):
            raise InvalidArgument("the interval is a whole number of milliseconds")
        if not 0 < self.interval_ms < 2**53:
            raise InvalidArgument(f"the interval must be above 0 ms, not {self.interval_ms}")

    def default_key(self, job_name: str) -> str:
        return f"{job_name}::every:{self.interval_ms}"

    def next_after(self, after_ms: int) -> int:
        return after_ms + self.interval_ms

    def next_aligned(self, previous_fire_ms: int, now_ms: int) -> int:
        """Return the first instant after now on the grid that `fired_ms` is on."""
        steps = max(0, now_ms - previous_fire_ms) // self.interval_ms + 1
        return previous_fire_ms + steps * self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """Fire by a cron expression of five to seven fields (seconds first, year last)."""

    expression: str
    tz: str | None = None
    _pattern: _CronPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidArgument(
                f"a cron expression is a string, not {type(self.expression).__name__}"
            )
        if not isinstance(self.tz, str | None):
            raise InvalidArgument(f"a timezone is a name, not {type(self.tz).__name__}")
        object.__setattr__(self, "_pattern", _parse_cron(self.expression, self.tz))

    def default_key(self, job_name: str) -> str:
        return f"{job_name}::cron:{self.expression}:{self.tz or 'UTC'}"

    def next_after(self, after_ms: int) -> int:
        return self._pattern.next_after(after_ms)

    def next_aligned(self, previous_fire_ms: int, now_ms: int) -> int:
        return self._pattern.next_after(max(previous_fire_ms, now_ms))


Schedule = Every | Cron


def parse_timezone(name: str | None) -> tzinfo:
    """Return the timezone of a name: UTC, an offset such as +05:30, or an IANA name."""
    text = (name or "").strip()
    if text.upper() in ("", "UTC") or text == "Z":
        return UTC
    if match := _UTC_OFFSET_PATTERN.match(text):
        hours, minutes = int(match[2]), int(match[3])
        if hours > 23 or minutes > 59:
            raise InvalidArgument(
                f"the timezone offset {text!r} is out of range; use -23:59 to +23:59"
            )
        offset = timedelta(hours=hours, minutes=minutes)
        return timezone(offset if match[1] == "+" else -offset)
    if text not in _timezone_names():
        raise InvalidArgument(
            f"unknown timezone {name!r}; use UTC, an offset such as +05:30, or an IANA name "
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
    """A parsed expression in its zone; croniter walks the local calendar, we walk the clock."""

    def __init__(self, expression: str, tz: tzinfo):
        self._tz = tz
        self._expression, self._day_or, hour = _to_croniter(expression)
        try:
            expanded = croniter.expand(self._expression, second_at_beginning=True)[0]
        except CroniterError as cause:
            raise InvalidArgument(f"bad cron expression {expression!r}: {cause}") from cause
        except Exception as cause:
            raise InvalidArgument(
                f"bad cron expression {expression!r}: it cannot be read"
            ) from cause
        self._every_hour = expanded[1] == ["*"] or hour == "*" or len(expanded[1]) == 24

    def next_after(self, after_ms: int) -> int:
        step = self._next_elapsed if self._every_hour else self._next_wall_clock
        try:
            found = step(datetime.fromtimestamp(after_ms // 1000, UTC))
        except (OverflowError, OSError, ValueError) as cause:  # beyond the calendar
            raise InvalidArgument(
                f"the cron expression {self._expression!r} never fires again"
            ) from cause
        return int(found.timestamp()) * 1000

    def _to_local(self, utc_time: datetime) -> datetime:
        return utc_time.astimezone(self._tz).replace(tzinfo=None, fold=0)

    def _next_local_match(self, local: datetime) -> datetime:
        """The first match strictly after a local time, on a calendar without clock changes."""
        try:
            walker = croniter(
                self._expression,
                local.replace(tzinfo=UTC),
                day_or=self._day_or,
                second_at_beginning=True,
            )
            found: datetime = walker.get_next(datetime)
        except (CroniterBadDateError, OverflowError, ValueError) as cause:
            raise InvalidArgument(
                f"the cron expression {self._expression!r} never fires again"
            ) from cause
        return found.replace(tzinfo=None)

    def _next_wall_clock(self, after: datetime) -> datetime:
        local = self._to_local(after)
        while True:
            local = self._next_local_match(local)
            instant = local.replace(tzinfo=self._tz).astimezone(UTC)
            if self._to_local(instant) != local:  # swallowed by the gap: fire where the gap ends
                instant = self._find_transition(instant - _DAY, instant)
            if instant > after:
                return instant

    def _next_elapsed(self, after: datetime) -> datetime:
        inclusive = timedelta(0)
        while True:
            offset = self._utc_offset(after)
            local = (after + offset).replace(tzinfo=None) - inclusive
            found = (self._next_local_match(local) - offset).replace(tzinfo=UTC)
            change = self._first_transition(after, found)
            if change is None:
                return found
            after, inclusive = change, timedelta(seconds=1)

    def _first_transition(self, start: datetime, end: datetime) -> datetime | None:
        """The first second after `low`, up to `end`, with another offset; None if there is none."""
        offset = self._utc_offset(start)
        while start < end:
            high = min(end, start + _SEARCH_STEP)
            if self._utc_offset(high) != offset:
                return self._find_transition(start, high)
            start = high
        return None

    def _utc_offset(self, utc_time: datetime) -> timedelta:
        return utc_time.astimezone(self._tz).utcoffset() or timedelta(0)

    def _find_transition(self, start: datetime, end: datetime) -> datetime:
        """The first second at which the offset is no longer that of `low`."""
        before = self._utc_offset(start)
        while end - start > timedelta(seconds=1):
            middle = (start + (end - start) / 2).replace(microsecond=0)
            if self._utc_offset(middle) == before:
                start = middle
            else:
                end = middle
        return end


_DAY = timedelta(days=1)


def _to_croniter(expression: str) -> tuple[str, bool, str]:
    """Return the expression as croniter writes it, whether day and weekday are alternatives, and
    the hour field. Refuses what ChasquiMQ refuses and croniter would take."""
    text = expression.strip()
    if text.startswith("@"):
        if text not in MACROS:
            raise InvalidArgument(f"unknown cron macro {text!r}; known are {', '.join(MACROS)}")
        text = MACROS[text]
    fields = text.upper().split()
    if not 5 <= len(fields) <= 7:
        raise InvalidArgument(f"bad cron expression {expression!r}: it needs five to seven fields")
    seconds = len(fields) > 5
    day, weekday = (3, 5) if seconds else (2, 4)
    day_or = True
    if fields[weekday].startswith("+"):
        day_or, fields[weekday] = False, fields[weekday][1:]
    fields[weekday] = _LAST_WEEKDAY_PATTERN.sub(r"L\1", fields[weekday])
    for index, part in enumerate(fields):
        for low, high in _RANGE_PATTERN.findall(part):
            if int(low) > int(high):
                raise InvalidArgument(
                    f"bad cron expression {expression!r}: the range {part} runs backwards"
                )
        if re.search(r"[HR+]", re.sub(r"THU|FRI|MAR|APR", "", part)) or part in ("LW", "WL"):
            raise InvalidArgument(f"bad cron expression {expression!r}: cannot read {part!r}")
        if part == "L" and index != day:
            raise InvalidArgument(
                f"bad cron expression {expression!r}: L stands alone only for the day"
            )
    return " ".join(fields), day_or, fields[2 if seconds else 1]
