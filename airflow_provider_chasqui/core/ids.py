"""Job ids: ULIDs, in order even within one millisecond."""

from __future__ import annotations

import os
import threading
from itertools import islice

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_DIGITS = {c: i for i, c in enumerate(_ALPHABET)}
_RANDOM_BITS = 80


def _render(time_ms: int, random: int) -> str:
    value = time_ms << _RANDOM_BITS | random
    return "".join(_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10))


class Ulids:
    """Mint ULIDs that sort in the order they were minted by this process.

    The last one is remembered and counted up within a millisecond, so a bulk of jobs keeps its
    order; ChasquiMQ draws afresh and does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time_ms = -1
        self._random = 0

    def mint(self, now_ms: int) -> str:
        with self._lock:
            if now_ms > self._time_ms:
                self._time_ms = now_ms
                # The top bit stays clear so that counting up never overflows in practice.
                self._random = int.from_bytes(os.urandom(10), "big") >> 1
            else:
                self._random += 1
            return _render(self._time_ms, self._random)


def time_of(job_id: str) -> int | None:
    """Return the millisecond in which a ULID was minted, or None if the id is not a ULID."""
    if len(job_id) != 26:
        return None
    value = 0
    for char in islice(job_id, 10):
        digit = _DIGITS.get(char)
        if digit is None:
            return None
        value = value << 5 | digit
    return value
