"""repeat put, list, drop and fire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_chasqui.core.batch import check_number
from airflow_provider_chasqui.core.codec import encode_envelope, encode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import (
    Arg,
    Flow,
    Op,
    as_int,
    as_is,
    as_score,
    as_true,
    command,
    script,
)
from airflow_provider_chasqui.core.repeat import (
    Due,
    Repeat,
    RepeatStatus,
    decode_repeat,
    encode_repeat,
)
from airflow_provider_chasqui.core.replies import pairs


def put(keys: Keys, repeat: Repeat, now_ms: int) -> Op[int]:
    """Write a repeat and its first fire."""
    names = [keys.repeat, keys.repeat_spec(repeat.key)]
    args: list[Arg] = [repeat.first_fire(now_ms), repeat.key, encode_repeat(repeat)]
    return script("repeat_put", as_int, names, args)


def drop(keys: Keys, key: str) -> Op[bool]:
    """Remove a repeat."""
    return script("repeat_drop", as_true, [keys.repeat, keys.repeat_spec(key)], [key])


def _scored(reply: Any) -> list[tuple[str, int]]:
    return [
        (key.decode("utf-8", "surrogateescape"), as_score(score)) for key, score in pairs(reply)
    ]


def list_all(keys: Keys, limit: int) -> Flow[list[RepeatStatus]]:
    """Return the repeats, next fire first; bodies that cannot be read are left out."""
    check_number("limit", limit, 1)
    scored = yield command("ZRANGE", keys.repeat, 0, limit - 1, "WITHSCORES", parse=_scored)
    bodies = yield [_body(keys, key) for key, _ in scored]
    found = []
    for (_, score_ms), (raw, fired) in zip(scored, bodies, strict=True):
        try:
            count = int(fired) if fired is not None and fired.isdigit() else 0
            found.append(RepeatStatus(decode_repeat(raw or b""), score_ms, count))
        except DecodeError:
            continue
    return found


def _body(keys: Keys, key: str) -> Op[Any]:
    return command("HMGET", keys.repeat_spec(key), "spec", "fired", parse=as_is)


def due_keys(keys: Keys, now_ms: int, at_most: int) -> Flow[list[tuple[str, int, bytes | None]]]:
    """Return repeats that are due: key, score, body."""
    scored = yield command(
        "ZRANGEBYSCORE", keys.repeat, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, at_most,
        parse=_scored,
    )  # fmt: skip
    bodies = yield [_body(keys, key) for key, _ in scored]
    return [(key, score, raw) for (key, score), (raw, _) in zip(scored, bodies, strict=True)]


def next_fire(keys: Keys) -> Op[int | None]:
    """The soonest fire of any repeat, or None."""
    return command(
        "ZRANGE", keys.repeat, 0, 0, "WITHSCORES",
        parse=lambda reply: as_score(reply[1]) if reply else None,
    )  # fmt: skip


def fire(
    keys: Keys, repeat: Repeat, score_ms: int, due: Due, job_ids: Sequence[str], now_ms: int
) -> Op[tuple[int, bool]]:
    """Put due fires on the queue; answers how many (-1: someone else did) and if it ended."""
    args: list[Arg] = [
        repeat.key, score_ms, due.next_ms, repeat.limit or 0, repeat.end_ms or 0, now_ms,
    ]  # fmt: skip
    name = repeat.name.encode("utf-8", "surrogatepass")
    for fire_ms, job_id in zip(due.fires_ms, job_ids, strict=True):
        args += (fire_ms, encode_member(name, encode_envelope(job_id, repeat.body, now_ms)))
    names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec(repeat.key)]
    return script("fire", lambda reply: (int(reply[0]), bool(reply[1])), names, args)
