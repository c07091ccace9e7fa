"""Which messages a watcher wants, said as data so that it can be stored and compared.

{"name": "order"}                                the job's name
{"name": ["order", "refund"]}                    one of several
{"payload.kind": "paid", "payload.items.0": 7}   paths into the payload
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import BadInput

Match = Mapping[str, Any]

_MISSING = object()


def check_match(match: Match | None) -> None:
    """Raise BadInput if the filter cannot mean anything."""
    if match is None:
        return
    if not isinstance(match, Mapping):
        raise BadInput(f"match= is a mapping from paths to values, not {type(match).__name__}")
    for path in match:
        root = str(path).partition(".")[0]
        if root not in ("name", "id", "payload"):
            raise BadInput(f"match= paths begin with name, id or payload; not {path!r}")


def matches(match: Match | None, message: Mapping[str, Any]) -> bool:
    """Whether a message fits: every path has the value, or one of the values of a list."""
    if not match:
        return True
    for path, wanted in match.items():
        found = _at(message, path)
        if isinstance(wanted, list | tuple):
            if found not in wanted and found != wanted:
                return False
        elif found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
            return False
    return True


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
