"""Raw replies of the server in the shapes that several verbs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_chasqui.core.event import Event, parse_event


def pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """A flat reply (fields and values, members and scores) two by two."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def last_id(reply: Any) -> str:
    """The id that a stream has reached, in the reply of XINFO STREAM."""
    last: bytes = dict(pairs(reply))[b"last-generated-id"]
    return last.decode()


def event(raw: Sequence[Any]) -> Event:
    """The event in a raw entry."""
    text = [field.decode("utf-8", "replace") for field in raw[1]]
    return parse_event(raw[0].decode(), dict(pairs(text)))
