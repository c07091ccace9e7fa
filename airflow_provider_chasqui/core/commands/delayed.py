"""Jobs that are not yet due: find, reschedule, cancel and promote delayed jobs, and repeats.

Cancelling a job that is not delayed any more, or a whole batch, is also here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_provider_chasqui.core.batch import (
    BATCH_TTL_MS,
    batch_job_id,
    iter_set_bits,
    parse_batch_job_id,
)
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
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.repeat import (
    DueFires,
    Repeat,
    RepeatStatus,
    decode_repeat,
    encode_repeat,
)
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.validation import require_int

PAGE_SIZE = 1000
_SCAN_COUNT = 5000
_CANCEL_CHUNK_SIZE = 1000
CANCEL_REQUEST_TTL_MS = 24 * 3600 * 1000


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
    :param count: the maximum number of members.
    :return: a command that returns the members and their due times in milliseconds.
    """
    return redis_command(
        "ZRANGE", keys.delayed, start, start + count - 1, "WITHSCORES", parse=parse_members
    )


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


# Cancel


def cancel(keys: Keys, job_id: str) -> CommandFlow[bool]:
    """Cancel a delayed job.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :return: False if the job is not delayed.
    """
    if (yield cancel_member(keys, job_id)):
        return True
    found = yield from find_member(keys, job_id)
    if found is None:
        return False
    cancelled: bool = yield cancel_member(keys, job_id, found[0])
    return cancelled


def cancel_member(keys: Keys, job_id: str, member: bytes = b"") -> Command[bool]:
    """Remove a member from the delayed set. A job of a batch counts as dead afterwards.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param member: the member; empty to take it from the index.
    :return: a command that returns whether the member existed.
    """
    position = parse_batch_job_id(job_id)
    dead_bits = keys.batch_dead(position.batch_id, position.part) if position else keys.cancelled
    key_names = [
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
        dead_bits,
    ]
    bit = position.index if position else -1
    return script_command("cancel", as_bool, key_names, [member, bit, BATCH_TTL_MS])


def request_cancel(keys: Keys, job_id: str, now_ms: int) -> CommandFlow[None]:
    """Request that workers drop a job if it waits, and interrupt it if it runs.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param now_ms: the current time in milliseconds. Requests older than a day are deleted.
    """
    yield [
        redis_command("ZADD", keys.cancelled, now_ms, job_id, parse=as_int),
        redis_command(
            "ZREMRANGEBYSCORE", keys.cancelled, "-inf", now_ms - CANCEL_REQUEST_TTL_MS, parse=as_int
        ),
        redis_command("PEXPIRE", keys.cancelled, CANCEL_REQUEST_TTL_MS, parse=as_int),
    ]


def cancel_batch(keys: Keys, batch_id: str, now_ms: int) -> CommandFlow[int]:
    """Cancel the delayed jobs of a batch and request the cancellation of its other open jobs.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param now_ms: the current time in milliseconds.
    :return: the number of jobs that had not finished.
    """
    open_jobs = yield from _cancel_delayed_jobs(keys, batch_id)
    sent_counts = yield redis_command("HGETALL", keys.batch(batch_id), parse=_parse_sent_counts)
    for part, sent in sorted(sent_counts.items()):
        bitmaps = yield [
            redis_command("GET", keys.batch_done(batch_id, part), parse=as_raw),
            redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw),
        ]
        finished = {index for bitmap in bitmaps for index in iter_set_bits(bitmap or b"")}
        job_ids = (batch_job_id(batch_id, part, i) for i in range(sent) if i not in finished)
        open_jobs += yield from _request_cancels(keys, job_ids, now_ms)
    return open_jobs


def _parse_sent_counts(reply: list[bytes]) -> dict[int, int]:
    return {
        int(field[5:]): int(value) for field, value in as_pairs(reply) if field.startswith(b"sent:")
    }


def _cancel_delayed_jobs(keys: Keys, batch_id: str) -> CommandFlow[int]:
    start = cancelled = 0
    while members := (yield members_page(keys, start)):
        commands = [
            cancel_member(keys, job.id, member)
            for member, _ in members
            if (job := decode_or_none(member))
            and (position := parse_batch_job_id(job.id))
            and position.batch_id == batch_id
        ]
        removed = sum((yield commands)) if commands else 0
        cancelled += removed
        start += len(members) - removed
    return cancelled


def _request_cancels(keys: Keys, job_ids: Iterator[str], now_ms: int) -> CommandFlow[int]:
    requested = 0
    while chunk := list(islice(job_ids, _CANCEL_CHUNK_SIZE)):
        scored: list[Arg] = [arg for job_id in chunk for arg in (now_ms, job_id)]
        yield [
            redis_command("ZADD", keys.cancelled, *scored, parse=as_int),
            redis_command("PEXPIRE", keys.cancelled, CANCEL_REQUEST_TTL_MS, parse=as_int),
        ]
        requested += len(chunk)
    return requested


# Repeats


def upsert_repeat(keys: Keys, repeat: Repeat, now_ms: int) -> Command[int]:
    """Create or replace a repeat and schedule its first run.

    :param keys: the keys of the queue.
    :param repeat: the repeat.
    :param now_ms: the current time in milliseconds.
    """
    key_names = [keys.repeat, keys.repeat_spec(repeat.key)]
    args: list[Arg] = [repeat.first_fire(now_ms), repeat.key, encode_repeat(repeat)]
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
    specs = yield [_get_repeat_spec(keys, key) for key, _ in scored]
    statuses = []
    for (_, next_run_ms), (spec, run_count) in zip(scored, specs, strict=True):
        runs = int(run_count) if run_count is not None and run_count.isdigit() else 0
        try:
            statuses.append(RepeatStatus(decode_repeat(spec or b""), next_run_ms, runs))
        except DecodeError:
            continue
    return statuses


def _parse_repeat_scores(reply: Any) -> list[tuple[str, int]]:
    return [
        (key.decode("utf-8", "surrogateescape"), as_score_ms(score))
        for key, score in as_pairs(reply)
    ]


def _get_repeat_spec(keys: Keys, key: str) -> Command[Any]:
    return redis_command("HMGET", keys.repeat_spec(key), "spec", "fired", parse=as_raw)


def due_repeats(
    keys: Keys, now_ms: int, limit: int
) -> CommandFlow[list[tuple[str, int, bytes | None]]]:
    """Return the repeats that are due.

    :param keys: the keys of the queue.
    :param now_ms: the current time in milliseconds.
    :param limit: the maximum number of repeats.
    :return: per repeat the key, the due time in milliseconds and the encoded specification.
    """
    scored = yield redis_command(
        "ZRANGEBYSCORE",
        keys.repeat,
        "-inf",
        now_ms,
        "WITHSCORES",
        "LIMIT",
        0,
        limit,
        parse=_parse_repeat_scores,
    )
    specs = yield [_get_repeat_spec(keys, key) for key, _ in scored]
    return [(key, due_ms, spec) for (key, due_ms), (spec, _) in zip(scored, specs, strict=True)]


def next_repeat_ms(keys: Keys) -> Command[int | None]:
    """Return the earliest next run of any repeat in milliseconds, or None.

    :param keys: the keys of the queue.
    """
    return redis_command(
        "ZRANGE",
        keys.repeat,
        0,
        0,
        "WITHSCORES",
        parse=lambda reply: as_score_ms(reply[1]) if reply else None,
    )


def enqueue_due_repeats(
    keys: Keys, repeat: Repeat, score_ms: int, due: DueFires, job_ids: Sequence[str], now_ms: int
) -> Command[tuple[int, bool]]:
    """Enqueue the due runs of a repeat and schedule the next one.

    :param keys: the keys of the queue.
    :param repeat: the repeat.
    :param score_ms: the due time that the caller has read. If it changed, nothing is written.
    :param due: the due runs and the next one.
    :param job_ids: one job id per due run.
    :param now_ms: the current time in milliseconds.
    :return: a command that returns the number of enqueued jobs, or -1 if another scheduler was
        first, and whether the repeat has ended.
    """
    args: list[Arg] = [
        repeat.key,
        score_ms,
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
