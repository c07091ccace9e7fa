"""Which failures are worth another try of the task, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    InvalidArgument,
    KeyTypeMismatch,
    PermissionDenied,
    QueueFull,
    ServerTooOld,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

# What the caller or an administrator must change: the same call again ends the same way.
NON_RETRYABLE = (
    InvalidArgument,
    AuthenticationFailed,
    PermissionDenied,
    ServerTooOld,
    KeyTypeMismatch,
)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fail the task at once, without its retries, where the input cannot be right."""
    try:
        yield
    except InvalidArgument as error:
        from airflow.providers.common.compat.sdk import AirflowFailException

        raise AirflowFailException(str(error)) from error


def chasqui_retry_policy(
    *,
    queue_full_delay: timedelta = timedelta(minutes=5),
    unavailable_delay: timedelta = timedelta(seconds=30),
) -> ExceptionRetryPolicy:
    """Return a `retry_policy` for any task that uses a hook (Airflow 3.3 and newer).

    Bad input, a refused login or a missing right fail at once; a full queue and a server that is
    down are tried again after the given times; anything else is as the task says.
    """
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError:
        from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

        raise AirflowOptionalProviderFeatureException(
            "retry policies need Airflow 3.3 or newer; on older ones our operators still fail at "
            "once on bad input"
        ) from None
    rules = [RetryRule(exception=kind, action=RetryAction.FAIL) for kind in NON_RETRYABLE]
    rules.append(RetryRule(QueueFull, action=RetryAction.RETRY, retry_delay=queue_full_delay))
    rules.append(
        RetryRule(ConnectionFailed, action=RetryAction.RETRY, retry_delay=unavailable_delay)
    )
    return ExceptionRetryPolicy(rules=rules)
