"""Parsers of option values. Each raises typer's usage error."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import typer

from airflow_provider_chasqui.core import durations
from airflow_provider_chasqui.core.errors import InvalidArgument


def parse_duration(text: str | timedelta) -> timedelta:
    """Return the duration of a value such as 500ms, 30s, 1h30m or 7d; a number is in seconds."""
    try:
        return durations.parse_duration(text, "the duration")
    except InvalidArgument:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write 500ms, 30s, 5m, 1h30m or 7d"
        ) from None


def parse_datetime(text: str | datetime) -> datetime:
    """Return the timestamp of ISO 8601 text; without a time zone it is UTC."""
    try:
        return durations.parse_timestamp(text)
    except InvalidArgument:
        raise typer.BadParameter(
            f"{text!r} is not a timestamp; write 2030-01-31T12:00 or 2030-01-31T12:00+02:00"
        ) from None


def parse_payload(text: str) -> Any:
    """Return the value of a payload in JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise typer.BadParameter(
            f'the payload is not JSON ({cause}); quote it, as in \'{{"to": "ada"}}\' or \'"text"\''
        ) from None
