"""move, give: messages from an RSMQ queue to a Chasqui queue, and jobs the other way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core.codec import encode_envelope, encode_name, encode_payload
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Flow, Op, script
from airflow_provider_chasqui.core.ops.rsmq import Rsmq
from airflow_provider_chasqui.core.prepare import Ready
from airflow_provider_chasqui.core.rsmq import RsmqKeys, RsmqMessage


@dataclass(frozen=True, slots=True)
class Moved:
    """What a bridge did: `dropped` were ids without a body, `duplicates` had arrived before."""

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
