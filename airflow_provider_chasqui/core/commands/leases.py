"""Commands of leased queues: leases, administration, and snapshots."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.chunking import MAX_CHUNK_BYTES, MAX_CHUNK_JOBS, chunked
from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_bool,
    as_bools,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.batch_keys import BatchKeyIndexer
from airflow_provider_chasqui.core.commands.consumer_group import (
    NewDeadLetter,
    ParsedEntry,
    parse_entry,
)
from airflow_provider_chasqui.core.commands.dead_letters import parse_dead_letter
from airflow_provider_chasqui.core.commands.enqueue import result_keys
from airflow_provider_chasqui.core.commands.idempotency import (
    IDEMPOTENCY_TTL_MS,
    marker_of_new_call,
    new_token,
)
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument, QueueNotFound
from airflow_provider_chasqui.core.job import DeadLetter, InvalidEntry, Job, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import BlockedEntry, LeaseConfig, LeaseHandle, LeaseStats
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.stream_id import StreamId

STATUS_OK, TOO_MANY_IN_FLIGHT, TOO_MANY_UNACKNOWLEDGED = 0, 1, 2

TRIM_PAGE_SIZE = 500
# How long the server remembers an acquire call. It is longer than that of other calls, because a
# consumer whose call failed asks for the same entries again in its next call.
ACQUIRE_TTL_MS = 300_000
# The hash tag of the lists of queues of all organisations.
REGISTRY_HASH_TAG = "{chasqui:_registry}"
CLIENT_TTL_MS = 30 * 24 * 3600 * 1000
_NO_SIZE_LIMIT = 2**62

_EXCLUSIVE_KEY_PARTS = (
    "deadlines",
    "redeliver_at",
    "owners",
    "blocked",
    "max_deliveries",
    "fencing_token",
    "config",
)
_SNAPSHOT_KEY_PARTS = (*_EXCLUSIVE_KEY_PARTS, "producers", "blocked_entries")
_ALL_KEY_PARTS = (*_SNAPSHOT_KEY_PARTS, "producers_seen")


def _lease_keys(keys: Keys, *parts: str) -> list[str]:
    return [keys.lease(part) for part in parts]


# Leases


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """The reply to `acquire`.

    `due_in_ms` is the time until another entry may become available; -1 if it is unknown.
    `delayed_due_ms` is the due time of the first delayed job; 0 if there is none.
    """

    status: int
    now_ms: int
    due_in_ms: int
    delayed_due_ms: int
    last_entry_id: str
    fencing_token: int
    entries: list[ParsedEntry]


def acquire(
    keys: Keys,
    config: LeaseConfig,
    consumer: str,
    count: int,
    ttl_ms: int,
    max_bytes: int,
    *,
    session: str,
    token: str,
    claim_until_ms: int,
) -> Command[LeaseReply]:
    """Lease entries.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param consumer: the name of the consumer.
    :param count: the maximum number of entries.
    :param ttl_ms: the duration of the leases.
    :param max_bytes: the maximum size of an entry; a larger one is returned as invalid.
    :param session: the session of the consumer. An ordered queue is leased to one session at a
        time.
    :param token: the idempotency token of the call. A second call with the same token returns the
        same entries and the same fencing token.
    :param claim_until_ms: the latest time of the server at which leases can expire and idle entries
        are claimed, from `ServerClock.claim_until_ms`.
    """

    def parse(reply: Any) -> LeaseReply:
        status, now_ms, due_in_ms, delayed_due_ms, last_id, fencing_token, raw_entries = reply
        return LeaseReply(
            status,
            now_ms,
            int(due_in_ms),
            delayed_due_ms,
            last_id.decode(),
            int(fencing_token),
            [parse_entry(raw, max_bytes) for raw in raw_entries],
        )

    limits = (config.max_in_flight or 0, config.max_unacknowledged or 0)
    names = [keys.idempotency_marker(token), keys.stream, keys.delayed]
    args: list[Arg] = [ACQUIRE_TTL_MS, config.group, consumer]
    if not config.exclusive:
        args += [count, config.claim_after_ms, ttl_ms, *limits, claim_until_ms]
        return script_command("lease_acquire", parse, names, args)
    names += [keys.dlq, *_lease_keys(keys, *_EXCLUSIVE_KEY_PARTS)]
    args += [session, count, ttl_ms, config.max_deliveries, config.on_max_deliveries]
    args += [int(config.ordered), *limits, config.stored_config_json(), claim_until_ms]
    return script_command("lease_acquire_exclusive", parse, names, args)


def make_handle(
    keys: Keys,
    config: LeaseConfig,
    consumer: str,
    fencing_token: int,
    entry: StreamEntry | InvalidEntry,
) -> LeaseHandle:
    """Return the handle of an entry that was just leased.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param consumer: the name of the consumer.
    :param fencing_token: the fencing token of the reply.
    :param entry: the entry.
    """
    count = entry.previous_deliveries + 1
    if isinstance(entry, InvalidEntry):
        return LeaseHandle(
            keys.queue_name, entry.id, consumer, count, fencing_token, "", entry.job_name, count
        )
    # An exclusive entry is never added again, so its delivery count is complete.
    earlier_attempts = 0 if config.exclusive else entry.job.attempt
    return LeaseHandle(
        keys.queue_name,
        entry.id,
        consumer,
        count,
        fencing_token,
        entry.job.id,
        entry.job.name,
        count + earlier_attempts,
        entry.job.created_at_ms,
    )


def wait_for_entry(keys: Keys, last_entry_id: str, block_ms: int) -> Command[Any]:
    """Wait until an entry is added after `last_entry_id`, without consuming it.

    :param keys: the keys of the queue.
    :param last_entry_id: the last known entry id of the stream.
    :param block_ms: the maximum time to wait.
    """
    return redis_command(
        "XREAD",
        "COUNT",
        1,
        "BLOCK",
        block_ms,
        "STREAMS",
        keys.stream,
        last_entry_id,
        parse=as_raw,
        block_ms=block_ms,
    )


def _false_if_missing(command: Command[list[bool]], count: int) -> Command[list[bool]]:
    """Return a command that yields False for all leases if the stream or the group is missing."""
    return replace(command, default_if_missing=lambda: [False] * count)


def _handle_args(handle: LeaseHandle) -> tuple[Arg, ...]:
    return handle.entry_id, handle.consumer, handle.entry_deliveries, handle.fencing_token


def ack(keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle]) -> Command[list[bool]]:
    """Acknowledge leases. A job of a batch gets its done bit.

    :return: a command; its result is for each lease whether it was still valid.
    """
    names = [marker_of_new_call(keys), keys.stream]
    names += _lease_keys(keys, "deadlines", "owners", "max_deliveries")
    batch_args = BatchKeyIndexer(keys, names).args
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group]
    for handle in handles:
        position = parse_batch_job_id(handle.job_id)
        args += (*_handle_args(handle), *batch_args(position, handle.created_at_ms))
    return _false_if_missing(script_command("lease_ack", as_bools, names, args), len(handles))


def move_to_dlq(
    keys: Keys, config: LeaseConfig, dead_letters: Iterable[tuple[LeaseHandle, NewDeadLetter]]
) -> Command[list[bool]]:
    """Acknowledge leases and write their dead letters. A job of a batch gets its dead bit.

    :return: a command; its result is for each lease whether it was still valid.
    """
    names = [marker_of_new_call(keys), keys.stream, keys.dlq]
    names += _lease_keys(keys, "deadlines", "owners", "max_deliveries")
    batch_args = BatchKeyIndexer(keys, names).args
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group]
    count = 0
    for handle, dead_letter in dead_letters:
        fields = dead_letter.fields()
        position = parse_batch_job_id(handle.job_id)
        args += (*_handle_args(handle), *batch_args(position, handle.created_at_ms))
        args += (len(fields), *fields)
        count += 1
    return _false_if_missing(script_command("lease_move_to_dlq", as_bools, names, args), count)


def extend(
    keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle], ttl_ms: int
) -> Command[tuple[int, list[bool]]]:
    """Extend leases; the new duration starts now.

    :return: a command; its result is the new deadline in ms, and for each lease whether it was
        still valid.
    """
    names = [marker_of_new_call(keys), keys.stream, *_lease_keys(keys, "deadlines", "owners")]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, config.claim_after_ms, ttl_ms]
    for handle in handles:
        args += _handle_args(handle)
    command = script_command(
        "lease_extend", lambda reply: (int(reply[0]), as_bools(reply[1:])), names, args
    )
    return replace(command, default_if_missing=lambda: (0, [False] * len(handles)))


def nack(
    keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle], delay_ms: int
) -> Command[list[bool]]:
    """Return entries to the queue; they can be leased again after the delay.

    :return: a command; its result is for each lease whether it was still valid.
    """
    names = [marker_of_new_call(keys), keys.stream]
    names += _lease_keys(keys, "deadlines", "redeliver_at", "owners")
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, config.claim_after_ms, delay_ms]
    args.append(int(config.ordered))
    for handle in handles:
        args += _handle_args(handle)
    return _false_if_missing(script_command("lease_nack", as_bools, names, args), len(handles))


def schedule_retries(
    keys: Keys, config: LeaseConfig, retries: Sequence[tuple[LeaseHandle, Job]], run_at_ms: int
) -> Command[list[bool]]:
    """Acknowledge leases and add their jobs to the delayed set, as a retry of a worker does.

    The attempt count of the job includes the deliveries of the entry, because the new entry starts
    to count at zero.

    :return: a command; its result is for each lease whether it was still valid.
    """
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group]
    for handle, job in retries:
        name = job.name.encode("utf-8", "surrogatepass")
        member = encode_delayed_member(name, encode_job(job, attempt=handle.deliveries))
        args += (handle.entry_id, handle.consumer, handle.entry_deliveries, run_at_ms, member)
    names = [marker_of_new_call(keys), keys.stream, keys.delayed, keys.lease("owners")]
    return _false_if_missing(
        script_command("lease_schedule_retries", as_bools, names, args), len(retries)
    )


def block(keys: Keys, config: LeaseConfig, handles: Sequence[LeaseHandle]) -> Command[list[bool]]:
    """Block leased entries (exclusive mode). They stay on the stream.

    :return: a command; its result is for each lease whether it was still valid.
    """
    names = [marker_of_new_call(keys), keys.stream]
    names += _lease_keys(keys, "deadlines", "redeliver_at", "owners", "blocked")
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, int(config.ordered)]
    for handle in handles:
        args += _handle_args(handle)
    return _false_if_missing(script_command("lease_block", as_bools, names, args), len(handles))


def set_aside(
    keys: Keys, config: LeaseConfig, dead_letters: Sequence[tuple[LeaseHandle, NewDeadLetter]]
) -> Command[list[bool]]:
    """Block leased entries (shared mode). They move out of the stream.

    :return: a command; its result is for each lease whether it was still valid.
    """
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group]
    for handle, dead_letter in dead_letters:
        fields = dead_letter.fields()
        args += (handle.entry_id, handle.consumer, handle.entry_deliveries, len(fields), *fields)
    names = [marker_of_new_call(keys), keys.stream]
    names += _lease_keys(keys, "blocked_entries", "owners")
    return _false_if_missing(
        script_command("lease_set_aside", as_bools, names, args), len(dead_letters)
    )


def get_entry(keys: Keys, entry_id: str) -> Command[list[Any]]:
    """Return a list with the raw entry, or an empty list if it does not exist."""
    return redis_command("XRANGE", keys.stream, entry_id, entry_id, parse=as_raw)


# Administration


def produce(
    keys: Keys,
    messages: Sequence[tuple[str, bytes, bytes, str | None]],
    *,
    client: str = "",
    expected_last_id: str = "",
    strict: bool = False,
    max_len: int = 0,
) -> Command[list[str | None]]:
    """Append messages.

    :param keys: the keys of the queue.
    :param messages: sequence number, envelope `d`, name `n` and job id of each message. The id is
        None if it was generated; otherwise the result of an earlier job with it is deleted.
    :param client: the client whose sequence numbers are checked; empty for none.
    :param expected_last_id: the expected last entry id of the stream; empty for any.
    :param strict: refuse the whole call if one sequence number was used before.
    :param max_len: the maximum length of the stream; 0 for no limit.
    :return: a command; its result has for each message the entry id, or None if its sequence number
        was used before.
    """
    args: list[Arg] = [
        IDEMPOTENCY_TTL_MS,
        expected_last_id,
        client,
        int(strict),
        max_len,
        CLIENT_TTL_MS,
    ]
    names = [marker_of_new_call(keys), keys.stream]
    names += [*_lease_keys(keys, "producers", "producers_seen"), keys.cancel_requests]
    for seq, envelope, job_name, job_id in messages:
        args += (seq, envelope, job_name, int(job_id is not None))
        if job_id is not None:
            names += result_keys(keys, job_id)
    return script_command(
        "lease_produce", lambda reply: [entry.decode() or None for entry in reply], names, args
    )


def stats(keys: Keys, config: LeaseConfig) -> Command[LeaseStats]:
    """Count the entries of the queue by state, atomically.

    :raises QueueNotFound: from the command, if the queue does not exist.
    """
    names = [
        keys.stream,
        keys.delayed,
        keys.dlq,
        *_lease_keys(keys, "deadlines", "redeliver_at", "blocked", "blocked_entries"),
    ]
    args: list[Arg] = [config.group, config.claim_after_ms, int(config.exclusive)]

    def parse(reply: Any) -> LeaseStats:
        if not reply[0]:
            raise QueueNotFound("the queue does not exist", queue_name=keys.queue_name)
        last_id, first_id, length, added, delivered, pending, active, nacked, blocked = reply[1:10]
        blocked_pending = blocked if config.exclusive else 0
        return LeaseStats(
            last_entry_id=last_id.decode(),
            first_entry_id=first_id.decode() or None,
            length=length,
            added=added,
            delivered=None if delivered < 0 else delivered,
            waiting=max(0, length - pending),
            in_flight=active,
            available=max(0, pending - active - nacked - blocked_pending),
            nacked=nacked,
            blocked=blocked,
            unacknowledged=pending,
            delayed=reply[10],
            dead=reply[11],
        )

    return script_command("lease_stats", parse, names, args)


def trim(keys: Keys, config: LeaseConfig, before_id: str) -> CommandFlow[int]:
    """Delete waiting entries and stop at the first one that is leased, nacked or blocked.

    Deleted jobs of a batch count as dead.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param before_id: delete only entries with a lower id.
    :return: the number of deleted entries.
    """
    trimmed = 0
    while raw_entries := (yield _entries_before(keys, before_id)):
        names = [marker_of_new_call(keys), keys.stream]
        batch_args = BatchKeyIndexer(keys, names).args
        args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group]
        for raw in raw_entries:
            entry = parse_entry(raw, _NO_SIZE_LIMIT)
            job_id, created = "", 0
            if isinstance(entry, StreamEntry):
                job_id, created = entry.job.id, entry.job.created_at_ms
            args += (entry.id, *batch_args(parse_batch_job_id(job_id), created))
        passed = yield script_command("lease_trim", as_int, names, args)
        trimmed += passed
        if passed < len(raw_entries):
            break
    return trimmed


def _entries_before(keys: Keys, before_id: str) -> Command[list[Any]]:
    return redis_command(
        "XRANGE", keys.stream, "-", f"({before_id}", "COUNT", TRIM_PAGE_SIZE, parse=as_raw
    )


def list_blocked(keys: Keys, config: LeaseConfig, limit: int) -> CommandFlow[list[BlockedEntry]]:
    """Return blocked entries, oldest first.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param limit: the maximum number of entries.
    """
    if not config.exclusive:
        raw_entries = yield redis_command(
            "XRANGE", keys.lease("blocked_entries"), "-", "+", "COUNT", limit, parse=as_raw
        )
        blocked = [parse_dead_letter(raw) for raw in raw_entries]
        return [
            BlockedEntry(entry.id, entry.job, entry.attempts or 0, entry.source_id)
            for entry in blocked
        ]
    members = yield redis_command(
        "ZRANGE", keys.lease("blocked"), 0, -1, "WITHSCORES", parse=as_raw
    )
    deliveries = {member.decode(): int(float(score)) for member, score in as_pairs(members)}
    ids = sorted(deliveries, key=StreamId.parse)[:limit]
    if not ids:
        return []
    replies = yield [get_entry(keys, entry_id) for entry_id in ids]
    entries = []
    for entry_id, reply in zip(ids, replies, strict=True):
        entry = parse_entry(reply[0], _NO_SIZE_LIMIT) if reply else None
        job = entry.job if isinstance(entry, StreamEntry) else None
        entries.append(BlockedEntry(entry_id, job, deliveries[entry_id], entry_id))
    return entries


def blocked_deliveries(keys: Keys, entry_id: str) -> Command[int]:
    """Return the number of deliveries of a blocked entry (exclusive mode); 0 if it is not."""
    return redis_command(
        "ZSCORE", keys.lease("blocked"), entry_id, parse=lambda reply: as_score_ms(reply or 0)
    )


def unblock(keys: Keys, entry_id: str, extra_deliveries: int) -> Command[bool]:
    """Make a blocked entry available again (exclusive mode).

    :param keys: the keys of the queue.
    :param entry_id: the id of the entry.
    :param extra_deliveries: how often it may be delivered from now on.
    :return: a command; its result is False if the entry was not blocked.
    """
    names = [marker_of_new_call(keys)]
    names += _lease_keys(keys, "blocked", "redeliver_at", "max_deliveries")
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, entry_id, extra_deliveries]
    return script_command("lease_unblock", as_bool, names, args)


def move_blocked_to_dlq(
    keys: Keys, config: LeaseConfig, entry_id: str, dead_letter: NewDeadLetter
) -> Command[bool]:
    """Move a blocked entry to the DLQ (exclusive mode).

    :return: a command; its result is False if the entry was not blocked.
    """
    names = [marker_of_new_call(keys), keys.stream, keys.dlq]
    names += _lease_keys(keys, "blocked", "max_deliveries")
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, entry_id]
    position = parse_batch_job_id(dead_letter.job_id)
    args += BatchKeyIndexer(keys, names).args(position, dead_letter.created_at_ms)
    args += dead_letter.fields()
    return script_command("lease_move_blocked_to_dlq", as_bool, names, args)


def get_set_aside(keys: Keys, entry_id: str) -> Command[DeadLetter | None]:
    """Return a blocked entry (shared mode), or None if it does not exist."""
    return redis_command(
        "XRANGE",
        keys.lease("blocked_entries"),
        entry_id,
        entry_id,
        parse=lambda reply: parse_dead_letter(reply[0]) if reply else None,
    )


def restore_set_aside(
    keys: Keys, entry: DeadLetter, dead_letter: NewDeadLetter | None
) -> Command[bool]:
    """Move a blocked entry back to the stream, or to the DLQ (shared mode).

    :param keys: the keys of the queue.
    :param entry: the blocked entry.
    :param dead_letter: the dead letter to write; None to move the entry back to the stream.
    :return: a command; its result is False if the entry was not blocked.
    """
    names = [marker_of_new_call(keys), keys.lease("blocked_entries"), keys.stream, keys.dlq]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, entry.id, int(dead_letter is not None)]
    created_at_ms = entry.job.created_at_ms if entry.job else 0
    position = parse_batch_job_id(entry.job_id or "")
    args += BatchKeyIndexer(keys, names).args(position, created_at_ms)
    args += (entry.raw, entry.job_name, *(dead_letter.fields() if dead_letter else ()))
    return script_command("lease_restore_set_aside", as_bool, names, args)


def create_queue(keys: Keys, config: LeaseConfig) -> Command[int]:
    """Create a queue, or check that the existing one has the same configuration."""
    names = [marker_of_new_call(keys), keys.stream, keys.lease("config")]
    stored_config = config.stored_config_json() if config.exclusive else ""
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, stored_config]
    return script_command("lease_create_queue", as_int, names, args)


def delete_queue(keys: Keys, include_dead_letters: bool) -> Command[int]:
    """Delete the entries and the lease state of a queue.

    :param keys: the keys of the queue.
    :param include_dead_letters: whether to delete the DLQ as well.
    """
    names = [marker_of_new_call(keys), keys.stream, keys.delayed]
    names += _lease_keys(keys, *_ALL_KEY_PARTS)
    if include_dead_letters:
        names.append(keys.dlq)
    return script_command("lease_delete_queue", as_int, names, [IDEMPOTENCY_TTL_MS])


def organisation_key(organisation_id: str) -> str:
    """Return the key of the set of queues of an organisation."""
    return f"{REGISTRY_HASH_TAG}:org:{organisation_id}"


def register_queue(organisation_id: str, queue_name: str, max_queues: int) -> Command[bool]:
    """Add a queue to the list of its organisation.

    :param organisation_id: the organisation.
    :param queue_name: the name of the queue.
    :param max_queues: the maximum number of queues of the organisation.
    :return: a command; its result is False if the queue was already in the list.
    """
    names = [f"{REGISTRY_HASH_TAG}:idempotency:{new_token()}", organisation_key(organisation_id)]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, queue_name, max_queues]
    return script_command("lease_register_queue", as_bool, names, args)


def unregister_queue(organisation_id: str, queue_name: str) -> Command[int]:
    """Remove a queue from the list of its organisation."""
    return redis_command("SREM", organisation_key(organisation_id), queue_name, parse=as_int)


# Snapshots

SNAPSHOT_SCHEMA = 1
_STAGING_TTL_MS = 3600 * 1000
_SNAPSHOT_FIELDS = (
    *("tail", "added", "deleted", "cursor", "read", "entries", "pending", "delayed"),
    *_SNAPSHOT_KEY_PARTS,
)
_ZSET_PARTS = ("delayed", "deadlines", "redeliver_at", "blocked")
_STRING_PARTS = ("fencing_token", "config")


def _bytes_to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_bytes_to_json(item) for item in value] if isinstance(value, list) else value


def _bytes_from_json(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value)
    return [_bytes_from_json(item) for item in value] if isinstance(value, list) else value


def snapshot(keys: Keys, config: LeaseConfig, limit: int, max_bytes: int) -> Command[str]:
    """Read the complete queue atomically. The server runs no other command during that time.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param limit: the maximum number of entries: waiting, leased, delayed and blocked ones.
    :param max_bytes: the maximum size of the entries.
    :return: a command; its result is the snapshot as JSON.
    """

    def parse(reply: Any) -> str:
        state = {
            name: _bytes_to_json(value) for name, value in zip(_SNAPSHOT_FIELDS, reply, strict=True)
        }
        header = {"schema": SNAPSHOT_SCHEMA, "group": config.group, "mode": config.mode}
        return json.dumps(header | state, separators=(",", ":"))

    names = [keys.stream, keys.delayed, *_lease_keys(keys, *_SNAPSHOT_KEY_PARTS)]
    return script_command("lease_snapshot", parse, names, [config.group, limit, max_bytes])


def restore(keys: Keys, config: LeaseConfig, snapshot_json: str) -> CommandFlow[int]:
    """Create the queue of a snapshot, completely or not at all.

    All parts are written to staging keys, which become the queue in one last step. The staging keys
    of a restore that did not finish expire.

    :param keys: the keys of the queue, which must not exist.
    :param config: the configuration of the queue.
    :param snapshot_json: the result of `snapshot`.
    :return: the number of entries.
    :raises InvalidArgument: if the queue exists or the snapshot has another mode or group.
    :raises DecodeError: if the text is not a snapshot.
    """
    state = _parse_snapshot(snapshot_json, config)
    targets = [keys.stream, keys.delayed, *_lease_keys(keys, *_SNAPSHOT_KEY_PARTS)]
    if (yield redis_command("EXISTS", *targets, parse=as_int)):
        raise InvalidArgument(
            "the queue already exists; delete it first, or restore under another name",
            queue_name=keys.queue_name,
        )
    token, entries = new_token(), state["entries"]

    def staging(part: str) -> str:
        return keys.lease(f"restore_staging:{token}:{part}")

    names = [marker_of_new_call(keys), staging("stream"), keys.stream]
    yield from _stage(keys, staging("stream"), "stream", map(_stream_args, entries))
    for part in ("delayed", *_SNAPSHOT_KEY_PARTS):
        value = state[part]
        if value and value != b"0":
            yield from _stage(keys, staging(part), *_staged_content(part, value))
            names += (staging(part), keys.delayed if part == "delayed" else keys.lease(part))
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, config.group, state["cursor"], state["read"]]
    args += (state["tail"], state["added"], state["deleted"], len(entries))
    for entry_id, consumer, idle_ms, count in _pending_on_stream(state):
        args += (entry_id, consumer, idle_ms, count)
    yield script_command("lease_restore", as_int, names, args)
    return len(entries)


def _stage(
    keys: Keys, staging_key: str, key_type: str, items: Iterable[Sequence[Arg]]
) -> CommandFlow[None]:
    """Write a part of a snapshot to its staging key, in chunks."""
    for chunk in chunked(items, _args_size, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES):
        args: list[Arg] = [IDEMPOTENCY_TTL_MS, _STAGING_TTL_MS, key_type]
        for item in chunk:
            args += item
        names = [marker_of_new_call(keys), staging_key]
        yield script_command("lease_stage_restore", as_int, names, args)


def _args_size(args: Sequence[Arg]) -> int:
    return sum(len(arg) for arg in args if isinstance(arg, bytes))


def _staged_content(part: str, value: Any) -> tuple[str, Iterable[Sequence[Arg]]]:
    """Return the type of a part of a snapshot, and the arguments of each of its items."""
    if part == "blocked_entries":
        return "stream", map(_stream_args, value)
    if part in _ZSET_PARTS:
        return "zset", ((score, member) for member, score in as_pairs(value))
    if part in _STRING_PARTS:
        return "string", [(value,)]
    return "hash", as_pairs(value)


def _stream_args(entry: list[Any]) -> tuple[Arg, ...]:
    entry_id, fields = entry
    return entry_id, len(fields), *fields


def _parse_snapshot(snapshot_json: str, config: LeaseConfig) -> dict[str, Any]:
    try:
        state = json.loads(snapshot_json)
        if state["schema"] != SNAPSHOT_SCHEMA:
            raise DecodeError(
                f"the snapshot has schema {state['schema']}; this version reads schema "
                f"{SNAPSHOT_SCHEMA}"
            )
        if (state["group"], state["mode"]) != (config.group, config.mode):
            raise InvalidArgument(
                f"the snapshot has mode {state['mode']!r} and group {state['group']!r}; restore it "
                "with the same mode and group"
            )
        return {name: _bytes_from_json(state[name]) for name in _SNAPSHOT_FIELDS}
    except (KeyError, TypeError, ValueError) as cause:
        if isinstance(cause, InvalidArgument):
            raise
        raise DecodeError("the text is not a snapshot of a leased queue") from cause


def _pending_on_stream(state: dict[str, Any]) -> list[list[Any]]:
    """Return the pending entries that are still on the stream."""
    ids = {entry[0] for entry in state["entries"]}
    return [pending for pending in state["pending"] if pending[0] in ids]
