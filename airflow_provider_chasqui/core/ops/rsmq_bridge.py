"""move, give: messages from an RSMQ queue to a Chasqui queue, and jobs the other way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core import rsmq
from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, place_of
from airflow_provider_chasqui.core.codec import encode_envelope, encode_name
from airflow_provider_chasqui.core.errors import EncodeError
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.op import Arg, Flow, Op, as_int, script
from airflow_provider_chasqui.core.ops.rsmq import Rsmq
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.prepare import Ready
from airflow_provider_chasqui.core.rsmq import RsmqKeys, RsmqMessage

# What four digits of base 36 hold.
_SEQ_TOP = 36**4 - 1


@dataclass(frozen=True, slots=True)
class Moved:
    """What a bridge did: `dropped` were ids without a body, `duplicates` had arrived before,
    `buried` could not become messages and are letters now.
    """

    moved: int = 0
    dropped: int = 0
    duplicates: int = 0
    buried: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.moved + other.moved,
            self.dropped + other.dropped,
            self.duplicates + other.duplicates,
            self.buried + other.buried,
        )


@dataclass(frozen=True, slots=True)
class AsJob:
    """How an RSMQ message becomes a job.

    The job has the message's id and the time it was sent; `convert` makes its payload of the text.
    With `carry_receive_count` the receives that it had count as attempts.
    """

    queue: str
    name: str | None = None
    carry_receive_count: bool = False
    convert: Callable[[str], Any] | None = None
    dispatch: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        chosen = f"rsmq:{self.queue}" if self.name is None else self.name
        object.__setattr__(self, "dispatch", encode_name(chosen))

    def envelope(self, message: RsmqMessage, now_ms: int) -> bytes:
        attempt = message.rc if self.carry_receive_count else 0
        created_ms = now_ms if message.sent is None else int(message.sent)
        return encode_envelope(message.id, self._body(message), created_ms, attempt)

    def _body(self, message: RsmqMessage) -> bytes:
        raw = message.raw or b""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return encode_payload(raw)  # not text: the bytes as they are
        return encode_payload(self.convert(text) if self.convert else text)

    def ready(self, message: RsmqMessage, now_ms: int, unique_ms: int) -> Ready:
        raw = self.envelope(message, now_ms)
        return Ready(message.id, self.dispatch, raw, None, unique_ms, True)


def move(
    source: RsmqKeys, target: Keys, moves: Sequence[tuple[str, bytes, bytes]], max_len: int
) -> Op[bytes]:
    """Move messages (id, d, n) in one atomic step; one sign for each."""
    args: list[Arg] = [max_len]
    for each in moves:
        args += each
    return script("rsmq_move", bytes, [source.zset, source.hash, target.stream], args)


def move_page(
    verbs: Rsmq, source: RsmqKeys, target: Keys, shape: AsJob, limit: int, max_len: int, now_ms: int
) -> Flow[tuple[int, Moved]]:
    """Move up to `limit` visible messages, oldest first; answers how many were seen, and what was
    done.

    Messages are looked at first, because a script cannot write MessagePack; the script then takes
    only those that are still there and visible, so a consumer in between is no harm.
    """
    messages: list[RsmqMessage] = yield verbs.peek(source, limit)
    if not messages:
        return 0, Moved()
    moves = [
        (m.id, b"" if m.raw is None else shape.envelope(m, now_ms), shape.dispatch)
        for m in messages
    ]
    signs = yield move(source, target, moves, max_len)
    taken = [m for m, sign in zip(messages, signs, strict=True) if sign == ord("1")]
    dropped = sum(m.raw is None for m in taken)
    return len(messages), Moved(len(taken) - dropped, dropped)


@dataclass(frozen=True, slots=True)
class AsMessage:
    """How a job becomes an RSMQ message: text as it is, anything else as JSON, or by `convert`.

    A job that came from RSMQ keeps its id there. Others get one that follows from their entry, so
    that a second try has the same, and that keeps the order of the stream.
    """

    queue: str
    convert: Callable[[Any], str] | None = None

    def body(self, job: Job) -> str:
        payload = job.payload
        if self.convert is not None:
            return self.convert(payload)
        if isinstance(payload, str):
            return payload
        try:
            if isinstance(payload, bytes):
                return payload.decode()
            return json.dumps(payload, ensure_ascii=False)
        except (TypeError, ValueError) as cause:
            raise EncodeError(f"the payload is neither text nor JSON: {cause}") from cause

    def message_id(self, lease: Lease) -> str:
        if rsmq.is_id(lease.job.id):
            return lease.job.id
        ms, _, seq = lease.id.partition("-")
        place = rsmq.base36(min(int(seq), _SEQ_TOP)).rjust(4, "0")
        digest = hashlib.sha256(f"{self.queue}\0{lease.id}".encode()).hexdigest()
        return rsmq.message_id(int(ms) * 1000 + min(int(seq), 999), place + digest[:18])


def give(
    keys: Keys,
    group: str,
    target: RsmqKeys,
    verbs: Rsmq,
    jobs: Sequence[tuple[Lease, str, str]],
) -> Op[bytes]:
    """Move leased jobs (lease, message id, body) in one atomic step; one sign for each."""
    names = [keys.stream, keys.lease("owners"), target.zset, target.hash]
    channel = target.channel if verbs.realtime else ""
    args: list[Arg] = [group, verbs.unit_ms, channel, BATCH_LIFE_MS]
    for lease, message_id, body in jobs:
        place = place_of(lease.job.id)
        number = 0
        if place:
            done = keys.batch_done(place.batch, place.part)
            if done not in names:
                names.append(done)
            number = names.index(done) + 1
        args += (lease.id, lease.consumer, lease.held.nth, message_id, body)
        args += (rsmq.utf16_length(body), number, place.index if place else 0)
    return script("rsmq_give", bytes, names, args)


def accept(target: RsmqKeys, verbs: Rsmq, message_id: str, body: str, remember_ms: int) -> Op[int]:
    """Put a message that comes from another server on the queue, once."""
    channel = target.channel if verbs.realtime else ""
    args: list[Arg] = [message_id, body, rsmq.utf16_length(body), verbs.unit_ms, channel]
    names = [target.zset, target.hash, target.once(message_id)]
    return script("rsmq_accept", as_int, names, [*args, remember_ms])
