"""Outcomes that a handler can choose besides returning a result or raising an error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_chasqui.core.validation import require_duration


class Unrecoverable(Exception):
    """Error that a handler raises to skip all retries and move the job to the DLQ at once."""

    dead_reason = "unrecoverable"


class InvalidPayloadError(Unrecoverable):
    """Error of a job whose payload does not have the types that its declaration requires."""

    dead_reason = "invalid_payload"


@dataclass(frozen=True, slots=True)
class Snooze:
    """Return value of a handler that runs the job again later. This run costs no attempt.

    :param delay: how long to wait before the job runs again; not negative.
    :raises InvalidArgument: if `delay` is not a `timedelta` or is negative.
    """

    delay: timedelta

    def __post_init__(self) -> None:
        require_duration("delay", self.delay, timedelta(0))


@dataclass(frozen=True, slots=True)
class Retry:
    """Return value of a handler that fails this attempt and retries after the given delay.

    The job is moved to the dead-letter queue instead if no attempt is left.

    :param delay: how long to wait before the next attempt; not negative.
    :param reason: the error text of this attempt, for events and the dead letter.
    :raises InvalidArgument: if `delay` is not a `timedelta` or is negative.
    """

    delay: timedelta
    reason: str = "the handler returned Retry"

    def __post_init__(self) -> None:
        require_duration("delay", self.delay, timedelta(0))
