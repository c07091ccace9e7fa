"""RSMQ as values: its keys, its limits, what it answers. The reference is npm rsmq 0.12.4."""

from __future__ import annotations

import math
import re
import secrets
import string
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from airflow_provider_chasqui.core.errors import (
    InvalidArgument,
    RsmqError,
    RsmqInvalidFormat,
    RsmqInvalidValue,
    RsmqMessageTooLong,
    RsmqMissingParameter,
    RsmqQueueExists,
    RsmqQueueNotFound,
)

TimeUnit = Literal["s", "ms"]
SecondsInput = int | float | str | timedelta

MAX_SECONDS = 9_999_999
MIN_MESSAGE_SIZE, MAX_MESSAGE_SIZE = 1024, 65_536
DEFAULT_VT, DEFAULT_DELAY = 30, 0

_QNAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,160}")
_MESSAGE_ID_PATTERN = re.compile(r"[a-zA-Z0-9:]{32}")
_LEADING_INT_PATTERN = re.compile(r"\s*([+-]?[0-9]+)")
_ALPHABET = string.ascii_letters + string.digits
_BASE36 = string.digits + string.ascii_lowercase
_TIME_CHARS, _RANDOM_CHARS = 10, 22


@dataclass(frozen=True, slots=True)
class RsmqKeys:
    """The keys of one RSMQ queue.

    | key | type | holds |
    |---|---|---|
    | NS:QUEUES | set | the names of all queues |
    | NS:Q | zset | message ids, scored by the ms at which they become visible |
    | NS:Q:Q | hash | vt, delay, maxsize, created, modified, totals; per message ID, ID:rc, ID:fr |
    | NS:rt:Q | channel | the number of messages after each send of a realtime client |
    | NS:Q:idempotency:TOKEN | string | ours: marker of one call, so that a repeated send is harmless |
    """

    namespace: str
    queue_name: str

    @property
    def hash_tag(self) -> str:
        return f"{self.namespace}:"

    @property
    def queues(self) -> str:
        return f"{self.namespace}:QUEUES"

    @property
    def zset(self) -> str:
        return f"{self.namespace}:{self.queue_name}"

    @property
    def hash(self) -> str:
        return f"{self.namespace}:{self.queue_name}:Q"

    @property
    def channel(self) -> str:
        return f"{self.namespace}:rt:{self.queue_name}"

    def idempotency_marker(self, token: str) -> str:
        return f"{self.namespace}:{self.queue_name}:idempotency:{token}"


@dataclass(frozen=True, slots=True)
class RsmqMessage:
    """A message: `rc` counts receives, `fr` is the first of them, `sent` the send; both in ms.

    `message` is None where another client left an id without a body. `raw` holds the bytes as they
    are, for bodies that are not UTF-8.
    """

    id: str
    message: str | None
    rc: int
    fr: int
    sent: float | None
    raw: bytes | None = None
    visible_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RsmqQueueAttributes:
    """What getQueueAttributes answers, and two numbers it does not have.

    `hiddenmsgs` counts as npm rsmq does, from the beginning of the current second, so a message
    that was just sent is in it; `hidden_exact` and `visiblemsgs` count to the millisecond.
    """

    vt: float
    delay: float
    maxsize: int
    totalrecv: int
    totalsent: int
    created: int
    modified: int
    msgs: int
    hiddenmsgs: int
    hidden_exact: int
    visiblemsgs: int


_SCRIPT_ERRORS: dict[str, tuple[type[RsmqError], str]] = {
    "queueNotFound": (RsmqQueueNotFound, "Queue not found"),
    "queueExists": (RsmqQueueExists, "Queue exists"),
    "messageTooLong": (RsmqMessageTooLong, "Message too long"),
}


def rsmq_error(error_text: str) -> RsmqError:
    """Return the error for a script's refusal."""
    word, _, field = error_text.partition(" ")
    if word == "invalidAttribute":
        return RsmqInvalidValue(
            f"the {field} that another client stored for this queue cannot be used; it may have "
            "been written in milliseconds (use units='ms') or is no number (set it anew)"
        )
    kind, message = _SCRIPT_ERRORS[word]
    return kind(message)


def check_qname(qname: Any) -> str:
    return _check_text("qname", qname, _QNAME_PATTERN)


def check_message_id(message_id: Any) -> str:
    return _check_text("id", message_id, _MESSAGE_ID_PATTERN)


def _check_text(name: str, value: Any, pattern: re.Pattern[str]) -> str:
    if not value:
        raise RsmqMissingParameter(f"No {name} supplied")
    text = str(value)
    if not pattern.fullmatch(text):
        raise RsmqInvalidFormat(f"Invalid {name} format")
    return text


def is_message_id(text: str) -> bool:
    return _MESSAGE_ID_PATTERN.fullmatch(text) is not None


def check_seconds(name: str, value: Any) -> int:
    """Return vt or delay in whole seconds; a timedelta is taken too."""
    number = int(value.total_seconds()) if isinstance(value, timedelta) else parse_js_int(value)
    if number is None or not 0 <= number <= MAX_SECONDS:
        raise RsmqInvalidValue(f"{name} must be between 0 and {MAX_SECONDS}")
    return number


def check_maxsize(value: Any) -> int:
    number = parse_js_int(value)
    if number != -1 and (number is None or not MIN_MESSAGE_SIZE <= number <= MAX_MESSAGE_SIZE):
        raise RsmqInvalidValue(f"maxsize must be between {MIN_MESSAGE_SIZE} and {MAX_MESSAGE_SIZE}")
    return number


def parse_js_int(value: Any) -> int | None:
    """Return what JavaScript's parseInt reads, or None where it reads NaN."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str):
        found = _LEADING_INT_PATTERN.match(value)
        return int(found[1]) if found else None
    return None


def utf16_length(text: str) -> int:
    """Return the length as JavaScript counts it: what maxsize limits."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_namespace(namespace: Any, cluster: bool) -> str:
    """Return the namespace, or raise InvalidArgument where its keys would be torn apart by a cluster."""
    if not isinstance(namespace, str) or not namespace:
        raise InvalidArgument("an RSMQ namespace is a non-empty string; the default is 'rsmq'")
    if cluster and not re.search(r"\{[^}]+\}", namespace):
        raise InvalidArgument(
            "RSMQ keys of one queue lie in different slots of a cluster; use a namespace with a "
            "hash tag, such as '{rsmq}', with every client of the queue"
        )
    return namespace


def random_suffix() -> str:
    """Return the 22 random characters of a message id."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARS))


def build_message_id(sent_us: int, suffix: str) -> str:
    """Return the id of a message sent at `usec`."""
    return encode_base36(sent_us).rjust(_TIME_CHARS, "0") + suffix


def encode_base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
    return digits or "0"


def message_sent_ms(message_id: str) -> float | None:
    """Return when a message was sent, as its id says; None if the id says no time."""
    try:
        return int(message_id[:_TIME_CHARS], 36) / 1000
    except ValueError:
        return None
