"""The consumer group of the workers: read, claim, acknowledge, retry, dead-letter, requeue.

Also the leader lock of the promoter and scheduler, and the cancel requests that workers check.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, BatchPosition, parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_name
from airflow_provider_chasqui.core.command import (
    Command,
    DialectCommand,
    KeyIndexer,
    as_bool,
    as_bools,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg

ParsedEntry = StreamEntry | InvalidEntry
NO_SIZE_LIMIT = 2**62


def create(keys: Keys, group: str) -> Command[Any]:
    """Create the consumer group at the beginning of the stream.

    The server replies with the error BUSYGROUP if the group exists.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    """
    return redis_command("XGROUP", "CREATE", keys.stream, group, "0", "MKSTREAM", parse=as_raw)


def read(
    keys: Keys, group: str, consumer: str, count: int, block_ms: int, claim_after_ms: int
) -> DialectCommand[list[Any]]:
    """Read new entries, and in the native dialect also claim idle ones.

    In the portable dialect, `claim` claims idle entries.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param count: the maximum number of entries.
    :param block_ms: how long to wait for an entry, in milliseconds; 0 to return at once.
    :param claim_after_ms: the idle time after which an entry of any consumer, this one included,
        is claimed.
    :return: a command that returns raw entries, see `parse_entry`.
    """
    head = ("XREADGROUP", "GROUP", group, consumer, "COUNT", count)
    block: tuple[Arg, ...] = ("BLOCK", block_ms) if block_ms else ()
    streams = ("STREAMS", keys.stream, ">")
    native = redis_command(
        *head,
        *block,
        "CLAIM",
        claim_after_ms,
        *streams,
        parse=_parse_read_reply,
        block_ms=block_ms,
    )
    portable = redis_command(*head, *block, *streams, parse=_parse_read_reply, block_ms=block_ms)
    return DialectCommand(native, portable)


def _parse_read_reply(reply: Any) -> list[Any]:
    return reply[0][1] if reply else []


def claim(
    keys: Keys, group: str, consumer: str, min_idle_ms: int, count: int
) -> Command[list[Any]]:
    """Claim idle entries of any consumer, this one included, for the portable dialect.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that claims.
    :param min_idle_ms: the idle time after which an entry is claimed.
    :param count: the maximum number of entries.
    :return: a command that returns raw entries, see `parse_entry`.
    """
    return script_command("claim", as_raw, [keys.stream], [group, consumer, min_idle_ms, count])


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
    """

    entry_id: str
    job_id: str = ""
    result: bytes | None = None
    result_ttl_s: int = 3600
    dead: bool = False
    position: BatchPosition | None = None


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
    key_number = KeyIndexer(key_names).position
    part_keys: dict[tuple[str, int], tuple[int, int]] = {}
    args: list[Arg] = [group, BATCH_TTL_MS]
    for entry in completions:
        position = entry.position or parse_batch_job_id(entry.job_id)
        bits_to_set = bits_to_clear = bit = result_key = 0
        if position:
            part = (position.batch_id, position.part)
            if part not in part_keys:
                part_keys[part] = (
                    key_number(keys.batch_done(*part)),
                    key_number(keys.batch_dead(*part)),
                )
            done, dead = part_keys[part]
            bits_to_set, bits_to_clear = (dead, done) if entry.dead else (done, dead)
            bit = position.index
        if entry.result is not None:
            result_key = key_number(keys.result(entry.job_id))
        args += (
            entry.entry_id,
            bits_to_set,
            bits_to_clear,
            bit,
            result_key,
            entry.result or b"",
            entry.result_ttl_s,
        )
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
    keys: Keys, group: str, dead_letters: Sequence[NewDeadLetter], max_dead_letters: int = 0
) -> Command[list[bool]]:
    """Acknowledge entries and write their dead letters.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param dead_letters: the entries to move.
    :param max_dead_letters: the length to which the DLQ is trimmed, approximately; 0 for no limit.
    :return: a command that returns, per entry, whether it was still pending.
    """
    key_names = [keys.stream, keys.dlq]
    indexer = KeyIndexer(key_names)
    args: list[Arg] = [group, max_dead_letters, BATCH_TTL_MS]
    for dead_letter in dead_letters:
        position = parse_batch_job_id(dead_letter.job_id)
        key_number = bit = 0
        if position:
            dead_bits = keys.batch_dead(position.batch_id, position.part)
            key_number, bit = indexer.position(dead_bits), position.index
        fields = dead_letter.fields()
        args += (dead_letter.entry_id, key_number, bit, len(fields), *fields)
    return script_command("move_to_dlq", as_bools, key_names, args)


def renew_claims(
    keys: Keys, group: str, consumer: str, entry_ids: Sequence[str]
) -> Command[list[bool]]:
    """Reset the idle time of entries that a consumer still owns. Delivery counts do not change.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param entry_ids: the ids of the entries.
    :return: a command that returns, per entry, whether the consumer still owns it.
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
    keys: Keys, group: str, consumer: str, count: int
) -> Command[list[PendingEntry]]:
    """Return the entries that are pending for a consumer, oldest first.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer.
    :param count: the maximum number of entries.
    """
    return redis_command(
        "XPENDING",
        keys.stream,
        group,
        "-",
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
) -> Command[int]:
    """Remove consumers from the group that have no pending entries.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param min_idle_ms: the idle time after which a consumer is removed.
    :param consumer: the name of the only consumer to remove; empty for all.
    :return: a command that returns the number of consumers removed.
    """
    command = script_command(
        "remove_idle_consumers", as_int, [keys.stream], [group, min_idle_ms, consumer]
    )
    return replace(command, default_if_missing=lambda: 0)


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


def any_cancel_requested(keys: Keys) -> Command[bool]:
    """Return whether the cancellation of any job was requested.

    :param keys: the keys of the queue.
    """
    return redis_command("EXISTS", keys.cancelled, parse=as_bool)


def cancel_requested_at(keys: Keys, job_ids: Sequence[str]) -> Command[list[int]]:
    """Return when the cancellation of each job was requested, in milliseconds; -1 if it was not.

    A request does not apply to a job with the same id that was created later.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    return redis_command(
        "ZMSCORE",
        keys.cancelled,
        *job_ids,
        parse=lambda reply: [-1 if score is None else as_score_ms(score) for score in reply],
    )


def clear_cancel_requests(keys: Keys, job_ids: Sequence[str]) -> Command[int]:
    """Delete cancel requests.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    :return: a command that returns the number of deleted requests.
    """
    return redis_command("ZREM", keys.cancelled, *job_ids, parse=as_int)
