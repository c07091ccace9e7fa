"""The consumer group of the workers: read, claim, acknowledge, retry, dead-letter, requeue.

Also the leader lock of the promoter and scheduler, and the cancel requests that workers check.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BatchPosition, parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_name
from airflow_provider_chasqui.core.command import (
    Command,
    DialectCommand,
    as_bool,
    as_bools,
    as_pairs,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.batch_keys import BatchKeyIndexer
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.results import BUCKET_SIZE
from airflow_provider_chasqui.core.server_clock import CLAIM_ALWAYS

ParsedEntry = StreamEntry | InvalidEntry
NO_SIZE_LIMIT = 2**62
# Arguments of ack_with_results.lua for an entry without a result.
_NO_RESULT: tuple[Arg, ...] = (0, b"", 0)


def create(keys: Keys, group: str) -> Command[Any]:
    """Create the consumer group at the beginning of the stream.

    The server replies with the error BUSYGROUP if the group exists.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    """
    return redis_command("XGROUP", "CREATE", keys.stream, group, "0", "MKSTREAM", parse=as_raw)


def read(keys: Keys, group: str, consumer: str, count: int, block_ms: int) -> Command[list[Any]]:
    """Read new entries. `claim_and_read` also claims idle ones.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param count: the maximum number of entries.
    :param block_ms: how long to wait for an entry, in milliseconds; 0 to return at once.
    :return: a command that returns raw entries, see `parse_entry`.
    """
    block: tuple[Arg, ...] = ("BLOCK", block_ms) if block_ms else ()
    return redis_command(
        *("XREADGROUP", "GROUP", group, consumer, "COUNT", count),
        *block,
        *("STREAMS", keys.stream, ">"),
        parse=lambda reply: reply[0][1] if reply else [],
        block_ms=block_ms,
    )


def claim_and_read(
    keys: Keys,
    group: str,
    consumer: str,
    min_idle_ms: int,
    count: int,
    claim_until_ms: int = CLAIM_ALWAYS,
) -> Command[tuple[int, list[Any]]]:
    """Claim idle entries of any consumer, this one included, and read new ones.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that claims.
    :param min_idle_ms: the idle time after which an entry is claimed.
    :param count: the maximum number of entries.
    :param claim_until_ms: the latest time of the server at which entries are claimed, from
        `ServerClock.claim_until_ms`.
    :return: a command that returns the time of the server in milliseconds, and raw entries, see
        `parse_entry`.
    """
    args: list[Arg] = [group, consumer, min_idle_ms, count, claim_until_ms]
    return script_command(
        "claim_and_read", lambda reply: (int(reply[0]), reply[1]), [keys.stream], args
    )


def parse_entry(raw_entry: Sequence[Any], max_bytes: int) -> ParsedEntry:
    """Parse a stream entry into a job to run, or into an `InvalidEntry` with ChasquiMQ's reason.

    :param raw_entry: the entry as the server replied it: id, fields, and for claimed entries the
        idle time and the number of deliveries.
    :param max_bytes: the maximum size of the envelope; `NO_SIZE_LIMIT` to read an entry without
        running it.
    """
    entry_id = raw_entry[0].decode()
    idle_ms, deliveries = (raw_entry[2], raw_entry[3]) if len(raw_entry) > 2 else (0, 0)
    fields = raw_entry[1] or []
    if len(fields) == 2 and fields[0] == b"d":
        envelope, job_name = fields[1], ""
    else:
        envelope, job_name = _envelope_and_name(fields)
    if envelope is None:
        detail = "missing or non-bytes payload field"
        return InvalidEntry(entry_id, b"", job_name, "malformed", detail, deliveries)
    if len(envelope) > max_bytes:
        return InvalidEntry(entry_id, envelope, job_name, "oversize_payload", None, deliveries)
    try:
        job = decode_envelope(envelope, job_name)
    except DecodeError as cause:
        return InvalidEntry(
            entry_id, envelope, job_name, "decode_failed", cause.message, deliveries
        )
    return StreamEntry(entry_id, job, deliveries, idle_ms)


def _envelope_and_name(fields: Sequence[bytes]) -> tuple[bytes | None, str]:
    envelope = job_name = None
    for i in range(0, len(fields) - 1, 2):
        if fields[i] == b"d" and envelope is None:
            envelope = fields[i + 1]
        elif fields[i] == b"n" and job_name is None:
            job_name = fields[i + 1]
    return envelope, decode_job_name(job_name) if job_name else ""


def ack(keys: Keys, group: str, entry_ids: Sequence[str]) -> DialectCommand[list[bool]]:
    """Acknowledge and delete entries.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param entry_ids: the ids of the entries.
    :return: a command that returns, per entry, whether it was still pending and is now deleted.
    """
    native = redis_command(
        "XACKDEL",
        keys.stream,
        group,
        "IDS",
        len(entry_ids),
        *entry_ids,
        parse=lambda reply: [flag == 1 for flag in reply],
        default_if_missing=lambda: [False] * len(entry_ids),
    )
    return DialectCommand(
        native, script_command("ack", as_bools, [keys.stream], [group, *entry_ids])
    )


@dataclass(slots=True)
class Completion:
    """A finished entry, its job and the encoded result to store.

    `position` is the position of the job in its batch if the caller has already parsed the job id.
    `created_at_ms` is the creation time of the job, 0 if it is not known.
    """

    entry_id: str
    job_id: str = ""
    result: bytes | None = None
    result_ttl_s: int = 3600
    dead: bool = False
    position: BatchPosition | None = None
    created_at_ms: int = 0


def ack_with_results(
    keys: Keys, group: str, completions: Iterable[Completion]
) -> Command[list[bool]]:
    """Acknowledge entries, and set the batch bits and store the results of those still pending.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param completions: the finished entries.
    :return: a command that returns, per entry, whether it was still pending.
    """
    key_names = [keys.stream]
    batch_args = BatchKeyIndexer(keys, key_names).args
    args: list[Arg] = [group]
    buckets: dict[tuple[str, int, int], int] = {}
    for entry in completions:
        position = entry.position or parse_batch_job_id(entry.job_id)
        args += (entry.entry_id, *batch_args(position, entry.created_at_ms), int(entry.dead))
        if entry.result is None:
            args += _NO_RESULT
        elif position is None:
            key_names.append(keys.result(entry.job_id))
            args += (len(key_names), entry.result, entry.result_ttl_s)
        else:
            bucket = (position.batch_id, position.part, position.index // BUCKET_SIZE)
            if bucket not in buckets:
                key_names.append(keys.batch_results(*bucket))
                buckets[bucket] = len(key_names)
            args += (buckets[bucket], entry.result, 0)
    return script_command("ack_with_results", as_bools, key_names, args)


def schedule_retries(
    keys: Keys, group: str, consumer: str, retries: Sequence[tuple[str, int, bytes]]
) -> Command[list[bool]]:
    """Acknowledge entries and add their jobs to the delayed set.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that ran the jobs.
    :param retries: per job the entry id, the due time in milliseconds and the encoded member.
    :return: a command that returns, per entry, whether it was still pending for the consumer.
    """
    args: list[Arg] = [group, consumer]
    for entry_id, run_at_ms, member in retries:
        args += (entry_id, run_at_ms, member)
    return script_command("schedule_retries", as_bools, [keys.stream, keys.delayed], args)


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """An entry to move to the DLQ, and why."""

    entry_id: str
    envelope: bytes
    job_name: str
    reason: str
    detail: str | None = None
    error: str | None = None
    attempts: int | None = None
    failed_at_ms: int = 0
    job_id: str = ""
    created_at_ms: int = 0

    def fields(self) -> list[Arg]:
        """Return the fields of the DLQ entry: first those of ChasquiMQ, then additional ones."""
        fields: list[Arg] = ["d", self.envelope]
        if self.job_name:
            fields += ["n", self.job_name]
        fields += ["source_id", self.entry_id, "reason", self.reason]
        if self.detail:
            fields += ["detail", self.detail]
        if self.error is not None:
            fields += ["error", self.error]
        if self.attempts is not None:
            fields += ["attempts", self.attempts]
        return [*fields, "failed_at", self.failed_at_ms]


def move_to_dlq(
    keys: Keys,
    group: str,
    consumer: str,
    dead_letters: Sequence[NewDeadLetter],
    max_dead_letters: int = 0,
) -> Command[list[bool]]:
    """Write dead letters and acknowledge their entries.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that ran the jobs.
    :param dead_letters: the entries to move.
    :param max_dead_letters: the length to which the DLQ is trimmed, approximately; 0 for no limit.
    :return: a command that returns, per entry, whether it was still pending for the consumer.
    """
    key_names = [keys.stream, keys.dlq]
    batch_args = BatchKeyIndexer(keys, key_names).args
    args: list[Arg] = [group, consumer, max_dead_letters]
    for dead_letter in dead_letters:
        fields = dead_letter.fields()
        position = parse_batch_job_id(dead_letter.job_id)
        batch = batch_args(position, dead_letter.created_at_ms)
        args += (dead_letter.entry_id, *batch, len(fields), *fields)
    return script_command("move_to_dlq", as_bools, key_names, args)


def renew_claims(
    keys: Keys, group: str, consumer: str, entry_ids: Sequence[str]
) -> Command[list[bool]]:
    """Reset the idle time of entries that a consumer still owns. Delivery counts do not change.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param entry_ids: the ids of the entries.
    :return: a command that returns, per entry, whether the consumer still owns it. An entry that
        was deleted from the stream is not renewed, but the consumer still owns it.
    """
    command = script_command("renew_claims", as_bools, [keys.stream], [group, consumer, *entry_ids])
    return replace(command, default_if_missing=lambda: [False] * len(entry_ids))


def requeue(
    keys: Keys, group: str, consumer: str, entries: Sequence[tuple[str, bytes, bytes]]
) -> Command[list[bool]]:
    """Return unfinished entries to the queue. Another consumer can read them at once.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that owns the entries.
    :param entries: per entry the id, the envelope and the job name.
    :return: a command that returns, per entry, whether the consumer still owned it.
    """
    args: list[Arg] = [group, consumer]
    for entry in entries:
        args += entry
    return script_command("requeue", as_bools, [keys.stream], args)


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that is pending for a consumer. `deliveries` includes the latest one."""

    entry_id: str
    deliveries: int


def pending_entries(
    keys: Keys, group: str, consumer: str, count: int, start: str = "-"
) -> Command[list[PendingEntry]]:
    """Return the entries that are pending for a consumer, oldest first.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param count: the maximum number of entries.
    :param start: the first entry id as XPENDING expects it; `(` before the id excludes it.
    """
    return redis_command(
        "XPENDING",
        keys.stream,
        group,
        start,
        "+",
        count,
        consumer,
        parse=lambda reply: [PendingEntry(row[0].decode(), int(row[3])) for row in reply],
        default_if_missing=list,
    )


def pending_count(keys: Keys, group: str) -> Command[int]:
    """Return the number of entries that are pending for any consumer of a group.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    """
    return redis_command(
        "XPENDING",
        keys.stream,
        group,
        parse=lambda reply: int(reply[0]),
        default_if_missing=lambda: 0,
    )


def get_entry(keys: Keys, entry_id: str) -> Command[list[Any]]:
    """Return a list with one raw entry of the stream, or an empty list if it does not exist.

    :param keys: the keys of the queue.
    :param entry_id: the id of the entry.
    """
    return redis_command("XRANGE", keys.stream, entry_id, entry_id, parse=as_raw)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer of the group, with its number of pending entries and its idle time."""

    name: str
    pending: int
    idle_ms: int


def consumers(keys: Keys, group: str) -> Command[list[ConsumerStatus]]:
    """Return the consumers of a group.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    """
    return redis_command(
        "XINFO", "CONSUMERS", keys.stream, group, parse=_parse_consumers, default_if_missing=list
    )


def _parse_consumers(reply: Any) -> list[ConsumerStatus]:
    statuses = []
    for raw_consumer in reply:
        info = dict(as_pairs(raw_consumer))
        name = info[b"name"].decode("utf-8", "replace")
        statuses.append(ConsumerStatus(name, int(info[b"pending"]), int(info[b"idle"])))
    return statuses


def remove_idle_consumers(
    keys: Keys, group: str, min_idle_ms: int, consumer: str = ""
) -> Command[tuple[int, int]]:
    """Remove consumers from the group that have no pending entries.

    Pending entries of idle consumers that were deleted from the stream, for example trimmed by a
    producer with MAXLEN, are acknowledged first.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param min_idle_ms: the idle time after which a consumer is removed.
    :param consumer: the name of the only consumer to remove; empty for all.
    :return: a command that returns the number of consumers removed and the number of deleted
        entries acknowledged.
    """
    command = script_command(
        "remove_idle_consumers",
        lambda reply: (int(reply[0]), int(reply[1])),
        [keys.stream],
        [group, min_idle_ms, consumer],
    )
    return replace(command, default_if_missing=lambda: (0, 0))


def acquire_leader_lock(lock_key: str, holder: str, ttl_s: int) -> Command[bool]:
    """Acquire or renew the leader lock.

    :param lock_key: the key of the lock.
    :param holder: the id of the candidate.
    :param ttl_s: the TTL of the lock in seconds.
    :return: a command that returns whether the candidate is now the leader.
    """
    return script_command("acquire_leader_lock", as_bool, [lock_key], [holder, ttl_s])


def release_leader_lock(lock_key: str, holder: str) -> Command[bool]:
    """Release the leader lock if the holder has it.

    :param lock_key: the key of the lock.
    :param holder: the id of the leader.
    :return: a command that returns whether the lock was released.
    """
    return script_command("release_leader_lock", as_bool, [lock_key], [holder])
