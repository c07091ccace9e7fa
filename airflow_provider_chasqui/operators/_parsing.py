"""Parsers for operator arguments. Template rendering may turn any argument into text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_chasqui.core.durations import parse_optional_duration, parse_timestamp
from airflow_provider_chasqui.core.errors import InvalidArgument

# Operators accept None for every duration: it means that the argument was not given.
parse_duration = parse_optional_duration


def parse_datetime(value: Any, name: str) -> datetime | None:
    """Return a datetime from a datetime or ISO 8601 text; None for None.

    :param value: the argument. Text without a time zone is in UTC.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is neither.
    """
    return None if value is None else parse_timestamp(value, name)


def parse_json(text: Any, name: str) -> Any:
    """Return the value in the text of a rendered `.json` file.

    :param text: the text. Any other type is returned unchanged.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the text is not JSON.
    """
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(
            f"the file given as {name} is not valid JSON after template rendering: {error}"
        ) from error


def parse_payloads(values: Any, name: str) -> list[Any]:
    """Return the payloads of several jobs as a list.

    :param values: any iterable except text, bytes and mappings.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is not such an iterable.
    """
    if isinstance(values, str | bytes | Mapping):
        raise InvalidArgument(_expected_payloads(values, name))
    try:
        return list(values)
    except TypeError:
        raise InvalidArgument(_expected_payloads(values, name)) from None


def _expected_payloads(values: Any, name: str) -> str:
    return f"{name} must be a list or another iterable of payloads, not {type(values).__name__}"
