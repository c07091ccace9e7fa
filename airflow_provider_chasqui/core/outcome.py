"""What a handler can say besides returning a value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_chasqui.core.errors import InvalidArgument


class Unrecoverable(Exception):
    """Raise it from a handler: no retry can help, the job goes to the dead-letter queue."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """Return it from a handler: run the job again after a while; this run costs no attempt."""

    delay: timedelta

    def __post_init__(self) -> None:
        _check_delay(self.delay)


@dataclass(frozen=True, slots=True)
class Retry:
    """Return it from a handler: this attempt failed; run the job again after the given time."""

    delay: timedelta
    reason: str = "the handler asked for a retry"

    def __post_init__(self) -> None:
        _check_delay(self.delay)


def _check_delay(delay: timedelta) -> None:
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise InvalidArgument(
            f"the time to wait is a timedelta and not negative; this is {delay!r}"
        )
