"""read, claim, settle, retry, bury, keep, release: entries between the stream and a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, Place, place_of
from airflow_provider_chasqui.core.codec import decode_envelope, decode_name
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Entry, Rejected
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import (
    Arg,
    Choice,
    Op,
    as_flags,
    as_int,
    as_is,
    as_score,
    as_true,
    command,
    script,
)
from airflow_provider_chasqui.core.replies import pairs

Delivery = Entry | Rejected


def make_group(keys: Keys, group: str) -> Op[Any]:
    """Create the consumer group at the stream's beginning; BUSYGROUP means it is there."""
    return command("XGROUP", "CREATE", keys.stream, group, "0", "MKSTREAM", parse=as_is)


def read(
    keys: Keys, group: str, consumer: str, count: int, block_ms: int, claim_idle_ms: int
) -> Choice[list[Any]]:
    """Read new entries, and on the native dialect idle ones too; raw, see `deliveries`.

    On the portable dialect idle entries are taken over by `claim`.
    """
    head = ("XREADGROUP", "GROUP", group, consumer, "COUNT", count)
    wait: tuple[Arg, ...] = ("BLOCK", block_ms) if block_ms else ()
    tail = ("STREAMS", keys.stream, ">")
    native = command(*head, *wait, "CLAIM", claim_idle_ms, *tail, parse=_first, block_ms=block_ms)
    portable = command(*head, *wait, *tail, parse=_first, block_ms=block_ms)
    return Choice(native, portable)


def _first(reply: Any) -> list[Any]:
    return reply[0][1] if reply else []


def claim(keys: Keys, group: str, consumer: str, idle_ms: int, count: int) -> Op[list[Any]]:
    """Take over idle entries (portable dialect)."""
    return script("claim", as_is, [keys.stream], [group, consumer, idle_ms, count])


def delivery(raw: Sequence[Any], max_bytes: int) -> Delivery:
    """Return one raw entry as a job to run, or as a rejection with the wire's reason."""
    entry_id = raw[0].decode()
    idle_ms, deliveries = (raw[2], raw[3]) if len(raw) > 2 else (0, 0)
    fields = raw[1] or []
    if len(fields) == 2 and fields[0] == b"d":
        d, name = fields[1], ""
    else:
        d, name = _body_and_name(fields)
    if d is None:
        detail = "missing or non-bytes payload field"
        return Rejected(entry_id, b"", name, "malformed", detail, deliveries)
    if len(d) > max_bytes:
        return Rejected(entry_id, d, name, "oversize_payload", None, deliveries)
    try:
        job = decode_envelope(d, name)
    except DecodeError as cause:
        return Rejected(entry_id, d, name, "decode_failed", cause.message, deliveries)
    return Entry(entry_id, job, deliveries, idle_ms)


def _body_and_name(fields: Sequence[bytes]) -> tuple[bytes | None, str]:
    d = n = None
    for i in range(0, len(fields) - 1, 2):
        if fields[i] == b"d" and d is None:
            d = fields[i + 1]
        elif fields[i] == b"n" and n is None:
            n = fields[i + 1]
    return d, decode_name(n) if n else ""


def settle(keys: Keys, group: str, ids: Sequence[str]) -> Choice[list[bool]]:
    """Take finished entries off the stream; says for each whether it was still ours to take."""
    native = command(
        "XACKDEL", keys.stream, group, "IDS", len(ids), *ids,
        parse=lambda reply: [flag == 1 for flag in reply], absent=lambda: [False] * len(ids),
    )  # fmt: skip
    return Choice(native, script("acknowledge", as_flags, [keys.stream], [group, *ids]))


@dataclass(slots=True)
class Settled:
    """A finished entry: whose job it was, and what to keep of its result.

    `place` is what `place_of` says of the job id, for those who have asked it already.
    """

    entry_id: str
    job_id: str = ""
    result: bytes | None = None
    result_ttl_s: int = 3600
    dead: bool = False
    place: Place | None = None


def settle_with(keys: Keys, group: str, entries: Iterable[Settled]) -> Op[list[bool]]:
    """Settle entries together with their batch bits and results, gated on the ack."""
    names = [keys.stream]
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        if name not in numbers:
            names.append(name)
            numbers[name] = len(names)
        return numbers[name]

    parts: dict[tuple[str, int], tuple[int, int]] = {}
    args: list[Arg] = [group, BATCH_LIFE_MS]
    for entry in entries:
        place = entry.place or place_of(entry.job_id)
        bits = other = bit = kept = 0
        if place:
            part = (place.batch, place.part)
            if part not in parts:
                parts[part] = number(keys.batch_done(*part)), number(keys.batch_dead(*part))
            done, dead = parts[part]
            bits, other = (dead, done) if entry.dead else (done, dead)
            bit = place.index
        if entry.result is not None:
            kept = number(keys.result(entry.job_id))
        args += (entry.entry_id, bits, other, bit, kept, entry.result or b"", entry.result_ttl_s)
    return script("settle", as_flags, names, args)


def retry(
    keys: Keys, group: str, consumer: str, parked: Sequence[tuple[str, int, bytes]]
) -> Op[list[bool]]:
    """Settle entries and put (entry id, due ms, member) back into the delayed set."""
    args: list[Arg] = [group, consumer]
    for entry_id, run_at_ms, member in parked:
        args += (entry_id, run_at_ms, member)
    return script("retry", as_flags, [keys.stream, keys.delayed], args)


@dataclass(frozen=True, slots=True)
class Burial:
    """An entry that shall become a letter."""

    entry_id: str
    d: bytes
    name: str
    reason: str
    detail: str | None = None
    error: str | None = None
    attempts: int | None = None
    failed_at_ms: int = 0
    job_id: str = ""

    def fields(self) -> list[Arg]:
        """The letter's fields: ChasquiMQ's in its order, then ours, which it ignores."""
        fields: list[Arg] = ["d", self.d]
        if self.name:
            fields += ["n", self.name]
        fields += ["source_id", self.entry_id, "reason", self.reason]
        if self.detail:
            fields += ["detail", self.detail]
        if self.error is not None:
            fields += ["error", self.error]
        if self.attempts is not None:
            fields += ["attempts", self.attempts]
        return [*fields, "failed_at", self.failed_at_ms]


def bury(keys: Keys, group: str, burials: Sequence[Burial], keep: int = 0) -> Op[list[bool]]:
    """Settle entries and write their letters; `keep` > 0 trims the DLQ to about that many."""
    names = [keys.stream, keys.dlq]
    args: list[Arg] = [group, keep, BATCH_LIFE_MS]
    for burial in burials:
        place = place_of(burial.job_id)
        number = bit = 0
        if place:
            dead = keys.batch_dead(place.batch, place.part)
            if dead not in names:
                names.append(dead)
            number, bit = names.index(dead) + 1, place.index
        fields = burial.fields()
        args += (burial.entry_id, number, bit, len(fields), *fields)
    return script("bury", as_flags, names, args)


def keep(keys: Keys, group: str, consumer: str, ids: Sequence[str]) -> Op[list[bool]]:
    """Renew entries that are still ours: idle time starts anew, delivery counts stay."""
    return _tolerant(script("keep", as_flags, [keys.stream], [group, consumer, *ids]), len(ids))


def release(
    keys: Keys, group: str, consumer: str, entries: Sequence[tuple[str, bytes, bytes]]
) -> Op[list[bool]]:
    """Hand entries (id, d, n) back unrun; another consumer has them at once."""
    args: list[Arg] = [group, consumer]
    for entry in entries:
        args += entry
    return script("release", as_flags, [keys.stream], args)


def _tolerant(op: Op[list[bool]], count: int) -> Op[list[bool]]:
    return replace(op, absent=lambda: [False] * count)


def sweep(keys: Keys, group: str, silent_ms: int, consumer: str = "") -> Op[int]:
    """Remove consumers that hold nothing and were silent for long; or just the one named."""
    op = script("sweep", as_int, [keys.stream], [group, silent_ms, consumer])
    return replace(op, absent=lambda: 0)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A member of the consumer group."""

    name: str
    pending: int
    idle_ms: int


def _consumers(reply: Any) -> list[ConsumerStatus]:
    found = []
    for raw in reply:
        info = dict(pairs(raw))
        name = info[b"name"].decode("utf-8", "replace")
        found.append(ConsumerStatus(name, int(info[b"pending"]), int(info[b"idle"])))
    return found


def consumers(keys: Keys, group: str) -> Op[list[ConsumerStatus]]:
    return command("XINFO", "CONSUMERS", keys.stream, group, parse=_consumers, absent=list)


def lead(lock: str, holder: str, life_s: int) -> Op[bool]:
    """Take or keep the lead."""
    return script("lead", as_true, [lock], [holder, life_s])


def resign(lock: str, holder: str) -> Op[bool]:
    """Give up the lead, if it is ours."""
    return script("resign", as_true, [lock], [holder])


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An entry that is pending for a consumer; `deliveries` counts the last one too."""

    entry_id: str
    deliveries: int


def pending_of(keys: Keys, group: str, consumer: str, count: int) -> Op[list[Undelivered]]:
    """What is pending for one consumer, oldest first."""
    return command(
        "XPENDING", keys.stream, group, "-", "+", count, consumer,
        parse=lambda reply: [Undelivered(each[0].decode(), int(each[3])) for each in reply],
        absent=list,
    )  # fmt: skip


def entry_at(keys: Keys, entry_id: str) -> Op[list[Any]]:
    """One entry as it stands in the stream, raw; empty if it is gone."""
    return command("XRANGE", keys.stream, entry_id, entry_id, parse=as_is)


def cancels_asked(keys: Keys) -> Op[bool]:
    """Whether there is any job that somebody asked to cancel."""
    return command("EXISTS", keys.cancelled, parse=as_true)


def cancel_marks(keys: Keys, job_ids: Sequence[str]) -> Op[list[int]]:
    """When each job was asked to be cancelled, in ms; -1 if never.

    A job that was created later bears the same id, but is not the one that was meant.
    """
    return command(
        "ZMSCORE", keys.cancelled, *job_ids,
        parse=lambda reply: [-1 if score is None else as_score(score) for score in reply],
    )  # fmt: skip


def forget_cancelled(keys: Keys, ids: Sequence[str]) -> Op[int]:
    return command("ZREM", keys.cancelled, *ids, parse=as_int)
