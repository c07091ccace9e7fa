"""cancel, reschedule, promote: jobs that are not yet due."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, place_of
from airflow_provider_chasqui.core.codec import decode_id, decode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import (
    Flow,
    Op,
    as_int,
    as_is,
    as_score,
    as_true,
    command,
    script,
)
from airflow_provider_chasqui.core.ops.adding import marker_life_s
from airflow_provider_chasqui.core.replies import pairs

PAGE = 1000
_SCANNED = 5000
CANCEL_LIFE_MS = 24 * 3600 * 1000


def scored(reply: Any) -> list[tuple[bytes, int]]:
    """Members of the delayed set with their due times."""
    return [(member, as_score(score)) for member, score in pairs(reply)]


def page(keys: Keys, start: int, count: int = PAGE) -> Op[list[tuple[bytes, int]]]:
    """Members of the delayed set with their due times, soonest first."""
    return command("ZRANGE", keys.delayed, start, start + count - 1, "WITHSCORES", parse=scored)


def scan(
    keys: Keys, cursor: bytes, job_id: str, count: int = _SCANNED
) -> Op[tuple[bytes, list[tuple[bytes, int]]]]:
    """Look for a job, one turn; its id stands in the bytes as it is, so the server can choose."""
    needle = job_id.encode("utf-8", "surrogatepass")
    pattern = b"*" + re.sub(rb"([*?\[\]\\])", rb"\\\1", needle) + b"*"
    return command(
        "ZSCAN", keys.delayed, cursor, "MATCH", pattern, "COUNT", count,
        parse=lambda reply: (reply[0], scored(reply[1])),
    )  # fmt: skip


def locate(keys: Keys, job_id: str) -> Flow[tuple[bytes, int, Job] | None]:
    """Find the member of a delayed job by its id, whoever wrote it.

    Jobs whose caller gave an id have an index; the others are looked for with ZSCAN, which misses
    nothing that is there from its beginning to its end. Pages by rank would: when jobs before the
    page are promoted, those behind it move up into the page that was just read.
    """
    member = yield command("GET", keys.didx(job_id), parse=as_is)
    if member is not None:
        score = yield command("ZSCORE", keys.delayed, member, parse=as_is)
        if score is not None and (job := _read(member)) is not None:
            return member, as_score(score), job
    cursor = b"0"
    while True:
        cursor, members = yield scan(keys, cursor, job_id)
        for member, due_ms in members:
            if (job := _read(member)) is not None and job.id == job_id:
                return member, due_ms, job
        if cursor == b"0":
            return None


def _read(member: bytes) -> Job | None:
    try:
        return decode_member(member)
    except DecodeError:
        return None


def cancel_member(keys: Keys, job_id: str, member: bytes = b"") -> Op[bool]:
    place = place_of(job_id)
    dead = keys.batch_dead(place.batch, place.part) if place else keys.cancelled
    names = [keys.delayed, keys.didx(job_id), keys.dlid(job_id), keys.unique(job_id), dead]
    bit = place.index if place else -1
    return script("cancel", as_true, names, [member, bit, BATCH_LIFE_MS])


def cancel(keys: Keys, job_id: str) -> Flow[bool]:
    """Take a delayed job back; says False if it is not delayed (any more)."""
    if (yield cancel_member(keys, job_id)):
        return True
    found = yield from locate(keys, job_id)
    if found is None:
        return False
    taken: bool = yield cancel_member(keys, job_id, found[0])
    return taken


def ask_cancel(keys: Keys, job_id: str, now_ms: int) -> Flow[None]:
    """Ask the workers to drop a job that waits and to interrupt it if it runs."""
    yield [
        command("ZADD", keys.cancelled, now_ms, job_id, parse=as_int),
        command("ZREMRANGEBYSCORE", keys.cancelled, "-inf", now_ms - CANCEL_LIFE_MS, parse=as_int),
        command("PEXPIRE", keys.cancelled, CANCEL_LIFE_MS, parse=as_int),
    ]


def reschedule_member(
    keys: Keys, job_id: str, run_at_ms: int, life_s: int, member: bytes
) -> Op[bool]:
    names = [keys.delayed, keys.didx(job_id), keys.dlid(job_id)]
    return script("reschedule", as_true, names, [member, run_at_ms, life_s])


def reschedule(keys: Keys, job_id: str, run_at_ms: int, now_ms: int) -> Flow[bool]:
    """Give a delayed job another due time; says False if it is not delayed (any more)."""
    life_s = marker_life_s(run_at_ms - now_ms)
    if (yield reschedule_member(keys, job_id, run_at_ms, life_s, b"")):
        return True
    found = yield from locate(keys, job_id)
    if found is None:
        return False
    moved: bool = yield reschedule_member(keys, job_id, run_at_ms, life_s, found[0])
    return moved


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion did. `next_due_ms` is 0 if nothing is delayed any more."""

    moved: int
    left: int
    late_ms: int
    next_due_ms: int
    now_ms: int
    buried: int
    job_ids: tuple[str, ...]


def _promoted(reply: Any) -> Promoted:
    ids = tuple(filter(None, map(decode_id, reply[6])))
    moved, left, late_ms, next_due_ms, now_ms, buried = (int(number) for number in reply[:6])
    return Promoted(moved, left, late_ms, next_due_ms, now_ms, buried, ids)


def promote(keys: Keys, at_most: int) -> Op[Promoted]:
    """Move due jobs to the stream."""
    return script("promote", _promoted, [keys.delayed, keys.stream, keys.dlq], [at_most])


def forget_index(keys: Keys, job_ids: tuple[str, ...]) -> Op[int]:
    """Drop the cancel index of promoted jobs, as ChasquiMQ's promoter does."""
    return command("DEL", *(keys.didx(job_id) for job_id in job_ids), parse=as_int)
