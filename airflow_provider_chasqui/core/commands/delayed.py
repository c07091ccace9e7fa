"""Jobs that are not yet due: find, reschedule and promote delayed jobs, and repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.codec import (
    decode_delayed_member,
    decode_job_id,
    encode_delayed_member,
    encode_envelope,
)
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_bool,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.enqueue import marker_ttl_s
from airflow_provider_chasqui.core.commands.pages import MAX_PAGE_BYTES
from airflow_provider_chasqui.core.errors import DecodeError, KeyTypeMismatch
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.repeat import (
    DueFires,
    Repeat,
    RepeatStatus,
    decode_repeat,
    encode_repeat,
    unknown_elements,
)
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.validation import require_int

PAGE_SIZE = 1000
_SCAN_COUNT = 5000


# Find


def parse_members(reply: Any) -> list[tuple[bytes, int]]:
    """Parse members of the delayed set and their due times in milliseconds."""
    return [(member, as_score_ms(score)) for member, score in as_pairs(reply)]


def members_page(
    keys: Keys, start: int, count: int = PAGE_SIZE
) -> Command[list[tuple[bytes, int]]]:
    """Read a page of the delayed set, the earliest due time first.

    :param keys: the keys of the queue.
    :param start: the rank of the first member.
    :param count: the maximum number of members. The page also ends at `MAX_PAGE_BYTES`, so only an
        empty page is the end of the set.
    :return: a command that returns the members and their due times in milliseconds.
    """
    args: list[Arg] = [start, count, MAX_PAGE_BYTES]
    return script_command("read_delayed_page", parse_members, [keys.delayed], args)


def scan_members(
    keys: Keys, cursor: bytes, job_id: str, count: int = _SCAN_COUNT
) -> Command[tuple[bytes, list[tuple[bytes, int]]]]:
    """Scan a part of the delayed set for members that contain a job id.

    :param keys: the keys of the queue.
    :param cursor: the ZSCAN cursor; b"0" to begin.
    :param job_id: the id of the job. Members contain it unencoded, so the server can filter.
    :param count: the COUNT hint of ZSCAN.
    :return: a command that returns the next cursor, and the members with their due times.
    """
    needle = job_id.encode("utf-8", "surrogatepass")
    pattern = b"*" + re.sub(rb"([*?\[\]\\])", rb"\\\1", needle) + b"*"
    return redis_command(
        "ZSCAN",
        keys.delayed,
        cursor,
        "MATCH",
        pattern,
        "COUNT",
        count,
        parse=lambda reply: (reply[0], parse_members(reply[1])),
    )


# The member, its due time in milliseconds and its job.
DelayedMember = tuple[bytes, int, Job]


def find_member(keys: Keys, job_id: str) -> CommandFlow[DelayedMember | None]:
    """Return the member of the delayed set that belongs to a job, or None if there is none.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    """
    found, _ = yield from search_member(keys, job_id, None)
    return found


def search_member(
    keys: Keys, job_id: str, max_scanned: int | None
) -> CommandFlow[tuple[DelayedMember | None, bool]]:
    """Search the delayed set for the member of a job.

    Jobs whose id was given by the caller have an index. Others are searched for with ZSCAN, which
    returns every member that exists during the whole scan. Pages by rank would skip members that
    move up while earlier ones are promoted.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param max_scanned: stop after about this many members; None for no limit.
    :return: the member, or None, and whether the search was exhaustive.
    """
    member = yield redis_command("GET", keys.delayed_index(job_id), parse=as_raw)
    if member is not None:
        score = yield redis_command("ZSCORE", keys.delayed, member, parse=as_raw)
        job = decode_or_none(member)
        if score is not None and job is not None:
            return (member, as_score_ms(score), job), True
    cursor, scanned = b"0", 0
    while True:
        cursor, members = yield scan_members(keys, cursor, job_id)
        for member, due_ms in members:
            job = decode_or_none(member)
            if job is not None and job.id == job_id:
                return (member, due_ms, job), True
        if cursor == b"0":
            return None, True
        scanned += _SCAN_COUNT
        if max_scanned is not None and scanned >= max_scanned:
            return None, False


def decode_or_none(member: bytes) -> Job | None:
    """Return the job of a member of the delayed set, or None if the member is not readable.

    :param member: the member.
    """
    try:
        return decode_delayed_member(member)
    except DecodeError:
        return None


# Reschedule and promote


def reschedule(keys: Keys, job_id: str, run_at_ms: int, now_ms: int) -> CommandFlow[bool]:
    """Change the due time of a delayed job.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param run_at_ms: the new due time in milliseconds.
    :param now_ms: the current time in milliseconds.
    :return: False if the job is not delayed.
    """
    ttl_s = marker_ttl_s(run_at_ms - now_ms)
    if (yield reschedule_member(keys, job_id, run_at_ms, ttl_s, b"")):
        return True
    found = yield from find_member(keys, job_id)
    if found is None:
        return False
    rescheduled: bool = yield reschedule_member(keys, job_id, run_at_ms, ttl_s, found[0])
    return rescheduled


def reschedule_member(
    keys: Keys, job_id: str, run_at_ms: int, ttl_s: int, member: bytes
) -> Command[bool]:
    """Change the due time of a member of the delayed set.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param run_at_ms: the new due time in milliseconds.
    :param ttl_s: the new TTL of the index and the marker of the job, in seconds.
    :param member: the member; empty to take it from the index.
    :return: a command that returns whether the member existed.
    """
    key_names = [keys.delayed, keys.delayed_index(job_id), keys.delayed_marker(job_id)]
    return script_command("reschedule", as_bool, key_names, [member, run_at_ms, ttl_s])


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """The result of a promotion.

    :param moved: the number of jobs moved to the stream.
    :param remaining: the number of jobs that are still delayed.
    :param lag_ms: how late the earliest moved job was.
    :param next_due_ms: the next due time; 0 if no job is delayed.
    :param now_ms: the time of the server.
    :param dead_lettered: the number of unreadable members moved to the DLQ.
    :param job_ids: the ids of the moved jobs.
    """

    moved: int
    remaining: int
    lag_ms: int
    next_due_ms: int
    now_ms: int
    dead_lettered: int
    job_ids: tuple[str, ...]


def _parse_promotion_result(reply: Any) -> PromotionResult:
    job_ids = tuple(filter(None, map(decode_job_id, reply[6])))
    moved, remaining, lag_ms, next_due_ms, now_ms, dead_lettered = map(int, reply[:6])
    return PromotionResult(moved, remaining, lag_ms, next_due_ms, now_ms, dead_lettered, job_ids)


def promote(keys: Keys, limit: int) -> Command[PromotionResult]:
    """Move due jobs to the stream.

    :param keys: the keys of the queue.
    :param limit: the maximum number of jobs.
    """
    return script_command(
        "promote", _parse_promotion_result, [keys.delayed, keys.stream, keys.dlq], [limit]
    )


def delete_index(keys: Keys, job_ids: tuple[str, ...]) -> Command[int]:
    """Delete the index entries of promoted jobs, as the promoter of ChasquiMQ does.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    return redis_command("DEL", *(keys.delayed_index(job_id) for job_id in job_ids), parse=as_int)


def promote_and_delete_index(keys: Keys, limit: int) -> CommandFlow[PromotionResult]:
    """Move due jobs to the stream and delete their index entries.

    For programs that use a queue without workers. The index contains a copy of the payload.

    :param keys: the keys of the queue.
    :param limit: the maximum number of jobs.
    """
    promoted: PromotionResult = yield promote(keys, limit)
    if promoted.job_ids:
        yield delete_index(keys, promoted.job_ids)
    return promoted


# Repeats


def get_repeat_spec(keys: Keys, key: str) -> Command[bytes | None]:
    """Return the encoded specification of a repeat, or None.

    :param keys: the keys of the queue.
    :param key: the key of the repeat.
    """
    return redis_command("HGET", keys.repeat_spec(key), "spec", parse=as_raw)


def upsert_repeat(
    keys: Keys, repeat: Repeat, now_ms: int, stored_spec: bytes | None = None
) -> Command[int]:
    """Create or replace a repeat and schedule its first run.

    :param keys: the keys of the queue.
    :param repeat: the repeat.
    :param now_ms: the current time in milliseconds.
    :param stored_spec: the specification to replace. What a newer version of ChasquiMQ has added to
        it is kept.
    """
    key_names = [keys.repeat, keys.repeat_spec(repeat.key)]
    spec = encode_repeat(repeat, unknown_elements(stored_spec or b""))
    args: list[Arg] = [repeat.first_fire(now_ms), repeat.key, spec]
    return script_command("repeat_upsert", as_int, key_names, args)


def delete_repeat(keys: Keys, key: str) -> Command[bool]:
    """Delete a repeat.

    :param keys: the keys of the queue.
    :param key: the key of the repeat.
    :return: a command that returns whether the repeat existed.
    """
    return script_command("repeat_delete", as_bool, [keys.repeat, keys.repeat_spec(key)], [key])


def list_repeats(keys: Keys, limit: int) -> CommandFlow[list[RepeatStatus]]:
    """Return the repeats, the earliest next run first. Unreadable ones are left out.

    :param keys: the keys of the queue.
    :param limit: the maximum number of repeats, at least 1.
    :raises InvalidArgument: if the limit is not.
    """
    require_int("limit", limit, 1)
    scored = yield redis_command(
        "ZRANGE", keys.repeat, 0, limit - 1, "WITHSCORES", parse=_parse_repeat_scores
    )
    specs = yield from _get_repeat_specs(keys, [key for key, _ in scored])
    statuses = []
    for (_, score), (spec, run_count) in zip(scored, specs, strict=True):
        runs = int(run_count) if run_count is not None and run_count.isdigit() else 0
        try:
            repeat = decode_repeat(spec or b"")
        except DecodeError:
            continue
        statuses.append(RepeatStatus(repeat, as_score_ms(score), runs))
    return statuses


def _parse_repeat_scores(reply: Any) -> list[tuple[str, bytes]]:
    return [(key.decode("utf-8", "surrogateescape"), score) for key, score in as_pairs(reply)]


def _get_repeat_specs(
    keys: Keys, repeat_keys: Sequence[str]
) -> CommandFlow[list[tuple[bytes | None, bytes | None]]]:
    """Return the specification and the number of runs per repeat.

    The specification is None if it does not exist, and empty if its key has another type.
    """
    try:
        specs: list[tuple[bytes | None, bytes | None]] = yield [
            redis_command("HMGET", keys.repeat_spec(key), "spec", "fired", parse=as_raw)
            for key in repeat_keys
        ]
        return specs
    except KeyTypeMismatch:
        if len(repeat_keys) == 1:
            return [(b"", None)]
    middle = len(repeat_keys) // 2
    first = yield from _get_repeat_specs(keys, repeat_keys[:middle])
    second = yield from _get_repeat_specs(keys, repeat_keys[middle:])
    return [*first, *second]


def server_time_ms() -> Command[int]:
    """Return the server's clock in milliseconds since the epoch."""
    return redis_command("TIME", parse=lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def due_repeats(
    keys: Keys, now_ms: int, offset: int, limit: int
) -> CommandFlow[list[tuple[str, bytes, bytes | None]]]:
    """Return the repeats that are due.

    :param keys: the keys of the queue.
    :param now_ms: the current time in milliseconds.
    :param offset: the number of repeats to skip.
    :param limit: the maximum number of repeats.
    :return: per repeat the key, the score and the encoded specification, which is None if it does
        not exist and empty if its key has another type.
    """
    scored = yield redis_command(
        "ZRANGEBYSCORE",
        keys.repeat,
        "-inf",
        now_ms,
        "WITHSCORES",
        "LIMIT",
        offset,
        limit,
        parse=_parse_repeat_scores,
    )
    specs = yield from _get_repeat_specs(keys, [key for key, _ in scored])
    return [(key, score, spec) for (key, score), (spec, _) in zip(scored, specs, strict=True)]


def next_repeat_ms(keys: Keys, now_ms: int) -> Command[int | None]:
    """Return the earliest run of any repeat after a time in milliseconds, or None.

    :param keys: the keys of the queue.
    :param now_ms: the time in milliseconds.
    """
    return redis_command(
        "ZRANGEBYSCORE",
        keys.repeat,
        f"({now_ms}",
        "+inf",
        "WITHSCORES",
        "LIMIT",
        0,
        1,
        parse=lambda reply: as_score_ms(reply[1]) if reply else None,
    )


def enqueue_due_repeats(
    keys: Keys, repeat: Repeat, score: Arg, due: DueFires, job_ids: Sequence[str], now_ms: int
) -> Command[tuple[int, bool]]:
    """Enqueue the due runs of a repeat and schedule the next one.

    :param keys: the keys of the queue.
    :param repeat: the repeat.
    :param score: the score that the caller has read. If it changed, nothing is written.
    :param due: the due runs and the next one.
    :param job_ids: one job id per due run.
    :param now_ms: the current time in milliseconds.
    :return: a command that returns the number of enqueued jobs, or -1 if another scheduler was
        first, and whether the repeat has ended.
    """
    args: list[Arg] = [
        repeat.key,
        score,
        due.next_fire_ms,
        repeat.limit or 0,
        repeat.end_ms or 0,
        now_ms,
    ]
    job_name = repeat.job_name.encode("utf-8", "surrogatepass")
    for run_ms, job_id in zip(due.fires_ms, job_ids, strict=True):
        envelope = encode_envelope(job_id, repeat.body, now_ms)
        args += (run_ms, encode_delayed_member(job_name, envelope))
    key_names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec(repeat.key)]
    return script_command(
        "repeat_enqueue_due", lambda reply: (int(reply[0]), bool(reply[1])), key_names, args
    )
