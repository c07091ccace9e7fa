"""RSMQ's verbs: checks in npm rsmq's order, then one atomic script each.

npm rsmq looks at the queue before it looks at some of its parameters. Here the script does both in
one round trip; only where a parameter is already known to be bad is the queue asked for by itself,
so that a missing queue is still the first thing to be said.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_chasqui.core import rsmq
from airflow_provider_chasqui.core.errors import (
    BadInput,
    ChasquiError,
    RsmqBadInput,
    RsmqMessageNotString,
    RsmqNoAttributeSupplied,
)
from airflow_provider_chasqui.core.op import Arg, Flow, Op, as_int, as_text, command, script
from airflow_provider_chasqui.core.ops.adding import ONCE_MS
from airflow_provider_chasqui.core.rsmq import RsmqKeys, RsmqMessage, RsmqQueueAttributes, Units

R = TypeVar("R")

_MS = {"s": 1000, "ms": 1}


def as_message(reply: Any) -> RsmqMessage | None:
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
        rsmq.sent_ms(message_id),
        raw,
        int(float(reply[4])) if len(reply) > 4 else None,
    )


def _messages(reply: Any) -> list[RsmqMessage]:
    return [message for each in reply if (message := as_message(each)) is not None]


def _names(reply: Any) -> list[str]:
    return [as_text(name) for name in reply]


@dataclass(frozen=True, slots=True)
class Rsmq:
    """RSMQ's verbs in one namespace, as flows. `units` says what other clients store: vt and delay
    in seconds, as npm rsmq does, or in milliseconds, as the Rust client rsmq_async does.
    """

    namespace: str = "rsmq"
    realtime: bool = False
    units: Units = "s"

    def __post_init__(self) -> None:
        if self.units not in _MS:
            raise BadInput(f"units is 's' or 'ms', not {self.units!r}")

    def keys(self, qname: Any) -> RsmqKeys:
        return RsmqKeys(self.namespace, rsmq.check_qname(qname))

    @property
    def unit_ms(self) -> int:
        """How many ms one stored vt or delay is."""
        return _MS[self.units]

    def create_queue(self, qname: Any, vt: Any, delay: Any, maxsize: Any) -> Flow[int]:
        keys = self.keys(qname)
        stored = [
            self._stored(rsmq.check_seconds("vt", rsmq.DEFAULT_VT if vt is None else vt)),
            self._stored(
                rsmq.check_seconds("delay", rsmq.DEFAULT_DELAY if delay is None else delay)
            ),
            rsmq.check_maxsize(rsmq.MAX_SIZE if maxsize is None else maxsize),
        ]
        names = [keys.hash, keys.queues, keys.once(uuid.uuid4().hex)]
        args: list[Arg] = [keys.queue, *stored, ONCE_MS]
        return (yield from _ask(keys, script("rsmq_create", as_int, names, args)))

    def list_queues(self) -> Op[list[str]]:
        return command("SMEMBERS", f"{self.namespace}:QUEUES", parse=_names)

    def delete_queue(self, qname: Any) -> Flow[int]:
        keys = self.keys(qname)
        names = [keys.hash, keys.zset, keys.queues, keys.once(uuid.uuid4().hex)]
        op = script("rsmq_drop_queue", as_int, names, [keys.queue, ONCE_MS])
        return (yield from _ask(keys, op))

    def get_queue_attributes(self, qname: Any) -> Flow[RsmqQueueAttributes]:
        keys = self.keys(qname)
        op = script("rsmq_read", self._attributes, [keys.zset, keys.hash], [self.unit_ms])
        return (yield from _ask(keys, op))

    def set_queue_attributes(
        self, qname: Any, vt: Any, delay: Any, maxsize: Any
    ) -> Flow[RsmqQueueAttributes]:
        if vt is None and delay is None and maxsize is None:
            raise RsmqNoAttributeSupplied("No attribute was supplied")
        keys = self.keys(qname)
        args: list[Arg] = []
        if vt is not None:
            args += ("vt", self._stored(rsmq.check_seconds("vt", vt)))
        if maxsize is not None:
            args += ("maxsize", rsmq.check_maxsize(maxsize))
        if delay is not None:
            args += ("delay", self._stored(rsmq.check_seconds("delay", delay)))
        op = script("rsmq_write", self._attributes, [keys.zset, keys.hash], args)
        return (yield from _ask(keys, op))

    def send_message(self, qname: Any, message: Any, delay: Any) -> Flow[str]:
        keys = self.keys(qname)
        wait_ms = yield from self._after_queue(keys, lambda: _wait_ms("delay", delay))
        yield from self._after_queue(keys, lambda: _check_message(message))
        args: list[Arg] = [
            rsmq.random_end(),
            message,
            rsmq.utf16_length(message),
            wait_ms,
            self.unit_ms,
            keys.channel if self.realtime else "",
            ONCE_MS,
        ]
        names = [keys.zset, keys.hash, keys.once(uuid.uuid4().hex)]
        return (yield from _ask(keys, script("rsmq_send", as_text, names, args)))

    def receive_message(self, qname: Any, vt: Any) -> Flow[RsmqMessage | None]:
        keys = self.keys(qname)
        hide_ms = yield from self._after_queue(keys, lambda: _wait_ms("vt", vt))
        return (yield from _ask(keys, self.receive(keys, hide_ms)))

    def receive(self, keys: RsmqKeys, hide_ms: int | str) -> Op[RsmqMessage | None]:
        args: list[Arg] = [hide_ms, self.unit_ms]
        return script("rsmq_receive", as_message, [keys.zset, keys.hash], args)

    def pop_message(self, qname: Any) -> Flow[RsmqMessage | None]:
        keys = self.keys(qname)
        op = script("rsmq_pop", as_message, [keys.zset, keys.hash], [self.unit_ms])
        return (yield from _ask(keys, op))

    def delete_message(self, qname: Any, message_id: Any) -> Flow[int]:
        keys = self.keys(qname)
        return (yield from _ask(keys, self.delete(keys, rsmq.check_id(message_id))))

    def delete(self, keys: RsmqKeys, message_id: str) -> Op[int]:
        return script("rsmq_delete", as_int, [keys.zset, keys.hash], [message_id])

    def change_message_visibility(self, qname: Any, message_id: Any, vt: Any) -> Flow[int]:
        keys = self.keys(qname)
        chosen = rsmq.check_id(message_id)
        args: list[Arg] = [chosen, rsmq.check_seconds("vt", vt) * 1000, self.unit_ms]
        op = script("rsmq_hide", as_int, [keys.zset, keys.hash], args)
        return (yield from _ask(keys, op))

    def peek_messages(self, qname: Any, limit: int, hidden: bool) -> Flow[list[RsmqMessage]]:
        keys = self.keys(qname)
        if limit < 1:
            raise BadInput(f"limit must be at least 1, not {limit}", queue=keys.queue)
        return (yield from _ask(keys, self.peek(keys, limit, hidden)))

    def peek(self, keys: RsmqKeys, limit: int, hidden: bool = False) -> Op[list[RsmqMessage]]:
        args: list[Arg] = [limit, int(hidden), self.unit_ms]
        return script("rsmq_peek", _messages, [keys.zset, keys.hash], args)

    def _stored(self, seconds: int) -> int:
        return seconds * 1000 // self.unit_ms

    def _attributes(self, reply: Any) -> RsmqQueueAttributes:
        fields, messages, hidden, hidden_exact = reply
        vt, delay, maxsize, received, sent, created, modified = fields
        return RsmqQueueAttributes(
            vt=_number(vt, rsmq.DEFAULT_VT * 1000 / self.unit_ms) * self.unit_ms / 1000,
            delay=_number(delay, 0) * self.unit_ms / 1000,
            maxsize=int(_number(maxsize, rsmq.MAX_SIZE)),
            totalrecv=int(_number(received, 0)),
            totalsent=int(_number(sent, 0)),
            created=int(_number(created, 0)),
            modified=int(_number(modified, 0)),
            msgs=messages,
            hiddenmsgs=hidden,
            hidden_exact=hidden_exact,
            visiblemsgs=messages - hidden_exact,
        )

    def _after_queue(self, keys: RsmqKeys, check: Callable[[], R]) -> Flow[R]:
        try:
            return check()
        except RsmqBadInput:
            yield from self.get_queue_attributes(keys.queue)
            raise


def _ask(keys: RsmqKeys, op: Op[R]) -> Flow[R]:
    try:
        return (yield op)  # type: ignore[no-any-return]
    except ChasquiError as error:
        error.queue = keys.queue
        raise


def _wait_ms(item: str, value: Any) -> int | str:
    return "" if value is None else rsmq.check_seconds(item, value) * 1000


def _check_message(message: Any) -> None:
    if not isinstance(message, str):
        raise RsmqMessageNotString("Message must be a string")


def _number(raw: bytes | None, default: float) -> float:
    """Return a stored number; other clients write floats, or leave fields out."""
    try:
        return default if raw is None else float(raw)
    except ValueError:
        return default
