"""RSMQ's verbs: checks in npm rsmq's order, then one atomic script each.

npm rsmq looks at the queue before it looks at some of its parameters. Here the script does both in
one round trip; only where a parameter is already known to be bad is the queue asked for by itself,
so that a missing queue is still the first thing to be said.

move, give: messages from an RSMQ queue to a Chasqui queue, and jobs the other way.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_chasqui.core import rsmq_types
from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, parse_batch_job_id
from airflow_provider_chasqui.core.codec import encode_envelope, encode_job_name
from airflow_provider_chasqui.core.command import (
    Arg,
    Command,
    CommandFlow,
    as_int,
    as_text,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.enqueue import IDEMPOTENCY_TTL_MS
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    EncodeError,
    InvalidArgument,
    RsmqInvalidArgument,
    RsmqMessageNotString,
    RsmqNoAttributeSupplied,
)
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Lease
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.rsmq_types import (
    RsmqKeys,
    RsmqMessage,
    RsmqQueueAttributes,
    TimeUnit,
)

R = TypeVar("R")

_UNIT_MS = {"s": 1000, "ms": 1}


def parse_message(reply: Any) -> RsmqMessage | None:
    """Return a received message, or None for an empty answer."""
    if not reply:
        return None
    message_id = as_text(reply[0])
    raw: bytes | None = reply[1]
    return RsmqMessage(
        message_id,
        None if raw is None else raw.decode("utf-8", "replace"),
        int(reply[2] or 0),
        int(reply[3] or 0),
        rsmq_types.message_sent_ms(message_id),
        raw,
        int(float(reply[4])) if len(reply) > 4 else None,
    )


def _parse_messages(reply: Any) -> list[RsmqMessage]:
    return [message for each in reply if (message := parse_message(each)) is not None]


def _parse_names(reply: Any) -> list[str]:
    return [as_text(name) for name in reply]


@dataclass(frozen=True, slots=True)
class RsmqFlows:
    """RSMQ's verbs in one namespace, as flows. `units` says what other clients store: vt and delay
    in seconds, as npm rsmq does, or in milliseconds, as the Rust client rsmq_async does.
    """

    namespace: str = "rsmq"
    realtime: bool = False
    units: TimeUnit = "s"

    def __post_init__(self) -> None:
        if self.units not in _UNIT_MS:
            raise InvalidArgument(f"units is 's' or 'ms', not {self.units!r}")

    def keys(self, qname: Any) -> RsmqKeys:
        return RsmqKeys(self.namespace, rsmq_types.check_qname(qname))

    @property
    def unit_ms(self) -> int:
        """How many ms one stored vt or delay is."""
        return _UNIT_MS[self.units]

    def create_queue(self, qname: Any, vt: Any, delay: Any, maxsize: Any) -> CommandFlow[int]:
        keys = self.keys(qname)
        stored = [
            self._to_stored_units(
                rsmq_types.check_seconds("vt", rsmq_types.DEFAULT_VT if vt is None else vt)
            ),
            self._to_stored_units(
                rsmq_types.check_seconds(
                    "delay", rsmq_types.DEFAULT_DELAY if delay is None else delay
                )
            ),
            rsmq_types.check_maxsize(rsmq_types.MAX_MESSAGE_SIZE if maxsize is None else maxsize),
        ]
        names = [keys.hash, keys.queues, keys.idempotency_marker(uuid.uuid4().hex)]
        args: list[Arg] = [keys.queue_name, *stored, IDEMPOTENCY_TTL_MS]
        return (
            yield from _with_queue_context(
                keys, script_command("rsmq_create_queue", as_int, names, args)
            )
        )

    def list_queues(self) -> Command[list[str]]:
        return redis_command("SMEMBERS", f"{self.namespace}:QUEUES", parse=_parse_names)

    def delete_queue(self, qname: Any) -> CommandFlow[int]:
        keys = self.keys(qname)
        names = [keys.hash, keys.zset, keys.queues, keys.idempotency_marker(uuid.uuid4().hex)]
        op = script_command(
            "rsmq_delete_queue", as_int, names, [keys.queue_name, IDEMPOTENCY_TTL_MS]
        )
        return (yield from _with_queue_context(keys, op))

    def get_queue_attributes(self, qname: Any) -> CommandFlow[RsmqQueueAttributes]:
        keys = self.keys(qname)
        op = script_command(
            "rsmq_get_attributes", self._parse_attributes, [keys.zset, keys.hash], [self.unit_ms]
        )
        return (yield from _with_queue_context(keys, op))

    def set_queue_attributes(
        self, qname: Any, vt: Any, delay: Any, maxsize: Any
    ) -> CommandFlow[RsmqQueueAttributes]:
        if vt is None and delay is None and maxsize is None:
            raise RsmqNoAttributeSupplied("No attribute was supplied")
        keys = self.keys(qname)
        args: list[Arg] = []
        if vt is not None:
            args += ("vt", self._to_stored_units(rsmq_types.check_seconds("vt", vt)))
        if maxsize is not None:
            args += ("maxsize", rsmq_types.check_maxsize(maxsize))
        if delay is not None:
            args += ("delay", self._to_stored_units(rsmq_types.check_seconds("delay", delay)))
        op = script_command(
            "rsmq_set_attributes", self._parse_attributes, [keys.zset, keys.hash], args
        )
        return (yield from _with_queue_context(keys, op))

    def send_message(self, qname: Any, message: Any, delay: Any) -> CommandFlow[str]:
        keys = self.keys(qname)
        wait_ms = yield from self._check_queue_first(keys, lambda: _optional_ms("delay", delay))
        yield from self._check_queue_first(keys, lambda: _check_message(message))
        args: list[Arg] = [
            rsmq_types.random_suffix(),
            message,
            rsmq_types.utf16_length(message),
            wait_ms,
            self.unit_ms,
            keys.channel if self.realtime else "",
            IDEMPOTENCY_TTL_MS,
        ]
        names = [keys.zset, keys.hash, keys.idempotency_marker(uuid.uuid4().hex)]
        return (
            yield from _with_queue_context(keys, script_command("rsmq_send", as_text, names, args))
        )

    def receive_message(self, qname: Any, vt: Any) -> CommandFlow[RsmqMessage | None]:
        keys = self.keys(qname)
        hide_ms = yield from self._check_queue_first(keys, lambda: _optional_ms("vt", vt))
        return (yield from _with_queue_context(keys, self.receive(keys, hide_ms)))

    def receive(self, keys: RsmqKeys, visibility_ms: int | str) -> Command[RsmqMessage | None]:
        args: list[Arg] = [visibility_ms, self.unit_ms]
        return script_command("rsmq_receive", parse_message, [keys.zset, keys.hash], args)

    def pop_message(self, qname: Any) -> CommandFlow[RsmqMessage | None]:
        keys = self.keys(qname)
        op = script_command("rsmq_pop", parse_message, [keys.zset, keys.hash], [self.unit_ms])
        return (yield from _with_queue_context(keys, op))

    def delete_message(self, qname: Any, message_id: Any) -> CommandFlow[int]:
        keys = self.keys(qname)
        return (
            yield from _with_queue_context(
                keys, self.delete(keys, rsmq_types.check_message_id(message_id))
            )
        )

    def delete(self, keys: RsmqKeys, message_id: str) -> Command[int]:
        return script_command("rsmq_delete", as_int, [keys.zset, keys.hash], [message_id])

    def change_message_visibility(self, qname: Any, message_id: Any, vt: Any) -> CommandFlow[int]:
        keys = self.keys(qname)
        chosen = rsmq_types.check_message_id(message_id)
        args: list[Arg] = [chosen, rsmq_types.check_seconds("vt", vt) * 1000, self.unit_ms]
        op = script_command("rsmq_set_visibility", as_int, [keys.zset, keys.hash], args)
        return (yield from _with_queue_context(keys, op))

    def peek_messages(
        self, qname: Any, limit: int, include_hidden: bool
    ) -> CommandFlow[list[RsmqMessage]]:
        keys = self.keys(qname)
        if limit < 1:
            raise InvalidArgument(
                f"limit must be at least 1, not {limit}", queue_name=keys.queue_name
            )
        return (yield from _with_queue_context(keys, self.peek(keys, limit, include_hidden)))

    def peek(
        self, keys: RsmqKeys, limit: int, include_hidden: bool = False
    ) -> Command[list[RsmqMessage]]:
        args: list[Arg] = [limit, int(include_hidden), self.unit_ms]
        return script_command("rsmq_peek", _parse_messages, [keys.zset, keys.hash], args)

    def _to_stored_units(self, seconds: int) -> int:
        return seconds * 1000 // self.unit_ms

    def _parse_attributes(self, reply: Any) -> RsmqQueueAttributes:
        fields, messages, hidden, hidden_exact = reply
        vt, delay, maxsize, received, sent, created, modified = fields
        return RsmqQueueAttributes(
            vt=_parse_number(vt, rsmq_types.DEFAULT_VT * 1000 / self.unit_ms) * self.unit_ms / 1000,
            delay=_parse_number(delay, 0) * self.unit_ms / 1000,
            maxsize=int(_parse_number(maxsize, rsmq_types.MAX_MESSAGE_SIZE)),
            totalrecv=int(_parse_number(received, 0)),
            totalsent=int(_parse_number(sent, 0)),
            created=int(_parse_number(created, 0)),
            modified=int(_parse_number(modified, 0)),
            msgs=messages,
            hiddenmsgs=hidden,
            hidden_exact=hidden_exact,
            visiblemsgs=messages - hidden_exact,
        )

    def _check_queue_first(self, keys: RsmqKeys, check: Callable[[], R]) -> CommandFlow[R]:
        try:
            return check()
        except RsmqInvalidArgument:
            yield from self.get_queue_attributes(keys.queue_name)
            raise


def _with_queue_context(keys: RsmqKeys, command: Command[R]) -> CommandFlow[R]:
    try:
        return (yield command)  # type: ignore[no-any-return]
    except ChasquiError as error:
        error.queue_name = keys.queue_name
        raise


def _optional_ms(field: str, value: Any) -> int | str:
    return "" if value is None else rsmq_types.check_seconds(field, value) * 1000


def _check_message(message: Any) -> None:
    if not isinstance(message, str):
        raise RsmqMessageNotString("Message must be a string")


def _parse_number(raw: bytes | None, default: float) -> float:
    """Return a stored number; other clients write floats, or leave fields out."""
    try:
        return default if raw is None else float(raw)
    except ValueError:
        return default


# What four digits of base 36 hold.
_MAX_SEQUENCE = 36**4 - 1


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a bridge did: `dropped` were ids without a body, `duplicates` had arrived before,
    `buried` could not become messages and are letters now.
    """

    moved: int = 0
    dropped: int = 0
    duplicates: int = 0
    dead_lettered: int = 0

    def __add__(self, other: TransferReport) -> TransferReport:
        return TransferReport(
            self.moved + other.moved,
            self.dropped + other.dropped,
            self.duplicates + other.duplicates,
            self.dead_lettered + other.dead_lettered,
        )


@dataclass(frozen=True, slots=True)
class MessageToJob:
    """How an RSMQ message becomes a job.

    The job has the message's id and the time it was sent; `convert` makes its payload of the text.
    With `keep_receive_count` the receives that it had count as attempts.
    """

    qname: str
    job_name: str | None = None
    keep_receive_count: bool = False
    convert: Callable[[str], Any] | None = None
    encoded_name: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        chosen = f"rsmq:{self.qname}" if self.job_name is None else self.job_name
        object.__setattr__(self, "encoded_name", encode_job_name(chosen))

    def envelope(self, message: RsmqMessage, now_ms: int) -> bytes:
        attempt = message.rc if self.keep_receive_count else 0
        created_ms = now_ms if message.sent is None else int(message.sent)
        return encode_envelope(message.id, self._encode_payload(message), created_ms, attempt)

    def _encode_payload(self, message: RsmqMessage) -> bytes:
        raw = message.raw or b""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return encode_payload(raw)  # not text: the bytes as they are
        return encode_payload(self.convert(text) if self.convert else text)

    def encode_job(self, message: RsmqMessage, now_ms: int, dedup_ttl_ms: int) -> EncodedJob:
        raw = self.envelope(message, now_ms)
        return EncodedJob(message.id, self.encoded_name, raw, None, dedup_ttl_ms, True)


def move_messages(
    source: RsmqKeys, target: Keys, messages: Sequence[tuple[str, bytes, bytes]], max_len: int
) -> Command[bytes]:
    """Move messages (id, d, n) in one atomic step; one sign for each."""
    args: list[Arg] = [max_len]
    for each in messages:
        args += each
    return script_command(
        "rsmq_move_messages", bytes, [source.zset, source.hash, target.stream], args
    )


def move_messages_page(
    flows: RsmqFlows,
    source: RsmqKeys,
    target: Keys,
    converter: MessageToJob,
    limit: int,
    max_len: int,
    now_ms: int,
) -> CommandFlow[tuple[int, TransferReport]]:
    """Move up to `limit` visible messages, oldest first; answers how many were seen, and what was
    done.

    Messages are looked at first, because a script cannot write MessagePack; the script then takes
    only those that are still there and visible, so a consumer in between is no harm.
    """
    messages: list[RsmqMessage] = yield flows.peek(source, limit)
    if not messages:
        return 0, TransferReport()
    moves = [
        (m.id, b"" if m.raw is None else converter.envelope(m, now_ms), converter.encoded_name)
        for m in messages
    ]
    signs = yield move_messages(source, target, moves, max_len)
    taken = [m for m, sign in zip(messages, signs, strict=True) if sign == ord("1")]
    dropped = sum(m.raw is None for m in taken)
    return len(messages), TransferReport(len(taken) - dropped, dropped)


@dataclass(frozen=True, slots=True)
class JobToMessage:
    """How a job becomes an RSMQ message: text as it is, anything else as JSON, or by `convert`.

    A job that came from RSMQ keeps its id there. Others get one that follows from their entry, so
    that a second try has the same, and that keeps the order of the stream.
    """

    queue_name: str
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
        if rsmq_types.is_message_id(lease.job.id):
            return lease.job.id
        ms, _, seq = lease.entry_id.partition("-")
        place = rsmq_types.encode_base36(min(int(seq), _MAX_SEQUENCE)).rjust(4, "0")
        digest = hashlib.sha256(f"{self.queue_name}\0{lease.entry_id}".encode()).hexdigest()
        return rsmq_types.build_message_id(int(ms) * 1000 + min(int(seq), 999), place + digest[:18])


def move_jobs(
    keys: Keys,
    group: str,
    target: RsmqKeys,
    flows: RsmqFlows,
    jobs: Sequence[tuple[Lease, str, str]],
) -> Command[bytes]:
    """Move leased jobs (lease, message id, body) in one atomic step; one sign for each."""
    names = [keys.stream, keys.lease("owners"), target.zset, target.hash]
    channel = target.channel if flows.realtime else ""
    args: list[Arg] = [group, flows.unit_ms, channel, BATCH_TTL_MS]
    for lease, message_id, body in jobs:
        place = parse_batch_job_id(lease.job.id)
        number = 0
        if place:
            done = keys.batch_done(place.batch_id, place.part)
            if done not in names:
                names.append(done)
            number = names.index(done) + 1
        args += (lease.entry_id, lease.consumer, lease.handle.entry_deliveries, message_id, body)
        args += (rsmq_types.utf16_length(body), number, place.index if place else 0)
    return script_command("rsmq_move_jobs", bytes, names, args)


def add_external(
    target: RsmqKeys, flows: RsmqFlows, message_id: str, body: str, dedup_ttl_ms: int
) -> Command[int]:
    """Put a message that comes from another server on the queue, once."""
    channel = target.channel if flows.realtime else ""
    args: list[Arg] = [message_id, body, rsmq_types.utf16_length(body), flows.unit_ms, channel]
    names = [target.zset, target.hash, target.idempotency_marker(message_id)]
    return script_command("rsmq_add_external", as_int, names, [*args, dedup_ttl_ms])
