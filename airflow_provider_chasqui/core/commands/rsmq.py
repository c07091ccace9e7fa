"""Commands of RSMQ queues, and the transfer of messages and jobs between RSMQ and Chasqui queues.

npm rsmq checks that the queue exists before it checks some of the parameters. Here one script does
both in one round trip. Only if a parameter is already known to be invalid, the flow reads the queue
first, so that a missing queue is reported first, as in npm rsmq.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_chasqui.core import rsmq_types
from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import encode_envelope, encode_job_name
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_text,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.batch_keys import BatchKeyIndexer
from airflow_provider_chasqui.core.commands.idempotency import IDEMPOTENCY_TTL_MS
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
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.rsmq_types import (
    RsmqKeys,
    RsmqMessage,
    RsmqQueueAttributes,
    TimeUnit,
)

R = TypeVar("R")

_UNIT_MS = {"s": 1000, "ms": 1}


def parse_message(reply: Any) -> RsmqMessage | None:
    """Return a received message, or None for an empty reply."""
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
    return [message for raw in reply if (message := parse_message(raw)) is not None]


def _parse_names(reply: Any) -> list[str]:
    return [as_text(name) for name in reply]


@dataclass(frozen=True, slots=True)
class RsmqFlows:
    """The operations of RSMQ in one namespace, as command flows.

    :param namespace: the namespace of the keys.
    :param realtime: publish the queue length after each send.
    :param units: the unit of the stored vt and delay: "s" as npm rsmq does, or "ms" as the Rust
        client rsmq_async does.
    :raises InvalidArgument: if `units` is not allowed.
    """

    namespace: str = "rsmq"
    realtime: bool = False
    units: TimeUnit = "s"

    def __post_init__(self) -> None:
        if self.units not in _UNIT_MS:
            raise InvalidArgument(f"units must be 's' or 'ms', not {self.units!r}")

    def keys(self, qname: Any) -> RsmqKeys:
        """Return the keys of a queue.

        :raises RsmqInvalidArgument: if the name is invalid.
        """
        return RsmqKeys(self.namespace, rsmq_types.check_qname(qname))

    @property
    def unit_ms(self) -> int:
        """The unit of the stored vt and delay in ms."""
        return _UNIT_MS[self.units]

    def create_queue(self, qname: Any, vt: Any, delay: Any, maxsize: Any) -> CommandFlow[int]:
        """Create a queue.

        :param qname: the name of the queue.
        :param vt: the visibility timeout in seconds. Default: 30.
        :param delay: the delay of new messages in seconds. Default: 0.
        :param maxsize: the maximum message size; -1 for no limit. Default: 65536.
        :return: 1.
        :raises RsmqQueueExists: if the queue exists.
        """
        keys = self.keys(qname)
        vt_seconds = rsmq_types.check_seconds("vt", rsmq_types.DEFAULT_VT if vt is None else vt)
        delay_seconds = rsmq_types.check_seconds(
            "delay", rsmq_types.DEFAULT_DELAY if delay is None else delay
        )
        stored = [
            self._to_stored_units(vt_seconds),
            self._to_stored_units(delay_seconds),
            rsmq_types.check_maxsize(rsmq_types.MAX_MESSAGE_SIZE if maxsize is None else maxsize),
        ]
        names = [keys.hash, keys.queues, keys.idempotency_marker(uuid.uuid4().hex)]
        args: list[Arg] = [keys.queue_name, *stored, IDEMPOTENCY_TTL_MS]
        command = script_command("rsmq_create_queue", as_int, names, args)
        return (yield from _with_queue_context(keys, command))

    def list_queues(self) -> Command[list[str]]:
        """Return the names of all queues of the namespace."""
        return redis_command("SMEMBERS", f"{self.namespace}:QUEUES", parse=_parse_names)

    def delete_queue(self, qname: Any) -> CommandFlow[int]:
        """Delete a queue and all its messages.

        :return: 1.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        keys = self.keys(qname)
        names = [keys.hash, keys.zset, keys.queues, keys.idempotency_marker(uuid.uuid4().hex)]
        command = script_command(
            "rsmq_delete_queue", as_int, names, [keys.queue_name, IDEMPOTENCY_TTL_MS]
        )
        return (yield from _with_queue_context(keys, command))

    def get_queue_attributes(self, qname: Any) -> CommandFlow[RsmqQueueAttributes]:
        """Return the attributes of a queue.

        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        keys = self.keys(qname)
        command = script_command(
            "rsmq_get_attributes", self._parse_attributes, [keys.zset, keys.hash], [self.unit_ms]
        )
        return (yield from _with_queue_context(keys, command))

    def set_queue_attributes(
        self, qname: Any, vt: Any, delay: Any, maxsize: Any
    ) -> CommandFlow[RsmqQueueAttributes]:
        """Change attributes of a queue; None leaves an attribute unchanged.

        :return: all attributes.
        :raises RsmqNoAttributeSupplied: if all values are None.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
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
        command = script_command(
            "rsmq_set_attributes", self._parse_attributes, [keys.zset, keys.hash], args
        )
        return (yield from _with_queue_context(keys, command))

    def send_message(self, qname: Any, message: Any, delay: Any) -> CommandFlow[str]:
        """Send a message.

        :param qname: the name of the queue.
        :param message: the text of the message.
        :param delay: the delay in seconds; None for that of the queue.
        :return: the message id.
        :raises RsmqQueueNotFound: if the queue does not exist.
        :raises RsmqMessageTooLong: if the message exceeds `maxsize`.
        """
        keys = self.keys(qname)
        delay_ms = yield from self._check_queue_first(keys, lambda: _optional_ms("delay", delay))
        yield from self._check_queue_first(keys, lambda: _check_message(message))
        args: list[Arg] = [
            rsmq_types.random_suffix(),
            rsmq_types.encode_message(message),
            rsmq_types.utf16_length(message),
            delay_ms,
            self.unit_ms,
            keys.channel if self.realtime else "",
            IDEMPOTENCY_TTL_MS,
        ]
        names = [keys.zset, keys.hash, keys.idempotency_marker(uuid.uuid4().hex)]
        command = script_command("rsmq_send", as_text, names, args)
        return (yield from _with_queue_context(keys, command))

    def receive_message(self, qname: Any, vt: Any) -> CommandFlow[RsmqMessage | None]:
        """Receive the first visible message and hide it.

        :param qname: the name of the queue.
        :param vt: the visibility timeout in seconds; None for that of the queue.
        :return: the message, or None if no message is visible.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        keys = self.keys(qname)
        visibility_ms = yield from self._check_queue_first(keys, lambda: _optional_ms("vt", vt))
        return (yield from _with_queue_context(keys, self.receive(keys, visibility_ms)))

    def receive(self, keys: RsmqKeys, visibility_ms: int | str) -> Command[RsmqMessage | None]:
        """Return the command of `receive_message`, without checks.

        :param keys: the keys of the queue.
        :param visibility_ms: the visibility timeout in ms; empty for that of the queue.
        """
        args: list[Arg] = [visibility_ms, self.unit_ms]
        return script_command("rsmq_receive", parse_message, [keys.zset, keys.hash], args)

    def pop_message(self, qname: Any) -> CommandFlow[RsmqMessage | None]:
        """Receive the first visible message and delete it.

        :return: the message, or None if no message is visible.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        keys = self.keys(qname)
        command = script_command("rsmq_pop", parse_message, [keys.zset, keys.hash], [self.unit_ms])
        return (yield from _with_queue_context(keys, command))

    def delete_message(self, qname: Any, message_id: Any) -> CommandFlow[int]:
        """Delete a message.

        :return: 1 if it was deleted, 0 if it did not exist.
        """
        keys = self.keys(qname)
        command = self.delete(keys, rsmq_types.check_message_id(message_id))
        return (yield from _with_queue_context(keys, command))

    def delete(self, keys: RsmqKeys, message_id: str) -> Command[int]:
        """Return the command of `delete_message`, without checks."""
        return script_command("rsmq_delete", as_int, [keys.zset, keys.hash], [message_id])

    def change_message_visibility(self, qname: Any, message_id: Any, vt: Any) -> CommandFlow[int]:
        """Set the time until a message becomes visible.

        :param qname: the name of the queue.
        :param message_id: the id of the message.
        :param vt: the time in seconds from now.
        :return: 1 if it was changed, 0 if the message does not exist.
        """
        keys = self.keys(qname)
        args: list[Arg] = [
            rsmq_types.check_message_id(message_id),
            rsmq_types.check_seconds("vt", vt) * 1000,
            self.unit_ms,
        ]
        command = script_command("rsmq_set_visibility", as_int, [keys.zset, keys.hash], args)
        return (yield from _with_queue_context(keys, command))

    def peek_messages(
        self, qname: Any, limit: int, include_hidden: bool
    ) -> CommandFlow[list[RsmqMessage]]:
        """Read messages without receiving them, in the order in which they will be received.

        :param qname: the name of the queue.
        :param limit: the maximum number of messages.
        :param include_hidden: whether to include hidden messages.
        :raises InvalidArgument: if `limit` is below 1.
        """
        keys = self.keys(qname)
        if limit < 1:
            raise InvalidArgument(
                f"limit must be at least 1, not {limit}", queue_name=keys.queue_name
            )
        return (yield from _with_queue_context(keys, self.peek(keys, limit, include_hidden)))

    def peek(
        self, keys: RsmqKeys, limit: int, include_hidden: bool = False
    ) -> Command[list[RsmqMessage]]:
        """Return the command of `peek_messages`, without checks."""
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
        """Return the result of a check; if it fails, report a missing queue instead."""
        try:
            return check()
        except RsmqInvalidArgument:
            yield from self.get_queue_attributes(keys.queue_name)
            raise


def _with_queue_context(keys: RsmqKeys, command: Command[R]) -> CommandFlow[R]:
    """Run a command and add the queue name to its errors."""
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
    """Return a stored number. Other clients may write floats or omit fields."""
    try:
        return default if raw is None else float(raw)
    except ValueError:
        return default


# Transfer between RSMQ and Chasqui queues

# The largest number with four digits in base 36.
_MAX_SEQUENCE = 36**4 - 1


@dataclass(frozen=True, slots=True)
class TransferReport:
    """Counts of a transfer.

    `dropped` ids had no body. `duplicates` were transferred before. `dead_lettered` jobs could not
    be converted to messages and were moved to the DLQ. `unconverted` messages, which are a part of
    `moved`, were not valid for `convert`; the payloads of their jobs are their texts.
    """

    moved: int = 0
    dropped: int = 0
    duplicates: int = 0
    dead_lettered: int = 0
    unconverted: int = 0

    def __add__(self, other: TransferReport) -> TransferReport:
        return TransferReport(
            self.moved + other.moved,
            self.dropped + other.dropped,
            self.duplicates + other.duplicates,
            self.dead_lettered + other.dead_lettered,
            self.unconverted + other.unconverted,
        )


@dataclass(frozen=True, slots=True)
class MessageToJob:
    """Conversion of RSMQ messages to jobs. The job keeps the id and the send time of the message.

    :param qname: the name of the RSMQ queue.
    :param job_name: the name of the jobs. Default: `rsmq:<qname>`.
    :param keep_receive_count: count the receives of the message as attempts of the job.
    :param convert: converts the text to the payload. If it raises ValueError, the text is the
        payload. Default: the text is the payload.
    """

    qname: str
    job_name: str | None = None
    keep_receive_count: bool = False
    convert: Callable[[str], Any] | None = None
    encoded_name: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        job_name = f"rsmq:{self.qname}" if self.job_name is None else self.job_name
        object.__setattr__(self, "encoded_name", encode_job_name(job_name))

    def envelope(self, message: RsmqMessage, now_ms: int) -> tuple[bytes, bool]:
        """Return the encoded job, and whether `convert` accepted the message.

        :param message: the message.
        :param now_ms: the creation time of the job if the message id contains no time.
        """
        attempt = message.rc if self.keep_receive_count else 0
        created_ms = now_ms if message.sent is None else int(message.sent)
        payload, converted = self._encode_payload(message)
        return encode_envelope(message.id, payload, created_ms, attempt), converted

    def _encode_payload(self, message: RsmqMessage) -> tuple[bytes, bool]:
        raw = message.raw or b""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return encode_payload(raw), self.convert is None  # not text: keep the bytes
        if self.convert is None:
            return encode_payload(text), True
        try:
            payload = self.convert(text)
        except ValueError:
            return encode_payload(text), False
        return encode_payload(payload), True

    def encode_job(
        self, message: RsmqMessage, now_ms: int, dedup_ttl_ms: int
    ) -> tuple[EncodedJob, bool]:
        """Return the job of a message, and whether `convert` accepted the message.

        The job is deduplicated by the message id for `dedup_ttl_ms`.
        """
        raw, converted = self.envelope(message, now_ms)
        return EncodedJob(message.id, self.encoded_name, raw, None, dedup_ttl_ms, True), converted


def move_messages(
    source: RsmqKeys, target: Keys, messages: Sequence[tuple[str, bytes, bytes]], max_len: int
) -> Command[bytes]:
    """Move messages atomically.

    :param source: the keys of the RSMQ queue.
    :param target: the keys of the Chasqui queue.
    :param messages: id, envelope `d` and name `n` of each message; an empty `d` drops it.
    :param max_len: the maximum length of the stream; 0 for no limit.
    :return: a command; its result has one character per message, see lua/rsmq_move_messages.lua.
    """
    args: list[Arg] = [max_len]
    for message in messages:
        args += message
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
    """Move up to `limit` visible messages, oldest first.

    The flow reads the messages first, because a script cannot encode MessagePack. The script then
    moves only those that still exist and are visible, so other consumers do not interfere.

    :return: the number of messages that were read, and the counts of the transfer.
    """
    messages: list[RsmqMessage] = yield flows.peek(source, limit)
    if not messages:
        return 0, TransferReport()
    # A message without a body is dropped.
    envelopes = [
        (b"", True) if message.raw is None else converter.envelope(message, now_ms)
        for message in messages
    ]
    moves = [
        (message.id, envelope, converter.encoded_name)
        for message, (envelope, _) in zip(messages, envelopes, strict=True)
    ]
    flags = yield move_messages(source, target, moves, max_len)
    removed = [pair for pair, flag in zip(envelopes, flags, strict=True) if flag == ord("1")]
    dropped = sum(not envelope for envelope, _ in removed)
    unconverted = sum(not converted for _, converted in removed)
    return len(messages), TransferReport(len(removed) - dropped, dropped, unconverted=unconverted)


@dataclass(frozen=True, slots=True)
class JobToMessage:
    """Conversion of jobs to RSMQ messages: text unchanged, other payloads as JSON, or by `convert`.

    A job whose id is an RSMQ message id keeps it. Other jobs get an id that is derived from their
    entry id, so that a repeated transfer uses the same id and the order of the stream is preserved.

    :param queue_name: the name of the Chasqui queue.
    :param convert: converts the payload to the text of the message.
    """

    queue_name: str
    convert: Callable[[Any], str] | None = None

    def body(self, job: Job) -> str:
        """Return the text of the message.

        :raises EncodeError: if the payload is neither text nor JSON.
        """
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
            raise EncodeError(
                f"the payload must be text or JSON, or needs convert=: {cause}"
            ) from cause

    def message_id(self, lease: Lease) -> str:
        """Return the id of the message."""
        if rsmq_types.is_message_id(lease.job.id):
            return lease.job.id
        ms, _, seq = lease.entry_id.partition("-")
        position = rsmq_types.encode_base36(min(int(seq), _MAX_SEQUENCE)).rjust(4, "0")
        digest = hashlib.sha256(f"{self.queue_name}\0{lease.entry_id}".encode()).hexdigest()
        sent_us = int(ms) * 1000 + min(int(seq), 999)
        return rsmq_types.build_message_id(sent_us, position + digest[:18])


def move_jobs(
    keys: Keys,
    group: str,
    target: RsmqKeys,
    flows: RsmqFlows,
    jobs: Sequence[tuple[Lease, str, str]],
) -> Command[bytes]:
    """Move leased jobs atomically.

    :param keys: the keys of the Chasqui queue.
    :param group: the consumer group of the leases.
    :param target: the keys of the RSMQ queue.
    :param flows: the settings of the RSMQ namespace.
    :param jobs: lease, message id and text of each job.
    :return: a command; its result has one character per job, see lua/rsmq_move_jobs.lua.
    """
    names = [keys.stream, keys.lease("owners"), target.zset, target.hash]
    channel = target.channel if flows.realtime else ""
    args: list[Arg] = [group, flows.unit_ms, channel]
    batch_args = BatchKeyIndexer(keys, names).args
    for lease, message_id, body in jobs:
        args += (lease.entry_id, lease.consumer, lease.handle.entry_deliveries, message_id, body)
        position = parse_batch_job_id(lease.job.id)
        batch = batch_args(position, lease.job.created_at_ms)
        args += (rsmq_types.utf16_length(body), *batch)
    return script_command("rsmq_move_jobs", bytes, names, args)


def add_external(
    target: RsmqKeys, flows: RsmqFlows, message_id: str, body: str, dedup_ttl_ms: int
) -> Command[int]:
    """Add a message from another server, once per message id.

    :param target: the keys of the RSMQ queue.
    :param flows: the settings of the RSMQ namespace.
    :param message_id: the id of the message.
    :param body: the text of the message.
    :param dedup_ttl_ms: how long a second message with this id is refused.
    :return: a command; its result is 1 added, 0 added before, -1 too long for the queue.
    """
    channel = target.channel if flows.realtime else ""
    args: list[Arg] = [message_id, body, rsmq_types.utf16_length(body), flows.unit_ms, channel]
    names = [target.zset, target.hash, target.idempotency_marker(message_id)]
    return script_command("rsmq_add_external", as_int, names, [*args, dedup_ttl_ms])
