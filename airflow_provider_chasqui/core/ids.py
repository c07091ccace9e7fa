"""Unique identifiers: ULIDs for jobs, and idempotency ids for the calls of a producer."""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice

from airflow_provider_chasqui.core.fork import fork_state

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGIT_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_DIGIT_VALUES = {c: i for i, c in enumerate(_ALPHABET)}
_RANDOM_BITS = 80
_LOW_BITS = 20


def _encode_ulid(time_ms: int, random: int) -> str:
    value = time_ms << _RANDOM_BITS | random
    return "".join(_DIGIT_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10))


class UlidGenerator:
    """Generator of ULIDs that sort in the order in which this process generated them.

    Within one millisecond the previous ULID is incremented, so the jobs of a bulk add keep their
    order. ChasquiMQ generates a new random part for each ULID and does not keep the order.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._generation = fork_state.generation
        self._time_ms = -1
        self._high = 0
        self._low = 0
        self._prefix = ""

    def next(self, now_ms: int) -> str:
        """Return the next ULID.

        :param now_ms: the current time in milliseconds since the epoch.
        :return: 26 characters in Crockford's base 32.
        """
        if self._generation != fork_state.generation:
            # A forked child that continues the sequence would generate the ids of its parent.
            self._reset()
        with self._lock:
            low = self._low + 1
            if now_ms > self._time_ms or low >> _LOW_BITS:
                low = self._advance_prefix(now_ms)
            self._low = low
            # All digits but the last four are the same within a bulk add.
            return self._prefix + _DIGIT_PAIRS[low >> 10] + _DIGIT_PAIRS[low & 1023]

    def next_many(self, now_ms: int, count: int) -> list[str]:
        """Return the next ULIDs, in order. This is faster than repeated calls of `next`.

        :param now_ms: the current time in milliseconds since the epoch.
        :param count: the number of ULIDs.
        """
        ids: list[str] = []
        while len(ids) < count:
            ids.append(self.next(now_ms))
            with self._lock:
                first = self._low + 1
                last = min(first + count - len(ids), 1 << _LOW_BITS)
                prefix, self._low = self._prefix, last - 1
            ids += [
                prefix + _DIGIT_PAIRS[low >> 10] + _DIGIT_PAIRS[low & 1023]
                for low in range(first, last)
            ]
        return ids

    def _advance_prefix(self, now_ms: int) -> int:
        low = 0
        if now_ms > self._time_ms:
            self._time_ms = now_ms
            # The top bit stays clear, so that incrementing never overflows in practice.
            random = int.from_bytes(os.urandom(10), "big") >> 1
            self._high, low = divmod(random, 1 << _LOW_BITS)
        else:
            self._high += 1
        self._prefix = _encode_ulid(self._time_ms, self._high << _LOW_BITS)[:-4]
        return low


def ulid_timestamp_ms(job_id: str) -> int | None:
    """Return the time at which a ULID was generated.

    :param job_id: the id of a job.
    :return: milliseconds since the epoch, or None if the id is not a ULID.
    """
    if len(job_id) != 26:
        return None
    value = 0
    for char in islice(job_id, 10):
        digit = _DIGIT_VALUES.get(char)
        if digit is None:
            return None
        value = value << 5 | digit
    return value


@dataclass(slots=True)
class ProducerCall:
    """One call of a producer. Its commands have ids, so that each may be sent twice."""

    producer_id: str
    call_number: int
    _release: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def __enter__(self) -> ProducerCall:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def idempotent_id(self, index: int) -> str:
        """Return the id of one command of this call, unique within the producer.

        :param index: the position of the command in the call.
        """
        return f"{self.call_number}:{index}"

    def idempotency_token(self, index: int) -> str:
        """Return the id of one command of this call, unique among all producers.

        :param index: the position of the command in the call.
        """
        return f"{self.producer_id}:{self.call_number}:{index}"


class ProducerSession:
    """Source of the producer ids of one producer's calls.

    Redis remembers the last 100 ids per producer id (IDMP). If all threads shared one producer id,
    a hundred adds of other threads could evict the id of a call between its first send and a
    resend, and the job would be added twice. Therefore concurrent calls have different producer
    ids.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._generation = fork_state.generation
        self._producer_id = uuid.uuid4().hex
        self._call_numbers = count()
        self._slot_numbers = count()
        self._free_slots: deque[int] = deque()

    def begin_call(self) -> ProducerCall:
        """Return a new call, to be used in a `with` statement, which releases its producer id."""
        if self._generation != fork_state.generation:
            # Redis would take the adds of a forked child that continues the numbers for its
            # parent's.
            self._reset()
        free_slots = self._free_slots
        try:
            slot = free_slots.pop()
        except IndexError:
            slot = next(self._slot_numbers)
        release = partial(free_slots.append, slot)
        return ProducerCall(f"{self._producer_id}.{slot}", next(self._call_numbers), release)
