"""Retries of tasks: which errors a later try of the task can resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    InvalidArgument,
    KeyTypeMismatch,
    PermissionDenied,
    QueueFull,
    ServerTooOld,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

# A user must correct these. The same call fails again.
NON_RETRYABLE = (
    InvalidArgument,
    AuthenticationFailed,
    PermissionDenied,
    ServerTooOld,
    KeyTypeMismatch,
)


@contextmanager
def fail_without_retry(
    is_final: Callable[[ChasquiError], bool] = lambda _: False,
) -> Iterator[None]:
    """Fail the task without retries if an argument is invalid.

    :param is_final: returns whether a retry cannot resolve another error. Default: it can.
    :raises AirflowFailException: in place of InvalidArgument and of final errors.
    """
    try:
        yield
    except ChasquiError as error:
        if not isinstance(error, InvalidArgument) and not is_final(error):
            raise
        from airflow.providers.common.compat.sdk import AirflowFailException

        raise AirflowFailException(str(error)) from error


def chasqui_retry_policy(
    *,
    queue_full_delay: timedelta | float | str = timedelta(minutes=5),
    unavailable_delay: timedelta | float | str = timedelta(seconds=30),
) -> ExceptionRetryPolicy:
    """Return a `retry_policy` for tasks that use a hook.

    An invalid argument, a refused login or a missing permission fails the task without retries. A
    full queue and an unavailable server are retried after a delay. For all other errors the retry
    settings of the task apply. A delay is a timedelta, a number of seconds, or text such as `5m`.

    :param queue_full_delay: the delay after QueueFull. Default: 5 minutes.
    :param unavailable_delay: the delay after ConnectionFailed. Default: 30 seconds.
    """
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    delays = {
        QueueFull: parse_duration(queue_full_delay, "queue_full_delay"),
        ConnectionFailed: parse_duration(unavailable_delay, "unavailable_delay"),
    }
    rules = [RetryRule(exception=error, action=RetryAction.FAIL) for error in NON_RETRYABLE]
    rules += [
        RetryRule(exception=error, action=RetryAction.RETRY, retry_delay=delay)
        for error, delay in delays.items()
    ]
    return ExceptionRetryPolicy(rules=rules)
