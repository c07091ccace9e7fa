"""cancel, reschedule, promote: jobs that are not yet due.

repeat put, list, drop and fire.

cancel, for all of a batch that has not ended.
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
    check_int,
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
    Arg,
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

PAGE_SIZE = 1000
_SCAN_COUNT = 5000
CANCEL_REQUEST_TTL_MS = 24 * 3600 * 1000


def parse_members(reply: Any) -> list[tuple[bytes, int]]:
    """Members of the delayed set with their due times."""
    return [(member, as_score_ms(score)) for member, score in as_pairs(reply)]


def members_page(
    keys: Keys, start: int, count: int = PAGE_SIZE
) -> Command[list[tuple[bytes, int]]]:
    """Members of the delayed set with their due times, soonest first."""
    return redis_command(
        "ZRANGE", keys.delayed, start, start + count - 1, "WITHSCORES", parse=parse_members
    )


def scan_members(
    keys: Keys, cursor: bytes, job_id: str, count: int = _SCAN_COUNT
) -> Command[tuple[bytes, list[tuple[bytes, int]]]]:
    """Look for a job, one turn; its id stands in the bytes as it is, so the server can choose."""
    needle = job_id.encode("utf-8", "surrogatepass")
    pattern = b"*" + re.sub(rb"([*?\[\]\\])", rb"\\\1", needle) + b"*"
    return redis_command(
        "ZSCAN", keys.delayed, cursor, "MATCH", pattern, "COUNT", count,
        parse=lambda reply: (reply[0], parse_members(reply[1])),
    )  # fmt: skip


def find_member(keys: Keys, job_id: str) -> CommandFlow[tuple[bytes, int, Job] | None]:
    """Find the member of a delayed job by its id, whoever wrote it.

    Jobs whose caller gave an id have an index; the others are looked for with ZSCAN, which misses
    nothing that is there from its beginning to its end. Pages by rank would: when jobs before the
    page are promoted, those behind it move up into the page that was just read.
    """
    member = yield redis_command("GET", keys.delayed_index(job_id), parse=as_raw)
    if member is not None:
        score = yield redis_command("ZSCORE", keys.delayed, member, parse=as_raw)
        if score is not None and (job := _decode_or_none(member)) is not None:
            return member, as_score_ms(score), job
    cursor = b"0"
    while True:
        cursor, members = yield scan_members(keys, cursor, job_id)
        for member, due_ms in members:
            if (job := _decode_or_none(member)) is not None and job.id == job_id:
                return member, due_ms, job
        if cursor == b"0":
            return None


def _decode_or_none(member: bytes) -> Job | None:
    try:
        return decode_delayed_member(member)
    except DecodeError:
        return None


def cancel_member(keys: Keys, job_id: str, member: bytes = b"") -> Command[bool]:
    place = parse_batch_job_id(job_id)
    dead = keys.batch_dead(place.batch_id, place.part) if place else keys.cancelled
    names = [
        keys.delayed,
        keys.delayed_index(job_id),
        keys.delayed_marker(job_id),
        keys.dedup_marker(job_id),
        dead,
    ]
    bit = place.index if place else -1
    return script_command("cancel", as_bool, names, [member, bit, BATCH_TTL_MS])


def cancel(keys: Keys, job_id: str) -> CommandFlow[bool]:
    """Take a delayed job back; says False if it is not delayed (any more)."""
    if (yield cancel_member(keys, job_id)):
        return True
    found = yield from find_member(keys, job_id)
    if found is None:
        return False
    taken: bool = yield cancel_member(keys, job_id, found[0])
    return taken


def request_cancel(keys: Keys, job_id: str, now_ms: int) -> CommandFlow[None]:
    """Ask the workers to drop a job that waits and to interrupt it if it runs."""
    yield [
        redis_command("ZADD", keys.cancelled, now_ms, job_id, parse=as_int),
        redis_command(
            "ZREMRANGEBYSCORE", keys.cancelled, "-inf", now_ms - CANCEL_REQUEST_TTL_MS, parse=as_int
        ),
        redis_command("PEXPIRE", keys.cancelled, CANCEL_REQUEST_TTL_MS, parse=as_int),
    ]


def reschedule_member(
    keys: Keys, job_id: str, run_at_ms: int, ttl_s: int, member: bytes
) -> Command[bool]:
    names = [keys.delayed, keys.delayed_index(job_id), keys.delayed_marker(job_id)]
    return script_command("reschedule", as_bool, names, [member, run_at_ms, ttl_s])


def reschedule(keys: Keys, job_id: str, run_at_ms: int, now_ms: int) -> CommandFlow[bool]:
    """Give a delayed job another due time; says False if it is not delayed (any more)."""
    life_s = marker_ttl_s(run_at_ms - now_ms)
    if (yield reschedule_member(keys, job_id, run_at_ms, life_s, b"")):
        return True
    found = yield from find_member(keys, job_id)
    if found is None:
        return False
    moved: bool = yield reschedule_member(keys, job_id, run_at_ms, life_s, found[0])
    return moved


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """What a promotion did. `next_due_ms` is 0 if nothing is delayed any more."""

    moved: int
    remaining: int
    lag_ms: int
    next_due_ms: int
    now_ms: int
    dead_lettered: int
    job_ids: tuple[str, ...]


def _parse_promotion_result(reply: Any) -> PromotionResult:
    ids = tuple(filter(None, map(decode_job_id, reply[6])))
    moved, left, late_ms, next_due_ms, now_ms, buried = (int(number) for number in reply[:6])
    return PromotionResult(moved, left, late_ms, next_due_ms, now_ms, buried, ids)


def promote(keys: Keys, limit: int) -> Command[PromotionResult]:
    """Move due jobs to the stream."""
    return script_command(
        "promote", _parse_promotion_result, [keys.delayed, keys.stream, keys.dlq], [limit]
    )


def delete_index(keys: Keys, job_ids: tuple[str, ...]) -> Command[int]:
    """Drop the cancel index of promoted jobs, as ChasquiMQ's promoter does."""
    return redis_command("DEL", *(keys.delayed_index(job_id) for job_id in job_ids), parse=as_int)


def upsert_repeat(keys: Keys, repeat: Repeat, now_ms: int) -> Command[int]:
    """Write a repeat and its first fire."""
    names = [keys.repeat, keys.repeat_spec(repeat.key)]
    args: list[Arg] = [repeat.first_fire(now_ms), repeat.key, encode_repeat(repeat)]
    return script_command("repeat_upsert", as_int, names, args)


def delete_repeat(keys: Keys, key: str) -> Command[bool]:
    """Remove a repeat."""
    return script_command("repeat_delete", as_bool, [keys.repeat, keys.repeat_spec(key)], [key])


def _parse_repeat_scores(reply: Any) -> list[tuple[str, int]]:
    return [
        (key.decode("utf-8", "surrogateescape"), as_score_ms(score))
        for key, score in as_pairs(reply)
    ]


def list_repeats(keys: Keys, limit: int) -> CommandFlow[list[RepeatStatus]]:
    """Return the repeats, next fire first; bodies that cannot be read are left out."""
    check_int("limit", limit, 1)
    scored = yield redis_command(
        "ZRANGE", keys.repeat, 0, limit - 1, "WITHSCORES", parse=_parse_repeat_scores
    )
    bodies = yield [_get_repeat_spec(keys, key) for key, _ in scored]
    found = []
    for (_, score_ms), (raw, fired) in zip(scored, bodies, strict=True):
        try:
            count = int(fired) if fired is not None and fired.isdigit() else 0
            found.append(RepeatStatus(decode_repeat(raw or b""), score_ms, count))
        except DecodeError:
            continue
    return found


def _get_repeat_spec(keys: Keys, key: str) -> Command[Any]:
    return redis_command("HMGET", keys.repeat_spec(key), "spec", "fired", parse=as_raw)


def due_repeats(
    keys: Keys, now_ms: int, limit: int
) -> CommandFlow[list[tuple[str, int, bytes | None]]]:
    """Return repeats that are due: key, score, body."""
    scored = yield redis_command(
        "ZRANGEBYSCORE", keys.repeat, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, limit,
        parse=_parse_repeat_scores,
    )  # fmt: skip
    bodies = yield [_get_repeat_spec(keys, key) for key, _ in scored]
    return [(key, score, raw) for (key, score), (raw, _) in zip(scored, bodies, strict=True)]


def next_repeat_ms(keys: Keys) -> Command[int | None]:
    """The soonest fire of any repeat, or None."""
    return redis_command(
        "ZRANGE", keys.repeat, 0, 0, "WITHSCORES",
        parse=lambda reply: as_score_ms(reply[1]) if reply else None,
    )  # fmt: skip


def enqueue_due_repeats(
    keys: Keys, repeat: Repeat, score_ms: int, due: DueFires, job_ids: Sequence[str], now_ms: int
) -> Command[tuple[int, bool]]:
    """Put due fires on the queue; answers how many (-1: someone else did) and if it ended."""
    args: list[Arg] = [
        repeat.key, score_ms, due.next_fire_ms, repeat.limit or 0, repeat.end_ms or 0, now_ms,
    ]  # fmt: skip
    name = repeat.job_name.encode("utf-8", "surrogatepass")
    for fire_ms, job_id in zip(due.fires_ms, job_ids, strict=True):
        args += (fire_ms, encode_delayed_member(name, encode_envelope(job_id, repeat.body, now_ms)))
    names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec(repeat.key)]
    return script_command(
        "repeat_enqueue_due", lambda reply: (int(reply[0]), bool(reply[1])), names, args
    )


_CANCEL_CHUNK_SIZE = 1000


def cancel_batch(keys: Keys, batch_id: str, now_ms: int) -> CommandFlow[int]:
    """Take back what of the batch is delayed and ask the workers to drop the rest.

    Returns how many jobs had not ended.
    """
    taken = yield from _cancel_delayed_jobs(keys, batch_id)
    asked = 0
    for part, sent in sorted(
        (yield redis_command("HGETALL", keys.batch(batch_id), parse=_parse_sent_counts)).items()
    ):
        bits = yield [
            redis_command("GET", keys.batch_done(batch_id, part), parse=as_raw),
            redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw),
        ]
        ended = {index for each in bits for index in iter_set_bits(each or b"")}
        open_ones = (batch_job_id(batch_id, part, i) for i in range(sent) if i not in ended)
        asked += yield from _request_cancels(keys, open_ones, now_ms)
    return taken + asked


def _parse_sent_counts(reply: list[bytes]) -> dict[int, int]:
    return {int(k[5:]): int(v) for k, v in as_pairs(reply) if k.startswith(b"sent:")}


def _cancel_delayed_jobs(keys: Keys, batch_id: str) -> CommandFlow[int]:
    at = taken = 0
    while members := (yield members_page(keys, at)):
        ours = [
            cancel_member(keys, name, member)
            for member, _ in members
            if (name := _decode_job_id(member))
            and (place := parse_batch_job_id(name))
            and place.batch_id == batch_id
        ]
        gone = sum((yield ours)) if ours else 0
        taken += gone
        at += len(members) - gone
    return taken


def _decode_job_id(member: bytes) -> str:
    try:
        return decode_delayed_member(member).id
    except DecodeError:
        return ""


def _request_cancels(keys: Keys, job_ids: Iterator[str], now_ms: int) -> CommandFlow[int]:
    asked = 0
    while chunk := list(islice(job_ids, _CANCEL_CHUNK_SIZE)):
        scored: list[Arg] = [arg for name in chunk for arg in (now_ms, name)]
        yield [
            redis_command("ZADD", keys.cancelled, *scored, parse=as_int),
            redis_command("PEXPIRE", keys.cancelled, CANCEL_REQUEST_TTL_MS, parse=as_int),
        ]
        asked += len(chunk)
    return asked
