"""Repeatable jobs: their wire format, and which runs are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.retry import U32_MAX, U64_MAX
from airflow_provider_chasqui.core.validation import require_choice, require_int

MAX_CATCHUP_FIRES = 10_000
# A fire counts as missed only after this time. Otherwise an interval shorter than the jitter of the
# scheduler would always be skipped.
MISFIRE_GRACE_MS = 1_000


@dataclass(frozen=True, slots=True)
class MisfirePolicy:
    """What happens to the fires that were missed while no scheduler was running.

    :param kind: `skip` (the default), `fire-once` or `fire-all`.
    :param max_catchup: the largest number of missed fires that `fire-all` enqueues.
    """

    kind: str = "skip"
    max_catchup: int = 0

    def __post_init__(self) -> None:
        require_choice("misfire", self.kind, ("skip", "fire-once", "fire-all"))
        if self.kind == "fire-all":
            require_int("max_catchup", self.max_catchup, 1, U32_MAX)


SKIP = MisfirePolicy()
FIRE_ONCE = MisfirePolicy("fire-once")


def fire_all(max_catchup: int) -> MisfirePolicy:
    """Return the policy that enqueues up to `max_catchup` missed fires."""
    return MisfirePolicy("fire-all", max_catchup)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeatable job.

    :param key: identifies it; a second one with the same key replaces it.
    :param job_name: the name of its jobs.
    :param schedule: when it fires.
    :param body: the payload as MessagePack.
    :param limit: the largest number of runs, or None for no limit.
    :param start_ms: no fire before this time.
    :param end_ms: no fire after this time.
    :param misfire: what happens to missed fires.
    """

    key: str
    job_name: str
    schedule: Schedule
    body: bytes
    limit: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    misfire: MisfirePolicy = SKIP

    def __post_init__(self) -> None:
        for name in ("limit", "start_ms", "end_ms"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 0, U64_MAX)

    def first_fire(self, now_ms: int) -> int:
        """Return the time of the first fire.

        :raises InvalidArgument: if `end_ms` is before it.
        """
        first = self.schedule.next_after(max(now_ms, self.start_ms or 0))
        if self.end_ms is not None and self.end_ms < first:
            raise InvalidArgument(
                f"the repeatable job {self.key!r} ends before its first fire; pass a later end"
            )
        return first


@dataclass(frozen=True, slots=True)
class RepeatStatus:
    """A repeatable job as stored on the server, with its next fire and number of runs."""

    repeat: Repeat
    next_fire_ms: int
    fire_count: int


@dataclass(frozen=True, slots=True)
class DueFires:
    """The fires to enqueue now, and the next one; `next_fire_ms` is 0 if there is none."""

    fires_ms: tuple[int, ...]
    next_fire_ms: int


def due_fires(repeat: Repeat, scheduled_ms: int, now_ms: int) -> DueFires:
    """Return the due fires of a repeatable job. None of them is after its end.

    :param repeat: the repeatable job.
    :param scheduled_ms: the fire that is stored as its next one.
    :param now_ms: the current time.
    """
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
    fire_ms = scheduled_ms
    last_ms = now_ms if repeat.end_ms is None else min(now_ms, repeat.end_ms)
    while fire_ms <= last_ms and len(fires) < min(repeat.misfire.max_catchup, MAX_CATCHUP_FIRES):
        fires.append(fire_ms)
        try:
            fire_ms = schedule.next_after(fire_ms)
        except InvalidArgument:
            break
    return DueFires(tuple(fires), upcoming)


def _next_fire_or_zero(schedule: Schedule, scheduled_ms: int, now_ms: int) -> int:
    try:
        return schedule.next_aligned(scheduled_ms, now_ms)
    except InvalidArgument:
        return 0


_KNOWN_ELEMENTS = 9


def unknown_elements(raw: bytes) -> tuple[bytes, ...]:
    """Return the encoded elements of a `spec` field after those that this version knows.

    :param raw: the field; anything that is not a longer array has no such elements.
    """
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(raw)))
    unpacker.feed(raw)
    elements = []
    try:
        count = unpacker.read_array_header()
        for _ in range(min(count, _KNOWN_ELEMENTS)):
            unpacker.skip()
        for _ in range(count - _KNOWN_ELEMENTS):
            start = unpacker.tell()
            unpacker.skip()
            elements.append(raw[start : unpacker.tell()])
    except Exception:
        return ()
    return tuple(elements)


def encode_repeat(repeat: Repeat, unknown: tuple[bytes, ...] = ()) -> bytes:
    """Return the `spec` field. The payload is encoded twice, as ChasquiMQ's clients do.

    :param repeat: the repeatable job.
    :param unknown: encoded elements to append, see `unknown_elements`.
    """
    schedule = repeat.schedule
    pattern: dict[str, list[Any]] = (
        {"Every": [schedule.interval_ms]}
        if isinstance(schedule, Every)
        else {"Cron": [schedule.expression, schedule.tz]}
    )
    fields: list[Any] = [
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
        fields.append("FireOnce")
    elif repeat.misfire.kind == "fire-all":
        fields.append({"FireAll": [repeat.misfire.max_catchup]})
    elif unknown:
        fields.append("Skip")
    header = msgpack.Packer().pack_array_header(len(fields) + len(unknown))
    return b"".join([header, *map(msgpack.packb, fields), *unknown])


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
    """Return the repeatable job in a `spec` field.

    Elements after the ninth and unknown misfire policies are those of a newer version of
    ChasquiMQ. They are ignored, so that the job fires by what is understood.

    :raises DecodeError: if it cannot be decoded.
    """
    try:
        value = msgpack.unpackb(raw, strict_map_key=False)
        if isinstance(value, dict):
            value = [value[field] for field in _SPEC_FIELDS[:7]] + [
                0,
                value.get("missed_fires", "Skip"),
            ]
        if not isinstance(value, list) or len(value) < 7:
            raise DecodeError("the spec is not an array of at least seven elements")
        key, name, pattern, payload, limit, start, end = value[:7]
        if not isinstance(key, str) or not isinstance(name, str):
            raise DecodeError("the key and the name of the spec are not strings")
        body = msgpack.unpackb(payload)
        if not isinstance(body, bytes):
            body = bytes(payload)
        misfire = _decode_misfire(value[8]) if len(value) > 8 else SKIP
        return Repeat(key, name, _decode_pattern(pattern), body, limit, start, end, misfire)
    except DecodeError:
        raise
    except Exception as cause:
        raise DecodeError(f"the spec cannot be decoded: {cause or type(cause).__name__}") from cause


def _decode_pattern(value: Any) -> Schedule:
    match value:
        case {"Every": [int(interval)]}:
            return Every(interval)
        case {"Cron": [str(expression), (None | str()) as tz]}:
            return Cron(expression, tz)
    raise DecodeError("the pattern of the spec is neither Every nor Cron")


def _decode_misfire(value: Any) -> MisfirePolicy:
    match value:
        case "FireOnce":
            return FIRE_ONCE
        case {"FireAll": [int(catchup)]}:
            return fire_all(catchup)
    return SKIP
