"""Deadline of the current call: a server that does not reply must not delay its timeout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Seconds that the server may need for its last reply after the timeout of a call.
REPLY_GRACE = 1.0

_deadline: ContextVar[float | None] = ContextVar("chasqui_deadline", default=None)


@contextmanager
def limit_duration(timeout: float) -> Iterator[None]:
    """Let every request in this block fail `REPLY_GRACE` after a timeout.

    A block within another one keeps the deadline of the outer one.

    :param timeout: the timeout of the call in seconds. 0 is no timeout: the call looks once.
    """
    if timeout <= 0 or _deadline.get() is not None:
        yield
        return
    token = _deadline.set(time.monotonic() + timeout + REPLY_GRACE)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> float | None:
    """Return the deadline of the current call on the monotonic clock; None without one."""
    return _deadline.get()


def seconds_left() -> float | None:
    """Return the seconds until the deadline of the current call, more than 0; None without one."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.001, deadline - time.monotonic())
