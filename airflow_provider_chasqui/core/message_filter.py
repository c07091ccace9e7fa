"""Which messages a watcher wants, said as data so that it can be stored and compared.

{"name": "order"}                                the job's name
{"name": ["order", "refund"]}                    one of several
{"payload.kind": "paid", "payload.items.0": 7}   paths into the payload
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument

MessageFilter = Mapping[str, Any]

_MISSING = object()


def check_filter(message_filter: MessageFilter | None) -> None:
    """Raise InvalidArgument if the filter cannot mean anything."""
    if message_filter is None:
        return
    if not isinstance(message_filter, Mapping):
        raise InvalidArgument(
            f"match= is a mapping from paths to values, not {type(message_filter).__name__}"
        )
    for path in message_filter:
        root = str(path).partition(".")[0]
        if root not in ("name", "id", "payload"):
            raise InvalidArgument(f"match= paths begin with name, id or payload; not {path!r}")


def matches(message_filter: MessageFilter | None, message: Mapping[str, Any]) -> bool:
    """Whether a message fits: every path has the value, or one of the values of a list."""
    if not message_filter:
        return True
    for path, wanted in message_filter.items():
        found = _get_path(message, path)
        if isinstance(wanted, list | tuple):
            if found not in wanted and found != wanted:
                return False
        elif found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
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
