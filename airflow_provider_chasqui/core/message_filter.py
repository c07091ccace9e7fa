"""Filters of message triggers, as data that can be stored and compared.

{"name": "order"}                                the job name
{"name": ["order", "refund"]}                    one of several values
{"payload.kind": "paid", "payload.items.0": 7}   paths into the payload
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument

MessageFilter = Mapping[str, Any]

_MISSING = object()


def check_filter(message_filter: MessageFilter | None) -> None:
    """Raise `InvalidArgument` if the filter is not a mapping of known paths."""
    if message_filter is None:
        return
    if not isinstance(message_filter, Mapping):
        raise InvalidArgument(
            f"filter must be a mapping of paths to values, not {type(message_filter).__name__}"
        )
    for path in message_filter:
        root = str(path).partition(".")[0]
        if root not in ("name", "id", "payload"):
            raise InvalidArgument(
                f"the paths of filter must start with name, id or payload, not {path!r}"
            )


def matches(message_filter: MessageFilter | None, message: Mapping[str, Any]) -> bool:
    """Return whether every path of the filter has its value, or one of the values of a list."""
    if not message_filter:
        return True
    for path, expected in message_filter.items():
        actual = _get_path(message, path)
        if isinstance(expected, list | tuple):
            if actual not in expected and actual != expected:
                return False
        elif actual != expected or isinstance(actual, bool) is not isinstance(expected, bool):
            return False
    return True


def _get_path(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
