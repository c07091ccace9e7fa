"""jobs, groups, batches: what a queue holds, page by page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.codec import decode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Entry, Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Op, as_is, command
from airflow_provider_chasqui.core.ops import delayed
from airflow_provider_chasqui.core.ops.delivery import delivery

_ANY_SIZE = 2**62
_SCANNED = 2000


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group of a queue's stream. `lag` is None where the server cannot tell."""

    name: str
    consumers: int
    pending: int
    last_id: str
    lag: int | None


def groups(keys: Keys) -> Op[list[GroupStatus]]:
    """The consumer groups of the stream."""
    return command("XINFO", "GROUPS", keys.stream, parse=_groups, absent=list)


def _groups(reply: Any) -> list[GroupStatus]:
    found = []
    for raw in reply:
        info = {raw[i]: raw[i + 1] for i in range(0, len(raw), 2)}
        found.append(
            GroupStatus(
                info[b"name"].decode("utf-8", "replace"),
                int(info[b"consumers"]),
                int(info[b"pending"]),
                info[b"last-delivered-id"].decode(),
                info.get(b"lag"),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in a listing; `job` is None where its bytes cannot be read.

    `place` is what the next page continues from: the entry's id, or the rank of a delayed job.
    """

    state: str
    place: str
    job: Job | None
    due_ms: int | None = None
    consumer: str | None = None
    idle_ms: int | None = None
    deliveries: int | None = None


def waiting(keys: Keys, group: str, after: str | None, limit: int) -> Flow[list[Listed]]:
    """Entries that nobody has taken, oldest first, from behind the entry `after`."""
    start = f"({after}" if after else "-"
    if not after:
        mine = [each for each in (yield groups(keys)) if each.name == group]
        if mine and mine[0].last_id != "0-0":
            start = f"({mine[0].last_id}"
    raw = yield command("XRANGE", keys.stream, start, "+", "COUNT", limit, parse=as_is)
    return [Listed("waiting", each[0].decode(), _job(each)) for each in raw]


def running(keys: Keys, group: str, after: str | None, limit: int) -> Flow[list[Listed]]:
    """Entries that a worker has taken, oldest first, with who has them and for how long."""
    start = f"({after}" if after else "-"
    pending = yield command(
        "XPENDING", keys.stream, group, start, "+", limit, parse=as_is, absent=list
    )
    if not pending:
        return []
    raws = yield [
        command("XRANGE", keys.stream, each[0], each[0], "COUNT", 1, parse=as_is)
        for each in pending
    ]
    return [
        Listed(
            "running",
            each[0].decode(),
            _job(raw[0]) if raw else None,
            consumer=each[1].decode("utf-8", "replace"),
            idle_ms=int(each[2]),
            deliveries=int(each[3]),
        )
        for each, raw in zip(pending, raws, strict=True)
    ]


def later(keys: Keys, after: str | None, limit: int) -> Flow[list[Listed]]:
    """Delayed jobs, soonest first, from behind the rank `after`."""
    first = int(after) + 1 if after else 0
    members = yield delayed.page(keys, first, limit)
    found = []
    for rank, (member, due_ms) in enumerate(members, first):
        try:
            job = decode_member(member)
        except DecodeError:
            job = None
        found.append(Listed("delayed", str(rank), job, due_ms))
    return found


def _job(raw: Sequence[Any]) -> Job | None:
    entry = delivery(raw, _ANY_SIZE)
    return entry.job if isinstance(entry, Entry) else None


def batch_ids(keys: Keys, limit: int) -> Flow[list[str]]:
    """The ids of batches that are remembered, in no order.

    Looks through every key of the server in small steps, so it is for people, not for loops.
    """
    prefix = keys.batch("").encode()
    pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
    found: dict[str, None] = {}
    cursor = b"0"
    while True:
        cursor, names = yield command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "hash", parse=as_is
        )
        for name in names:
            found[name[len(prefix) :].decode("utf-8", "replace")] = None
        if cursor == b"0" or len(found) >= limit:
            return list(found)[:limit]
