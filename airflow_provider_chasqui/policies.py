"""Which failures are worth another try of the task, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_chasqui.core.errors import (
    BadInput,
    LoginRefused,
    NotConnected,
    NotPermitted,
    QueueFull,
    ServerTooOld,
    WrongType,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

# What the caller or an administrator must change: the same call again ends the same way.
HOPELESS = (BadInput, LoginRefused, NotPermitted, ServerTooOld, WrongType)


@contextmanager
def no_retry_of_bad_input() -> Iterator[None]:
    """Fail the task at once, without its retries, where the input cannot be right."""
    try:
        yield
    except BadInput as error:
        from airflow.providers.common.compat.sdk import AirflowFailException

        raise AirflowFailException(str(error)) from error


def chasqui_retry_policy(
    *, when_full: timedelta = timedelta(minutes=5), when_down: timedelta = timedelta(seconds=30)
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
    rules = [RetryRule(exception=kind, action=RetryAction.FAIL) for kind in HOPELESS]
    rules.append(RetryRule(QueueFull, action=RetryAction.RETRY, retry_delay=when_full))
    rules.append(RetryRule(NotConnected, action=RetryAction.RETRY, retry_delay=when_down))
    return ExceptionRetryPolicy(rules=rules)
