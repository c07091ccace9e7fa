"""read, claim, settle, retry, bury, keep, release: entries between the stream and a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, BatchPosition, parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_name
from airflow_provider_chasqui.core.command import (
    Arg,
    Command,
    DialectCommand,
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

ParsedEntry = StreamEntry | InvalidEntry


def create(keys: Keys, group: str) -> Command[Any]:
    """Create the consumer group at the stream's beginning; BUSYGROUP means it is there."""
    return redis_command("XGROUP", "CREATE", keys.stream, group, "0", "MKSTREAM", parse=as_raw)


def read(
    keys: Keys, group: str, consumer: str, count: int, block_ms: int, claim_after_ms: int
) -> DialectCommand[list[Any]]:
    """Read new entries, and on the native dialect idle ones too; raw, see `deliveries`.

    On the portable dialect idle entries are taken over by `claim`.
    """
    head = ("XREADGROUP", "GROUP", group, consumer, "COUNT", count)
    wait: tuple[Arg, ...] = ("BLOCK", block_ms) if block_ms else ()
    tail = ("STREAMS", keys.stream, ">")
    native = redis_command(
        *head, *wait, "CLAIM", claim_after_ms, *tail, parse=_parse_read_reply, block_ms=block_ms
    )
    portable = redis_command(*head, *wait, *tail, parse=_parse_read_reply, block_ms=block_ms)
    return DialectCommand(native, portable)


def _parse_read_reply(reply: Any) -> list[Any]:
    return reply[0][1] if reply else []


def claim(
    keys: Keys, group: str, consumer: str, min_idle_ms: int, count: int
) -> Command[list[Any]]:
    """Take over idle entries (portable dialect)."""
    return script_command("claim", as_raw, [keys.stream], [group, consumer, min_idle_ms, count])


def parse_entry(raw_entry: Sequence[Any], max_bytes: int) -> ParsedEntry:
    """Return one raw entry as a job to run, or as a rejection with the wire's reason."""
    entry_id = raw_entry[0].decode()
    idle_ms, deliveries = (raw_entry[2], raw_entry[3]) if len(raw_entry) > 2 else (0, 0)
    fields = raw_entry[1] or []
    if len(fields) == 2 and fields[0] == b"d":
        d, name = fields[1], ""
    else:
        d, name = _envelope_and_name(fields)
    if d is None:
        detail = "missing or non-bytes payload field"
        return InvalidEntry(entry_id, b"", name, "malformed", detail, deliveries)
    if len(d) > max_bytes:
        return InvalidEntry(entry_id, d, name, "oversize_payload", None, deliveries)
    try:
        job = decode_envelope(d, name)
    except DecodeError as cause:
        return InvalidEntry(entry_id, d, name, "decode_failed", cause.message, deliveries)
    return StreamEntry(entry_id, job, deliveries, idle_ms)


def _envelope_and_name(fields: Sequence[bytes]) -> tuple[bytes | None, str]:
    d = n = None
    for i in range(0, len(fields) - 1, 2):
        if fields[i] == b"d" and d is None:
            d = fields[i + 1]
        elif fields[i] == b"n" and n is None:
            n = fields[i + 1]
    return d, decode_job_name(n) if n else ""


def ack(keys: Keys, group: str, entry_ids: Sequence[str]) -> DialectCommand[list[bool]]:
    """Take finished entries off the stream; says for each whether it was still ours to take."""
    native = redis_command(
        "XACKDEL", keys.stream, group, "IDS", len(entry_ids), *entry_ids,
        parse=lambda reply: [flag == 1 for flag in reply], default_if_missing=lambda: [False] * len(entry_ids),
    )  # fmt: skip
    return DialectCommand(
        native, script_command("ack", as_bools, [keys.stream], [group, *entry_ids])
    )


@dataclass(slots=True)
class Completion:
    """A finished entry: whose job it was, and what to keep of its result.

    `place` is what `place_of` says of the job id, for those who have asked it already.
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
    """Settle entries together with their batch bits and results, gated on the ack."""
    names = [keys.stream]
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        if name not in numbers:
            names.append(name)
            numbers[name] = len(names)
        return numbers[name]

    parts: dict[tuple[str, int], tuple[int, int]] = {}
    args: list[Arg] = [group, BATCH_TTL_MS]
    for entry in completions:
        place = entry.position or parse_batch_job_id(entry.job_id)
        bits = other = bit = kept = 0
        if place:
            part = (place.batch_id, place.part)
            if part not in parts:
                parts[part] = number(keys.batch_done(*part)), number(keys.batch_dead(*part))
            done, dead = parts[part]
            bits, other = (dead, done) if entry.dead else (done, dead)
            bit = place.index
        if entry.result is not None:
            kept = number(keys.result(entry.job_id))
        args += (entry.entry_id, bits, other, bit, kept, entry.result or b"", entry.result_ttl_s)
    return script_command("ack_with_results", as_bools, names, args)


def schedule_retries(
    keys: Keys, group: str, consumer: str, retries: Sequence[tuple[str, int, bytes]]
) -> Command[list[bool]]:
    """Settle entries and put (entry id, due ms, member) back into the delayed set."""
    args: list[Arg] = [group, consumer]
    for entry_id, run_at_ms, member in retries:
        args += (entry_id, run_at_ms, member)
    return script_command("schedule_retries", as_bools, [keys.stream, keys.delayed], args)


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """An entry that shall become a letter."""

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
        """The letter's fields: ChasquiMQ's in its order, then ours, which it ignores."""
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
    """Settle entries and write their letters; `keep` > 0 trims the DLQ to about that many."""
    names = [keys.stream, keys.dlq]
    args: list[Arg] = [group, max_dead_letters, BATCH_TTL_MS]
    for burial in dead_letters:
        place = parse_batch_job_id(burial.job_id)
        number = bit = 0
        if place:
            dead = keys.batch_dead(place.batch_id, place.part)
            if dead not in names:
                names.append(dead)
            number, bit = names.index(dead) + 1, place.index
        fields = burial.fields()
        args += (burial.entry_id, number, bit, len(fields), *fields)
    return script_command("move_to_dlq", as_bools, names, args)


def renew_claims(
    keys: Keys, group: str, consumer: str, entry_ids: Sequence[str]
) -> Command[list[bool]]:
    """Renew entries that are still ours: idle time starts anew, delivery counts stay."""
    return _false_if_missing(
        script_command("renew_claims", as_bools, [keys.stream], [group, consumer, *entry_ids]),
        len(entry_ids),
    )


def requeue(
    keys: Keys, group: str, consumer: str, entries: Sequence[tuple[str, bytes, bytes]]
) -> Command[list[bool]]:
    """Hand entries (id, d, n) back unrun; another consumer has them at once."""
    args: list[Arg] = [group, consumer]
    for entry in entries:
        args += entry
    return script_command("requeue", as_bools, [keys.stream], args)


def _false_if_missing(command: Command[list[bool]], count: int) -> Command[list[bool]]:
    return replace(command, default_if_missing=lambda: [False] * count)


def remove_idle_consumers(
    keys: Keys, group: str, min_idle_ms: int, consumer: str = ""
) -> Command[int]:
    """Remove consumers that hold nothing and were silent for long; or just the one named."""
    op = script_command(
        "remove_idle_consumers", as_int, [keys.stream], [group, min_idle_ms, consumer]
    )
    return replace(op, default_if_missing=lambda: 0)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A member of the consumer group."""

    name: str
    pending: int
    idle_ms: int


def _parse_consumers(reply: Any) -> list[ConsumerStatus]:
    found = []
    for raw in reply:
        info = dict(as_pairs(raw))
        name = info[b"name"].decode("utf-8", "replace")
        found.append(ConsumerStatus(name, int(info[b"pending"]), int(info[b"idle"])))
    return found


def consumers(keys: Keys, group: str) -> Command[list[ConsumerStatus]]:
    return redis_command(
        "XINFO", "CONSUMERS", keys.stream, group, parse=_parse_consumers, default_if_missing=list
    )


def acquire_leader_lock(lock_key: str, holder: str, ttl_s: int) -> Command[bool]:
    """Take or keep the lead."""
    return script_command("acquire_leader_lock", as_bool, [lock_key], [holder, ttl_s])


def release_leader_lock(lock_key: str, holder: str) -> Command[bool]:
    """Give up the lead, if it is ours."""
    return script_command("release_leader_lock", as_bool, [lock_key], [holder])


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that is pending for a consumer; `deliveries` counts the last one too."""

    entry_id: str
    deliveries: int


def pending_entries(
    keys: Keys, group: str, consumer: str, count: int
) -> Command[list[PendingEntry]]:
    """What is pending for one consumer, oldest first."""
    return redis_command(
        "XPENDING", keys.stream, group, "-", "+", count, consumer,
        parse=lambda reply: [PendingEntry(each[0].decode(), int(each[3])) for each in reply],
        default_if_missing=list,
    )  # fmt: skip


def get_entry(keys: Keys, entry_id: str) -> Command[list[Any]]:
    """One entry as it stands in the stream, raw; empty if it is gone."""
    return redis_command("XRANGE", keys.stream, entry_id, entry_id, parse=as_raw)


def any_cancel_requested(keys: Keys) -> Command[bool]:
    """Whether there is any job that somebody asked to cancel."""
    return redis_command("EXISTS", keys.cancelled, parse=as_bool)


def cancel_requested_at(keys: Keys, job_ids: Sequence[str]) -> Command[list[int]]:
    """When each job was asked to be cancelled, in ms; -1 if never.

    A job that was created later bears the same id, but is not the one that was meant.
    """
    return redis_command(
        "ZMSCORE", keys.cancelled, *job_ids,
        parse=lambda reply: [-1 if score is None else as_score_ms(score) for score in reply],
    )  # fmt: skip


def clear_cancel_requests(keys: Keys, job_ids: Sequence[str]) -> Command[int]:
    return redis_command("ZREM", keys.cancelled, *job_ids, parse=as_int)
