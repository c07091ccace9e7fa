"""Parsers for operator arguments. Template rendering may turn any argument into text.

Operators accept None for every duration and time: it means that the argument was not given. A
template that renders None, or nothing, means the same.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.batch import check_batch_id
from airflow_provider_chasqui.core.durations import parse_optional_duration, parse_timestamp
from airflow_provider_chasqui.core.errors import InvalidArgument


def none_if_blank(value: Any) -> Any:
    """Return None for the text that a template renders from None, or from nothing.

    :param value: the argument.
    """
    return None if isinstance(value, str) and value.strip() in ("", "None") else value


def parse_duration(value: Any, name: str) -> timedelta | None:
    """Return a duration; None for None.

    :param value: the argument: a timedelta, a number of seconds, or text such as `1h30m`.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is none of them.
    """
    return parse_optional_duration(none_if_blank(value), name)


def parse_datetime(value: Any, name: str) -> datetime | None:
    """Return a datetime from a datetime or ISO 8601 text; None for None.

    :param value: the argument. Text without a time zone is in UTC.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is neither.
    """
    value = none_if_blank(value)
    return None if value is None else parse_timestamp(value, name)


def parse_batch(batch: Any, name: str = "batch") -> tuple[str, str | None]:
    """Return the id of a batch, and its queue if it is known.

    :param batch: a batch id, or the handle that ChasquiEnqueueOperator returned.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is neither.
    """
    if not isinstance(batch, dict):
        return check_batch_id(batch), None
    try:
        return check_batch_id(batch["batch_id"]), batch.get("queue_name")
    except KeyError:
        raise InvalidArgument(
            f"{name} must be a batch id or the handle that ChasquiEnqueueOperator returned, not "
            f"{batch!r}"
        ) from None


def safe_task_id(queue_name: str) -> str:
    """Return a queue name as a part of a task id or group id; other characters become `_`.

    :param queue_name: the name of the queue.
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", queue_name)
