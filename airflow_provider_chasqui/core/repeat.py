"""Repeats: a job that is fired again and again, its body on the wire, and what is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.retry import U32_MAX

MAX_CATCHUP_FIRES = 10_000
# A fire that comes this late still counts as on time: without it, an interval shorter than the
# scheduler's jitter would be skipped for ever.
MISFIRE_GRACE_MS = 1_000


@dataclass(frozen=True, slots=True)
class MisfirePolicy:
    """What to do with fires that nobody was there for: skip, fire-once or fire-all."""

    kind: str = "skip"
    max_catchup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("skip", "fire-once", "fire-all"):
            raise InvalidArgument(f"missed fires: skip, fire-once or fire-all, not {self.kind!r}")
        if self.kind == "fire-all" and not 1 <= self.max_catchup <= U32_MAX:
            raise InvalidArgument(f"fire-all needs max_catchup from 1 to {U32_MAX}")


SKIP = MisfirePolicy()
FIRE_ONCE = MisfirePolicy("fire-once")


def fire_all(max_catchup: int) -> MisfirePolicy:
    return MisfirePolicy("fire-all", max_catchup)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A job to be fired by a schedule."""

    key: str
    job_name: str
    schedule: Schedule
    body: bytes
    limit: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    misfire: MisfirePolicy = SKIP

    def __post_init__(self) -> None:
        for what in ("limit", "start_ms", "end_ms"):
            value = getattr(self, what)
            if value is not None and (type(value) is not int or not 0 <= value < 2**64):
                raise InvalidArgument(f"a repeat's {what} must be a whole number and not negative")

    def first_fire(self, now_ms: int) -> int:
        """Return the first fire, or raise if the repeat would end before it."""
        first = self.schedule.next_after(max(now_ms, self.start_ms or 0))
        if self.end_ms is not None and self.end_ms < first:
            raise InvalidArgument(
                f"the repeat {self.key!r} ends before its first fire; give a later end"
            )
        return first


@dataclass(frozen=True, slots=True)
class RepeatStatus:
    """A repeat as it stands on the server."""

    repeat: Repeat
    next_fire_ms: int
    fire_count: int


@dataclass(frozen=True, slots=True)
class DueFires:
    """What to fire now, and when to look again; `next_ms` is 0 if never."""

    fires_ms: tuple[int, ...]
    next_fire_ms: int


def due_fires(repeat: Repeat, scheduled_ms: int, now_ms: int) -> DueFires:
    """Return what is due of a repeat that was to fire at `score_ms`; nothing after its end."""
    schedule = repeat.schedule
    try:
        following = schedule.next_after(scheduled_ms)
    except InvalidArgument:
        return DueFires((scheduled_ms,), 0)
    if following >= now_ms:
        return DueFires((scheduled_ms,), following)
    upcoming = _next_fire_or_zero(schedule, scheduled_ms, now_ms)
    if repeat.misfire.kind == "fire-once" or now_ms - scheduled_ms < MISFIRE_GRACE_MS:
        return DueFires((scheduled_ms,), upcoming)
    if repeat.misfire.kind == "skip":
        return DueFires((), upcoming)
    fires: list[int] = []
    at_ms = scheduled_ms
    last_ms = now_ms if repeat.end_ms is None else min(now_ms, repeat.end_ms)
    while at_ms <= last_ms and len(fires) < min(repeat.misfire.max_catchup, MAX_CATCHUP_FIRES):
        fires.append(at_ms)
        try:
            at_ms = schedule.next_after(at_ms)
        except InvalidArgument:
            break
    return DueFires(tuple(fires), upcoming)


def _next_fire_or_zero(schedule: Schedule, scheduled_ms: int, now_ms: int) -> int:
    try:
        return schedule.next_aligned(scheduled_ms, now_ms)
    except InvalidArgument:
        return 0


def encode_repeat(repeat: Repeat) -> bytes:
    """Return the `spec` field. The payload is wrapped twice, as ChasquiMQ's clients write it."""
    schedule = repeat.schedule
    pattern: dict[str, list[Any]] = (
        {"Every": [schedule.interval_ms]}
        if isinstance(schedule, Every)
        else {"Cron": [schedule.expression, schedule.tz]}
    )
    slots: list[Any] = [
        repeat.key,
        repeat.job_name,
        pattern,
        msgpack.packb(repeat.body),
        repeat.limit,
        repeat.start_ms,
        repeat.end_ms,
        0,
    ]
    if repeat.misfire.kind == "fire-once":
        slots.append("FireOnce")
    elif repeat.misfire.kind == "fire-all":
        slots.append({"FireAll": [repeat.misfire.max_catchup]})
    return msgpack.packb(slots)  # type: ignore[no-any-return]


_SPEC_FIELDS = (
    "key",
    "job_name",
    "pattern",
    "payload",
    "limit",
    "start_after_ms",
    "end_before_ms",
    "fired",
)


def decode_repeat(raw: bytes) -> Repeat:
    """Return the repeat in a `spec` field, or raise DecodeError."""
    try:
        value = msgpack.unpackb(raw, strict_map_key=False)
        if isinstance(value, dict):
            value = [value[slot] for slot in _SPEC_FIELDS[:7]] + [
                0,
                value.get("missed_fires", "Skip"),
            ]
        if not isinstance(value, list) or not 7 <= len(value) <= 9:
            raise DecodeError("a repeat is an array of seven to nine")
        key, name, pattern, payload, limit, start, end = value[:7]
        if not isinstance(key, str) or not isinstance(name, str):
            raise DecodeError("a repeat's key and name are strings")
        body = msgpack.unpackb(payload)
        if not isinstance(body, bytes):
            body = bytes(payload)
        missed = _decode_misfire(value[8]) if len(value) == 9 else SKIP
        return Repeat(key, name, _decode_pattern(pattern), body, limit, start, end, missed)
    except DecodeError:
        raise
    except Exception as cause:
        raise DecodeError(f"the repeat cannot be read: {cause or type(cause).__name__}") from cause


def _decode_pattern(value: Any) -> Schedule:
    match value:
        case {"Every": [int(interval)]}:
            return Every(interval)
        case {"Cron": [str(expression), (None | str()) as tz]}:
            return Cron(expression, tz)
    raise DecodeError("a repeat's pattern is Every or Cron")


def _decode_misfire(value: Any) -> MisfirePolicy:
    match value:
        case "Skip":
            return SKIP
        case "FireOnce":
            return FIRE_ONCE
        case {"FireAll": [int(catchup)]}:
            return fire_all(catchup)
    raise DecodeError("a repeat's missed fires are Skip, FireOnce or FireAll")
