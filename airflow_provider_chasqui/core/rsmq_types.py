"""Values of RSMQ: keys, limits, messages and errors. The reference is npm rsmq 0.12.4."""

from __future__ import annotations

import math
import os
import re
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
# For each random byte a character of the alphabet, and the bytes that have none.
_BYTE_TO_CHARACTER = (_ALPHABET * 5).encode()[:256]
_UNUSED_BYTES = bytes(range(256 - 256 % len(_ALPHABET), 256))
_BASE36 = string.digits + string.ascii_lowercase
_TIME_CHARS, _RANDOM_CHARS = 10, 22


@dataclass(frozen=True, slots=True)
class RsmqKeys:
    """The keys of one RSMQ queue.

    | key | type | content |
    |---|---|---|
    | NS:QUEUES | set | the names of all queues |
    | NS:Q | zset | message ids, scored by the ms at which they become visible |
    | NS:Q:Q | hash | vt, delay, maxsize, created, modified, totals; per message ID, ID:rc, ID:fr |
    | NS:rt:Q | channel | the number of messages, published after each send of a realtime client |
    | NS:Q:idempotency:TOKEN | string | marker of one call; other RSMQ clients do not use it |

    :param namespace: the namespace, NS in the table.
    :param queue_name: the name of the queue, Q in the table.
    """

    namespace: str
    queue_name: str

    @property
    def hash_tag(self) -> str:
        """The prefix of all keys of the namespace."""
        return f"{self.namespace}:"

    @property
    def queues(self) -> str:
        """The key of the set of queue names."""
        return f"{self.namespace}:QUEUES"

    @property
    def zset(self) -> str:
        """The key of the message ids."""
        return f"{self.namespace}:{self.queue_name}"

    @property
    def hash(self) -> str:
        """The key of the attributes and message bodies."""
        return f"{self.namespace}:{self.queue_name}:Q"

    @property
    def channel(self) -> str:
        """The channel for realtime clients."""
        return f"{self.namespace}:rt:{self.queue_name}"

    def idempotency_marker(self, token: str) -> str:
        """Return the key of the marker of one call."""
        return f"{self.namespace}:{self.queue_name}:idempotency:{token}"


@dataclass(frozen=True, slots=True)
class RsmqMessage:
    """An RSMQ message.

    `rc` is the number of receives, `fr` the time of the first one in ms, `sent` the time of the
    send in ms. `message` is None if another client left an id without a body. `raw` contains the
    bytes of the body, which may not be UTF-8.
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
    """The reply of getQueueAttributes, and two more exact counts.

    `hiddenmsgs` counts like npm rsmq, from the start of the current second, so it includes a
    message that was just sent. `hidden_exact` and `visiblemsgs` count to the millisecond.
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
    """Return the exception for a CHASQUIRSMQ refusal of a script.

    :param error_text: the text after CHASQUIRSMQ.
    """
    word, _, attribute = error_text.partition(" ")
    if word == "invalidAttribute":
        return RsmqInvalidValue(
            f"the {attribute} that another client stored for this queue is invalid; use "
            "units='ms' if it was stored in milliseconds, otherwise set the attribute again"
        )
    error_type, message = _SCRIPT_ERRORS[word]
    return error_type(message)


def check_qname(qname: Any) -> str:
    """Return the queue name if it is valid.

    :raises RsmqMissingParameter: if it is empty.
    :raises RsmqInvalidFormat: if it contains characters other than A-Z, a-z, 0-9, `_` and `-`, or
        is longer than 160 characters.
    """
    return _check_text("qname", qname, _QNAME_PATTERN)


def check_message_id(message_id: Any) -> str:
    """Return the message id if it is valid.

    :raises RsmqMissingParameter: if it is empty.
    :raises RsmqInvalidFormat: if it is not 32 characters out of A-Z, a-z, 0-9 and colons.
    """
    return _check_text("id", message_id, _MESSAGE_ID_PATTERN)


def _check_text(name: str, value: Any, pattern: re.Pattern[str]) -> str:
    if not value:
        raise RsmqMissingParameter(f"No {name} supplied")
    text = str(value)
    if not pattern.fullmatch(text):
        raise RsmqInvalidFormat(f"Invalid {name} format")
    return text


def is_message_id(text: str) -> bool:
    """Return whether a text has the format of a message id."""
    return _MESSAGE_ID_PATTERN.fullmatch(text) is not None


def check_seconds(name: str, value: Any) -> int:
    """Return vt or delay in seconds, as an integer.

    :param name: "vt" or "delay", for the error message.
    :param value: a number, a text that starts with an integer, or a timedelta.
    :raises RsmqInvalidValue: if it is not between 0 and 9999999.
    """
    number = int(value.total_seconds()) if isinstance(value, timedelta) else parse_js_int(value)
    if number is None or not 0 <= number <= MAX_SECONDS:
        raise RsmqInvalidValue(f"{name} must be between 0 and {MAX_SECONDS}")
    return number


def check_maxsize(value: Any) -> int:
    """Return the maximum message size.

    :param value: a number, or a text that starts with an integer; -1 for no limit.
    :raises RsmqInvalidValue: if it is neither -1 nor between 1024 and 65536.
    """
    number = parse_js_int(value)
    if number != -1 and (number is None or not MIN_MESSAGE_SIZE <= number <= MAX_MESSAGE_SIZE):
        raise RsmqInvalidValue(f"maxsize must be between {MIN_MESSAGE_SIZE} and {MAX_MESSAGE_SIZE}")
    return number


def parse_js_int(value: Any) -> int | None:
    """Return the result of JavaScript's parseInt, or None instead of NaN."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str):
        match = _LEADING_INT_PATTERN.match(value)
        return int(match[1]) if match else None
    return None


def encode_message(text: str) -> bytes:
    """Return a message as UTF-8, with U+FFFD for each lone surrogate, as npm rsmq stores it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 code units, as JavaScript counts it. `maxsize` limits this."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_namespace(namespace: Any, cluster: bool) -> str:
    """Return the namespace if it is valid.

    :param namespace: the namespace.
    :param cluster: whether the server is a Redis Cluster.
    :raises InvalidArgument: if it is empty, or has no hash tag on a cluster.
    """
    if not isinstance(namespace, str) or not namespace:
        raise InvalidArgument("an RSMQ namespace must be a non-empty string; the default is 'rsmq'")
    if cluster and not re.search(r"\{[^}]+\}", namespace):
        raise InvalidArgument(
            "a cluster stores the RSMQ keys of one queue in different slots; use a namespace with "
            "a hash tag, such as '{rsmq}', in every client of the queue"
        )
    return namespace


def random_suffix() -> str:
    """Return the 22 random characters of a message id."""
    suffix = ""
    while len(suffix) < _RANDOM_CHARS:
        # Bytes from 248 on are dropped, so that each of the 62 characters is equally likely.
        kept = os.urandom(2 * _RANDOM_CHARS).translate(_BYTE_TO_CHARACTER, _UNUSED_BYTES)
        suffix += kept.decode("ascii")
    return suffix[:_RANDOM_CHARS]


def build_message_id(sent_us: int, suffix: str) -> str:
    """Return the id of a message that was sent at `sent_us` (microseconds)."""
    return encode_base36(sent_us).rjust(_TIME_CHARS, "0") + suffix


def encode_base36(number: int) -> str:
    """Return a non-negative integer in base 36, in lower case."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
    return digits or "0"


def message_sent_ms(message_id: str) -> float | None:
    """Return the time of the send in ms that a message id contains; None if it contains none."""
    try:
        return int(message_id[:_TIME_CHARS], 36) / 1000
    except ValueError:
        return None
