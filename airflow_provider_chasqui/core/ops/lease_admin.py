"""produce, stats, trim, unblock, create, snapshot: what is done to a leased queue from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, place_of
from airflow_provider_chasqui.core.errors import UnknownQueue
from airflow_provider_chasqui.core.job import Entry, Letter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Blocked, LeaseConfig, LeaseStats
from airflow_provider_chasqui.core.op import (
    Arg,
    Flow,
    Op,
    as_int,
    as_is,
    as_true,
    command,
    script,
)
from airflow_provider_chasqui.core.ops.adding import ONCE_MS
from airflow_provider_chasqui.core.ops.delivery import Burial, delivery
from airflow_provider_chasqui.core.ops.letters import letter
from airflow_provider_chasqui.core.replies import pairs

PAGE = 500
CLIENTS_KEPT_MS = 30 * 24 * 3600 * 1000
_SIDE_KEYS = (
    *("held", "later", "owners", "blocked", "grants", "fence", "config"),
    *("producers", "seen", "aside", "restore"),
)


def produce(
    keys: Keys,
    messages: Sequence[tuple[int | str, bytes, bytes]],
    *,
    token: str,
    client: str = "",
    expected: str = "",
    strict: bool = False,
    max_len: int = 0,
) -> Op[list[str | None]]:
    """Append messages (sequence number, d, n); None for one whose number was used before."""
    args: list[Arg] = [ONCE_MS, expected, client, int(strict), max_len, CLIENTS_KEPT_MS]
    for message in messages:
        args += message
    names = [keys.stream, keys.once(token), keys.lease("producers"), keys.lease("seen")]
    return script(
        "lease_produce", lambda reply: [entry.decode() or None for entry in reply], names, args
    )


def stats(keys: Keys, config: LeaseConfig) -> Op[LeaseStats]:
    """Count what the queue holds, at one moment."""
    parts = ("held", "later", "blocked", "aside")
    names = [keys.stream, keys.delayed, keys.dlq, *(keys.lease(part) for part in parts)]
    args: list[Arg] = [config.group, config.reclaim_ms, int(config.exclusive)]

    def read(reply: Any) -> LeaseStats:
        if not reply[0]:
            raise UnknownQueue("there is no such queue", queue=keys.queue)
        tail, first, length, added, delivered, pending, live, nacked, blocked = reply[1:10]
        aside = blocked if config.exclusive else 0
        return LeaseStats(
            tail=tail.decode(),
            first=first.decode() or None,
            length=length,
            added=added,
            delivered=None if delivered < 0 else delivered,
            waiting=max(0, length - pending),
            in_flight=live,
            available=max(0, pending - live - nacked - aside),
            nacked=nacked,
            blocked=blocked,
            pinned=pending,
            delayed=reply[10],
            dead=reply[11],
        )

    return script("lease_stats", read, names, args)


def trim(keys: Keys, config: LeaseConfig, keep_from: str) -> Flow[int]:
    """Delete waiting entries before `keep_from`, up to the first one that somebody has to do with.

    Jobs of a batch count as dead with it.
    """
    dropped = 0
    while raw := (yield _before(keys, keep_from)):
        names = [keys.stream]
        args: list[Arg] = [config.group, BATCH_LIFE_MS]
        for each in raw:
            entry = delivery(each, 2**62)
            place = place_of(entry.job.id) if isinstance(entry, Entry) else None
            number = 0
            if place:
                dead = keys.batch_dead(place.batch, place.part)
                if dead not in names:
                    names.append(dead)
                number = names.index(dead) + 1
            args += (entry.id, number, place.index if place else 0)
        gone = yield script("lease_drop", as_int, names, args)
        dropped += gone
        if gone < len(raw):
            break
    return dropped


def _before(keys: Keys, keep_from: str) -> Op[list[Any]]:
    return command("XRANGE", keys.stream, "-", f"({keep_from}", "COUNT", PAGE, parse=as_is)


def blocked(keys: Keys, config: LeaseConfig, limit: int) -> Flow[list[Blocked]]:
    """Return entries that are set aside, oldest first."""
    if not config.exclusive:
        raw = yield command("XRANGE", keys.lease("aside"), "-", "+", "COUNT", limit, parse=as_is)
        aside = [letter(each) for each in raw]
        return [Blocked(one.id, one.job, one.attempts or 0, one.source_id) for one in aside]
    scored = yield command("ZRANGE", keys.lease("blocked"), 0, -1, "WITHSCORES", parse=as_is)
    counts = {member.decode(): int(float(score)) for member, score in pairs(scored)}
    ids = sorted(counts, key=lambda each: tuple(map(int, each.split("-"))))[:limit]
    if not ids:
        return []
    found = yield [
        command("XRANGE", keys.stream, entry_id, entry_id, parse=as_is) for entry_id in ids
    ]
    entries = []
    for entry_id, raw in zip(ids, found, strict=True):
        one = delivery(raw[0], 2**62) if raw else None
        job = one.job if isinstance(one, Entry) else None
        entries.append(Blocked(entry_id, job, counts[entry_id], entry_id))
    return entries


def unblock(keys: Keys, entry_id: str, granted: int) -> Op[bool]:
    """Let a blocked entry be leased again (exclusive mode)."""
    names = [keys.lease(part) for part in ("blocked", "later", "grants")]
    return script("lease_unblock", as_true, names, [entry_id, granted])


def skip(keys: Keys, config: LeaseConfig, entry_id: str, burial: Burial) -> Op[bool]:
    """Make a letter of a blocked entry (exclusive mode)."""
    place = place_of(burial.job_id)
    dead = keys.batch_dead(place.batch, place.part) if place else keys.dlq
    names = [keys.stream, keys.dlq, keys.lease("blocked"), keys.lease("grants"), dead]
    args: list[Arg] = [config.group, entry_id, place.index if place else -1, BATCH_LIFE_MS]
    return script("lease_skip", as_true, names, [*args, *burial.fields()])


def aside(keys: Keys, entry_id: str) -> Op[Letter | None]:
    """An entry that was moved out of the stream (shared mode)."""
    return command(
        "XRANGE", keys.lease("aside"), entry_id, entry_id,
        parse=lambda reply: letter(reply[0]) if reply else None,
    )  # fmt: skip


def unpark(keys: Keys, one: Letter, burial: Burial | None) -> Op[bool]:
    """Put such an entry back on the stream, or among the letters if a burial is given."""
    place = place_of(one.job_id or "")
    dead = keys.batch_dead(place.batch, place.part) if place else keys.dlq
    names = [keys.lease("aside"), keys.stream, keys.dlq, dead]
    args: list[Arg] = [one.id, int(burial is not None), place.index if place else -1]
    args += (BATCH_LIFE_MS, one.raw, one.name)
    return script("lease_unpark", as_true, names, args + (burial.fields() if burial else []))


def create(keys: Keys, config: LeaseConfig) -> Op[int]:
    """Make a queue, or agree with the one that is there."""
    names = [keys.stream, keys.lease("config")]
    agreed = config.agreed() if config.exclusive else ""
    return script("lease_create", as_int, names, [config.group, agreed])


def delete(keys: Keys, letters: bool) -> Op[int]:
    """Delete the queue's entries and all that leases know of it."""
    names = [keys.stream, keys.delayed, *(keys.lease(part) for part in _SIDE_KEYS)]
    return command("DEL", *names, *([keys.dlq] if letters else []), parse=as_int)


def organisation(org: str) -> str:
    return f"{{chasqui:_registry}}:org:{org}"


def enter(org: str, queue: str, most: int) -> Op[bool]:
    """Enter a queue in its organisation's list; False if it was there."""
    return script("lease_quota", as_true, [organisation(org)], [queue, most])


def leave(org: str, queue: str) -> Op[int]:
    return command("SREM", organisation(org), queue, parse=as_int)
