"""take, ack, nack, extend, bury, block: leases between the stream and whoever holds them.

produce, stats, trim, unblock, create, snapshot: what is done to a leased queue from outside.

snapshot, restore: the whole state of a leased queue as one value, and back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, parse_batch_job_id
from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.command import (
    Arg,
    Command,
    CommandFlow,
    as_bool,
    as_bools,
    as_int,
    as_pairs,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.consumer_group import (
    NewDeadLetter,
    ParsedEntry,
    parse_entry,
)
from airflow_provider_chasqui.core.commands.dead_letters import parse_dead_letter
from airflow_provider_chasqui.core.commands.enqueue import IDEMPOTENCY_TTL_MS
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument, QueueNotFound
from airflow_provider_chasqui.core.job import DeadLetter, InvalidEntry, Job, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import BlockedEntry, LeaseConfig, LeaseHandle, LeaseStats

STATUS_OK, TOO_MANY_IN_FLIGHT, TOO_MANY_UNACKNOWLEDGED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """What a take answered. `due_in_ms` is when something may be free next; -1 if unknown."""

    status: int
    now_ms: int
    due_in_ms: int
    delayed_due_ms: int
    last_entry_id: str
    fencing_token: int
    entries: list[ParsedEntry]


def acquire(
    keys: Keys, config: LeaseConfig, consumer: str, count: int, ttl_ms: int, max_bytes: int
) -> Command[LeaseReply]:
    """Lease up to `count` entries for `life_ms`."""

    def read(reply: Any) -> LeaseReply:
        status, now_ms, due_in_ms, delayed_due_ms, tail, fence, raw = reply
        entries = [parse_entry(each, max_bytes) for each in raw]
        return LeaseReply(
            status, now_ms, int(due_in_ms), delayed_due_ms, tail.decode(), int(fence), entries
        )

    limits = (config.max_in_flight or 0, config.max_unacknowledged or 0)
    if not config.exclusive:
        args: list[Arg] = [config.group, consumer, count, config.claim_after_ms, ttl_ms, *limits]
        return script_command("lease_acquire", read, [keys.stream, keys.delayed], args)
    parts = ("deadlines", "redeliver_at", "owners", "blocked", "max_deliveries", "fencing_token", "config")
    names = [keys.stream, keys.delayed, keys.dlq, *(keys.lease(part) for part in parts)]
    args = [config.group, consumer, count, ttl_ms, config.max_deliveries, config.on_max_deliveries]
    args += [int(config.ordered), *limits, config.stored_config_json()]
    return script_command("lease_acquire_exclusive", read, names, args)


def make_handle(
    keys: Keys,
    config: LeaseConfig,
    consumer: str,
    fencing_token: int,
    entry: StreamEntry | InvalidEntry,
) -> LeaseHandle:
    """Return the hold on an entry that was just taken."""
    count = entry.previous_deliveries + 1
    if isinstance(entry, InvalidEntry):
        return LeaseHandle(
            keys.queue_name, entry.id, consumer, count, fencing_token, "", entry.job_name, count
        )
    # An exclusive entry is never published anew, so its own count is all there is.
    ran = 0 if config.exclusive else entry.job.attempt
    return LeaseHandle(
        keys.queue_name,
        entry.id,
        consumer,
        count,
        fencing_token,
        entry.job.id,
        entry.job.name,
        count + ran,
    )


def wait_for_entry(keys: Keys, last_entry_id: str, block_ms: int) -> Command[Any]:
    """Wait until something is appended behind the tail, and leave it there."""
    head = ("XREAD", "COUNT", 1, "BLOCK", block_ms)
    return redis_command(
        *head, "STREAMS", keys.stream, last_entry_id, parse=as_raw, block_ms=block_ms
    )


def _false_if_missing(command: Command[list[bool]], count: int) -> Command[list[bool]]:
    return replace(command, default_if_missing=lambda: [False] * count)


def _key_indexer(key_names: list[str]) -> Callable[[str], int]:
    """Return a function that puts a key behind those given, once, and says its number."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        if name not in numbers:
            key_names.append(name)
            numbers[name] = len(key_names)
        return numbers[name]

    return number


def ack(keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle]) -> Command[list[bool]]:
    """Settle leases for good; a job of a batch is done with it."""
    names = [keys.stream, *(keys.lease(part) for part in ("deadlines", "owners", "max_deliveries"))]
    number = _key_indexer(names)
    args: list[Arg] = [config.group, BATCH_TTL_MS]
    for one in handles:
        place = parse_batch_job_id(one.job_id)
        bits = number(keys.batch_done(place.batch_id, place.part)) if place else 0
        args += (*_handle_args(one), bits, place.index if place else 0)
    return _false_if_missing(script_command("lease_ack", as_bools, names, args), len(handles))


def _handle_args(handle: LeaseHandle) -> tuple[Arg, ...]:
    return handle.entry_id, handle.consumer, handle.entry_deliveries, handle.fencing_token


def move_to_dlq(
    keys: Keys, config: LeaseConfig, dead_letters: Iterable[tuple[LeaseHandle, NewDeadLetter]]
) -> Command[list[bool]]:
    """Settle leases and write their letters."""
    names = [keys.stream, keys.dlq, *(keys.lease(part) for part in ("deadlines", "owners", "max_deliveries"))]
    number = _key_indexer(names)
    args: list[Arg] = [config.group, BATCH_TTL_MS]
    count = 0
    for one, burial in dead_letters:
        place = parse_batch_job_id(one.job_id)
        dead = number(keys.batch_dead(place.batch_id, place.part)) if place else 0
        fields = burial.fields()
        args += (*_handle_args(one), dead, place.index if place else 0, len(fields), *fields)
        count += 1
    return _false_if_missing(script_command("lease_move_to_dlq", as_bools, names, args), count)


def extend(
    keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle], ttl_ms: int
) -> Command[tuple[int, list[bool]]]:
    """Let leases run anew from now; answers the new deadline, and which still stood."""
    names = [keys.stream, keys.lease("deadlines"), keys.lease("owners")]
    args: list[Arg] = [config.group, config.claim_after_ms, ttl_ms]
    for one in handles:
        args += _handle_args(one)
    op = script_command(
        "lease_extend", lambda reply: (int(reply[0]), as_bools(reply[1:])), names, args
    )
    return replace(op, default_if_missing=lambda: (0, [False] * len(handles)))


def nack(
    keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle], delay_ms: int
) -> Command[list[bool]]:
    """Hand entries back, to be leased again after a delay."""
    names = [keys.stream, *(keys.lease(part) for part in ("deadlines", "redeliver_at", "owners"))]
    args: list[Arg] = [config.group, config.claim_after_ms, delay_ms, int(config.ordered)]
    for one in handles:
        args += _handle_args(one)
    return _false_if_missing(script_command("lease_nack", as_bools, names, args), len(handles))


def schedule_retries(
    keys: Keys, config: LeaseConfig, retries: Sequence[tuple[LeaseHandle, Job]], run_at_ms: int
) -> Command[list[bool]]:
    """Settle entries and park their jobs as a worker's retry would: one attempt more, a new entry.

    The deliveries of the entry are in that attempt, because the new entry begins to count anew.
    """
    args: list[Arg] = [config.group]
    for one, job in retries:
        name = job.name.encode("utf-8", "surrogatepass")
        member = encode_delayed_member(name, encode_job(job, attempt=one.deliveries))
        args += (one.entry_id, one.consumer, one.entry_deliveries, run_at_ms, member)
    names = [keys.stream, keys.delayed, keys.lease("owners")]
    return _false_if_missing(
        script_command("lease_schedule_retries", as_bools, names, args), len(retries)
    )


def block(keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle]) -> Command[list[bool]]:
    """Set entries aside where they are (exclusive mode)."""
    names = [keys.stream, *(keys.lease(part) for part in ("deadlines", "redeliver_at", "owners", "blocked"))]
    args: list[Arg] = [config.group, int(config.ordered)]
    for one in handles:
        args += _handle_args(one)
    return _false_if_missing(script_command("lease_block", as_bools, names, args), len(handles))


def set_aside(
    keys: Keys, config: LeaseConfig, dead_letters: Sequence[tuple[LeaseHandle, NewDeadLetter]]
) -> Command[list[bool]]:
    """Move entries out of the stream (shared mode)."""
    args: list[Arg] = [config.group]
    for one, burial in dead_letters:
        fields = burial.fields()
        args += (one.entry_id, one.consumer, one.entry_deliveries, len(fields), *fields)
    names = [keys.stream, keys.lease("blocked_entries"), keys.lease("owners")]
    return _false_if_missing(
        script_command("lease_set_aside", as_bools, names, args), len(dead_letters)
    )


def get_entry(keys: Keys, entry_id: str) -> Command[list[Any]]:
    """The raw entry, or an empty list."""
    return redis_command("XRANGE", keys.stream, entry_id, entry_id, parse=as_raw)


TRIM_PAGE_SIZE = 500
CLIENT_TTL_MS = 30 * 24 * 3600 * 1000
_LEASE_KEY_PARTS = (
    *("deadlines", "redeliver_at", "owners", "blocked", "max_deliveries", "fencing_token", "config"),
    *("producers", "producers_seen", "blocked_entries", "restore_staging"),
)


def produce(
    keys: Keys,
    messages: Sequence[tuple[int | str, bytes, bytes]],
    *,
    token: str,
    client: str = "",
    expected_last_id: str = "",
    strict: bool = False,
    max_len: int = 0,
) -> Command[list[str | None]]:
    """Append messages (sequence number, d, n); None for one whose number was used before."""
    args: list[Arg] = [
        IDEMPOTENCY_TTL_MS,
        expected_last_id,
        client,
        int(strict),
        max_len,
        CLIENT_TTL_MS,
    ]
    for message in messages:
        args += message
    names = [
        keys.stream,
        keys.idempotency_marker(token),
        keys.lease("producers"),
        keys.lease("producers_seen"),
    ]
    return script_command(
        "lease_produce", lambda reply: [entry.decode() or None for entry in reply], names, args
    )


def stats(keys: Keys, config: LeaseConfig) -> Command[LeaseStats]:
    """Count what the queue holds, at one moment."""
    parts = ("deadlines", "redeliver_at", "blocked", "blocked_entries")
    names = [keys.stream, keys.delayed, keys.dlq, *(keys.lease(part) for part in parts)]
    args: list[Arg] = [config.group, config.claim_after_ms, int(config.exclusive)]

    def read(reply: Any) -> LeaseStats:
        if not reply[0]:
            raise QueueNotFound("there is no such queue", queue_name=keys.queue_name)
        tail, first, length, added, delivered, pending, live, nacked, blocked = reply[1:10]
        aside = blocked if config.exclusive else 0
        return LeaseStats(
            last_entry_id=tail.decode(),
            first_entry_id=first.decode() or None,
            length=length,
            added=added,
            delivered=None if delivered < 0 else delivered,
            waiting=max(0, length - pending),
            in_flight=live,
            available=max(0, pending - live - nacked - aside),
            nacked=nacked,
            blocked=blocked,
            unacknowledged=pending,
            delayed=reply[10],
            dead=reply[11],
        )

    return script_command("lease_stats", read, names, args)


def trim(keys: Keys, config: LeaseConfig, before_id: str) -> CommandFlow[int]:
    """Delete waiting entries before `keep_from`, up to the first one that somebody has to do with.

    Jobs of a batch count as dead with it.
    """
    dropped = 0
    while raw := (yield _entries_before(keys, before_id)):
        names = [keys.stream]
        args: list[Arg] = [config.group, BATCH_TTL_MS]
        for each in raw:
            entry = parse_entry(each, 2**62)
            place = parse_batch_job_id(entry.job.id) if isinstance(entry, StreamEntry) else None
            number = 0
            if place:
                dead = keys.batch_dead(place.batch_id, place.part)
                if dead not in names:
                    names.append(dead)
                number = names.index(dead) + 1
            args += (entry.id, number, place.index if place else 0)
        gone = yield script_command("lease_trim", as_int, names, args)
        dropped += gone
        if gone < len(raw):
            break
    return dropped


def _entries_before(keys: Keys, before_id: str) -> Command[list[Any]]:
    return redis_command(
        "XRANGE", keys.stream, "-", f"({before_id}", "COUNT", TRIM_PAGE_SIZE, parse=as_raw
    )


def list_blocked(keys: Keys, config: LeaseConfig, limit: int) -> CommandFlow[list[BlockedEntry]]:
    """Return entries that are set aside, oldest first."""
    if not config.exclusive:
        raw = yield redis_command(
            "XRANGE", keys.lease("blocked_entries"), "-", "+", "COUNT", limit, parse=as_raw
        )
        aside = [parse_dead_letter(each) for each in raw]
        return [BlockedEntry(one.id, one.job, one.attempts or 0, one.source_id) for one in aside]
    scored = yield redis_command("ZRANGE", keys.lease("blocked"), 0, -1, "WITHSCORES", parse=as_raw)
    counts = {member.decode(): int(float(score)) for member, score in as_pairs(scored)}
    ids = sorted(counts, key=lambda each: tuple(map(int, each.split("-"))))[:limit]
    if not ids:
        return []
    found = yield [
        redis_command("XRANGE", keys.stream, entry_id, entry_id, parse=as_raw) for entry_id in ids
    ]
    entries = []
    for entry_id, raw in zip(ids, found, strict=True):
        one = parse_entry(raw[0], 2**62) if raw else None
        job = one.job if isinstance(one, StreamEntry) else None
        entries.append(BlockedEntry(entry_id, job, counts[entry_id], entry_id))
    return entries


def unblock(keys: Keys, entry_id: str, extra_deliveries: int) -> Command[bool]:
    """Let a blocked entry be leased again (exclusive mode)."""
    names = [keys.lease(part) for part in ("blocked", "redeliver_at", "max_deliveries")]
    return script_command("lease_unblock", as_bool, names, [entry_id, extra_deliveries])


def move_blocked_to_dlq(
    keys: Keys, config: LeaseConfig, entry_id: str, dead_letter: NewDeadLetter
) -> Command[bool]:
    """Make a letter of a blocked entry (exclusive mode)."""
    place = parse_batch_job_id(dead_letter.job_id)
    dead = keys.batch_dead(place.batch_id, place.part) if place else keys.dlq
    names = [keys.stream, keys.dlq, keys.lease("blocked"), keys.lease("max_deliveries"), dead]
    args: list[Arg] = [config.group, entry_id, place.index if place else -1, BATCH_TTL_MS]
    return script_command(
        "lease_move_blocked_to_dlq", as_bool, names, [*args, *dead_letter.fields()]
    )


def get_set_aside(keys: Keys, entry_id: str) -> Command[DeadLetter | None]:
    """An entry that was moved out of the stream (shared mode)."""
    return redis_command(
        "XRANGE", keys.lease("blocked_entries"), entry_id, entry_id,
        parse=lambda reply: parse_dead_letter(reply[0]) if reply else None,
    )  # fmt: skip


def restore_set_aside(
    keys: Keys, entry: DeadLetter, dead_letter: NewDeadLetter | None
) -> Command[bool]:
    """Put such an entry back on the stream, or among the letters if a burial is given."""
    place = parse_batch_job_id(entry.job_id or "")
    dead = keys.batch_dead(place.batch_id, place.part) if place else keys.dlq
    names = [keys.lease("blocked_entries"), keys.stream, keys.dlq, dead]
    args: list[Arg] = [entry.id, int(dead_letter is not None), place.index if place else -1]
    args += (BATCH_TTL_MS, entry.raw, entry.job_name)
    return script_command(
        "lease_restore_set_aside",
        as_bool,
        names,
        args + (dead_letter.fields() if dead_letter else []),
    )


def create_queue(keys: Keys, config: LeaseConfig) -> Command[int]:
    """Make a queue, or agree with the one that is there."""
    names = [keys.stream, keys.lease("config")]
    agreed = config.stored_config_json() if config.exclusive else ""
    return script_command("lease_create_queue", as_int, names, [config.group, agreed])


def delete_queue(keys: Keys, include_dead_letters: bool) -> Command[int]:
    """Delete the queue's entries and all that leases know of it."""
    names = [keys.stream, keys.delayed, *(keys.lease(part) for part in _LEASE_KEY_PARTS)]
    return redis_command("DEL", *names, *([keys.dlq] if include_dead_letters else []), parse=as_int)


def organisation_key(organisation_id: str) -> str:
    return f"{{chasqui:_registry}}:org:{organisation_id}"


def register_queue(organisation_id: str, queue_name: str, max_queues: int) -> Command[bool]:
    """Enter a queue in its organisation's list; False if it was there."""
    return script_command(
        "lease_register_queue",
        as_bool,
        [organisation_key(organisation_id)],
        [queue_name, max_queues],
    )


def unregister_queue(organisation_id: str, queue_name: str) -> Command[int]:
    return redis_command("SREM", organisation_key(organisation_id), queue_name, parse=as_int)


SNAPSHOT_SCHEMA = 1
_RESTORE_CHUNK_SIZE = 500
_STAGING_TTL_MS = 3600 * 1000
_SNAPSHOT_KEY_PARTS = (
    *("deadlines", "redeliver_at", "owners", "blocked", "max_deliveries", "fencing_token", "config"),
    *("producers", "blocked_entries"),
)
_SNAPSHOT_FIELDS = (
    *("tail", "added", "deleted", "cursor", "read", "entries", "pending", "delayed"),
    *_SNAPSHOT_KEY_PARTS,
)
_ZSET_PARTS, _HASH_PARTS, _STRING_PARTS = (
    ("deadlines", "redeliver_at", "blocked"),
    ("owners", "max_deliveries", "producers"),
    (
        "fencing_token",
        "config",
    ),
)


def _bytes_to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_bytes_to_json(each) for each in value] if isinstance(value, list) else value


def _bytes_from_json(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value)
    return [_bytes_from_json(each) for each in value] if isinstance(value, list) else value


def snapshot(keys: Keys, config: LeaseConfig, limit: int) -> Command[str]:
    """Read the whole queue at one moment, as text. The server does nothing else meanwhile."""

    def read(reply: Any) -> str:
        state = {
            name: _bytes_to_json(value) for name, value in zip(_SNAPSHOT_FIELDS, reply, strict=True)
        }
        head = {"schema": SNAPSHOT_SCHEMA, "group": config.group, "mode": config.mode}
        return json.dumps(head | state, separators=(",", ":"))

    names = [keys.stream, keys.delayed, *(keys.lease(part) for part in _SNAPSHOT_KEY_PARTS)]
    return script_command("lease_snapshot", read, names, [config.group, limit])


def restore(keys: Keys, config: LeaseConfig, snapshot_json: str) -> CommandFlow[int]:
    """Make the queue of a snapshot; refuses where it is there already. Returns its entries.

    Entries are staged out of sight and become the stream in one step, last of all, so a crash
    leaves either nothing or everything; what was staged expires.
    """
    state = _parse_snapshot(snapshot_json, config)
    staging, entries = keys.lease("restore_staging"), state["entries"]
    yield redis_command("DEL", staging, parse=as_int)
    for start in range(0, len(entries), _RESTORE_CHUNK_SIZE):
        part = entries[start : start + _RESTORE_CHUNK_SIZE]
        yield [redis_command("XADD", staging, each[0], *each[1], parse=as_raw) for each in part]
        yield redis_command("PEXPIRE", staging, _STAGING_TTL_MS, parse=as_int)
    if (yield redis_command("EXISTS", keys.stream, parse=as_int)):
        raise InvalidArgument(
            "the queue is there already: delete it first, or restore under another name",
            queue_name=keys.queue_name,
        )
    yield [op for name in _SNAPSHOT_KEY_PARTS for op in _restore_commands(keys, name, state[name])]
    yield _zadd_commands(keys.delayed, state["delayed"])
    args: list[Arg] = [config.group, state["cursor"], state["read"], state["tail"]]
    args += (state["added"], state["deleted"], len(entries))
    for entry_id, consumer, idle_ms, count in _pending_on_stream(state):
        args += (entry_id, consumer, idle_ms, count)
    yield script_command("lease_restore", as_int, [staging, keys.stream], args)
    return len(entries)


def _parse_snapshot(snapshot_json: str, config: LeaseConfig) -> dict[str, Any]:
    try:
        state = json.loads(snapshot_json)
        if state["schema"] != SNAPSHOT_SCHEMA:
            raise DecodeError(
                f"the snapshot is of schema {state['schema']}, this reads {SNAPSHOT_SCHEMA}"
            )
        if (state["group"], state["mode"]) != (config.group, config.mode):
            raise InvalidArgument(
                f"the snapshot is of mode {state['mode']!r} and group {state['group']!r}: restore "
                "it with those"
            )
        return {name: _bytes_from_json(state[name]) for name in _SNAPSHOT_FIELDS}
    except (KeyError, TypeError, ValueError) as cause:
        if isinstance(cause, InvalidArgument):
            raise
        raise DecodeError("this is not a snapshot of a leased queue") from cause


def _pending_on_stream(state: dict[str, Any]) -> list[list[Any]]:
    """Pending entries that are still on the stream."""
    there = {each[0] for each in state["entries"]}
    return [each for each in state["pending"] if each[0] in there]


def _restore_commands(keys: Keys, key_part: str, value: Any) -> list[Command[Any]]:
    key = keys.lease(key_part)
    if key_part == "blocked_entries":
        return [redis_command("XADD", key, each[0], *each[1], parse=as_raw) for each in value]
    if not value or value == b"0":
        return []
    if key_part in _ZSET_PARTS:
        return _zadd_commands(key, value)
    verb = "SET" if key_part in _STRING_PARTS else "HSET"
    args: Sequence[Arg] = [value] if key_part in _STRING_PARTS else value
    return [redis_command(verb, key, *args, parse=as_raw)]


def _zadd_commands(key: str, members_and_scores: list[Any]) -> list[Command[Any]]:
    return [
        redis_command("ZADD", key, score, member, parse=as_raw)
        for member, score in as_pairs(members_and_scores)
    ]
